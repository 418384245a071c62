"""What went wrong with a run, from what its launcher and its ranks left in their logs."""

from __future__ import annotations

import re
from pathlib import Path

from dflash_bench.errors import CaptureError

LAUNCHER_LOG = "launcher.log"
_TAIL_LINES = 12
_IN_ONE_SENTENCE = {2: "cannot be run here", 5: "ran and was wrong"}
"""Exit codes of a loop whose last line is one sentence about what is the matter."""
_BAR = re.compile(r"\[\d+/\d+\] \[[^\]]*\] ")
_SESSION_CLASH = re.compile(r"errinfo_api_function_?\*?\]? = sem_open")


def failure(title: str, folder: Path, ranks: int, how: str, code: int | None = None) -> CaptureError:
    """One error for a run that went wrong: which rank, how, and the end of what it said.

    ``how`` is half a sentence, used where the launcher's log does not tell more; ``code`` the exit code of the
    launcher, which is that of the rank where there is only one.
    """
    reported = _first_failure(_text(folder / LAUNCHER_LOG))
    if reported is None and ranks == 1 and code is not None:
        reported = 0, code
    rank = reported[0] if reported else _guess_rank(folder, ranks)
    log = folder / (LAUNCHER_LOG if rank is None else f"rank{rank}.log")
    if reported:
        how = f"ended with exit code {reported[1]}"
        if (what := _IN_ONE_SENTENCE.get(reported[1])) and (said := _said_at_end(log)):
            return CaptureError(f"{title} {what}: {said[-1]}", hint=f"the whole log is {log}")
    who = "the launcher" if rank is None else f"rank {rank} of {ranks}"
    # A rank that never started has no log of its own: then whoever was to start it said why.
    path = log if _said_at_end(log) else folder / LAUNCHER_LOG
    tail = "\n".join(f"    {line}" for line in _said_at_end(path))
    said_text = f"; it said:\n{tail}" if tail else ", and it said nothing"
    return CaptureError(f"{title}: {who} {how}{said_text}", hint=f"the whole log is {path}")


def is_session_clash(folder: Path, ranks: int) -> bool:
    """Whether some rank never started because its nsys met another that was starting: both open one semaphore."""
    all_started = all((folder / f"rank{rank}.log").exists() for rank in range(ranks))
    return not all_started and bool(_SESSION_CLASH.search(_text(folder / LAUNCHER_LOG)))


def _said_at_end(path: Path) -> list[str]:
    """The last lines of a log, without nsys' progress bars."""
    lines = [line.rstrip() for line in _text(path).splitlines()]
    return [line for line in lines if line and not _BAR.match(line)][-_TAIL_LINES:]


def _first_failure(launcher_log: str) -> tuple[int, int] | None:
    """(rank, exit code) of the root cause that torchrun reports, None when it reports none."""
    root = launcher_log.partition("Root Cause")[2]
    rank = re.search(r"rank\s*:\s*(\d+)", root)
    code = re.search(r"exitcode\s*:\s*(-?\d+)", root)
    return (int(rank[1]), int(code[1])) if rank and code else None


def _guess_rank(folder: Path, ranks: int) -> int | None:
    # Without torchrun's report: a rank that said something and wrote no ledger.
    said = (r for r in range(ranks) if _text(folder / f"rank{r}.log").strip())
    return next((r for r in said if not (folder / f"rank{r}.json").exists()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
