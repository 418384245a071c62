"""The host's side of requests: which are due, which wait, and what each has been given so far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dflash_prep.loop.checksum import prompt_key
from dflash_prep.loop.oracle import Mismatch, SequenceOracle, StepResult, first_mismatch
from dflash_prep.state.request import Request
from dflash_prep.workload import ArrivalKind, RequestShape, Workload


@dataclass(slots=True, eq=False)
class Sequence:
    """One request from arrival to finish.

    req      its KV state; `req.kv` is None while it waits
    key      what its prompt is made of
    tokens   generated so far, the pending anchor last; empty until the first result is processed
    results  what each processed step committed, uncut, for the oracle; kept only if asked for
    life     how often it was admitted: a result of an earlier life is not its own any more
    """

    shape: RequestShape
    req: Request
    key: int
    tokens: list[int] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    life: int = 0
    is_finished: bool = False

    @property
    def num_missing(self) -> int:
        """Tokens until it has its full length."""
        return self.shape.output_len - len(self.tokens)

    def mismatch(self, block: int, hit_rate: float) -> Mismatch | None:
        """The first place where it left the oracle, None if nowhere."""
        if not self.tokens:
            return None
        oracle = SequenceOracle(self.key, self.shape.prompt_len, block, hit_rate)
        return first_mismatch(self.req.rid, oracle, self.tokens[0], self.results)


class RequestQueue:
    """The requests of one rank in the order of their arrival, and those sent back to wait."""

    def __init__(self, workload: Workload, seed: int, rank: int, request: type[Request] = Request) -> None:
        self._request = request
        self._workload, self._seed, self._rank = workload, seed, rank
        self._next = workload.request(seed, rank, 0)
        self._waiting: deque[Sequence] = deque()
        self.all: list[Sequence] = []

    @property
    def longest_output(self) -> int:
        """Tokens that no output is longer than."""
        return self._workload.requests.output.high

    def due(self, step: int, room: int) -> list[Sequence]:
        """Whom to try to admit at `step`: at most `room`, retracted ones first. They stay queued until taken."""
        closed = self._workload.requests.arrivals is ArrivalKind.CLOSED
        while self._next.arrival_step <= step and (not closed or len(self._waiting) < room):
            self._waiting.append(self._make(self._next))
            self._next = self._workload.request(self._seed, self._rank, self._next.index + 1)
        return [self._waiting[i] for i in range(min(room, len(self._waiting)))]

    def _make(self, shape: RequestShape) -> Sequence:
        stream = shape.index if self._workload.kv.prefix_cache else None
        req = self._request(rid=shape.index, prompt_len=shape.prompt_len, stream=stream)
        sequence = Sequence(shape, req, prompt_key(self._seed, self._rank, shape.index))
        self.all.append(sequence)
        return sequence

    def take(self, count: int) -> None:
        """The first `count` of what `due` returned were admitted."""
        for _ in range(count):
            self._waiting.popleft()

    def put_back(self, sequence: Sequence) -> None:
        """A retracted sequence waits in front."""
        self._waiting.appendleft(sequence)
