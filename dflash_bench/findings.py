"""Every warning code once, with what it means for whoever reads the figures.

A `Finding` carries the count and the particulars; here stands what its code means, for the README and for scripts that
match codes. A test walks the source, so that no code is missing here and none is left over.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_bench.model import Finding


@dataclass(frozen=True, slots=True)
class Code:
    """A warning code, the stage that gives it, its meaning, and its sentence, to be filled in with the particulars.

    Where ``sentence`` is empty the stage words it: it depends on what a file says.
    """

    code: str
    stage: str
    meaning: str
    sentence: str = ""


CODES: tuple[Code, ...] = (
    # capture
    Code("nvtx_missing", "capture", "the python package nvtx is not installed: nothing would be emitted to nsys"),
    Code("nvtx_nsys_pair", "capture", "this nvtx package and this nsys would lose every range without a word"),
    Code("ranges_missing", "capture", "the program emitted more ranges than the capture holds"),
    Code("ranges_unaccounted", "capture", "the capture holds more ranges than the program counted itself"),
    Code("domain_without_ranges", "capture", "a process opened an NVTX domain and left no range in it"),
    Code("ledger_missing", "capture", "a rank wrote no ledger, so its ranges cannot be counted"),
    Code("capture_missing", "capture", "a rank of an interrupted run left no whole capture"),
    Code(
        "process_killed",
        "capture",
        "a process of the program was killed before it wrote what it had recorded: its ranges are lost",
        "{count} processes ({pids}) were killed before they wrote what they had recorded: their ranges are lost",
    ),
    # ingest: what the file says of itself
    Code("driver_not_supported", "ingest", "the CUDA driver is newer than the nsys: GPU rows may be missing"),
    Code("nvtx_incomplete", "ingest", "nsys itself noted that NVTX ranges may be missing"),
    Code("cuda_not_started", "ingest", "nsys itself noted that CUDA profiling may not have started"),
    Code("schema_unstated", "ingest", "the export does not say which nsys wrote it: columns are taken at their names"),
    Code(
        "schema_unknown", "ingest", "the export has a schema version that is not known: columns may mean other things"
    ),
    Code("view_left_out", "ingest", "a table of nsys is a view in this file: it is left out"),
    Code("waits_without_calls", "ingest", "waits for the GPU without their API calls: no host wait is told from them"),
    Code("partial_export", "ingest", "tables or times were left out of the export on purpose"),
    Code("clipped_window", "ingest", "a slice of a longer capture: what began or ended outside is cut off"),
    # ingest: rows that say less than they should
    Code("name_missing", "ingest", "rows whose name the file does not hold, shown by its number or without one"),
    Code("ranges_lost", "ingest", "NVTX domains without a single range: this nvtx package and this nsys may not match"),
    Code("range_open_at_end", "ingest", "ranges without an end, open when the capture ended: in no duration figure"),
    Code(
        "gpu_work_without_device", "ingest", "graph replays that begin on the host: taken as work of their own device"
    ),
    # ingest: rows that are no events
    Code("table_without_columns", "ingest", "rows in tables without a column they mean nothing without, left out"),
    Code("table_without_ids", "ingest", "rows in tables without the column of an id, read as if all had the same one"),
    Code("range_without_time", "ingest", "ranges without start or length, left out"),
    Code("range_ends_before_start", "ingest", "NVTX ranges with end < start, left out"),
    Code("api_call_ends_before_start", "ingest", "API calls with end < start, left out"),
    Code("api_call_without_time", "ingest", "API calls without start or end, left out"),
    Code("api_row_is_backtrace", "ingest", "backtrace rows that repeat a call's correlation id, left out"),
    Code("gpu_work_ends_before_start", "ingest", "GPU rows with end < start, left out"),
    Code("gpu_work_without_time", "ingest", "GPU rows without timestamps, left out"),
    Code("operator_ends_before_start", "ingest", "operators or Python frames with end < start, left out"),
    Code("operator_without_time", "ingest", "operators or Python frames without start or length, left out"),
    Code("overhead_ends_before_start", "ingest", "profiler-overhead rows with end < start, left out"),
    Code("overhead_without_time", "ingest", "profiler-overhead rows without start or end, left out"),
    # ingest: ranks
    Code("process_without_rank", "ingest", "processes that are no rank, a launcher for instance; kept apart"),
    Code(
        "process_unassigned",
        "ingest",
        "a process with ranges that is no rank, the core of an engine for instance: it is in no figure",
        "process {pid} holds {count:,} ranges ({names}) and is no rank, so they are in no figure; where it is the "
        "core of an engine whose workers are the ranks, ingest again with --ranks {pid}=core",
    ),
    Code(
        "cuda_in_another_process",
        "ingest",
        "ranges in one process and CUDA in another, of a forked worker mostly: no lead, stall or wait is told",
        "the ranges lie in process {ranges} and {count:,} CUDA calls in process {cuda}: no step and no launch share a "
        "process, so no lead, stall or wait can be told; start workers by spawn, or trace them with "
        "--trace-fork-before-exec=true",
    ),
    Code(
        "capture_unreadable",
        "ingest",
        "captures beside those of this run that could not be read: ranks may be missing",
        "{count} of the captures beside these could not be read ({names}): ranks may be missing",
    ),
    Code("annotation_warning", "ingest", "what the annotations of an engine could not do: a target that is missing"),
    Code("rank_missing", "ingest", "the marks name a world with ranks that no capture holds"),
    # metrics: steps and ranges
    Code(
        "no_steps",
        "metrics",
        "no range has the step's name: figures are over the whole capture, and what could be steps is named",
        "{reason}: {whole}{hint}",
    ),
    Code(
        "preset_found",
        "metrics",
        "the steps are those that a known engine marks itself",
        "{count:,} steps are the ranges {step!r}, as --preset {preset} has it",
    ),
    Code(
        "warm_up_steps",
        "metrics",
        "steps that load modules, compile or instantiate graphs: in the figures, not in what is ranked",
        "{count:,} of {num:,} steps warm up ({names}); {share} of all step time{hint}",
    ),
    Code(
        "tail_incomplete",
        "metrics",
        "the last steps lack what nearly all others have, as those of a server that was killed before its rows were"
        " collected",
        "the last {count:,} of {num:,} steps, {share} of their time, lack {names}, which nearly all before them have:"
        " the end of the capture is lost, or there was"
        " nothing left to do{hint}",
    ),
    Code(
        "ranges_end_early",
        "metrics",
        "launches go on long after the last range: the ranges of the last part may be lost",
        "{count:,} launches follow the last step and no range does, for {share} of the time since the first step:"
        " ranges may be lost there, and what was launched there is in no figure",
    ),
    Code(
        "ranges_misnested",
        "metrics",
        "ranges that end after the range of their thread that they began in: opened in one order, closed in another",
        "{count:,} of {num:,} ranges end after the range that they began in ({names}), in {steps:,} steps, {share} of"
        " step time: they were opened in one order and closed in another, and what these names last and cost is"
        " doubtful",
    ),
    Code(
        "ranges_not_closed",
        "metrics",
        "ranges of the steps' thread that were opened and not closed while steps went on",
        "{count:,} ranges were opened and not closed while steps went on ({names}), the first in step {first:,}: pushes"
        " and pops do not match there, and what these ranges held is blamed on those around them",
    ),
    Code(
        "step_name_in_two_domains",
        "metrics",
        "ranges of the step's name in a second NVTX domain, not counted",
        "{count:,} ranges match the step name in another domain than {domain!r} and do not count",
    ),
    Code(
        "step_inside_step",
        "metrics",
        "step ranges that begin inside another step, not counted",
        "{count:,} step ranges begin inside another step and do not count",
    ),
    Code(
        "process_without_steps",
        "metrics",
        "a process of the rank holds no steps: its calls and GPU work do not count",
        "{count} of {num} processes of this rank hold no steps: their {calls:,} API calls and "
        "{work:,} GPU rows are in no step, lead or wait figure",
    ),
    Code(
        "name_in_two_domains",
        "metrics",
        "ranges of the program's names in a library's domain, not counted",
        "{count:,} ranges bear a name of the step range's domain in another domain and do not count for it",
    ),
    Code(
        "too_many_range_names",
        "metrics",
        "more range names than are listed: names that change with every call",
        "{num_names:,} range names: only the {limit} with most ranges are listed",
    ),
    Code(
        "no_alloc_ranges",
        "metrics",
        "no allocation ranges: whether a step allocated cannot be told",
        "no range named {name!r}: whether steps allocated cannot be told",
    ),
    Code(
        "alloc_cost_of",
        "metrics",
        "pages are not taken inside the preparation: alloc.step_cost is of the outermost range that holds them",
        "{name!r} lies in {holder!r}, not in {prepare!r}: alloc.step_cost is of {holder!r}",
    ),
    Code(
        "alloc_cost_unknown",
        "metrics",
        "no range of a step holds the allocations: no alloc.step_cost",
        "no range inside the steps holds {name!r}, so alloc.step_cost cannot be told",
    ),
    # metrics: launches and GPU work
    Code(
        "no_api_calls",
        "metrics",
        "no CUDA API calls captured: host waits cannot be told",
        "no CUDA API calls captured: host waits cannot be told",
    ),
    Code(
        "no_launch_calls",
        "metrics",
        "API calls, none of them a launch: as an nsys older than the CUDA driver records",
        "{count:,} API calls captured and none of them a launch: an old nsys under a new driver?",
    ),
    Code(
        "no_gpu_rows",
        "metrics",
        "no device rows captured: the GPU is neither idle nor busy, but unknown",
        "no device rows captured{where}: nothing is known of what the GPU did, idle or busy",
    ),
    Code(
        "gpu_work_without_launch",
        "metrics",
        "GPU work whose launch call is not in the capture, in no lead figure",
        "{count:,} of {num:,} pieces of GPU work have no launch call in the capture",
    ),
    Code(
        "launches_without_work",
        "metrics",
        "launch calls that no GPU work in the capture joins",
        "{count:,} of {num:,} launch calls join no GPU work",
    ),
    Code(
        "gpu_work_uncorrelated",
        "metrics",
        "GPU work with correlation id 0 that no launch can be found for",
        "{count:,} GPU rows have correlation id 0 and join no launch{replays}",
    ),
    Code(
        "joined_by_order",
        "metrics",
        "graph replays without correlation id, joined in order of launch",
        "{count:,} graph replays carry no correlation id and were joined in order of launch{shift}",
    ),
    Code(
        "duplicate_api_calls",
        "metrics",
        "API calls that repeat a correlation id; the first of each counts",
        "{count:,} API calls repeat a correlation id; the first of each counts",
    ),
    Code(
        "impossible_pairs",
        "metrics",
        "GPU work that starts before its launch call",
        "{count:,} of {num:,} pieces of GPU work start before their launch call",
    ),
    Code(
        "impossible_rows",
        "metrics",
        "GPU rows that end after the capture, or long after the next of their stream began, left out",
        "{count:,} GPU rows end after the capture stopped or long after the next row of their stream began: their ends"
        " are left out, and the steps they are from are in no stall or dry time",
    ),
    Code(
        "graph_launches_without_work",
        "metrics",
        "graph launches that no GPU work joins: lead and stalls withheld",
        "{count:,} graph launches join no GPU work: the rest gives no lead or stall figure{replays}",
    ),
    Code(
        "coverage_withheld",
        "metrics",
        "under 50 % of launches and GPU work joined: lead and stalls withheld",
        "only {share:.0%} of launches and GPU work could be joined: lead and stall figures are "
        "withheld ({without:,} launches without work, {unlaunched:,} pieces of work without "
        "launch{impossible}){replays}",
    ),
    Code(
        "coverage_low",
        "metrics",
        "under 95 % of launches and GPU work joined: lead and stalls rest on these",
        "{share:.0%} of launches and GPU work could be joined: lead and stall figures rest on "
        "these ({without:,} launches without work, {unlaunched:,} pieces of work without "
        "launch{impossible}){replays}",
    ),
    Code(
        "calls_withheld",
        "metrics",
        "launch calls missing for most of the GPU work: waits, costs and counts withheld",
        "only {share:.0%} of the GPU work in steps has its launch call in the capture: calls are missing, and figures"
        " of waits, costs and calls are withheld",
    ),
    Code(
        "calls_missing",
        "metrics",
        "launch calls missing for some of the GPU work: waits, costs and counts may be too small",
        "{share} of the GPU work in steps has its launch call in the capture: calls are missing, and figures of"
        " waits, costs and calls may be too small",
    ),
    Code(
        "steps_without_calls",
        "metrics",
        "steps whose API calls were not recorded: in no wait, cost, launch or lead figure",
        "{count:,} of {num:,} steps have GPU work and no API call in the capture (step {which}): they are in no wait,"
        " cost, launch or lead figure",
    ),
    Code(
        "idle_steps",
        "metrics",
        "iterations that launched nothing, in no figure of the others",
        "{count:,} of {num:,} steps launched nothing: they are counted as idle and are in no other figure",
    ),
    Code(
        "waits_polled",
        "metrics",
        "host waits that are runs of event or stream queries, each counted as one wait; "
        "what costs around them is known to the time between two",
        "{count:,} host waits are runs of cudaEventQuery or its kin that returned not-ready: each counts as one wait,"
        " from the start of its first query to the end of its last",
    ),
    Code(
        "api_unknown",
        "metrics",
        "API calls of a family that is not known here: no host wait is told from them",
        "{count:,} API calls of a family that is not known here, such as {name}: host waits and costs cannot be told",
    ),
    Code(
        "steps_without_launches",
        "metrics",
        "steps without a launch that GPU work was found for: in no lead or stall figure",
        "{count:,} of {num:,} steps have no launch with GPU work in the capture: no lead or stall is computed of them",
    ),
    # metrics: several ranks
    Code(
        "partly_pooled",
        "metrics",
        "pooled figures that some rank could not give",
        "rank {ranks} could not give {names}: pooled, they speak of the other ranks",
    ),
    Code(
        "rank_without_agreement",
        "metrics",
        "ranks without an agreement, left out of the cross-rank figures",
        "no agreement inside a step on rank {ranks}: the cross-rank figures leave these ranks out",
    ),
    Code(
        "agreements_unpaired",
        "metrics",
        "agreements that some rank lacks, at the ends of the captures mostly: left out of the cross-rank figures",
        "{count:,} agreements have no counterpart on every rank and are left out (the ranks hold {least:,} to {most:,} "
        "each, {paired:,} belong together)",
    ),
    Code(
        "agreements_outside_steps",
        "metrics",
        "agreements that do not lie in a step of every rank, of ranks without requests mostly: in no figure",
        "{count:,} agreements do not lie in a step of every rank, and count in no cross-rank figure; {inside:,} do",
    ),
    Code(
        "agreements_apart",
        "metrics",
        "ranks agree, and most agreements do not overlap in time with one of every other rank: no cross-rank figures",
        "of {count:,} agreements most do not overlap in time with one of every other rank, so that none is known to "
        "belong to another, and there are no cross-rank figures",
    ),
    Code(
        "agreements_pairing_unsure",
        "metrics",
        "captures without a common clock begin at different steps, and which agreements belong together is a guess",
        "no clock tells which of {count:,} agreements belong together: they are taken to begin {shift} apart, where "
        "their clocks differ most steadily",
    ),
    Code(
        "clock_drift",
        "metrics",
        "a rank's clock runs faster than the first rank's: its offset follows a line over time",
        "a clock drifts by {ppm:+,.0f} ppm against the first rank's; its offset follows that over {count:,} agreements",
    ),
    Code(
        "clock_drift_unknown",
        "metrics",
        "the agreements of ranks on clocks of their own are too few to tell whether these drift",
        "clocks are lined up by {count} agreements alone, which differ by {spread_us:,.1f} µs: too few to tell whether "
        "one drifts, and the cross-rank figures are as good as that",
    ),
    Code(
        "steps_twice",
        "metrics",
        "most iterations hold two steps, from agreement to agreement: the step's range opens more than once in each",
        "two step ranges or more lie between two agreements, {count:,} times: an iteration is counted as several "
        "steps; name another range with --step-range",
    ),
    Code(
        "clocks_not_aligned",
        "metrics",
        "ranks on clocks of their own that nothing lines up: no cross-rank figures",
        "{count} clocks and no agreement of two ranks to line them up by: no cross-rank figures",
    ),
    Code(
        "clock_spread",
        "metrics",
        "the ranks' clocks line up less well than the effect is large",
        "the clocks line up to {spread_us:,.1f} µs only, more than the agreement tax of "
        "{effect_us:,.1f} µs: the cross-rank figures are not to be trusted",
    ),
    Code(
        "unknown_counter",
        "metrics",
        "engine counters that this version has no definition of, left out",
        "engine counters without a definition here were left out: {names}",
    ),
    # compare
    Code("different_workload", "compare", "base and candidate ran different workloads"),
    Code("different_workload_file", "compare", "base and candidate ran workloads from files that say different things"),
    Code("different_device", "compare", "base and candidate ran on different devices"),
    Code("different_world", "compare", "base and candidate had different numbers of ranks"),
    Code("different_recorder", "compare", "base and candidate were recorded by different tools"),
    Code("different_nsys_version", "compare", "base and candidate were exported by different nsys versions"),
    Code("different_driver", "compare", "base and candidate ran under different GPU drivers"),
    Code("different_clocks", "compare", "base and candidate ran at different clock settings"),
    Code("different_power_limit", "compare", "base and candidate ran on GPUs with different power limits"),
    Code("different_persistence", "compare", "base and candidate ran with and without the driver kept loaded"),
    Code("different_cpu", "compare", "base and candidate ran on different CPU models"),
    Code("different_cores", "compare", "base and candidate had different numbers of CPU cores"),
    Code("different_reports", "compare", "base and candidate were written as one report per rank and one for all"),
    Code("different_seed", "compare", "base and candidate ran with different seeds"),
    Code("different_steps", "compare", "base and candidate ran different numbers of steps"),
    Code("different_delay", "compare", "a delay was planted in one of base and candidate, to see it found"),
    Code("different_model", "compare", "base and candidate decoded with different kernels of the checksum model"),
    Code("different_check", "compare", "one of base and candidate checked its allocations, which makes the host wait"),
    Code("different_backend", "compare", "the ranks of base and candidate agreed over different backends"),
    Code("different_interrupted", "compare", "one of base and candidate was interrupted"),
    Code("different_python", "compare", "base and candidate ran under different Python versions"),
    Code("different_torch", "compare", "base and candidate ran under different torch versions"),
    Code("different_triton", "compare", "base and candidate ran under different triton versions"),
    Code(
        "different_composition",
        "compare",
        "base and candidate consist of different shares of prefill, mixed, eager steps",
    ),
    Code(
        "host_speed",
        "compare",
        "in this run the host was faster or slower than usual: all costs of it alike",
        "the host was × {times} {word} in {run} than in the median run",
    ),
    Code("different_nvtx", "compare", "base and candidate ran under different nvtx packages"),
    # predict
    Code(
        "waits_taken_as_work",
        "predict",
        "waits elsewhere than for the result, which the model of the loop takes for host work",
        "{who} waits for the GPU elsewhere than for the result, {share:.0%} of its time: the model takes that for"
        " host work, so another GPU would change more than is said here",
    ),
    Code(
        "communication_unchanged",
        "predict",
        "the agreement among more ranks is taken to cost what it costs in the profile",
        "the agreement is taken to cost what it costs in the profile, {mean_us:.0f} µs, but it grows with the ranks:"
        " say it with --agreement-us, or name profiles of other sizes with --also",
    ),
    # gate
    Code(
        "further_runs",
        "gate",
        "further runs could not be made or are not like the others: the decision so far stands",
        "further runs do not count, the decision rests on those before: {reason}",
    ),
    Code("different_tokens", "gate", "the runs committed different numbers of tokens: they did not do the same work"),
)

_SENTENCES = {code.code: code.sentence for code in CODES}


def finding(code: str, rank: int | None, count: int, **facts: object) -> Finding:
    """A warning in the words of its row; the fact ``option`` is its own too. Raises KeyError for a code without a row,
    or a fact that its words lack."""
    text = _SENTENCES[code].format(count=count, **facts)
    return Finding(code, rank, count, text, str(facts.get("option", "")))
