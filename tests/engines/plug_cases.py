"""The plug-in on SGLang's own objects, with faults planted: run in an engine's environment, prints what came of each.

    ENGINE_STUBS=cpu PYTHONPATH=impl:tests/engines:tests/benchmarks:WHEEL python tests/engines/plug_cases.py

The last line is JSON: for each fault why the plug-in turned itself off, after how many compared steps, and in how many
steps what was left behind differs from the engine's own run.
"""

from __future__ import annotations

import dataclasses
import json

import sglang_prep
import torch

from dflash_prep.sglang.install import Plug
from dflash_prep.sglang.preparation import Plan, PlugArm, Preparation

STEPS, AT = 60, 20


class Faulty(Preparation):
    """Spoils the plan of one allocating step."""

    def __init__(self, fault: str, upstream) -> None:
        super().__init__(PlugArm.RING, upstream)
        self.fault, self.seen = fault, 0

    def plan(self, batch) -> Plan:
        plan = super().plan(batch)
        self.seen += plan.watermark.num_needed > 0
        if self.seen != AT or not plan.watermark.num_needed:
            return plan
        self.seen += 1
        page = batch.token_to_kv_pool_allocator.page_size
        if self.fault == "a wrong slot":  # columns of the row that are in use already
            plan.lens.cur[0] -= page
        if self.fault == "a short page count":
            return dataclasses.replace(
                plan, watermark=plan.watermark._replace(num_needed=plan.watermark.num_needed - page)
            )
        if self.fault == "a stale length":
            plan.lens.committed[0] -= 1
        if self.fault == "a crash":
            raise IndexError("planted")
        return plan


def main() -> None:
    torch.set_num_threads(1)
    workload = sglang_prep.Workload(12, 16, 8, 1024, STEPS, 5, 0, "cpu", need_sort=False)
    base = sglang_prep.play("upstream", sglang_prep.Upstream(workload), workload, keeps_states=True)
    module = sglang_prep.load_engine(workload).draft_module
    original = module.DFlashDraftInputV2.prepare_for_decode
    found = {}
    for fault in ("none", "a wrong slot", "a short page count", "a stale length", "a crash"):
        plug = Plug(original, Faulty(fault, module), shadow=10_000)
        engine = sglang_prep.Upstream(workload, plug.prepare_for_decode)
        states = sglang_prep.play(fault, engine, workload, keeps_states=True)
        found[fault] = {
            "off": plug.off,
            "compared": plug.compared,
            "requests": len(engine.reqs),
            "differences": sglang_prep.differences(base, states),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
