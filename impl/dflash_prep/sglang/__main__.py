"""``python -m dflash_prep.sglang --arm topup -- CMD …``: run an engine's command with an arm in its preparation.

Exit codes: 2 for a wrong option or an SGLang that the plug-in was not compared with; else those of the command.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dflash_prep.errors import SettingError
from dflash_prep.sglang.fingerprint import KnownEngine, find_engine
from dflash_prep.sglang.install import VARIABLE, PlugOptions
from dflash_prep.sglang.preparation import PlugArm
from dflash_prep.state.topup import MAX_TOPUP_PAGES, topup_from_environment

HOOK = Path(__file__).parent / "hook"
PACKAGES = Path(__file__).parents[2]
"""What the engine's processes must be able to import from."""


def main(words: Sequence[str] | None = None) -> int:
    """Check everything that can be checked before the engine starts, then become the command: 2 if that cannot be."""
    options, command = _parse(sys.argv[1:] if words is None else list(words))
    try:
        if options.arm == PlugArm.TOPUP and options.topup_pages is None:
            topup_from_environment()
        if options.arm != PlugArm.OFF or options.duet:
            engine = _engine()
            if engine is not None:
                sys.stderr.write(f"dflash_prep.sglang: SGLang {engine.version} in {engine.folder}\n")
    except SettingError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    environment = {**os.environ, VARIABLE: options.to_environment()}
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")]), str(PACKAGES)]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    program = shutil.which(command[0])
    if program is None:
        sys.stderr.write(f"error: there is no program {command[0]}\n")
        return 2
    return os.execve(program, command, environment)


def _engine() -> KnownEngine | None:
    """The SGLang that this Python would import, read and not imported; None where there is none to be seen."""
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    return find_engine(Path(folders[0])) if folders else None


def _parse(words: list[str]) -> tuple[PlugOptions, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m dflash_prep.sglang", usage="%(prog)s [options] -- CMD …", description=__doc__
    )
    parser.add_argument("--arm", required=True, choices=[*PlugArm], help="bulk, ring (and bulk), topup (and ring); off")
    parser.add_argument(
        "--topup-pages", type=int, choices=range(MAX_TOPUP_PAGES + 1), metavar="K", help="instead of the environment's"
    )
    parser.add_argument("--shadow", type=_count, default=0, metavar="N", help="compare N steps before they are written")
    parser.add_argument(
        "--duet", type=_count, default=0, metavar="N", help="take turns with upstream every N steps; off: with itself"
    )
    parser.add_argument("--refill", type=_count, metavar="N", help="uncounted steps after each change of turns")
    parser.add_argument(
        "--log", metavar="FILE", help="add to this file what the plug-in says, for engines that hide it"
    )
    parser.add_argument("--times", metavar="FILE", help="with --duet: times of the counted steps, into FILE.PID.csv")
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    found = parser.parse_args(own)
    if not command:
        parser.error("a command is missing behind --")
    log, times = (None if file is None else str(Path(file).absolute()) for file in (found.log, found.times))
    return PlugOptions(found.arm, found.topup_pages, found.shadow, found.duet, found.refill, log, times), command


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number is expected, not {text!r}")
    return int(text)


if __name__ == "__main__":
    raise SystemExit(main())
