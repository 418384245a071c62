"""What scripts and notebooks call: captures to profiles, profiles to figures, figures to verdicts, pages and gates.

Every function takes paths as text or `Path`; a run may be named, opened, or measured already. `dflash_bench` offers
these names itself, and imports them when they are first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_bench import whole
from dflash_bench.compare import compare
from dflash_bench.errors import UsageError, quoted
from dflash_bench.gate.decision import Decision
from dflash_bench.gate.decision import run_gate as _run_gate
from dflash_bench.gate.policy import load_policy
from dflash_bench.ingest.sources import IngestOptions, resolve
from dflash_bench.ingest.sources import ingest as _ingest
from dflash_bench.metrics.measure import measure as _measure
from dflash_bench.metrics.presets import Preset, reading_of
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import Comparison, RunMetrics, Sides
from dflash_bench.profile import Profile
from dflash_bench.profile import open_profile as _open_profile
from dflash_bench.report.page import comparison_page
from dflash_bench.report.page_parts import side_names, straggler
from dflash_bench.report.timeline import timeline_document

AnyRun = str | Path | Profile | RunMetrics
"""A run: the path of its profile or of captures, its profile, or its figures."""


def ingest_captures(
    *captures: str | Path,
    profiles: str | Path = "profiles",
    run: str | None = None,
    arm: str | None = None,
    workload: str | None = None,
    ranks: str | None = None,
    is_replace: bool = False,
) -> tuple[Profile, ...]:
    """Make profiles of captures and of folders of captures, one for each run among them; those made before are opened.

    ``run``: a name for all of them as one run. ``arm``, ``workload``: what the captures do not say. ``ranks``: where
    ranks are read, as `ingest --ranks` takes it. Raises UsageError for what is not there, DataError for what cannot be
    read (`PartlyReadError` where others could, with their profiles).
    """
    options = IngestOptions(Path(profiles), run=run, arm=arm, workload=workload, ranks=ranks, is_replace=is_replace)
    return _ingest([Path(each) for each in captures], options)


def open_profile(path: str | Path) -> Profile:
    """Open a profile. Raises DataError when the folder is none, SchemaError for a format that is not known."""
    return _open_profile(Path(path))


def measure(
    run: AnyRun, *, preset: str | None = None, step_range: str | None = None, arm: str | None = None
) -> RunMetrics:
    """All figures of a run. ``preset``: how its engine names things; ``step_range``: the range that is a step.

    ``arm``: of a run in which arms take turns. Large runs of several ranks are measured by several spawned processes: a
    script needs ``if __name__ == "__main__"``. Raises UsageError for a preset or an arm that is not there.
    """
    if isinstance(run, RunMetrics):
        return run
    profile = run if isinstance(run, Profile) else _the_profile(str(run))
    if preset is not None and preset not in set(Preset):
        raise UsageError(f"there is no preset {quoted(preset)}", hint=f"one of {', '.join(Preset)}")
    reading = Reading(is_open=step_range is None) if preset is None else reading_of(Preset(preset))
    return _measure(profile, replace(reading, step=step_range or reading.step, arm=arm or reading.arm))


def compare_runs(base: AnyRun | Sequence[AnyRun], candidate: AnyRun | Sequence[AnyRun]) -> Comparison:
    """Two sides, of one run or of several each: every change, with verdicts (``judgements``) and warnings."""
    return compare(Sides(_measured(base), _measured(candidate)))


def write_report(base: AnyRun, candidate: AnyRun, output: str | Path) -> Path:
    """Write the page of a comparison of two profiles, whole or not at all. Returns its path."""
    profiles = [_profile_of(each) for each in (base, candidate)]
    found = compare_runs(*(_measure(profile) for profile in profiles))
    names = side_names(found)
    ranks = sorted({*found.base.info.ranks, *found.candidate.info.ranks})
    sides = list(zip(names, profiles, (found.base, found.candidate), strict=True))
    timeline = timeline_document(sides, ranks, straggler(found.base), Reading(is_open=True))
    whole.write_text(Path(output), comparison_page(found, found.judgements, timeline))
    return Path(output)


def run_gate(
    candidate: AnyRun | Sequence[AnyRun], base: AnyRun | Sequence[AnyRun], policy: str | Path | None = None
) -> Decision:
    """Judge runs against others under a policy (a TOML file; None: the defaults). ``exit_code`` is the gate's.

    Raises UsageError when the sides cannot be compared, DataError when there is nothing to judge.
    """
    rules = load_policy(None if policy is None else Path(policy))
    return _run_gate(Sides(_measured(base), _measured(candidate)), rules)


def _measured(runs: AnyRun | Sequence[AnyRun]) -> tuple[RunMetrics, ...]:
    every = [runs] if isinstance(runs, str | Path | Profile | RunMetrics) else runs
    return tuple(measure(run) for run in every)


def _profile_of(run: AnyRun) -> Profile:
    if isinstance(run, RunMetrics):
        raise TypeError("a page shows steps of a run: pass its profile")
    return run if isinstance(run, Profile) else _the_profile(str(run))


def _the_profile(word: str) -> Profile:
    """The profile behind a name or a path, of captures too. Raises UsageError where there are none or several."""
    found = resolve(word, IngestOptions())
    if len(found) != 1:
        names = ", ".join(profile.info.run for profile in found)
        raise UsageError(f"{word} is {len(found)} runs ({names})", hint="name one of them")
    return found[0]
