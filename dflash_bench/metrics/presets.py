"""What the ranges of known engines mean, and how names without bound become names that can be compared.

Engines write counts, indices and whole dictionaries into range names, so that hardly two ranges bear the same. A preset
says which ranges are the step, its preparation and the agreement of ranks, how such names are written shorter, and how
the engine names the rank in its files. The names are those that the engines themselves emit:

- SGLang with ``SGLANG_SCHEDULER_ENABLE_NVTX``: ``scheduler.run_batch`` and its siblings; decode preparation lies inside
  ``scheduler.get_next_batch_to_run``, before the step. Traces are called ``…-TP-0….trace.json.gz``.
- vLLM: ``execute_context_0(0)_generation_36(36)`` around a worker's step (``execute_new_…_cached_…`` before), and with
  ``VLLM_NVTX_SCOPES_FOR_PROFILING`` or ``VLLM_CUSTOM_SCOPES_FOR_PROFILING`` ``gpu_model_runner: preprocess`` inside it.
- TensorRT-LLM with ``TLLM_LLMAPI_ENABLE_NVTX``: ``[Executor] _forward_step 12: 0 ctx reqs, 36 gen reqs``, with
  ``_prepare_inputs`` inside.
- Layer markers of SGLang and vLLM are ``str(dict)``: only the module's path is kept, its layer number as ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dflash_bench.metrics.events import Reading

MAX_NAMES = 500
"""Distinct range names of a process beyond which those that differ in numbers only become one."""
REST = "(other names)"

Rule = tuple[re.Pattern[str], str]
"""A pattern that matches from a name's beginning to its end, and what is written instead."""


class Preset(StrEnum):
    """Engines whose ranges are known."""

    DFLASH_BENCH = "dflash-bench"
    SGLANG = "sglang"
    VLLM = "vllm"
    TRTLLM = "trtllm"


@dataclass(frozen=True, slots=True)
class EngineNames:
    """How one engine names things. ``rank_pattern``: its rank in file names, None if the default finds it."""

    reading: Reading
    rules: tuple[Rule, ...] = ()
    rank_pattern: str | None = None


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in pairs)


LAYER_MARKER = _rules((r"\{.*?'Module': '(?P<module>[^']*)'.*", r"\g<module>"))
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

PRESETS: dict[Preset, EngineNames] = {
    Preset.DFLASH_BENCH: EngineNames(Reading()),
    Preset.SGLANG: EngineNames(
        Reading(step=r"scheduler\.run_batch", prepare="scheduler.get_next_batch_to_run"),
        LAYER_MARKER + _rules((r"(?P<stage>scheduler\.\w+)\W.*", r"\g<stage>")),
        r"(?:TP|rank)[-_.]?(?P<rank>\d+)",
    ),
    Preset.VLLM: EngineNames(
        Reading(step="execute_model step", prepare="gpu_model_runner: preprocess"),
        LAYER_MARKER
        + _rules(
            (r"execute_(context|new)_\d+.*", "execute_model step"),
            (r"(?P<what>Iteration)\(\d+\).*", r"\g<what>"),
        ),
    ),
    Preset.TRTLLM: EngineNames(
        Reading(step=r"\[Executor\] _forward_step", prepare="_prepare_inputs", agreement="tp_broadcast_requests"),
        _rules((r"(?P<what>\[Executor\] _?\w+)\b.*", r"\g<what>")),
    ),
}
"""No engine marks the steps that allocate: whether a step did cannot be told from their ranges, and is not guessed."""


def short_name(name: str, rules: Sequence[Rule]) -> str:
    """The name after the first rule that matches it; unchanged where none does."""
    for pattern, replacement in rules:
        if found := pattern.fullmatch(name):
            short = found.expand(replacement)
            return _LAYER_NUMBER.sub("*", short) if "module" in pattern.groupindex else short
    return name


@dataclass(frozen=True, slots=True)
class ShortNames:
    """``values``: the names that are left. ``place``: for each original name, its position in ``values``.

    ``num_merged``: how many names became one with others because there were too many.
    """

    values: tuple[str, ...]
    place: tuple[int, ...]
    num_merged: int


def short_names(names: Sequence[str], rules: Sequence[Rule] = (), limit: int = MAX_NAMES) -> ShortNames:
    """Shorten all names of a process, and keep their number within ``limit``.

    Where too many are left, names that differ in numbers only become one (its numbers shown as 0, so that a pattern
    for the numbers still matches it); where that is not enough, the names beyond the limit become ``(other names)``.
    """
    short = [short_name(name, rules) for name in names]
    before = len(set(short))
    if before > limit:
        short = [re.sub(r"\d+", "0", name) for name in short]
        kept = set(list(dict.fromkeys(short))[: limit - 1])
        short = [name if name in kept else REST for name in short] if len(set(short)) > limit else short
    values = tuple(dict.fromkeys(short))
    position = {name: k for k, name in enumerate(values)}
    return ShortNames(values, tuple(position[name] for name in short), before - len(values))


def known_presets() -> Iterable[str]:
    """Their names, for the command line."""
    return [str(preset) for preset in Preset]
