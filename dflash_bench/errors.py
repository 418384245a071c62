"""The error tree: what can go wrong, and the exit code that says so.

::

    BenchError                  5  (never raised itself)
    ├── UsageError              2  a wrong option, an unknown arm, a name that is not there
    ├── CaptureError            5  a run or an nsys that failed, ranges that did not arrive
    └── DataError               5  a file or profile that cannot be read as what it claims to be
        └── SchemaError         5  readable, but of a layout this version does not know

Exit codes of the whole tool: 0 pass, 2 usage, 3 regression, 4 inconclusive, 5 bad data or failed capture. 1 stays
Python's own crash, so that a crash is never read as a verdict. 130 is Ctrl-C, as everywhere.

Every error says what is wrong, where, and the next thing to type.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``dflash-bench`` command."""

    PASS = 0
    USAGE = 2
    REGRESSION = 3
    INCONCLUSIVE = 4
    BAD_DATA = 5
    INTERRUPTED = 130


def quoted(text: str) -> str:
    """What a person typed, in quotes and as it was typed: a backslash stays one, a line break is made visible."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return f"'{shown}'"


class BenchError(Exception):
    """Anything a person can mend. ``hint`` is the next command or step, without a full stop."""

    exit_code: ExitCode = ExitCode.BAD_DATA

    def __init__(self, text: str, *, hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


class UsageError(BenchError):
    """The command line or a configuration asks for something that does not exist or cannot be combined."""

    exit_code = ExitCode.USAGE


class CaptureError(BenchError):
    """A capture could not be made whole."""


class DataError(BenchError):
    """A file or profile is not what its name or its neighbour says."""


class SchemaError(DataError):
    """A profile or export was written in a layout that this version does not know."""
