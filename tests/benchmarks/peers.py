"""Other tools that read the same export: ``nsys stats``, and ``nsys-ai`` in an environment made for the occasion."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

NSYS_REPORTS = ("nvtxkernsum", "nvtxgpuproj")
"""What nsys 2022 calls nvtx_kern_sum and nvtx_gpu_proj_sum."""
DUCKDB = "1.4.4"
NSYS_AI_PACKAGES = ("nsys-ai==0.3.0", f"duckdb=={DUCKDB}", "duckdb-ext==0.1.2", "duckdb-ext-sqlite==1.4.4.20260205")
"""DuckDB would download its SQLite reader from its own site; here it comes as a package of the same version."""
GPU_COLUMNS = {
    "totalMemory": "INTEGER DEFAULT 150000000000",
    "memoryBandwidth": "INTEGER DEFAULT 4800000000000",
    "chipName": "TEXT DEFAULT 'GH100'",
}
"""What nsys-ai must find in the table of GPUs, and the generator leaves out."""


NSYS_AI_TABLES = ("kernels", "memcpy", "runtime", "nvtx", "nvtx_kernel_map")
"""What a whole cache holds beside others. Eight of 21 runs on large exports left some out, mostly without a word:
0.3.0 then reports a profile without ranges, in a fifth of the time.
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A command to measure, or, without one, the reason why there is none.

    ``cache``: what it writes; gone before each run. A run that leaves one of the files ``whole`` out is no result.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    problem: str | None = None
    cache: Path | None = None
    whole: tuple[str, ...] = ()

    def forget(self) -> None:
        """Take away what an earlier run wrote."""
        if self.cache is not None:
            shutil.rmtree(self.cache, ignore_errors=True)

    def is_whole(self) -> bool:
        """Whether the last run wrote all that it should."""
        return self.cache is None or all((self.cache / name).exists() for name in self.whole)


def nsys_stats(export: Path) -> list[Peer]:
    """Its reports that answer what this harness answers: time on the GPU by range."""
    tool = shutil.which("nsys")
    return [
        Peer(f"nsys stats {report}", (tool, "stats", "--report", report, "--format", "csv", "-o", "-", str(export)), {})
        if tool
        else Peer(f"nsys stats {report}", (), {}, "no nsys on PATH")
        for report in NSYS_REPORTS
    ]


def nsys_ai(export: Path, scratch: Path) -> list[Peer]:
    """``nsys-ai warm``, what it does before its first answer, alone and with ``diagnose``, its findings on one GPU.

    It and its home lie in ``scratch``, on a copy there.
    """
    names, home = ("nsys-ai warm", "nsys-ai warm, diagnose"), scratch / "nsys-ai"
    try:
        _install(home)
    except (subprocess.SubprocessError, OSError) as error:
        said = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else []
        problem = f"could not be installed: {said[-1][:80] if said else error}"
        return [Peer(name, (), {}, problem) for name in names]
    copy = home / export.name
    shutil.copyfile(export, copy)
    with closing(sqlite3.connect(copy)) as database:
        known = {column for (column,) in database.execute("SELECT name FROM pragma_table_info('TARGET_INFO_GPU')")}
        for column, kind in GPU_COLUMNS.items():
            if known and column not in known:
                database.execute(f"ALTER TABLE TARGET_INFO_GPU ADD COLUMN {column} {kind}")
        database.commit()
    tool = str(home / "venv/bin/nsys-ai")
    warm, diagnose = (shlex.join([tool, verb, str(copy)]) for verb in ("warm", "diagnose"))
    return [
        Peer(
            name,
            ("sh", "-c", line),
            {"HOME": str(home)},
            cache=copy.with_suffix(".nsys-cache"),
            whole=tuple(f"{table}.parquet" for table in NSYS_AI_TABLES),
        )
        for name, line in zip(names, (warm, f"{warm} && {diagnose}"), strict=True)
    ]


def _install(home: Path) -> None:
    def do(*words: str | Path) -> str:
        return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True, timeout=600).stdout

    home.mkdir()
    python = home / "venv/bin/python"
    do(sys.executable, "-m", "venv", home / "venv")
    do(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NSYS_AI_PACKAGES)
    package = do(python, "-c", "import duckdb_ext; print(duckdb_ext.__path__[0])").strip()
    shutil.copytree(Path(package, "extensions"), home / ".duckdb/extensions")
