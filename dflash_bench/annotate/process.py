"""One annotated process: the table of its environment, put around the functions of each module as that is loaded."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dflash_bench.annotate.sinks import AnnotationSink, Emit, SinkKind, make_sink
from dflash_bench.annotate.table import (
    NEXT_CALL,
    RETURN,
    AnnotationTable,
    BeforeEntry,
    Entry,
    Expression,
    RangeEntry,
    RankEntry,
    Target,
    read_table,
)
from dflash_bench.annotate.wrapping import (
    Function,
    Hold,
    NamedRange,
    after,
    around,
    before,
    choice,
    closing,
    opening,
    until_next_call,
)
from dflash_bench.errors import BenchError

TABLE_VARIABLE = "DFLASH_BENCH_ANNOTATE"
KIND_VARIABLE = "DFLASH_BENCH_ANNOTATE_SINK"
ARM_VARIABLE = "DFLASH_BENCH_ANNOTATE_ARM"
ENGINE_STEP = "engine_step"
"""The step of a process that schedules for others, which have the table's step."""
REPEAT_STEPS = 128
"""What a process says of itself is said again every so many steps: a window of a capture begins anywhere."""


class Annotation:
    """What one process emits. ``version`` is that of the engine, None where it states none."""

    def __init__(self, table: AnnotationTable, sink: AnnotationSink, version: str | None, arm: str) -> None:
        self._table, self._sink, self._version, self._arm = table, sink, version, arm
        self._spans: dict[str, NamedRange] = {}
        self._holds: dict[int, Hold] = {}
        self._rank: str | None = None
        self._notes = [f"dflash_bench engine={table.engine} version={version or 'unknown'}"]
        self._steps = 0
        os.register_at_fork(after_in_child=self._forked)

    def mark(self, text: str) -> None:
        """An instant with a text, for who decides about steps inside the engine: `dflash_prep.sglang`."""
        self._sink.mark(text)

    def loaded(self, module: ModuleType) -> None:
        """Wrap what the table says of a module that has just been executed."""
        for entry in self._table.of_version(self._version):
            for target in entry.targets:
                if target.module == module.__name__:
                    self._wrap(module, target, entry)

    def _wrap(self, module: ModuleType, target: Target, entry: Entry) -> None:
        what = entry.names[0] if isinstance(entry, RangeEntry) else "rank" if isinstance(entry, RankEntry) else "before"
        *owners, name = target.path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part, None)
        found = inspect.getattr_static(owner, name, None) if owner is not None else None
        kind = type(found) if isinstance(found, staticmethod | classmethod) else None
        function = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        if found is None:
            self._complain(f"{what}: there is no {target}")
        elif not callable(function) or isinstance(function, type):
            self._complain(f"{what}: {target} is no function")
        else:
            wrapped = self._wrapped(function, target, entry, what)
            setattr(owner, name, wrapped if kind is None else kind(wrapped))

    def _wrapped(self, function: Function, target: Target, entry: Entry, what: str) -> Function:
        def said(text: str) -> None:
            self._complain(f"{what} at {target}: {text}")

        try:
            if isinstance(entry, RangeEntry):
                return self._in_range(function, target, entry, said)
            if isinstance(entry, BeforeEntry):
                return before(function, _evaluation(entry.call, function), said)
            return after(function, self._rank_mark(entry, function), said)
        except ValueError as error:  # an expression that does not fit this function
            said(str(error))
            return function

    def _in_range(self, function: Function, target: Target, entry: RangeEntry, said: Callable[[str], None]) -> Function:
        spans = [self._span(name) for name in entry.names]
        asked = entry.which or entry.when
        pick = None if asked is None else choice(spans, _evaluation(asked, function), said)
        if entry.until == RETURN:
            return around(function, spans[0], pick)
        hold = self._holds.setdefault(id(entry), Hold(spans[0]))
        if entry.until == NEXT_CALL:
            return until_next_call(function, hold, pick)
        if target == entry.until:
            return closing(function, hold)
        ends_if = None if entry.ends_if is None else choice(spans, _evaluation(entry.ends_if, function, "result"), said)
        return opening(function, hold, pick, ends_if)

    def _span(self, name: str) -> NamedRange:
        if name not in self._spans:
            is_step = name in (self._table.step, ENGINE_STEP)
            push, pop = self._sink.range(name, is_step=is_step)
            self._spans[name] = NamedRange(name, functools.partial(self._step, push) if is_step else push, pop)
        return self._spans[name]

    def _step(self, push: Emit) -> None:
        if self._steps % REPEAT_STEPS == 0:
            for note in (self._rank, *self._notes):
                if note is not None:
                    self._sink.mark(note)
        self._steps += 1
        push()

    def _rank_mark(self, entry: RankEntry, function: Function) -> Function:
        parts = {"rank": entry.rank, "world": entry.world, "group": entry.group, "when": entry.when}
        value = {name: _evaluation(code, function) for name, code in parts.items() if code is not None}

        def mark(*args: Any, **kwargs: Any) -> None:
            if "when" in value and not value["when"](*args, **kwargs):
                return
            text = f"dflash_bench rank={value['rank'](*args, **kwargs)} world={value['world'](*args, **kwargs)}"
            text += f" arm={self._arm}"
            if "group" in value:
                text += f" group={value['group'](*args, **kwargs)}"
            self._rank = text + (f" role={entry.role}" if entry.role else "")
            self._sink.mark(self._rank)

        return mark

    def _complain(self, text: str) -> None:
        """A warning: on stderr, and in the capture as a mark."""
        self._notes.append(f"dflash_bench warning annotations of {self._table.engine}: {text}")
        self._sink.mark(self._notes[-1])
        complain(text)

    def _forked(self) -> None:
        """A forked child is a process of its own, which has not said who it is."""
        self._rank, self._steps = None, 0
        for threads in (*(s.threads for s in self._spans.values()), *(h.threads for h in self._holds.values())):
            threads.clear()
        self._sink.forked()


def complain(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"dflash-bench annotate (process {os.getpid()}): {text}\n")


def _evaluation(code: Expression, function: Function, *first: str) -> Function:
    """A function of the arguments of `function`, after those named in `first`, that evaluates the code.

    Raises ValueError when the code names what `function` has no parameter for.
    """
    if (target := code.function) is not None:
        found: Any = importlib.import_module(target.module)
        for part in target.path.split("."):
            found = getattr(found, part)
        return found
    signature = inspect.signature(function)
    if unknown := sorted(code.names - set(signature.parameters) - set(first) - vars(builtins).keys() - {"modules"}):
        raise ValueError(f"{code.text!r} names {unknown[0]}, and the function has only {signature}")
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in first]
    empty = inspect.Parameter.empty
    for each in signature.parameters.values():
        default = empty if each.default is empty else None
        parameters.append(each.replace(annotation=empty, default=default))
    if first:
        positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        parameters = [each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) if each.kind in positional else each
                      for each in parameters]  # fmt: skip
    source = f"lambda {str(inspect.Signature(parameters))[1:-1]}: ({code.text})"
    made = eval(compile(source, f"<{code.text}>", "eval"), {"modules": sys.modules})
    made.__defaults__, made.__kwdefaults__ = _defaults(function)
    return made


def _defaults(function: Function) -> tuple[Any, Any]:
    plain = inspect.unwrap(function)
    return getattr(plain, "__defaults__", None), getattr(plain, "__kwdefaults__", None)


@functools.cache
def annotation() -> Annotation | None:
    """What this process's environment asks for; None, with a line on stderr, when it cannot be had."""
    try:
        table = read_table(Path(os.environ[TABLE_VARIABLE]))
        sink = make_sink(SinkKind(os.environ.get(KIND_VARIABLE, SinkKind.NVTX)))
    except (ImportError, BenchError) as error:
        complain(f"{error}; nothing is annotated")
        return None
    return Annotation(table, sink, _version(table.package), os.environ.get(ARM_VARIABLE) or table.engine)


def _version(package: str) -> str | None:
    """What the package that is being loaded says of itself, else what is installed under its name."""
    stated = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(stated, str):
        return stated
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
