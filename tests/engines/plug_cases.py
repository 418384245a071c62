"""The plug-in on SGLang's own objects, with faults planted: run in an engine's environment, prints what came of each.

    ENGINE_STUBS=cpu PYTHONPATH=impl:tests/engines:tests/benchmarks:WHEEL python tests/engines/plug_cases.py

The last line is JSON. ``faults``: for each why the plug-in turned itself off, after how many compared steps, and in how
many steps what was left behind differs from the engine's own run. ``compared``: the same of all arms without a fault.
"""

from __future__ import annotations

import argparse
import json

import plug_faults
import sglang_prep
import torch

from dflash_prep.sglang.install import Plug
from dflash_prep.sglang.preparation import PlugArm, Preparation

STEPS = 30
ENGINES = ("upstream", "plug:bulk", "plug:ring", "plug:topup=0", "ours:bulk", "ours:bulk,staging_ring=on")


def compared(page_size: int) -> dict[str, dict[str, int]]:
    """Of each engine, in how many steps what differs from upstream; the plugs compare every step themselves too."""
    args = argparse.Namespace(
        engines=ENGINES, block=8, context=2048, steps=24, warm_up=0, seed=0, device="cpu", need_sort=False, shadow=24,
        compare=True,
    )  # fmt: skip
    return sglang_prep.run(args, 9, page_size)["differences"]


def main() -> None:
    torch.set_num_threads(1)
    workload = sglang_prep.Workload(12, 16, 8, 1024, STEPS, 5, 0, "cpu", need_sort=False)
    base = sglang_prep.play("upstream", sglang_prep.Upstream(workload), workload, keeps_states=True)
    module = sglang_prep.load_engine(workload).draft_module
    original = module.DFlashDraftInputV2.prepare_for_decode
    found = {}
    for fault in ("none", *plug_faults.IN_THE_PLAN):
        preparation = plug_faults.faulty(Preparation, fault)(PlugArm.RING, module)
        plug = Plug(original, preparation, shadow=10_000)
        engine = sglang_prep.Upstream(workload, plug.prepare_for_decode)
        states = sglang_prep.play(fault, engine, workload, keeps_states=True)
        found[fault] = {
            "off": plug.off,
            "compared": plug.compared,
            "requests": len(engine.reqs),
            "differences": sglang_prep.differences(base, states),
        }
    print(json.dumps({"faults": found, "compared": {str(size): compared(size) for size in (1, 16, 256)}}))


if __name__ == "__main__":
    main()
