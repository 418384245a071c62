"""The tokens that must come out, computed one request at a time in plain Python, without pages, batches or streams."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_prep.loop.checksum import (
    CONTEXT,
    WEIGHTS,
    draw_of,
    hash_of,
    hit_threshold,
    prompt_token_of,
    token_of,
)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place where a run left the oracle. `position` counts tokens of the request from 0, prompt included."""

    step: int
    rid: int
    position: int
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"step {self.step}, request {self.rid}, position {self.position}"
        return f"{place}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step committed for one request: the verified tokens, bonus last."""

    step: int
    tokens: tuple[int, ...]


class SequenceOracle:
    """One request, decoded sequentially. `tokens` holds prompt and output, the pending anchor last."""

    def __init__(self, key: int, prompt_len: int, block: int, hit_rate: float) -> None:
        self.tokens = [prompt_token_of(key, position) for position in range(prompt_len)]
        self._block = block
        self._threshold = hit_threshold(hit_rate)
        self.tokens.append(token_of(self._hash_at(prompt_len - 1)))

    def _hash_at(self, position: int) -> int:
        first = position - CONTEXT + 1
        context = [0] * max(0, -first) + self.tokens[max(0, first) : position + 1]
        return hash_of(sum(token * weight for token, weight in zip(context, WEIGHTS, strict=True)), position)

    def step(self) -> list[int]:
        """The tokens that the next decode step commits: 1 to `block` of them."""
        committed = []
        for _ in range(self._block):
            hashed = self._hash_at(len(self.tokens) - 1)
            committed.append(token_of(hashed))
            self.tokens.append(committed[-1])
            if draw_of(hashed) >= self._threshold:
                break  # here the draft said something else, so this token is the target's bonus
        return committed


def first_mismatch(rid: int, oracle: SequenceOracle, first_token: int, results: list[StepResult]) -> Mismatch | None:
    """Compare everything one request was given with the oracle, in order. None if all of it is right.

    `first_token` is the one that prefill sampled; `results` what each processed step committed, in step order, before
    the host cut anything off at the request's full length.
    """
    start = len(oracle.tokens) - 1
    if first_token != oracle.tokens[start]:
        return Mismatch(-1, rid, start, f"token {oracle.tokens[start]}", f"token {first_token}")
    for result in results:
        position = len(oracle.tokens)
        expected = oracle.step()
        for offset, (right, found) in enumerate(zip(expected, result.tokens, strict=False)):
            if right != found:
                return Mismatch(result.step, rid, position + offset, f"token {right}", f"token {found}")
        if len(result.tokens) != len(expected):
            found_len, right_len = len(result.tokens), len(expected)
            at = position + min(found_len, right_len)
            return Mismatch(result.step, rid, at, f"{right_len} tokens committed", f"{found_len}")
    return None
