"""``lines.by_cause``: which line of code, where ranges are silent: frames and operators of traces, nsys' call chains.

A cause, a range and a call, is cut further by the innermost function of the program that ran at each instant, or,
where no functions were recorded, by the operator. A call that nsys took a call chain of gives its innermost frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import IntArray


def blame_lines(
    view: View,
    found: Measurements,
    table: str,
    keys: Sequence[tuple[Sequence[str], IntArray]],
    where: tuple[IntArray, IntArray, IntArray],
    call_start: IntArray,
    step: IntArray,
) -> None:
    """Cut what a table blames on labels by lines of code, steps that warm up left out.

    ``where``: thread, start and end of each interval; ``call_start``: when the call around it began, or NONE; ``step``:
    the step it counts for. int64 [n] each.
    """
    lines, rows = view.code_lines, np.flatnonzero(~view.is_warm_up[step])
    thread, start, stop = (each[rows] for each in where)
    row, line, length = lines.cut(thread, start, stop)
    line = np.where(line == NONE, lines.of_calls(thread, call_start[rows])[row], line)
    told = np.flatnonzero(line != NONE)
    row, line, length = rows[row[told]], line[told], length[told]
    found.blame(f"{table}.lines", [*((names, code[row]) for names, code in keys), (lines.names, line)], length)
