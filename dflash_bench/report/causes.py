"""Which code the GPU waited for, and which made the host wait: the cause tables of a run, over all its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dflash_bench.model import RunMetrics, Sides, Value

GONE = 0.1
"""What is left of a cause that counts as gone: at most so much."""
_RARE = 0.01
"""Share of the steps up to which a cause is an accident."""
WORTH_NAMING = 0.1
"""Share of a whole table from which a cause is named in a sentence."""


OUTSIDE = "outside any range"


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of a cause table over all ranks. ``where`` is a range, a path of ranges, or range · call in one.

    ``late_ns`` is the part of a host wait behind which the GPU was dry; None where the table does not tell. ``line``:
    the line of code, where a capture tells and it was asked for.
    """

    where: str
    call: str
    count: int
    total_ns: int
    late_ns: int | None = None
    line: str = ""

    @property
    def code(self) -> str:
        """The innermost range."""
        return self.where.rpartition(" > ")[2]

    @property
    def name(self) -> str:
        """As people say it: a dash of the metrics is time outside any range, or plain CPU work."""
        code, _, call = (self.code, "", self.call) if self.call else self.where.rpartition(" · ")
        if self.line:
            call = self.line if call == "-" else f"{call} at {self.line}"
        named = {"-": OUTSIDE}.get(code, code), {"-": "CPU work"}.get(call, call)
        return " · ".join(part for part in named if part)

    @property
    def place(self) -> str:
        """The name with its preposition."""
        return self.name if self.name.startswith(OUTSIDE) else f"in {self.name}"

    @property
    def full_name(self) -> str:
        """With all ranges around, where they are known."""
        at = f" at {self.line}" if self.line else ""
        return f"{OUTSIDE if self.where == '-' else self.where} · {self.call}{at}" if self.call else self.name

    @property
    def range_name(self) -> str:
        """The innermost range alone, as people say it."""
        found = self.code if self.call else self.where.rpartition(" · ")[0]
        return f"what lies {OUTSIDE}" if found == "-" else found

    @property
    def late_share(self) -> float:
        """The part of a host wait that made launches late, as a share of all of it."""
        return (self.late_ns or 0) / self.total_ns if self.total_ns else 0.0

    @property
    def harm_ns(self) -> int:
        """What it cost the GPU, as far as the table tells; a wait that a host could afford costs nothing."""
        return self.total_ns if self.late_ns is None else self.late_ns


def dry_causes(run: RunMetrics) -> list[Cause]:
    """What the host did while the GPU had nothing to do, the longest first, warm-up left out."""
    warm_up = _warm_up(run, "dry.by_cause")
    return _longest_first(
        Cause(str(r["cause"]), "", _int(r["steps"]), _int(r["total_ns"]) - warm_up[r["cause"], None])
        for r in _rows(run, "dry.by_cause")
    )


def host_waits(run: RunMetrics) -> list[Cause]:
    """Which code made the host wait, the longest first, warm-up left out."""
    warm_up, found = _warm_up(run, "sync.by_range"), []
    for r in _rows(run, "sync.by_range"):
        total = _int(r["total_ns"]) - warm_up[r["path"], r["api"]]
        late = None if r.get("exposed_ns") is None else min(_int(r["exposed_ns"]), total)
        found.append(Cause(str(r["path"]), str(r["api"]), _int(r["count"]), total, late))
    return _longest_first(iter(found))


def by_line(run: RunMetrics, causes: Sequence[Cause]) -> list[Cause]:
    """Causes cut by line of code as far as the capture tells; what it tells nothing of stays one."""
    table = "sync.by_range" if any(c.call for c in causes) else "dry.by_cause"
    lines: dict[tuple[Value, Value], list[tuple[str, int]]] = {}
    for r in _rows(run, "lines.by_cause"):
        if r["table"] == table:
            lines.setdefault((r["cause"], r["api"]), []).append((str(r["line"]), _int(r["total_ns"])))
    return _longest_first(
        part for cause in causes for part in _cut(cause, lines.get((cause.where, cause.call or None), ()))
    )


def _cut(cause: Cause, lines: Sequence[tuple[str, int]]) -> Iterator[Cause]:
    rest = cause.total_ns - sum(total for _, total in lines)
    for line, total in (*lines, ("", rest)):
        late = None if cause.late_ns is None else int(cause.late_ns * total / max(cause.total_ns, 1))
        yield replace(cause, line=line, total_ns=total, late_ns=late)


def _warm_up(run: RunMetrics, table: str) -> Counter[tuple[Value, Value]]:
    """What of a table's nanoseconds lies in steps that load or compile, by its labels."""
    rows = (r for r in _rows(run, "warm_up.by_cause") if r["table"] == table)
    return Counter({(r["cause"], r["api"]): _int(r["total_ns"]) for r in rows})


def by_name(causes: Sequence[Cause]) -> list[Cause]:
    """Causes that people call the same, in whatever ranges around, as one; the longest first."""
    found: dict[str, Cause] = {}
    for cause in causes:
        if (other := found.get(cause.name)) is None:
            found[cause.name] = cause
            continue
        late = None if cause.late_ns is None or other.late_ns is None else other.late_ns + cause.late_ns
        found[cause.name] = replace(
            other, count=other.count + cause.count, total_ns=other.total_ns + cause.total_ns, late_ns=late
        )
    return _longest_first(iter(found.values()))


def _rows(run: RunMetrics, name: str) -> Iterator[dict[str, Value]]:
    """The rows over all ranks of a table, by column; of a run of one rank, that rank's where there are no others."""
    tables = [table for table in run.tables if table.name == name]
    rows = [dict(zip(table.columns, row, strict=True)) for table in tables for row in table.rows]
    yield from (row for row in rows if row["rank"] is None)


def _int(value: Value) -> int:
    assert isinstance(value, int | float)
    return int(value)


def _longest_first(causes: Iterator[Cause]) -> list[Cause]:
    return sorted((c for c in causes if c.total_ns > 0), key=lambda c: (-c.total_ns, c.where, c.call))


def steps_of(run: RunMetrics) -> int:
    """How many steps a run's tables speak of, over all ranks."""
    names = ("gpu.dry_per_step", "host.busy_per_step", "stall.total_per_step", "sync.total_per_step", "step.period")
    return max((m.n for name in names for m in run.metrics if m.name == name), default=0)


@dataclass(frozen=True, slots=True)
class CausePair:
    """One cause on both sides, each as ns per step; 0 where a side does not have it."""

    base: Cause | None
    candidate: Cause | None
    base_ns: float
    candidate_ns: float
    num_steps: tuple[int, int]

    @property
    def is_rare(self) -> bool:
        """Whether it befell so few steps of either side that it is an accident: loading a module, another process."""
        sides = zip((self.base, self.candidate), self.num_steps, strict=True)
        return all(cause is None or cause.count < _RARE * num for cause, num in sides)

    @property
    def place(self) -> str:
        """As people say it, and in how few steps, where they are few."""
        return f"{self.cause.place}{self._few}"

    @property
    def full_name(self) -> str:
        """The same with all ranges around."""
        return f"{self.cause.full_name}{self._few}"

    @property
    def _few(self) -> str:
        return f" ({self.cause.count:,} time{'s' * (self.cause.count != 1)})" if self.is_rare else ""

    @property
    def cause(self) -> Cause:
        """The one that there is."""
        found = self.base or self.candidate
        assert found is not None
        return found


def paired(
    base: tuple[Sequence[Cause], int], candidate: tuple[Sequence[Cause], int], *, is_harm: bool = False
) -> list[CausePair]:
    """The causes of both sides beside each other, each side given with its number of steps; the larger first.

    ``is_harm``: count what a cause cost the GPU, not how long it took.
    """
    sides = [{(c.where, c.call, c.line): c for c in causes} for causes, _ in (base, candidate)]
    steps = max(base[1], 1), max(candidate[1], 1)

    def weight(cause: Cause | None, num: int) -> float:
        return 0.0 if cause is None else (cause.harm_ns if is_harm else cause.total_ns) / num

    pairs = [
        CausePair(*both, weight(both[0], steps[0]), weight(both[1], steps[1]), steps)
        for key in dict.fromkeys([*sides[0], *sides[1]])
        for both in [(sides[0].get(key), sides[1].get(key))]
    ]
    return sorted(pairs, key=lambda p: -max(p.base_ns, p.candidate_ns))


def _is_known(sides: Sides, *names: str) -> list[bool]:
    """For each side, whether its figures have any of these: what is withheld is not gone."""
    return [any(found.name in names for found in runs[0].metrics) for _, runs in sides.named]


def dry_pairs(sides: Sides) -> list[CausePair]:
    """What the GPU ran dry in on both sides, of the runs that are looked at; nothing where one cannot tell."""
    if not all(_is_known(sides, "gpu.dry_per_step", "gpu.dry_per_s")):
        return []
    base, candidate = ((dry_causes(runs[0]), steps_of(runs[0])) for _, runs in sides.named)
    return paired(base, candidate)


def late_wait_pairs(sides: Sides) -> list[CausePair]:
    """The waits that made launches late, on both sides, by what they cost.

    Where the GPU is dry for less time than before, what waits longer does so because it is ahead (launches of copies
    beside a busy GPU are late too): such rows are left out. None where one side alone knows which waits made it late.
    """
    if len(set(_is_known(sides, "sync.exposed_per_step"))) > 1:
        return []
    base, candidate = ((host_waits(runs[0]), steps_of(runs[0])) for _, runs in sides.named)
    dry = dry_pairs(sides)
    is_less_dry = bool(dry) and sum(p.candidate_ns for p in dry) <= sum(p.base_ns for p in dry)
    pairs = [p for p in paired(base, candidate, is_harm=True) if p.base_ns or p.candidate_ns]
    return [p for p in pairs if not (is_less_dry and p.candidate_ns > p.base_ns)]
