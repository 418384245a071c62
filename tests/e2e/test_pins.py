"""What the host was doing when the GPU ran dry, arm by arm, from the loop to the table ``stall.by_cause``.

The engine runs on the simulated device, recorder and device share a clock on which host work takes next to no time, and
the capture goes through ingest and metrics like any other: what is left are the waits that the code itself asks for.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the decode loop needs the extra [impl]")

from decoding import FakeTime, assert_right, simulated_device

from dflash_bench.capture.recorder import EventRecorder, Origin
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.model import RunMetrics
from dflash_prep import ranges
from dflash_prep.arms import ARMS, parse_arm
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec, build
from dflash_prep.workload import load

STEPS = 12
REBUILD = "rebuild_compact"  # decode-prep, section 5.3
LENGTHS = "resolve_seq_lens"  # section 8
METADATA = "metadata"  # section 8.3


def recorded(arm: str, tmp_path) -> RunMetrics:
    time = FakeTime()
    recorder = EventRecorder(tmp_path / "rank0.sqlite", origin=Origin(0, 10**18), clock=time.now)
    spec = RunSpec(parse_arm(arm), load("smoke"), seed=0, rank=0, world=1, check=True, verify=True)
    engine = build(spec, simulated_device(time), AgreementGroup(1))
    ranges.use(recorder)
    try:
        ranges.mark(f"dflash_bench rank=0 world=1 arm={arm}")
        engine.run(STEPS, lambda: False, lambda _done: None)
        engine.close()
    finally:
        ranges.use(ranges.NullSink())
        recorder.close()
    assert_right(engine)
    (profile,) = ingest([recorder.path], IngestOptions(profiles=tmp_path / "profiles", run="r"))
    return measure(profile)


def causes(run: RunMetrics) -> dict[str, int]:
    """``range · call`` → launches that found the GPU dry; there is no table where none did."""
    rows = [row for table in run.tables if table.name == "stall.by_cause" for row in table.rows]
    return {str(cause): int(launches) for rank, cause, launches, *_ in rows if rank == 0}


def leads(run: RunMetrics) -> list[float]:
    """Of every graph launch."""
    (metric,) = (each for each in run.metrics if (each.name, each.rank) == ("graph.lead", 0))
    return metric.values.tolist()


@pytest.mark.parametrize("arm", [name for name in ARMS if name not in ("legacy", "counts")])
def test_without_the_legacy_waits_the_gpu_never_runs_dry(tmp_path, arm) -> None:
    run = recorded(arm, tmp_path)
    assert causes(run) == {}
    graphs = 1 if ARMS[arm].switches.step_graph else 2  # a step of `floor` is one graph
    assert len(leads(run)) == graphs * STEPS - 1
    assert min(leads(run)) > 0


@pytest.mark.parametrize(
    ("arm", "sites"),
    [
        pytest.param("legacy", {LENGTHS, REBUILD}, id="legacy"),
        pytest.param("syncfree,fused_rebuild=off", {REBUILD}, id="packing"),
        pytest.param("syncfree,cpu_lens_delegation=off", {LENGTHS}, id="lengths for the backends"),
        pytest.param("syncfree,static_bounds=off", {METADATA}, id="width of the table"),
    ],
)
def test_the_gpu_runs_dry_at_the_published_sites_of_what_is_switched_off_and_nowhere_else(tmp_path, arm, sites) -> None:
    """In every step but the first, while the host waits for a stream. Eager sampling (section 7) costs launches only,
    and they come while the draft graph runs.
    """
    found = causes(recorded(arm, tmp_path))
    assert {cause.partition(" · ")[0] for cause in found} == sites
    for site in sites:
        assert found[f"{site} · cudaStreamSynchronize"] >= STEPS - 1
