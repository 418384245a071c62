"""The table of an engine: which functions get which range, when, and how a process learns which rank it is."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dflash_bench.errors import UsageError

OWN_TABLES = Path(__file__).parent / "tables"
NEXT_CALL = "next call"
RETURN = "return"
_TARGET = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_Parsed = TypeVar("_Parsed")
_BOUND = re.compile(r"^(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class Target:
    """A function or method: ``package.module:function`` or ``package.module:Class.method``."""

    module: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises ValueError when the text names no target."""
        if not _TARGET.match(text):
            raise ValueError(f"{text!r} is not of the form package.module:function or package.module:Class.method")
        return cls(*text.split(":"))

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"


@dataclass(frozen=True, slots=True)
class Expression:
    """A Python expression over the arguments of a call, by the names of its parameters, or ``module:function``, which
    is called with those arguments."""

    text: str

    @property
    def function(self) -> Target | None:
        """What is called, where it is a function."""
        return Target.parse(self.text) if _TARGET.match(self.text) else None

    @property
    def names(self) -> frozenset[str]:
        """The free names of the expression; none for a function."""
        if self.function is not None:
            return frozenset()
        nodes = [node for node in ast.walk(ast.parse(f"({self.text})", mode="eval")) if isinstance(node, ast.Name)]
        bound = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
        return frozenset(node.id for node in nodes) - bound

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Raises ValueError when the text is neither."""
        if not _TARGET.match(text):
            try:
                ast.parse(f"({text})", mode="eval")
            except SyntaxError as error:
                raise ValueError(f"{text!r} is no Python expression: {error.msg}") from None
        return cls(text)


@dataclass(frozen=True, slots=True)
class Versions:
    """A span of versions, such as ``>=0.5.18,<0.6``; empty: all. Suffixes of a version (``rc1``, ``+cpu``) count for
    nothing."""

    bounds: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Raises ValueError when a bound is not an operator and a number."""
        found = [(part, _BOUND.match(part.strip())) for part in text.split(",")]
        if bad := [part for part, match in found if match is None]:
            raise ValueError(f"{bad[0].strip()!r} is no bound of a version, such as >=0.5.18")
        return cls(tuple((match[1], _numbers(match[2])) for _, match in found if match is not None))

    def holds(self, version: str | None) -> bool:
        """Whether a version lies inside; an unknown one does."""
        if version is None:
            return True
        return all(_compare(_numbers(version), operator, bound) for operator, bound in self.bounds)

    def __str__(self) -> str:
        return ",".join(operator + ".".join(map(str, bound)) for operator, bound in self.bounds)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _compare(version: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    width = max(len(version), len(bound))
    a, b = (each + (0,) * (width - len(each)) for each in (version, bound))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, ">": a > b, "<": a < b}[operator]


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """A range around a call of ``target`` that fulfils ``when``, or of several names the one that ``which`` gives.

    ``until`` says when it closes: as the call returns, at the ``next call`` of the target, or as a call of another
    target returns; then ``ends_if``, over the arguments and ``result``, may close it at its own return already. A range
    that is open is not opened again inside itself. Of several entries of one target the first is the outermost.
    """

    names: tuple[str, ...]
    target: Target
    when: Expression | None = None
    which: Expression | None = None
    until: str | Target = RETURN
    ends_if: Expression | None = None
    versions: Versions = Versions()

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self.target, self.until) if isinstance(self.until, Target) else (self.target,)


@dataclass(frozen=True, slots=True)
class RankEntry:
    """After ``target`` has returned the process says which rank it is: expressions over the arguments."""

    target: Target
    rank: Expression
    world: Expression
    when: Expression | None = None
    group: Expression | None = None
    role: str | None = None
    versions: Versions = Versions()

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class BeforeEntry:
    """``call`` gets the arguments of ``target`` before it runs: to have children end in order, for instance."""

    target: Target
    call: Expression
    versions: Versions = Versions()

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self.target,)


Entry = RangeEntry | RankEntry | BeforeEntry


@dataclass(frozen=True, slots=True)
class AnnotationTable:
    """Everything that is wrapped of one engine. ``package`` is the distribution whose version the spans mean."""

    engine: str
    package: str
    step: str
    ranges: tuple[RangeEntry, ...]
    ranks: tuple[RankEntry, ...] = ()
    before: tuple[BeforeEntry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """In the order in which they are put around a function, innermost first."""
        return (*reversed(self.ranges), *self.before, *self.ranks)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in which something is wrapped."""
        return tuple(dict.fromkeys(target.module for entry in self.entries for target in entry.targets))

    def of_version(self, version: str | None) -> tuple[Entry, ...]:
        """The entries that are meant for a version."""
        return tuple(entry for entry in self.entries if entry.versions.holds(version))


def own_tables() -> tuple[str, ...]:
    """The names of the tables that come with this package."""
    return tuple(sorted(path.stem for path in OWN_TABLES.glob("*.toml")))


def table_file(name: str) -> Path:
    """The file of one of our tables, or the file that is named. Raises UsageError when there is none."""
    path = OWN_TABLES / f"{name}.toml" if name in own_tables() else Path(name)
    if not path.is_file():
        raise UsageError(
            f"there is no table of annotations {name!r}", hint=f"name one of {', '.join(own_tables())}, or a TOML file"
        )
    return path.resolve()


def read_table(path: Path) -> AnnotationTable:
    """Raises UsageError, with the entry that is wrong, when the file is no table."""
    try:
        table = _table(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint="docs/annotate.md says what a table holds") from None
    return table


def _table(data: dict[str, Any]) -> AnnotationTable:
    _check(data, "the table", {"engine", "package", "step"}, {"range", "rank", "before"})
    table = AnnotationTable(
        data["engine"],
        data["package"],
        data["step"],
        tuple(_range(*each) for each in _rows(data, "range")),
        tuple(_rank(*each) for each in _rows(data, "rank")),
        tuple(_before(*each) for each in _rows(data, "before")),
    )
    if table.step not in {name for entry in table.ranges for name in entry.names}:
        raise ValueError(f"step = {table.step!r} is the name of no range")
    return table


def _rows(data: Mapping[str, Any], key: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    rows = data.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{key} must be tables, each begun by [[{key}]]")
    for k, row in enumerate(rows, 1):
        yield f"[[{key}]] {k}" + (f" ({', '.join(_names(row))})" if "name" in row else ""), row


def _range(where: str, row: Mapping[str, Any]) -> RangeEntry:
    _check(row, where, {"name", "target"}, {"when", "which", "until", "ends_if", "versions"})
    until, names = row.get("until", RETURN), _names(row)
    if ("which" in row) != (len(names) > 1) or ("which" in row and (until != RETURN or "when" in row)):
        raise ValueError(f"{where}: which chooses among several names, without when and until")
    if "ends_if" in row and until in (RETURN, NEXT_CALL):
        raise ValueError(f"{where}: ends_if is for a range that another target closes")
    return RangeEntry(
        names,
        _parsed(where, Target.parse, row["target"]),
        _code(where, row, "when"),
        _code(where, row, "which"),
        until if until in (RETURN, NEXT_CALL) else _parsed(where, Target.parse, until),
        _code(where, row, "ends_if"),
        _versions(where, row),
    )


def _names(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row["name"],) if isinstance(row["name"], str) else tuple(map(str, row["name"]))


def _rank(where: str, row: Mapping[str, Any]) -> RankEntry:
    _check(row, where, {"after", "rank", "world"}, {"when", "group", "role", "versions"})
    if row.get("role", "core") not in ("core", "worker"):
        raise ValueError(f"{where}: role = {row['role']!r} is neither core nor worker")
    return RankEntry(
        _parsed(where, Target.parse, row["after"]),
        _parsed(where, Expression.parse, row["rank"]),
        _parsed(where, Expression.parse, row["world"]),
        _code(where, row, "when"),
        _code(where, row, "group"),
        row.get("role"),
        _versions(where, row),
    )


def _before(where: str, row: Mapping[str, Any]) -> BeforeEntry:
    _check(row, where, {"target", "call"}, {"versions"})
    call = _parsed(where, Expression.parse, row["call"])
    return BeforeEntry(_parsed(where, Target.parse, row["target"]), call, _versions(where, row))


def _check(row: Mapping[str, Any], where: str, needed: set[str], possible: set[str]) -> None:
    """Every key known, none missing, and every value of an entry a text."""
    if unknown := sorted(row.keys() - needed - possible):
        raise ValueError(f"{where}: {unknown[0]!r} is unknown; known are {', '.join(sorted(needed | possible))}")
    if missing := sorted(needed - row.keys()):
        raise ValueError(f"{where}: {missing[0]!r} is missing")
    for key in row:
        if not isinstance(row[key], str | list) or (
            isinstance(row[key], list) and where != "the table" and key != "name"
        ):
            raise ValueError(f"{where}: {key} = {row[key]!r} is no text")


def _parsed(where: str, parse: Callable[[str], _Parsed], text: str) -> _Parsed:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _code(where: str, row: Mapping[str, Any], key: str) -> Expression | None:
    return _parsed(where, Expression.parse, row[key]) if key in row else None


def _versions(where: str, row: Mapping[str, Any]) -> Versions:
    return _parsed(where, Versions.parse, row["versions"]) if "versions" in row else Versions()
