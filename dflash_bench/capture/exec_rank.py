"""``python -m dflash_bench.capture.exec_rank FOLDER [--keep-output] -- CMD …``: become one rank of a run.

Notes the process id in ``FOLDER/rank<R>.pid``, so that exactly this process can be asked to end, sends its output to
``FOLDER/rank<R>.log`` unless it is to be kept, and is then replaced by the command: same process, nothing in between.

``--after=SECONDS -- CMD …`` instead starts the command SECONDS × local rank from now: so the nsys of several ranks,
which torchrun starts at one moment, are kept apart.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_NOT_STARTED = 127
_USAGE = "python -m dflash_bench.capture.exec_rank (FOLDER [--keep-output] | --after=SECONDS) -- CMD ..."
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Where torchrun, MPI and Slurm say which rank a process is."""


def main(arguments: Sequence[str]) -> int:
    """Returns only when the command could not be started."""
    options, separator, command = _split(arguments)
    what, after, seconds = options[0].partition("--after=") if options else ("", "", "")
    is_known = options[1:] in ([], ["--keep-output"]) and (not after or seconds.replace(".", "", 1).isdecimal())
    if not separator or not command or not options or not is_known:
        sys.stderr.write(f"usage: {_USAGE}\n")
        return 2
    if after:
        time.sleep(float(seconds) * int(os.environ.get("LOCAL_RANK", "0")))
    else:
        _become_rank(Path(what), is_logged=len(options) == 1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _NOT_STARTED


def _become_rank(base: Path, *, is_logged: bool) -> None:
    rank = next((os.environ[v] for v in RANK_VARIABLES if os.environ.get(v)), "0")
    (base / f"rank{rank}.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    if is_logged:
        _send_output_to(base / f"rank{rank}.log")


def _split(arguments: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in arguments:
        return list(arguments), False, []
    at = list(arguments).index("--")
    return list(arguments[:at]), True, list(arguments[at + 1 :])


def _send_output_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
