"""``dflash-bench predict``: what a run would be with more ranks, another GPU, more requests, pages in advance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.console import reading_progress, stdout
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    AsJson,
    NsysPath,
    PresetName,
    ProfilesPlace,
    RankPattern,
    StepRange,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.cli.urls import with_urls
from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.predict.prediction import Prediction


@with_urls("run")
def predict(
    run: Annotated[
        list[str],
        typer.Argument(help="Profile, capture or pattern of runs of one arm; numbers behind it are more --ranks."),
    ],
    ranks: Annotated[
        list[str] | None, typer.Option(help="Numbers of ranks: 8 16 32, or 8,16,32. Default: those of the run.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Further profiles, of the same arm: what agreements cost among other numbers of ranks."),
    ] = None,
    gpu_work: Annotated[str, typer.Option(help="Factor on the graphs' GPU time, such as 0.6.")] = "1",
    host_work: Annotated[str, typer.Option(help="Factor on the host's work, such as 1.5.")] = "1",
    topup_pages: Annotated[
        str | None, typer.Option(help="Pages in advance K (#47685): 2, or 0,1,2,4,8, or 0-8.")
    ] = None,
    arm: Annotated[str | None, typer.Option(help="An arm that differs in --topup-pages alone, such as topup.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Running requests of a rank.")] = None,
    agreement_us: Annotated[
        list[str] | None, typer.Option("--agreement-us", help="RANKS:µs that an agreement takes, such as 32:900.")
    ] = None,
    ranks_per_gpu: Annotated[int, typer.Option(min=1, help="Ranks that share a GPU.")] = 1,
    together: Annotated[
        bool, typer.Option("--together", help="Ranks as correlated as in the run, instead of independent.")
    ] = False,
    page_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a KV page, where the run does not say.")
    ] = None,
    block: Annotated[int | None, typer.Option(min=1, help="Drafted block, likewise.")] = None,
    running: Annotated[int | None, typer.Option(min=1, help="Running requests of a rank in the run.")] = None,
    accept_length: Annotated[float | None, typer.Option(help="Tokens committed a request and step.")] = None,
    arrivals: Annotated[
        float | None, typer.Option(min=0, help="New requests a step and rank. Default: as counted in the run.")
    ] = None,
    loop_range: Annotated[
        str, typer.Option(help="Range that goes over all requests and nothing else: it grows with --requests.")
    ] = "check_memory",
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    json: AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Also write a page with figures over the ranks."),
    ] = None,
    preset: PresetName = None,
    step_range: StepRange = None,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Predict step period, tokens/s, agreement tax and allocation steps from the samples of a run.

    The loop is replayed with the run's own steps, redrawn in blocks: what that leaves out is in docs/predict.md.
    """
    from dflash_bench.ingest.sources import IngestOptions, resolve
    from dflash_bench.predict.paging import Paging, paging_of, plan_scenarios, topup_pages_of
    from dflash_bench.predict.prediction import Redraws, Scenario
    from dflash_bench.predict.prediction import predict as predicted
    from dflash_bench.predict.trace import Roles, read_traces

    word, *more_ranks = run
    sizes = _whole_numbers(",".join([*(ranks or []), *more_ranks]), "--ranks") if ranks or more_ranks else []
    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    with reading_progress() as progress:
        found = resolve(word, options, progress)
        others = [p for name in also or [] for p in resolve(name, options, progress)]
    reading = chosen_reading(preset, step_range, agreement_range)
    roles = Roles(reading.step, reading.agreement, (loop_range,))
    runs, further = ([read_traces(profile, roles) for profile in side] for side in (found, others))
    info, name = found[0].info, ", ".join(p.info.run for p in found)
    if len({p.info.arm for p in found}) > 1:
        raise UsageError(f"{name} are runs of several arms", hint="name the runs of one arm")
    own = Paging(page_size, block, running, accept_length, None, arrivals).filled(paging_of(found[0]))
    pages = _whole_numbers(topup_pages, "--topup-pages") if topup_pages is not None else []
    if arm is not None:
        pages.append(topup_pages_of(arm, info))
    scenario = Scenario(
        ranks=len(runs[0]),
        gpu_work=_factor(gpu_work, "--gpu-work"),
        host_work=_factor(host_work, "--host-work"),
        ranks_per_gpu=ranks_per_gpu,
        together=together,
        given_us=_given(agreement_us or []),
    )
    scenarios = plan_scenarios(own, scenario, ranks=sizes or [len(runs[0])], topup_pages=pages, requests=requests)
    tokens = replace(own, requests=requests or own.requests).tokens_per_step
    results = [
        predicted(runs, each, also=further, tokens_per_step=tokens, requests=own.requests, redraws=Redraws(seed=seed))
        for each in scenarios
    ]
    if output is not None:
        import shlex
        import sys

        from dflash_bench.report.prediction import prediction_page

        words = [f"{output.name}" if w == str(output) else w for w in sys.argv[1:]]
        write_whole(output, prediction_page(name, results, shlex.join(["dflash-bench", *words])))
    if json:
        from dflash_bench.report.prediction import prediction_json

        typer.echo(prediction_json(name, results))
        return
    _show(name, results)


def _show(run: str, results: Sequence[Prediction]) -> None:
    from rich.table import Table

    from dflash_bench.report.prediction import figure_rows, sentences

    for line in sentences(run, results):
        stdout.print(line, markup=False)
    heads, rows = figure_rows(results)
    for begin in range(0, len(results), 3):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for k, head in enumerate([heads[0], *heads[begin + 1 : begin + 4]]):
            table.add_column(head, justify="left" if k == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(row[0], *row[begin + 1 : begin + 4])
        stdout.print()
        stdout.print(table)


def _whole_numbers(text: str, option: str) -> list[int]:
    numbers: list[int] = []
    for word in re.split(r"[,\s]+", text.strip()):
        span = re.fullmatch(r"(\d+)(?:(?:-|…|\.\.)(\d+))?", word)
        if span is None:
            raise UsageError(f"{option} takes whole numbers such as 8,16,32, not {word!r}")
        low = int(span[1])
        numbers.extend(range(low, int(span[2] or low) + 1))
    return numbers


def _factor(text: str, option: str) -> float:
    try:
        value = float(text.strip().removeprefix("×").removeprefix("x").strip())
    except ValueError:
        raise UsageError(f"{option} takes a factor such as 0.6, not {text!r}") from None
    if not 0 < value < float("inf"):
        raise UsageError(f"{option} must be above 0, not {text}")
    return value


def _given(words: Sequence[str]) -> dict[int, float]:
    found = {}
    for word in words:
        match = re.fullmatch(r"(\d+):(\d+(?:\.\d+)?)", word.strip())
        if match is None:
            raise UsageError(f"--agreement-us takes RANKS:µs such as 32:900, not {word!r}")
        found[int(match[1])] = float(match[2])
    return found
