"""``dflash-bench list``: what there is: runs, arms, workloads, presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_bench.cli.console import stdout
from dflash_bench.cli.options import DEFAULT_PROFILES, AsJson, ProfilesFolder
from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.profile import Profile


class Listed(StrEnum):
    """What can be listed."""

    RUNS = "runs"
    ARMS = "arms"
    WORKLOADS = "workloads"
    PRESETS = "presets"


@dataclass(frozen=True, slots=True)
class _Listing:
    """Rows as texts for eyes, and as data for scripts."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    data: Sequence[Any]
    note: str = ""


def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")] = Listed.RUNS,
    json: AsJson = False,
    profiles: ProfilesFolder = DEFAULT_PROFILES,
) -> None:
    """List runs, or the arms, workloads and presets that are known."""
    from dflash_bench.report.console import rendered
    from dflash_bench.report.sheets import Sheet

    makers: dict[Listed, Callable[[], _Listing]] = {
        Listed.RUNS: lambda: _runs(profiles),
        Listed.ARMS: _arms,
        Listed.WORKLOADS: _workloads,
        Listed.PRESETS: _presets,
    }
    found = makers[what]()
    if json:
        typer.echo(dumps(found.data, indent=1))
        return
    left = tuple(column for column in found.columns if column not in ("ranks", "size", "age"))
    stdout.print(rendered(Sheet(found.title, found.columns, tuple(found.rows), left=left, note=found.note)))


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _runs(folder: Path) -> _Listing:
    from dflash_bench.ingest.sources import profiles_in

    data = [_run(profile) for profile in profiles_in(folder)]
    if not data:
        raise UsageError(f"{folder} holds no runs", hint="dflash-bench run --arm control, or --profiles FOLDER")
    now = datetime.now(UTC)
    rows = [
        (
            run["run"],
            " + ".join(run["arms"]) or "–",
            run["workload"] or "–",
            run["device"] or "–",
            str(len(run["ranks"])),
            _age((now - datetime.fromisoformat(run["created_utc"])).total_seconds()),
            f"{run['size_bytes'] / 1e6:,.1f} MB",
        )
        for run in data
    ]
    columns = ("run", "arms", "workload", "device", "ranks", "age", "size")
    return _Listing(f"{len(data)} run{'s' * (len(data) != 1)} in {folder}", columns, rows, data)


def _run(profile: Profile) -> dict[str, Any]:
    from dflash_bench.layout import FIGURES

    info, files = profile.info, [path for path in profile.path.rglob("*") if path.is_file()]
    return {
        "run": profile.path.name,
        "arms": list(info.arms or ([info.arm] if info.arm else [])),
        "workload": info.workload,
        "device": info.device,
        "ranks": list(info.ranks),
        "created_utc": info.created_utc,
        "size_bytes": sum(
            # without what is kept of its figures, which can be made again
            path.stat().st_size
            for path in files
            if path.relative_to(profile.path).parts[0] != FIGURES
        ),
    }


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


# ── arms, workloads, presets ─────────────────────────────────────────────────────────────────────────────────────────


def _arms() -> _Listing:
    """Each arm, what it adds to the one before, and what that takes away. Arms with the same switches say so."""
    arms = _arms_known()
    about = next(iter(arms.values())).switches.__dataclass_fields__
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Any]] = []
    names: dict[Any, str] = {}
    before = {key: field.default for key, field in about.items()}
    for name, arm in arms.items():
        switches = asdict(arm.switches)
        same = names.setdefault(arm.switches, name)
        data.append({"arm": name, "switches": switches, "same_as": None if same == name else same})
        added = [key for key, value in switches.items() if value != before[key]]
        if same != name:
            rows.append((name, "", "", f"shares all switches with {same}: its name as the base of a comparison"))
        elif not added:
            rows.append((name, "", "", "every published change off"))
        for k, key in enumerate(added if same == name else ()):
            rows.append((name if k == 0 else "", _setting(key, switches[key]), *_about(about[key])))
        before = switches
    in_some = {key for each in data for key, value in each["switches"].items() if value != about[key].default}
    rows += [("(none)", key, *_about(about[key])) for key in about if key not in in_some]
    note = "each arm is the one before and these switches; --arm NAME,switch=value makes any other"
    return _Listing("Arms", ("arm", "switch", "PR", "what it does"), rows, data, note)


def _setting(key: str, value: bool | int) -> str:
    return key if value is True else f"{key}={value}"


def _about(field: Any) -> tuple[str, str]:
    return field.metadata["pr"], f"removes {field.metadata['removes']}"


def _arms_known() -> Any:
    try:
        from dflash_prep.arms import ARMS
    except ImportError:
        raise UsageError("the built-in loop is not installed", hint='pip install "dflash-bench[impl]"') from None
    return ARMS


def _workloads() -> _Listing:
    _arms_known()
    from dflash_prep.workload import descriptions

    found = descriptions()
    data = [{"workload": name, "description": text} for name, text in found.items()]
    note = "--workload FILE.toml takes one of your own"
    return _Listing("Workloads", ("workload", "what it is"), list(found.items()), data, note)


def _presets() -> _Listing:
    from dflash_bench.metrics.presets import PRESETS

    rows = [
        (str(name), engine.reading.step, engine.reading.prepare, engine.reading.agreement)
        for name, engine in PRESETS.items()
    ]
    columns = ("preset", "step", "preparation", "agreement of ranks")
    data = [dict(zip(("preset", "step", "prepare", "agreement"), row, strict=True)) for row in rows]
    return _Listing("Presets", columns, rows, data, "names of ranges; what begins with re: is a regular expression")
