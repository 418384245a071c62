"""What the ranges of known engines mean, and how names without bound become names that can be compared.

Engines write counts, indices and whole dictionaries into range names, so that hardly two ranges bear the same. A preset
says which ranges are the step, its preparation and the agreement of ranks, how such names are written shorter, and how
the engine names the rank in its files. The names are those that the engines themselves emit:

- SGLang with ``SGLANG_ENABLE_NVTX_SCHEDULER=1``: ``scheduler.run_batch`` and its siblings; decode preparation, and the
  agreement of ranks, lie inside ``scheduler.get_next_batch_to_run``, before the step, and no range covers an iteration.
  In torch traces each pass of a model is a range, ``step[DECODE bs=36]``. Traces are called ``…-TP-0….trace.json.gz``.
- vLLM: ``execute_context_0(0)_generation_36(36)`` around a worker's step (``execute_new_…_cached_…`` before), and with
  ``VLLM_NVTX_SCOPES_FOR_PROFILING`` or ``VLLM_CUSTOM_SCOPES_FOR_PROFILING`` ``gpu_model_runner: preprocess`` inside it.
- TensorRT-LLM with ``TLLM_LLMAPI_ENABLE_NVTX``: ``[Executor] _forward_step 12: 0 ctx reqs, 36 gen reqs``, with
  ``_prepare_inputs`` inside.
- Layer markers of SGLang and vLLM are ``str(dict)``: only the module's path is kept, its layer number as ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from dflash_bench.metrics.events.host import Ranges, shortened
from dflash_bench.metrics.events.names import Rule
from dflash_bench.metrics.reading import Reading


class Preset(StrEnum):
    """Engines whose ranges are known."""

    DFLASH_BENCH = "dflash-bench"
    SGLANG = "sglang"
    SGLANG_TRACE = "sglang-trace"
    VLLM = "vllm"
    TRTLLM = "trtllm"


@dataclass(frozen=True, slots=True)
class EngineNames:
    """How one engine names things."""

    reading: Reading
    rules: tuple[Rule, ...] = ()


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in pairs)


LAYER_MARKER = _rules((r"\{.*?'Module': '(?P<module>[^']*)'.*", r"\g<module>"))

_SGLANG_PASS = r"step\[(?:(?P<decode>DECODE|VERIFY)|(?P<prefill>EXTEND)|(?P<mixed>MIXED))\b.*"
_VLLM_COUNTS = r"execute_(context|new)_(?P<prefill>\d+)(\([\d_]+\))?_(generation|cached)_(?P<decode>\d+)(\([\d_]+\))?"

PRESETS: dict[Preset, EngineNames] = {
    Preset.DFLASH_BENCH: EngineNames(Reading()),
    Preset.SGLANG: EngineNames(
        Reading(step="scheduler.run_batch", prepare="scheduler.get_next_batch_to_run"),
        LAYER_MARKER + _rules((r"(?P<stage>scheduler\.\w+)\W.*", r"\g<stage>")),
    ),
    Preset.SGLANG_TRACE: EngineNames(
        Reading(step=r"re:step\[(VERIFY|DECODE|EXTEND|MIXED)\]", composition=re.compile(_SGLANG_PASS)),
        _rules((r"(?P<what>step\[\w+)\b.*\]", r"\g<what>]")),
    ),
    Preset.VLLM: EngineNames(
        Reading(
            step="execute_model step",
            prepare="gpu_model_runner: preprocess",
            composition=re.compile(_VLLM_COUNTS),
        ),
        LAYER_MARKER
        + _rules(
            (r"execute_(context|new)_\d+.*", "execute_model step"),
            (r"(?P<what>Iteration)\(\d+\).*", r"\g<what>"),
        ),
    ),
    Preset.TRTLLM: EngineNames(
        Reading(
            step="[Executor] _forward_step",
            prepare="_prepare_inputs",
            agreement="tp_broadcast_requests",
            composition=re.compile(r".*\b(?P<prefill>\d+) ctx reqs\b.*\b(?P<decode>\d+) gen reqs\b.*"),
        ),
        _rules((r"(?P<what>\[Executor\] _?\w+)\b.*", r"\g<what>")),
    ),
}
"""No engine marks the steps that allocate: whether a step did cannot be told from their ranges, and is not guessed."""


def reading_of(preset: Preset) -> Reading:
    """How a capture of this engine is read: its ranges' roles, and the rules for its names."""
    return replace(PRESETS[preset].reading, rules=PRESETS[preset].rules)


def engine_of(ranges: Ranges, reading: Reading) -> tuple[Preset, Reading] | None:
    """The engine whose steps are among these ranges, and how they are read, where none has the reading's step.

    Roles that differ from the default in ``reading`` stay.
    """
    if reading.is_step(ranges).any():
        return None
    given = {f.name: own for f in fields(Reading) if (own := getattr(reading, f.name)) != getattr(Reading(), f.name)}
    for preset in PRESETS:
        found = replace(reading_of(preset), **given)
        if preset is not Preset.DFLASH_BENCH and found.is_step(shortened(ranges, found.rules)).any():
            return preset, found
    return None


def known_presets() -> Iterable[str]:
    """Their names, for the command line."""
    return [str(preset) for preset in Preset]
