"""The arithmetic of the checksum language model, in plain integers and in torch: the same numbers from both.

Everything stays below 2^31 before a multiplication and below 2^62 after it, so int64 never overflows and `>>` never
meets a sign bit: Python, NumPy, CPU and GPU give identical integers. The functions named ``*_of`` take arrays and
tensors as readily as ints, because they only use operators; this module imports neither NumPy nor torch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

VOCAB = 512
"""Small enough that the draft head's logits 2*t*v - v*v are exact in float32 (see `checksum_lm.ChecksumHead`)."""
CONTEXT = 8
"""Tokens that the next one depends on."""
MASK31 = 2**31 - 1
WEIGHTS = (2003861003, 1403580811, 1170723877, 1872883957, 1298837059, 1677654937, 1558960499, 1029531251)
"""One odd weight per token of the context, oldest first: two swapped tokens give another sum."""
POSITION_WEIGHT = 1640531527
DRAFT_SALT = 0x2545F491 & MASK31


class ModelKind(StrEnum):
    """What computes the model: its Triton kernels on a GPU and torch elsewhere (auto), or one of the two."""

    AUTO = "auto"
    TORCH = "torch"
    TRITON = "triton"


def mix_of(value: Any) -> Any:
    """A bijective-looking scramble of integers in [0, 2^31)."""
    value = value ^ (value >> 15)
    value = (value * 0x2C1B3C6D) & MASK31
    value = value ^ (value >> 12)
    value = (value * 0x297A2D39) & MASK31
    return value ^ (value >> 15)


def hash_of(weighted_sum: Any, position: Any) -> Any:
    """Hash of a context ending at `position`, from sum(token * weight) over its `CONTEXT` tokens."""
    return mix_of((weighted_sum + (position + 1) * POSITION_WEIGHT) & MASK31)


def token_of(hashed: Any) -> Any:
    """The token that follows a context."""
    return hashed % VOCAB


def draw_of(hashed: Any) -> Any:
    """A number in [0, 2^31), independent of the token: the draft is right about the next token if this is small."""
    return mix_of(hashed ^ DRAFT_SALT)


def hit_threshold(hit_rate: float) -> int:
    """The draft is right where `draw_of` lies below this."""
    return round(hit_rate * 2**31)


def proposal_of(hashed: Any, threshold: int) -> Any:
    """What the draft says: the right token where `draw_of` lies below the threshold, the one after it elsewhere."""
    return (token_of(hashed) + (draw_of(hashed) >= threshold)) % VOCAB


def prompt_key(seed: int, rank: int, index: int) -> int:
    """What makes the prompt of request `index` of this rank and seed different from every other's."""
    key = 0
    for part in (seed, rank, index):
        key = mix_of((key * 31 + part + 1) & MASK31)
    return key


def prompt_token_of(key: int, position: Any) -> Any:
    """The prompt's token at `position`."""
    return mix_of((key + position * POSITION_WEIGHT) & MASK31) % VOCAB
