"""Arms: named sets of switches, one switch per published change.

`Switches` is the whole difference between two arms. The named arms form a ladder: each rung is the one before plus one
published step, so neighbours isolate an effect. ``parse_arm("control,topup_pages=4")`` states any other combination.
This module is data: it imports nothing outside the standard library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

_MAX_TOPUP_PAGES = 8


class ArmError(ValueError):
    """The text is no arm, or the switches contradict each other; the message is one sentence."""


def _change(default: Any, pr: str, removes: str) -> Any:
    return field(default=default, metadata={"pr": pr, "removes": removes})


@dataclass(frozen=True, slots=True)
class Switches:
    """Each published change, off by default. All off is the state before July 2026 (arm ``legacy``)."""

    fused_rebuild: bool = _change(
        False,
        "#31468, #31677",
        "two host syncs of the compact rebuild: the maximum read back, the boolean-mask packing",
    )
    host_bound: bool = _change(
        False, "#31468", "the blocking copy of device lengths that the draft's host bound was computed from"
    )
    folded_sampler: bool = _change(
        False, "#31468", "eager vocab-parallel sampling between the draft graph and the verify graph"
    )
    host_keep_list: bool = _change(False, "#31468", "the blocking copy of the keep indices in filter_batch")
    cpu_lens_delegation: bool = _change(
        False, "#31468", "the per-step copy of lengths to the host, for backends that never read them"
    )
    static_bounds: bool = _change(
        False, "#31468", "max().item() for the block-table width, and the temporary of seq_lens + B"
    )
    event_ring: bool = _change(False, "#31698", "creation of read_done and copy_done events every step")
    page_aligned: bool = _change(
        False, "#35265, #35382", "part-filled reservations: most steps allocated a few tokens for some request"
    )
    bulk_fill: bool = _change(False, "#47678", "3 * bs single-element writes into the length buffers")
    staging_ring: bool = _change(
        False, "#39154", "per-step allocation of the length buffers, and their copies on steps that allocate nothing"
    )
    glue_graph: bool = _change(False, "#47676", "eager launches of the replay metadata, padded batches included")
    persistent_counts: bool = _change(
        False, "#47677", "three pageable copies of DP-MoE token counts in every draft forward"
    )
    topup_pages: int = _change(
        0, "#47685", "most allocation steps: a step that must allocate refills everyone by K pages"
    )
    plan_stream: bool = _change(
        False, "SGLANG_ENABLE_OVERLAP_PLAN_STREAM", "nothing: moves the prep's device work aside"
    )

    host_pages: bool = _change(
        False, "this package", "device tensors in preparation: free list, page tables and lengths lie in host arrays"
    )
    step_graph: bool = _change(
        False,
        "this package",
        "every launch of a step but one: its device work is a graph, results lie in pinned memory",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.topup_pages <= _MAX_TOPUP_PAGES:
            raise ArmError(f"topup_pages must be 0 to {_MAX_TOPUP_PAGES}, not {self.topup_pages}")
        if self.topup_pages and not self.page_aligned:
            raise ArmError(
                "topup_pages needs page_aligned: whole pages can only be added to a reservation that ends on a page"
            )
        if self.staging_ring and not self.bulk_fill:
            raise ArmError("staging_ring needs bulk_fill: the ring's slots are written in bulk")
        if self.glue_graph and not self.static_bounds:
            raise ArmError(
                "glue_graph needs static_bounds: a maximum read back to the host would be frozen in the graph"
            )
        if self.fused_rebuild and not self.host_bound:
            raise ArmError("fused_rebuild needs host_bound: without it the third sync of the rebuild stays")
        self._check_host_pages()
        self._check_step_graph()

    def _check_host_pages(self) -> None:
        if not self.host_pages:
            return
        if not self.page_aligned:
            raise ArmError("host_pages needs page_aligned: what the host counts and writes are whole pages")
        if self.staging_ring:
            raise ArmError("host_pages leaves staging_ring nothing to stage: no lengths travel to the device")
        if self.plan_stream:
            raise ArmError(
                "host_pages leaves plan_stream nothing to do: rows are written on the stream that reads them"
            )

    def _check_step_graph(self) -> None:
        if not self.step_graph:
            return
        if not self.host_pages:
            raise ArmError("step_graph needs host_pages: only pages known to the host can be told in its packed block")
        frozen = {
            "fused_rebuild": "the legacy rebuild asks the device for its shapes",
            "folded_sampler": "eager sampling launches between two graphs",
            "cpu_lens_delegation": "lengths copied to the host every step are read in the middle of it",
            "static_bounds": "a maximum read back to the host would be frozen",
            "event_ring": "its one event a step is the ring's",
            "glue_graph": "the metadata is part of it",
            "persistent_counts": "a graph reads counts at an address that stays",
        }
        for name, reason in frozen.items():
            if not getattr(self, name):
                raise ArmError(f"step_graph needs {name}: {reason}")


@dataclass(frozen=True, slots=True)
class Arm:
    """A named set of switches; `name` is the text that `parse_arm` turns back into the same arm."""

    name: str
    switches: Switches


def _ladder() -> dict[str, Switches]:
    legacy = Switches()
    syncfree = replace(
        legacy,
        fused_rebuild=True,
        host_bound=True,
        folded_sampler=True,
        host_keep_list=True,
        cpu_lens_delegation=True,
        static_bounds=True,
        event_ring=True,
    )
    aligned = replace(syncfree, page_aligned=True)
    bulk = replace(aligned, bulk_fill=True)
    glue = replace(bulk, glue_graph=True)
    counts = replace(glue, persistent_counts=True)
    topup = replace(counts, topup_pages=2)
    return {
        "legacy": legacy,
        "syncfree": syncfree,
        "aligned": aligned,
        "bulk": bulk,
        "glue": glue,
        "counts": counts,
        "control": counts,
        "topup": topup,
        "floor": replace(topup, host_pages=True, step_graph=True),
    }


ARMS = MappingProxyType({name: Arm(name, switches) for name, switches in _ladder().items()})
"""The ladder, in order, and ``floor``, beyond what is published.

``control`` is ``counts`` under the name it has as the base of a comparison.
"""


def parse_arm(text: str) -> Arm:
    """The arm of ``NAME[,switch=value...]``: a named arm, then changes to it; ``on``/``off`` for the boolean ones.

    Raises ArmError, one sentence, for an unknown name or switch, a value of the wrong kind, a repeated switch, or a
    combination that makes no sense.
    """
    name, *changes = (part.strip() for part in text.split(","))
    if name not in ARMS:
        raise ArmError(f"unknown arm {name!r}; the arms are {', '.join(ARMS)}")
    kinds = {each.name: type(each.default) for each in fields(Switches)}
    values: dict[str, bool | int] = {}
    for change in changes:
        key, equals, value = (part.strip() for part in change.partition("="))
        if key not in kinds or not equals:
            raise ArmError(f"{change!r} in arm {text!r} is no switch=value; the switches are {', '.join(kinds)}")
        if key in values:
            raise ArmError(f"arm {text!r} sets {key} twice")
        values[key] = _value(kinds[key], key, value)
    spelled = [f"{key}={_spell(value)}" for key, value in values.items()]
    return Arm(",".join([name, *spelled]), replace(ARMS[name].switches, **values))


def _value(kind: type, key: str, text: str) -> bool | int:
    if kind is bool:
        words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
        if text.lower() not in words:
            raise ArmError(f"{key} is on or off, not {text!r}")
        return words[text.lower()]
    if not (text.isascii() and text.isdecimal()):
        raise ArmError(f"{key} is a whole number from 0, not {text!r}")
    return int(text)


def _spell(value: bool | int) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def listing() -> dict[str, dict[str, bool | int]]:
    """Arm name → switches, as plain data for `--list` and the ledger."""
    return {name: asdict(arm.switches) for name, arm in ARMS.items()}
