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
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
# run by path: the folder of the generator is not on the path otherwise
sys.path.append(str(HERE.parent))

from bare_copy import COPIES  # noqa: E402
from generator import Mode, Spec, write_export  # noqa: E402
from measured import Case, run_in_turns  # noqa: E402
from peers import Peer, nsys_ai, nsys_stats  # noqa: E402

BARE, BARE_2 = "bare copy, 1 process", "bare copy, 2 processes"
INGEST, INGEST_2, METRICS = "ingest, 1 process", "ingest, 2 processes", "metrics"
OWN_TIMEOUT_S = 3600
PEER_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class Target:
    """A figure, by wall time and by CPU time where it is about time, and the bounds that it must keep."""

    name: str
    wall: float
    cpu: float | None
    least: float = 0.0
    most: float = float("inf")

    @property
    def is_met(self) -> bool:
        return self.least <= self.wall <= self.most

    @property
    def bounds(self) -> str:
        parts = [f"≥ {self.least:g}" if self.least else "", f"≤ {self.most:g}" if self.most < float("inf") else ""]
        return " and ".join(part for part in parts if part)


def main() -> None:
    """Parse, generate, measure, print."""
    parser = argparse.ArgumentParser(description="Measure ingest and metrics against their peers.")
    parser.add_argument("--rows", type=int, default=7_600_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.GRAPH)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--export", type=Path, help="measure on this file instead of a generated one")
    parser.add_argument("--scale-rows", type=int, default=3_800_000, help="rows at 1× of the linearity table")
    parser.add_argument("--scales", type=int, nargs="*", default=[1, 2, 5, 10], help="none: no linearity table")
    parser.add_argument("--no-peers", action="store_true", help="leave nsys and nsys-ai out (up to half an hour)")
    parser.add_argument("--peer-timeout", type=float, default=600, help="seconds after which a peer is stopped")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="dflash-bench-benchmark-", dir=args.folder) as scratch:
        _measure(args, Path(scratch))


def _measure(args: argparse.Namespace, scratch: Path) -> None:
    spec = Spec(rows=args.rows, ranks=args.ranks, mode=args.mode)
    export = args.export.resolve() if args.export else write_export(scratch / "bench.sqlite", spec)
    print(_machine())
    print(f"{_num_rows(export):,} event rows, {export.stat().st_size / 1e6:,.0f} MB, {args.ranks} ranks")
    print(f"medians of {args.repeats}, the other tools once; peak memory of all processes of a command together\n")
    cases = run_in_turns(_own_commands(export, scratch), args.repeats, timeout_s=OWN_TIMEOUT_S, cwd=scratch)
    by_name = {case.name: case for case in cases}
    print(f"{'':24} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'wall':>7} {'CPU':>6}   (× bare copy, 1 process)")
    for case in cases:
        _print_case(case, by_name[BARE])
    targets = list(_targets(by_name))
    if not args.no_peers:
        for peer in (*nsys_stats(export), *nsys_ai(export, scratch)):
            targets += _measure_peer(peer, by_name, args.peer_timeout, scratch)
    if args.scales:
        targets += _measure_scales(args, scratch)
    print(f"\n{'':44} {'wall':>7} {'CPU':>7}  target")
    for target in targets:
        cpu = "" if target.cpu is None else f"{target.cpu:.2f}"
        print(f"{target.name:44} {target.wall:7.2f} {cpu:>7}  {target.bounds:18} {'ok' if target.is_met else 'MISSED'}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def _own_commands(export: Path, scratch: Path) -> dict[str, list[str]]:
    python, bare = sys.executable, [str(HERE / "bare_copy.py"), str(export)]
    profiles = ["--profiles", str(scratch / "profiles")]
    ingest = ["-m", "dflash_bench", "ingest", str(export), "--run", "bench", "--replace", *profiles]
    return {
        BARE: [python, *bare, str(scratch / "bare")],
        BARE_2: [python, *bare, str(scratch / "bare2"), "--processes", "2"],
        INGEST: [python, *ingest, "--jobs", "1"],
        INGEST_2: [python, *ingest, "--jobs", "2"],
        METRICS: [python, "-m", "dflash_bench", "metrics", "bench", "--json", *profiles],
    }


def _print_case(case: Case, base: Case) -> None:
    ratios = f"{case.wall_s / base.wall_s:7.2f} {case.cpu_s / base.cpu_s:6.2f}"
    problem = f"   {case.problem}" if case.problem else ""
    print(f"{case.name:24} {case.wall_s:8.2f} {case.cpu_s:8.2f} {case.peak_mb:8.0f} {ratios}{problem}", flush=True)


def _targets(cases: dict[str, Case]) -> Iterator[Target]:
    def ratio(name: str, over: str, most: float) -> Target:
        one, other = cases[name], cases[over]
        return Target(f"{name} ÷ {over}", one.wall_s / other.wall_s, one.cpu_s / other.cpu_s, most=most)

    yield ratio(INGEST, BARE, 1.25)
    yield ratio(INGEST_2, BARE_2, 1.25)
    yield ratio(METRICS, BARE, 0.5)
    yield Target("peak of all of these, MB", max(cases[n].peak_mb for n in (INGEST, INGEST_2, METRICS)), None, most=500)


def _measure_peer(peer: Peer, cases: dict[str, Case], timeout_s: float, scratch: Path) -> list[Target]:
    """Measure another tool once. One that was stopped took at least that long; a run that failed, or did only a part of
    its work, is made again.
    """
    if peer.problem:
        print(f"{peer.name:24} not measured: {peer.problem}")
        return []
    commands = {peer.name: peer.command}
    # only a peer that is known to stop half way gets another try: what else fails would fail again
    for attempt in range(PEER_ATTEMPTS if peer.whole else 1):
        peer.forget()
        (case,) = run_in_turns(commands, 1, timeout_s=timeout_s, cwd=scratch, environment=peer.environment)
        is_stopped = case.problem is not None and case.problem.startswith("stopped")
        if is_stopped or (case.problem is None and peer.is_whole()):
            break
        why = case.problem or "it left tables out"
        print(f"{peer.name:24} {case.wall_s:8.2f} s, run {attempt + 1}: not counted, for {why}", flush=True)
    else:
        print(f"{peer.name:24} not measured: no whole run")
        return []
    _print_case(case, cases[BARE])
    own_wall = cases[INGEST_2].wall_s + cases[METRICS].wall_s
    own_cpu = cases[INGEST_2].cpu_s + cases[METRICS].cpu_s
    return [Target(f"{peer.name} ÷ (ingest + metrics)", case.wall_s / own_wall, case.cpu_s / own_cpu, least=5)]


def _measure_scales(args: argparse.Namespace, scratch: Path) -> Iterator[Target]:
    """Measure ingest and metrics on larger and larger exports: cost per row and peak memory must not grow."""
    each = f"{'CPU s':>8} {'µs a row':>9} {'peak MB':>8}"
    print(f"\n{'':>12}   {INGEST_2:>27}   {METRICS:>27}\n{'rows':>12}   {each}   {each}")
    found: dict[int, tuple[int, Sequence[Case]]] = {}
    for scale in args.scales:
        spec = Spec(rows=scale * args.scale_rows, ranks=args.ranks, mode=args.mode)
        export = write_export(scratch / f"scale{scale}.sqlite", spec)
        commands = {
            name: words for name, words in _own_commands(export, scratch).items() if name in (INGEST_2, METRICS)
        }
        cases = run_in_turns(commands, args.repeats, timeout_s=OWN_TIMEOUT_S, cwd=scratch)
        rows = _num_rows(export)
        found[scale] = rows, cases
        cells = (f"{c.cpu_s:8.2f} {c.cpu_s / rows * 1e6:9.2f} {c.peak_mb:8.0f}{c.problem or ''}" for c in cases)
        print(f"{rows:12,}   {'   '.join(cells)}", flush=True)
        export.unlink()
    first, *_, last = found
    (rows, base), (more_rows, more) = found[first], found[last]
    for k, name in enumerate(("ingest", "metrics")):
        wall, cpu = more[k].wall_s / base[k].wall_s, more[k].cpu_s / base[k].cpu_s
        grown = more_rows / rows
        yield Target(f"{name}: cost of a row, {last}× ÷ {first}×", wall / grown, cpu / grown, most=1.2)
        fifth = found.get(5, found[last])[1][k]
        yield Target(f"{name}: peak memory, 5× ÷ {first}×", fifth.peak_mb / base[k].peak_mb, None, 0.8, 1.2)


def _num_rows(export: Path) -> int:
    with closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as database:
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return sum(database.execute(f"SELECT MAX(rowid) FROM {t}").fetchone()[0] or 0 for t in COPIES if t in known)


def _machine() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = names[0].partition(":")[2].strip() if names else platform.processor()
    packages = ", ".join(f"{p} {version(p)}" for p in ("dflash-bench", "adbc-driver-sqlite", "pyarrow", "numpy"))
    nsys = shutil.which("nsys")
    said = subprocess.run([nsys, "--version"], capture_output=True, text=True).stdout.strip() if nsys else "no nsys"
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, {packages}; SQLite {sqlite3.sqlite_version}; {said}"
    )


if __name__ == "__main__":
    main()
