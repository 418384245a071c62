"""Options that several commands share, each spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PROFILES = Path("profiles")

ProfilesFolder = Annotated[
    Path, typer.Option("--profiles", envvar="DFLASH_BENCH_PROFILES", help="Folder of the profiles.")
]
RankPattern = Annotated[
    str | None,
    typer.Option(help="Regular expression with a group for the rank in a file's name, where no mark tells it."),
]
NsysPath = Annotated[Path | None, typer.Option("--nsys", help="The nsys to use, instead of the best one found.")]
StepRange = Annotated[str, typer.Option(help="Regular expression that matches the whole name of a step's range.")]
AgreementRange = Annotated[str, typer.Option(help="Name of the range in which ranks meet.")]
PerRank = Annotated[
    bool | None,
    typer.Option("--per-rank/--pooled", help="Show each rank, or all together. Default: each up to 4 ranks."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of tables; times in nanoseconds.")]
