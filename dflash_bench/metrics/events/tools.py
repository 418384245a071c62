"""Ranges of tools and libraries, which are nobody's steps."""

from __future__ import annotations

import re

from dflash_bench.metrics.events.host import Ranges
from dflash_bench.model import BoolArray

_NAMES = re.compile(
    r"(Holding|Waiting for) GIL.*|cub::.*|thrust::.*|nccl.*|aten::.*|at::.*|c10d?::.*|cu(blas|dnn|sparse|fft|solver).*"
    r"|autograd::.*|Optimizer\..*#.*|ProfilerStep#.*warmup.*",
    re.IGNORECASE | re.DOTALL,
)
_DOMAINS = re.compile(r"CCCL|NCCL.*|cu(blas|dnn|sparse|fft|solver).*|GIL|.*Python.*|OpenACC|OpenMP|MPI", re.IGNORECASE)


def is_of_tool(ranges: Ranges) -> BoolArray:
    """bool [n]: which ranges a tool or a library emitted."""
    return ranges.name.matching(_NAMES) | ranges.domain.matching(_DOMAINS)
