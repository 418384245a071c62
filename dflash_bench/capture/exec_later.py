"""``python -m dflash_bench.capture.exec_later SECONDS -- CMD …``: start a command SECONDS × local rank from now.

Keeps apart the nsys of several ranks, which torchrun starts at one moment. Replaced by the command: same process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from dflash_bench.capture.exec_rank import NOT_STARTED


def main(arguments: Sequence[str]) -> int:
    """Returns only when the command could not be started."""
    if len(arguments) < 3 or arguments[1] != "--" or not arguments[0].replace(".", "", 1).isdecimal():
        sys.stderr.write("usage: python -m dflash_bench.capture.exec_later SECONDS -- CMD ...\n")
        return 2
    seconds, command = float(arguments[0]), list(arguments[2:])
    time.sleep(seconds * int(os.environ.get("LOCAL_RANK", "0")))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
