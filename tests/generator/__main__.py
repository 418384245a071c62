"""``python tests/generator/__main__.py OUT.sqlite --rows 7600000 --ranks 4``: write a generated export."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

# run by path: the package's folder is what Python puts on the path, and its parent is what imports need
sys.path.append(str(Path(__file__).resolve().parent.parent))

from generator import FAULT_MEANING, Fault, Mode, Schema, Spec, write_export, write_ranks


def main() -> None:
    """Parse, write, say what was written."""
    faults = "\n".join(f"  {fault:18} {meaning}" for fault, meaning in FAULT_MEANING.items())
    parser = argparse.ArgumentParser(
        description="Write a seeded nsys-schema export.",
        epilog=f"faults:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="file, or with --per-rank the folder of the files")
    parser.add_argument("--rows", type=int, default=20_000, help="event rows of all ranks together, about")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--schema", type=Schema, choices=list(Schema), default=Schema.V3_20)
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.GRAPH, help="how CUDA graphs were traced")
    parser.add_argument("--fault", type=Fault, choices=list(Fault), action="append", default=[], metavar="FAULT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", action="store_true", help="the host waits for the GPU in every step")
    parser.add_argument("--per-rank", action="store_true", help="one file per rank")
    args = parser.parse_args()
    spec = Spec(args.rows, args.ranks, args.schema, args.mode, frozenset(args.fault), args.seed, args.sync)
    began = time.monotonic()
    if args.per_rank:
        args.out.mkdir(parents=True, exist_ok=True)
        paths = write_ranks(args.out, spec)
    else:
        paths = [write_export(args.out, spec)]
    size = sum(p.stat().st_size for p in paths)
    print(
        f"{len(paths)} files, {spec.ranks * spec.steps:,} steps, {size / 1e6:,.0f} MB, {time.monotonic() - began:.1f} s"
    )


if __name__ == "__main__":
    main()
