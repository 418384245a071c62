"""``python -m dflash_bench.capture.exec_rank FOLDER [--keep-output] -- CMD …``: become one rank of a run.

Notes the process id in ``FOLDER/rank<R>.pid``, so that exactly this process can be asked to end, sends its output to
``FOLDER/rank<R>.log`` unless it is to be kept, and is then replaced by the command: same process, nothing in between.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

NOT_STARTED = 127
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Where torchrun, MPI and Slurm say which rank a process is."""


def main(arguments: Sequence[str]) -> int:
    """Returns only when the command could not be started."""
    options, separator, command = _split(arguments)
    if not separator or not command or not options or options[1:] not in ([], ["--keep-output"]):
        sys.stderr.write("usage: python -m dflash_bench.capture.exec_rank FOLDER [--keep-output] -- CMD ...\n")
        return 2
    rank = next((os.environ[v] for v in RANK_VARIABLES if os.environ.get(v)), "0")
    base = Path(options[0])
    (base / f"rank{rank}.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    if len(options) == 1:
        _send_output_to(base / f"rank{rank}.log")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_STARTED


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
