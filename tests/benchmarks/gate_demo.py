"""Make the runs that the gate is demonstrated on: the same code twice, and once more with a planted delay.

::

    python tests/benchmarks/gate_demo.py FOLDER

``base`` and ``same`` are one code, ``slow`` keeps the host of rank 2 busy for 150 µs in every ``prepare_for_decode``,
and ``floor`` is that one code again, for `dflash-bench calibrate`. They take turns, so that whatever else happens on
the machine meets all of them. The profiles are then made small: the rows are the same, encoded for size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

WORKLOAD = Path(__file__).parents[1] / "data" / "gate-demo" / "few.toml"
RANKS, REPEATS, FLOORS = 4, 5, 2
DELAY = "2:150"


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the runs of the gate's demonstration.")
    parser.add_argument("folder", type=Path, help="Where the profiles go.")
    parser.add_argument("--steps", type=int, default=250, help="Decode steps of each run.")
    chosen = parser.parse_args()
    for name, options in turns():
        record(name, chosen.folder, chosen.steps, options)
        for path in (chosen.folder / name).rglob("*.parquet"):
            shrink(path)


def turns() -> Iterator[tuple[str, list[str]]]:
    """Every run in order, with the options that only it has."""
    for k in range(1, REPEATS + 1):
        yield f"base-r{k}", []
        yield f"slow-r{k}", ["--delay", DELAY]
        yield f"same-r{k}", []
        yield from ((f"floor-r{FLOORS * (k - 1) + j}", []) for j in range(1, FLOORS + 1))


def record(name: str, folder: Path, steps: int, options: list[str]) -> None:
    """One run with the built-in recorder on the simulated device; raises CalledProcessError where it fails."""
    words = ["--arm", "control", "--workload", str(WORKLOAD), "--ranks", str(RANKS), "--steps", str(steps)]
    words += ["--device", "simulated", "--recorder", "--discard-captures", "--name", name, "--profiles", str(folder)]
    program = "from dflash_bench.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, "run", *words, *options], check=True)


def shrink(path: Path) -> None:
    """Write a Parquet file anew: whole numbers as differences, in one row group, packed as tightly as zstd can."""
    table = pq.read_table(path, partitioning=None)
    deltas = {field.name: "DELTA_BINARY_PACKED" for field in table.schema if pa.types.is_integer(field.type)}
    names = [field.name for field in table.schema if field.name not in deltas]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=names,
        column_encoding=deltas,
        write_statistics=False,
    )


if __name__ == "__main__":
    main()
