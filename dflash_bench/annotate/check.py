"""Whether the targets of a table are there, read from an engine's sources: nothing of it is imported."""

from __future__ import annotations

import ast
import builtins
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflash_bench.annotate.table import AnnotationTable, Entry, Expression, RangeEntry, RankEntry, Target
from dflash_bench.errors import UsageError

_Read = Callable[[str], str | None]
"""The text of a file by its path in the wheel, None when it is not there."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one target. ``problem`` is None when it is there and its conditions name its parameters."""

    name: str
    target: Target
    problem: str | None


def check_table(table: AnnotationTable, sources: Path, version: str | None) -> list[Checked]:
    """Every target of the entries that are meant for `version`; `sources` is a wheel or a folder of packages.

    Raises UsageError when it is neither.
    """
    if sources.is_dir():
        return _check(table, lambda name: _text(sources / name), version)
    if not zipfile.is_zipfile(sources):
        raise UsageError(
            f"{sources} is no wheel and no folder", hint="pip download --no-deps PACKAGE==VERSION gets one"
        )
    with zipfile.ZipFile(sources) as wheel:
        names = set(wheel.namelist())
        return _check(table, lambda name: wheel.read(name).decode() if name in names else None, version)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _check(table: AnnotationTable, read: _Read, version: str | None) -> list[Checked]:
    found = []
    for entry in table.of_version(version):
        name = (
            ", ".join(entry.names)
            if isinstance(entry, RangeEntry)
            else type(entry).__name__.removesuffix("Entry").lower()
        )
        found += [Checked(name, target, _problem(read, target, entry)) for target in entry.targets]
    return found


def _problem(read: _Read, target: Target, entry: Entry) -> str | None:
    function = _definition(read, target)
    if isinstance(function, str):
        return function
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"{target.path} is no function"
    if target != entry.target:  # it only closes
        return None
    unknown = sorted(name for code in _codes(entry) for name in _unknown(code, function))
    return f"{target.path} has no parameter {unknown[0]}" if unknown else None


def _definition(read: _Read, target: Target) -> ast.stmt | str:
    """The statement that defines it, in another module where this one has it from there; or what is wrong."""
    stem = target.module.replace(".", "/")
    text = read(f"{stem}.py") or read(f"{stem}/__init__.py")
    if text is None:
        return f"there is no module {target.module}"
    first, *rest = target.path.split(".")
    top = _definitions(ast.parse(text).body)
    found = next((node for node in top if _name(node) == first), None)
    if found is None:
        for node in top:
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    if (alias.asname or alias.name) == first:
                        return _definition(read, Target(node.module, ".".join((alias.name, *rest))))
    for part in rest:
        inner = _definitions(getattr(found, "body", []))
        found = next((node for node in inner if _name(node) == part), None)
    return found or f"there is no {target.path} in {target.module}"


def _definitions(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body, those inside if and try too."""
    found = []
    for node in body:
        found.append(node)
        for inner in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try):
                for each in getattr(node, inner, []):
                    found += _definitions(each.body if isinstance(each, ast.ExceptHandler) else [each])
    return found


def _name(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None


def _codes(entry: Entry) -> list[Expression]:
    if isinstance(entry, RangeEntry):
        return [code for code in (entry.when, entry.which, entry.ends_if) if code is not None]
    if isinstance(entry, RankEntry):
        return [code for code in (entry.when, entry.rank, entry.world, entry.group) if code is not None]
    return [entry.call]


def _unknown(code: Expression, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return set(code.names) - {each.arg for each in every} - _GIVEN


_GIVEN = {*vars(builtins), "modules", "result"}
"""Names that every expression knows."""
