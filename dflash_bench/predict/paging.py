"""How a run takes pages: page size, block, requests, accept length; and the scenarios asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import TYPE_CHECKING

from dflash_bench.errors import UsageError
from dflash_bench.model import RunInfo
from dflash_bench.predict.allocation import Allocator
from dflash_bench.predict.prediction import Scenario

if TYPE_CHECKING:
    from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class Paging:
    """What decides about pages in this run; None where neither the run nor the user says it."""

    page_size: int | None = None
    block: int | None = None
    requests: int | None = None
    accept_length: float | None = None
    topup_pages: int | None = None
    arrivals: float | None = None

    def filled(self, other: Paging) -> Paging:
        """This one, and what it lacks from `other`."""
        missing = {each.name: getattr(other, each.name) for each in fields(self) if getattr(self, each.name) is None}
        return replace(self, **missing)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a rank commits a step."""
        return None if self.requests is None or self.accept_length is None else self.requests * self.accept_length

    def allocator(self, *, topup_pages: int | None, requests: int | None) -> Allocator:
        """The allocator with other pages in advance or other requests. Raises UsageError naming what is not known."""
        page_size, block, running, accept_length = self.page_size, self.block, self.requests, self.accept_length
        if page_size is None or block is None or running is None or accept_length is None:
            options = {
                "--page-size": page_size,
                "--block": block,
                "--running": running,
                "--accept-length": accept_length,
            }
            missing = ", ".join(option for option, value in options.items() if value is None)
            raise UsageError("the run does not say how it takes pages", hint=f"say it with {missing}")
        pages = (self.topup_pages or 0) if topup_pages is None else topup_pages
        return Allocator(page_size, block, accept_length, requests or running, pages, self.arrivals or 0.0)


def paging_of(profile: Profile) -> Paging:
    """What a run says: its workload, its switches, the accept length that its ranks counted, and who came."""
    info = profile.info
    counted = [c["accept.length"] for c in info.counters.values() if "accept.length" in c]
    topup = info.settings.get("switch.topup_pages")
    known = Paging(
        accept_length=fmean(counted) if counted else None,
        topup_pages=topup if isinstance(topup, int) else None,
        arrivals=_count_arrivals(profile),
    )
    workload = _workload(info)
    if workload is None:
        return known
    return known.filled(
        Paging(
            page_size=workload.kv.page_size,
            block=workload.speculation.block,
            requests=workload.requests.concurrency,
            accept_length=workload.speculation.accept_mean,
            arrivals=workload.requests.arrivals_per_step,
        )
    )


def _count_arrivals(profile: Profile) -> float | None:
    """New requests a step and rank; None where the engine kept no count of its steps.

    Whoever ended is in one more result that is nobody's, and in a closed loop another takes its place.
    """
    steps = profile.frame("steps")
    if steps.empty:
        return None
    if profile.arm is not None:
        steps = steps[steps["arm"] == profile.arm]
    steps = steps[(steps["processed"] > 0) & (steps["retracted"] == 0)]
    return float((steps["running"] - steps["processed"]).clip(lower=0).mean()) if len(steps) else None


def _workload(info: RunInfo):  # type: ignore[no-untyped-def]  # the loop's own package brings no types
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from dflash_prep.workload import WorkloadError, load

    text = info.settings.get("workload_toml")
    try:
        if isinstance(text, str):
            with TemporaryDirectory() as folder:
                file = Path(folder) / "workload.toml"
                file.write_text(text, encoding="utf-8")
                return load(str(file))
        return None if info.workload is None else load(info.workload)
    except WorkloadError:
        return None  # a workload of another version: what decides about pages must then be said


def topup_pages_of(arm: str, info: RunInfo) -> int:
    """K of an arm that differs from the run's in nothing else. Raises UsageError for any other arm."""
    from dataclasses import asdict

    from dflash_prep.arms import ArmError, parse_arm

    try:
        wanted = asdict(parse_arm(arm).switches)
    except ArmError as error:
        raise UsageError(str(error)) from error
    own = {key.removeprefix("switch."): value for key, value in info.settings.items() if key.startswith("switch.")}
    if not own:
        raise UsageError(f"{info.run} does not say its switches", hint="--topup-pages says what to predict")
    others = sorted(name for name, value in own.items() if name != "topup_pages" and wanted.get(name) != value)
    if others:
        raise UsageError(
            f"arm {arm} differs from {info.arm or 'the run'} in {', '.join(others)}, whose cost only a run can tell",
            hint=f"dflash-bench run --arm {arm}",
        )
    return int(wanted["topup_pages"])


def plan_scenarios(
    own: Paging,
    base: Scenario,
    *,
    ranks: Sequence[int],
    topup_pages: Sequence[int],
    requests: int | None,
) -> list[Scenario]:
    """All combinations of ranks and pages in advance. Without either question the allocator stays the profile's own."""
    pages: Sequence[int | None] = topup_pages or ([] if requests is None else [None])
    allocators: list[Allocator | None] = [own.allocator(topup_pages=k, requests=requests) for k in pages]
    allocators = allocators or [base.allocator]
    return [replace(base, ranks=n, allocator=allocator) for n in ranks for allocator in allocators]
