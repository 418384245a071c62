"""What ingest and metrics cost, beside others that read the same export: ``python tests/benchmarks/ingest.py``.

Every case is a command of its own, measured from outside; the cases take turns, so that a busy machine slows all alike.
Ratios within one run are what to quote; CPU time is the steadier of the two where other work shares the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
# run by path: the folder of the generator is not on the path otherwise
sys.path.append(str(HERE.parent))

from generator import Mode, Spec, write_export  # noqa: E402
from measured import Case, Measured, run  # noqa: E402

BARE, BARE_2, INGEST, METRICS = "bare copy", "bare copy, 2 processes", "ingest", "metrics"
NSYS_REPORTS = ("nvtxgpuproj", "nvtxkernsum", "gpukernsum")


def main() -> None:
    """Parse, generate, measure, print."""
    parser = argparse.ArgumentParser(description="Measure ingest and metrics against their peers.")
    parser.add_argument("--rows", type=int, default=7_600_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.GRAPH)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--export", type=Path, help="measure on this file instead of a generated one")
    parser.add_argument("--scale-rows", type=int, default=1_900_000, help="rows at 1× of the linearity table")
    parser.add_argument("--scales", type=int, nargs="*", default=[1, 2, 5, 10], help="none: no linearity table")
    parser.add_argument("--no-nsys", action="store_true", help="leave `nsys stats` out (minutes to hours)")
    parser.add_argument("--nsys-ai", default=shutil.which("nsys-ai"), help="the nsys-ai command, if there is one")
    parser.add_argument("--peer-timeout", type=float, default=600, help="seconds after which a foreign peer is stopped")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="dflash-bench-benchmark-", dir=args.folder) as scratch:
        _measure(args, Path(scratch))


def _measure(args: argparse.Namespace, scratch: Path) -> None:
    export = args.export or write_export(
        scratch / "bench.sqlite", Spec(rows=args.rows, ranks=args.ranks, mode=args.mode)
    )
    print(_machine())
    size = f"{_num_rows(export):,} event rows, {export.stat().st_size / 1e6:,.0f} MB"
    print(f"{size}, {args.ranks} ranks, n = {args.repeats}\n")
    cases = _in_turns(_own_commands(export, scratch), args.repeats, scratch, 3600)
    if not args.no_nsys and shutil.which("nsys"):
        cases += _in_turns(_nsys_commands(export), 1, scratch, args.peer_timeout)
    if args.nsys_ai:
        cases += _in_turns({"nsys-ai: first look": [args.nsys_ai, "info", str(export)]}, 1, scratch, args.peer_timeout)
    _print_cases(cases)
    if args.scales:
        _print_scales(args, scratch)


def _own_commands(export: Path, scratch: Path) -> dict[str, list[str]]:
    python, bare = sys.executable, str(HERE / "bare_copy.py")
    profiles = ["--profiles", str(scratch / "profiles")]
    return {
        BARE: [python, bare, str(export), str(scratch / "bare")],
        BARE_2: [python, bare, str(export), str(scratch / "bare2"), "--processes", "2"],
        INGEST: [python, "-m", "dflash_bench", "ingest", str(export), "--run", "bench", "--replace", *profiles],
        METRICS: [python, "-m", "dflash_bench", "metrics", "bench", "--json", *profiles],
    }


def _nsys_commands(export: Path) -> dict[str, list[str]]:
    return {
        f"nsys stats {report}": ["nsys", "stats", "--report", report, "--format", "csv", "-o", "-", str(export)]
        for report in NSYS_REPORTS
    }


def _in_turns(commands: dict[str, list[str]], repeats: int, cwd: Path, timeout_s: float) -> list[Case]:
    found: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            found[name].append(run(command, timeout_s=timeout_s, cwd=cwd))
    return [Case(name, tuple(runs)) for name, runs in found.items()]


def _print_cases(cases: Sequence[Case]) -> None:
    by_name = {case.name: case for case in cases}
    base = by_name[BARE]
    print(f"{'case':26} {'wall s':>8} {'CPU s':>8} {'× bare wall':>12} {'× bare CPU':>11} {'peak MB':>8}")
    for case in cases:
        ratios = f"{case.wall_s / base.wall_s:12.2f} {case.cpu_s / base.cpu_s:11.2f}"
        problem = f"  {case.problem}" if case.problem else ""
        print(f"{case.name:26} {case.wall_s:8.2f} {case.cpu_s:8.2f} {ratios} {case.peak_bytes / 1e6:8.0f}{problem}")
    ingest, metrics = by_name[INGEST], by_name[METRICS]
    print(f"\ningest ÷ bare copy {ingest.wall_s / base.wall_s:.2f} (target ≤ 1.25)")
    print(f"metrics ÷ bare copy {metrics.wall_s / base.wall_s:.2f} (target ≤ 0.50)")
    print(f"peak {max(ingest.peak_bytes, metrics.peak_bytes) / 1e6:.0f} MB (target ≤ 500)")


def _print_scales(args: argparse.Namespace, scratch: Path) -> None:
    each = f"{'per Mrow':>9} {'peak MB':>8}"
    print(f"\n{'rows':>12} {'ingest s':>9} {each} {'metrics s':>10} {each}")
    for scale in args.scales:
        export = scratch / f"scale{scale}.sqlite"
        write_export(export, Spec(rows=scale * args.scale_rows, ranks=args.ranks, mode=args.mode))
        commands = _own_commands(export, scratch)
        found = _in_turns({name: commands[name] for name in (INGEST, METRICS)}, 1, scratch, 3600)
        million = _num_rows(export) / 1e6
        cells = " ".join(
            f"{case.cpu_s:{width}.2f} {case.cpu_s / million:9.2f} {case.peak_bytes / 1e6:8.0f}{case.problem or ''}"
            for case, width in zip(found, (9, 10), strict=True)
        )
        print(f"{_num_rows(export):12,} {cells}")
        export.unlink()
    print("(seconds of CPU time)")


def _num_rows(export: Path) -> int:
    sys.path.append(str(HERE))
    from bare_copy import COPIES

    with sqlite3.connect(f"file:{export}?mode=ro", uri=True) as database:
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return sum(database.execute(f"SELECT MAX(rowid) FROM {t}").fetchone()[0] or 0 for t in COPIES if t in known)


def _machine() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = names[0].partition(":")[2].strip() if names else platform.processor()
    packages = ", ".join(f"{p} {version(p)}" for p in ("dflash-bench", "adbc-driver-sqlite", "pyarrow", "numpy"))
    load = os.getloadavg()[0]
    nsys = shutil.which("nsys")
    said = subprocess.run([nsys, "--version"], capture_output=True, text=True).stdout.strip() if nsys else "no nsys"
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, load {load:.1f}; Python {platform.python_version()}, "
        f"{packages}; SQLite {sqlite3.sqlite_version}; {said}"
    )


if __name__ == "__main__":
    main()
