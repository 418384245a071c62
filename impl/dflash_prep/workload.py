"""Workloads: which requests come when, how long they are, and how large the pools are.

A workload is a small TOML file; the named ones lie in ``workloads/``. What it describes is fixed by (seed, rank,
request index) alone, so every arm meets the same requests with the same lengths, whatever happens to them on the way.
This module is data: it imports nothing outside the standard library but the checksum arithmetic.
"""

from __future__ import annotations

import math
import tomllib
import typing
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from dflash_prep.loop.checksum import CONTEXT, VOCAB

FOLDER = Path(__file__).parent / "workloads"


class WorkloadError(ValueError):
    """The file is no workload; the message is one sentence that names it."""


class _LengthKind(StrEnum):
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"


class ArrivalKind(StrEnum):
    """`closed`: a finished request is followed by a new one. `poisson`: a number of new requests per step."""

    CLOSED = "closed"
    POISSON = "poisson"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers of tokens in [low, high]; `p50` and `sigma` belong to the log-normal."""

    low: int
    high: int
    kind: _LengthKind = _LengthKind.UNIFORM
    p50: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise WorkloadError(f"needs 1 <= low <= high, not {self.low} and {self.high}")
        has_shape = self.p50 is not None and self.sigma is not None
        if (self.kind is _LengthKind.LOGNORMAL) != has_shape or (self.p50 is None) != (self.sigma is None):
            raise WorkloadError("p50 and sigma belong to kind lognormal, and it needs both")

    def draw(self, random: Random) -> int:
        """One length in tokens."""
        if self.p50 is None or self.sigma is None:
            return random.randint(self.low, self.high)
        return min(self.high, max(self.low, round(random.lognormvariate(math.log(self.p50), self.sigma))))


@dataclass(frozen=True, slots=True)
class Requests:
    """Per rank: how many run at once, their lengths in tokens, and how they arrive."""

    concurrency: int
    prompt: Lengths
    output: Lengths
    arrivals: ArrivalKind = ArrivalKind.CLOSED
    arrivals_per_step: float = 0.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise WorkloadError(f"concurrency must be at least 1, not {self.concurrency}")
        if (self.arrivals is ArrivalKind.POISSON) != (self.arrivals_per_step > 0):
            raise WorkloadError("arrivals_per_step belongs to poisson arrivals and must be above 0 there")


@dataclass(frozen=True, slots=True)
class Kv:
    """Pools of one rank: pages of `page_size` tokens, and the longest request. `swa_*` only for a hybrid pool.

    With `prefix_cache` a finished request leaves its pages in the cache until they are evicted.
    """

    page_size: int
    pool_pages: int
    context_len: int
    swa_pool_pages: int | None = None
    swa_window: int | None = None
    prefix_cache: bool = False

    def __post_init__(self) -> None:
        if min(self.page_size, self.pool_pages, self.context_len) < 1:
            raise WorkloadError("page_size, pool_pages and context_len must be at least 1")
        if (self.swa_pool_pages is None) != (self.swa_window is None):
            raise WorkloadError("a hybrid pool needs both swa_pool_pages and swa_window")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Block B in tokens, draft window W in tokens (absent: the whole context), mean committed tokens per step.

    `sampler_tp` neighbouring ranks run the same requests and share the draft head's vocabulary; 1: every rank has all
    of it.
    """

    block: int
    accept_mean: float
    window: int | None = None
    sampler_tp: int = 1

    def __post_init__(self) -> None:
        if self.block < 2 or (self.window is not None and self.window < CONTEXT):
            raise WorkloadError(f"block must be at least 2, and window at least {CONTEXT}, as far as the model reads")
        if not 1 <= self.accept_mean <= self.block:
            raise WorkloadError(f"accept_mean must lie in 1 to block = {self.block}, not {self.accept_mean}")
        if not 1 <= self.sampler_tp <= VOCAB:
            raise WorkloadError(f"sampler_tp must lie in 1 to {VOCAB}, the vocabulary, not {self.sampler_tp}")

    @property
    def hit_rate(self) -> float:
        """Chance q that a draft token is right: 1 + q + ... + q^(block-1), the mean committed, is accept_mean."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            if sum(middle**power for power in range(self.block)) < self.accept_mean:
                low = middle
            else:
                high = middle
        return high


@dataclass(frozen=True, slots=True)
class Device:
    """GPU time of one draft and of one verify, in microseconds: reached by spin work, sleep or the simulated device."""

    draft_us: int
    verify_us: int

    def __post_init__(self) -> None:
        if min(self.draft_us, self.verify_us) < 0:
            raise WorkloadError("draft_us and verify_us must not be negative")


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What is fixed about request `index` of a rank, in tokens; it may arrive at `arrival_step` or later."""

    index: int
    arrival_step: int
    prompt_len: int
    output_len: int


@dataclass(frozen=True)
class Workload:
    """One named set of shapes and arrivals."""

    name: str
    description: str
    requests: Requests
    kv: Kv
    speculation: Speculation
    device: Device

    def __post_init__(self) -> None:
        longest = self.requests.prompt.high + self.requests.output.high
        if longest > self.kv.context_len:
            raise WorkloadError(f"prompt and output reach {longest} tokens, context_len is only {self.kv.context_len}")
        alone = -(-(longest + 2 * self.speculation.block) // self.kv.page_size) + 1
        if self.kv.pool_pages < alone:
            raise WorkloadError(f"pool_pages must be at least {alone}: the longest request must fit alone")

    @cached_property
    def _arrival_steps(self) -> dict[tuple[int, int], list[int]]:
        return {}

    def request(self, seed: int, rank: int, index: int) -> RequestShape:
        """Request number `index` (from 0) of this rank. The first `concurrency` are there at step 0."""
        random = Random(f"{seed}/{rank}/{index}")
        prompt, output = self.requests.prompt.draw(random), self.requests.output.draw(random)
        return RequestShape(index, self._arrival_step(seed, rank, index), prompt, output)

    def _arrival_step(self, seed: int, rank: int, index: int) -> int:
        late = index - self.requests.concurrency
        if self.requests.arrivals is ArrivalKind.CLOSED or late < 0:
            return 0
        times = self._arrival_steps.setdefault((seed, rank), [])
        while len(times) <= late:  # gap number i has its own generator, so asking out of order changes nothing
            gap = Random(f"{seed}/{rank}/gap/{len(times)}").expovariate(self.requests.arrivals_per_step)
            times.append((times[-1] if times else 0.0) + gap)
        return math.ceil(times[late])


def names() -> list[str]:
    """The named workloads."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Workload:
    """The named workload, or the one in the file if `name` ends in ``.toml``.

    Raises WorkloadError for an unknown name, an unreadable file, an unknown or missing key, or an impossible value.
    """
    if name.endswith(".toml"):
        return _read(Path(name))
    if name not in names():
        raise WorkloadError(f"unknown workload {name!r}; the workloads are {', '.join(names())}, or FILE.toml")
    return _read(FOLDER / f"{name}.toml")


def descriptions() -> dict[str, str]:
    """Workload name → its description, for `--list`."""
    return {name: load(name).description for name in names()}


def _read(path: Path) -> Workload:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(f"cannot read workload {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} is not TOML: {error}") from error
    if "name" in table:
        raise WorkloadError(f"{path}: a workload is named by its file, remove the key name")
    try:
        return _build(Workload, table | {"name": path.stem}, "the file")
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from error


def _build(cls: type, table: dict[str, Any], where: str) -> Any:
    """An instance of the dataclass from a TOML table, nested tables included; every key and type is checked."""
    kinds = typing.get_type_hints(cls)
    known = {each.name for each in fields(cls)}
    if unknown := sorted(table.keys() - known):
        raise WorkloadError(f"unknown key {unknown[0]!r} in {where}; known are {', '.join(sorted(known - {'name'}))}")
    needed = {each.name for each in fields(cls) if each.default is MISSING}
    if missing := sorted(needed - table.keys()):
        raise WorkloadError(f"{where} lacks {missing[0]!r}")
    values = {key: _convert(kinds[key], value, key) for key, value in table.items()}
    try:
        return cls(**values)
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}" if cls is not Workload else str(error)) from error


def _convert(kind: Any, value: Any, key: str) -> Any:
    kind = next((each for each in typing.get_args(kind) if each is not type(None)), kind)
    if hasattr(kind, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise WorkloadError(f"{key} must be a table, not {value!r}")
        return _build(kind, value, key)
    if issubclass(kind, StrEnum):
        if value not in list(kind):
            raise WorkloadError(f"{key} must be one of {', '.join(kind)}, not {value!r}")
        return kind(value)
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise WorkloadError(f"{key} must be of type {kind.__name__}, not {value!r}")
    return kind(value)
