"""Predictions held against runs that were left out: what `docs/predict.md` tabulates.

    python tests/benchmarks/predict_checks.py FOLDER
    python tests/benchmarks/predict_checks.py --duets FOLDER

FOLDER holds the profiles that the commands in docs/predict.md make. Prints a row a check: predicted figure with its
interval, measured figure, error; and how many intervals hold the measured value. With `--duets` they are duets of
`control` and other numbers of pages in advance: the predicted arm ran in the same process, so the luck of a process,
most of the interval, is no part of the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_bench.metrics.measure import measure
from dflash_bench.predict.allocation import Allocator
from dflash_bench.predict.communication import measure_communication
from dflash_bench.predict.paging import paging_of
from dflash_bench.predict.prediction import Redraws, Scenario, predict
from dflash_bench.predict.trace import StepTrace, read_traces
from dflash_bench.profile import Profile, open_profile

BASES = ("base1-c", "base2-c", "base3-c")


@dataclass(frozen=True)
class Check:
    """Predict `names` of run `target` from `sources`."""

    label: str
    sources: tuple[str, ...]
    target: str
    scenario: Scenario
    names: tuple[str, ...]
    requests: int | None = None


def checks(traces: dict[str, list[StepTrace]]) -> Iterator[Check]:
    """All of them, from each base run alone and from the three together."""
    for sources in (*((base,) for base in BASES), BASES):
        who = sources[0] if len(sources) == 1 else "three runs"
        period = ("step.period",)
        yield Check(f"{who} → 0.3 ms of GPU work", sources, "short-c1", Scenario(1, gpu_work=300 / 9500), period)
        yield Check(f"{who} → GPU work × 0.5", sources, "half-c", Scenario(1, gpu_work=0.5), period)
        yield Check(f"{who} → GPU work × 2", sources, "double-c", Scenario(1, gpu_work=2), period)
        pages = ("alloc.step_share", "cost.prepare_for_decode")
        for k in (1, 2, 4, 8):
            allocator = Allocator(256, 8, 3.5, 36, k)
            yield Check(f"{who} → K = {k}", sources, f"k{k}", Scenario(1, allocator=allocator), pages, 36)
        for k, target in ((0, "bs192-c"), (2, "bs192-k2")):
            allocator = Allocator(256, 8, 3.5, 192, k)
            yield Check(f"{who} → 192 requests, K = {k}", sources, target, Scenario(1, allocator=allocator), pages, 36)
    for ranks in (4, 8):
        target = f"short-c{ranks}"
        given = {ranks: float(measure_communication(traces[target]).mean()) / 1e3}
        scenario = Scenario(ranks, ranks_per_gpu=ranks, given_us=given)
        yield Check(f"2 ranks → {ranks}", ("short-c2",), target, scenario, ("step.period", "dp.agreement_tax"))


def duet_checks(profiles: Sequence[Profile]) -> Iterator[tuple[Check, dict[str, list[StepTrace]]]]:
    """From the blocks of `control` to those of the other numbers of pages in advance in the same process."""
    pages = {"topup": 2, **{f"control,topup_pages={k}": k for k in range(9)}}
    for profile in profiles:
        control, targets = "control", [arm for arm in profile.info.arms if arm in pages]
        traces = {arm: read_traces(profile.of_arm(arm)) for arm in (control, *targets)}
        own = paging_of(profile.of_arm(control))
        for k, target in ((pages[target], target) for target in targets):
            scenario = Scenario(1, allocator=own.allocator(topup_pages=k, requests=None))
            names = ("alloc.step_share", "cost.prepare_for_decode", "step.period")
            yield Check(f"{profile.info.run} → {target}", (control,), target, scenario, names, own.requests), traces


def measured(name: str, run: str, traces: Sequence[StepTrace], folder: Path) -> float:
    """The same figure of a run that was made."""
    if name == "dp.agreement_tax":
        tax = measure(open_profile(folder / run)).find(name, None)
        assert tax is not None
        return float(np.median(tax.values))
    if name == "step.period":
        return float(np.median(np.concatenate([t.period for t in traces])))
    field = {"alloc.step_share": "allocates", "cost.prepare_for_decode": "prepare"}[name]
    return float(np.mean([getattr(t, field).mean() for t in traces]))


def main() -> None:
    folder = Path(sys.argv[-1])
    profiles = [open_profile(p) for p in sorted(folder.iterdir()) if (p / "run.json").exists()]
    if "--duets" in sys.argv:
        todo = list(duet_checks(profiles))
    else:
        all_traces = {profile.info.run: read_traces(profile) for profile in profiles}
        todo = [(check, all_traces) for check in checks(all_traces)]
    hits, total = 0, 0
    print(f"{'check':36} {'figure':24} {'predicted':>10} {'90 % interval':>23} {'measured':>10} {'error':>8}")
    for check, traces in todo:
        sources = [traces[name] for name in check.sources]
        length = Redraws(steps=min(t.num_steps for t in traces[check.target]))
        found = predict(sources, check.scenario, requests=check.requests, redraws=length)
        for name in check.names:
            figure, truth = found.figure(name), measured(name, check.target, traces[check.target], folder)
            unit = 1e3 if name != "alloc.step_share" else 1e-2
            is_in = figure.low <= truth <= figure.high
            hits, total = hits + is_in, total + 1
            error = f"{100 * (figure.value / truth - 1):+.1f} %" if truth else "–"
            interval = f"{figure.low / unit:.2f} … {figure.high / unit:.2f}"
            print(
                f"{check.label:36} {name:24} {figure.value / unit:10.2f} {interval:>23} {truth / unit:10.2f} {error:>8}"
                f" {'' if is_in else 'outside'}"
            )
    print(f"{hits} of {total} intervals hold the measured value")


if __name__ == "__main__":
    main()
