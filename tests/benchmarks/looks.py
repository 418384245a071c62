"""How long an answer takes, at the first look and at later ones: ``python tests/benchmarks/looks.py [--rows N]``.

Two generated runs are ingested; then `metrics`, `compare`, `report` and `gate` are asked, each as a command of its own:
once with nothing kept beside the profiles, then several times. Printed are the wall and CPU time of the first look, the
medians of the later ones, and the size of the page.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).resolve().parents[1]))

from generator import Mode, Spec, write_export
from measured import KEEPS_BYTECODE, Case, Measured, run

FIGURES = "figures"
"""The folder beside a profile that keeps them."""
COMMANDS = {
    "metrics": ("metrics", "base"),
    "compare": ("compare", "base", "candidate"),
    "report": ("report", "base", "candidate", "-o", "page.html"),
    "gate": ("gate", "candidate", "--base", "base"),
}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dflash_bench", *words]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=7_500_000, help="event rows of each run")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work, kept; default: a temporary folder")
    asked = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        for seed, name in enumerate(("base", "candidate")):
            if not (folder / "profiles" / name).exists():
                export = folder / f"{name}.sqlite"
                write_export(export, Spec(rows=asked.rows, ranks=asked.ranks, mode=Mode.GRAPH, seed=seed))
                once(command("ingest", str(export), "--run", name), folder)
                export.unlink()
        print(f"{'':10}{'first: wall s':>15}{'CPU s':>8}{'MB':>7}{'later: wall s':>15}{'CPU s':>8}{'MB':>7}")
        for name, words in COMMANDS.items():
            for kept in folder.glob(f"profiles/*/{FIGURES}"):
                shutil.rmtree(kept)
            looks = [Case(name, (once(command(*words), folder),))]
            looks.append(Case(name, tuple(once(command(*words), folder) for _ in range(asked.repeats))))
            figures = "".join(f"{c.wall_s:15.2f}{c.cpu_s:8.2f}{c.peak_mb:7.0f}" for c in looks)
            print(f"{name:10}{figures}", flush=True)
        print(f"page: {(folder / 'page.html').stat().st_size / 1e6:.2f} MB")


def once(words: list[str], folder: Path) -> Measured:
    """One run of a command; a verdict that is not a pass is an answer too."""
    return run(words, timeout_s=3600, cwd=folder, environment=KEEPS_BYTECODE)


if __name__ == "__main__":
    main()
