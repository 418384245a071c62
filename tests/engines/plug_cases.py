"""The plug-in on SGLang's own objects, with faults planted: run in an engine's environment, prints what came of each.

    ENGINE_STUBS=cpu PYTHONPATH=impl:tests/engines:tests/benchmarks:WHEEL python tests/engines/plug_cases.py

The last line is JSON. ``faults``: for each why the plug-in turned itself off, after how many compared steps, and in how
many steps what was left behind differs from the engine's own run. ``compared``: the same of all arms without a fault,
in every kind of pools, and what happened meanwhile.
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
PLUGS = ("plug:bulk", "plug:ring", "plug:topup=0")
SAME = ("upstream", *PLUGS, "ours:bulk,staging_ring=on")
IN_ADVANCE = ("plug:topup=2", "ours:topup,staging_ring=on", "ours:floor")
CASES = {
    "plenty": ((*SAME, "ours:bulk"), (1, 16), {}),
    "large pages": ((*SAME, "ours:bulk"), (256,), {"context": 2048, "steps": 24}),
    "sent back": (SAME, (1, 16), {"pool": 1400}),
    "evicted": (SAME, (1, 16), {"pool": 1600, "context": 256, "prefix_cache": True}),
    "window": (SAME, (1, 16), {"window": 64, "swa_interval": 32}),
    "window and tree": (SAME, (1, 16), {"window": 72, "swa_interval": 32, "prefix_cache": True}),
    "hisparse": ((*SAME, "plug:topup=2"), (16,), {"hisparse": True}),
    "pages of one token": (("upstream", "plug:topup=2"), (1,), {}),
    "never enough in advance": (("upstream", "plug:topup=8"), (16,), {"pool": 1000}),
    "in advance": (IN_ADVANCE, (16,), {}),
    "in advance, sent back": (IN_ADVANCE, (16,), {"pool": 1400, "steps": 120}),
}
"""Engines, all held against the first; page sizes; what of the workload is special."""


def compared(engines: tuple[str, ...], page_size: int, more: dict[str, object]) -> dict[str, dict]:
    """In how many steps what differs from the first engine; the plugs compare every step themselves too."""
    given = {"engines": engines, "block": 8, "context": 512, "steps": 60, "warm_up": 0, "seed": 0, "device": "cpu"}
    given |= {"need_sort": False, "shadow": 1000, "compare": True, **more}
    found = sglang_prep.run(argparse.Namespace(**given), 9, page_size)
    return {name: found[name] for name in ("differences", "happened")}


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
    cases = {
        f"{name}, page {page_size}": compared(engines, page_size, more)
        for name, (engines, page_sizes, more) in CASES.items()
        for page_size in page_sizes
    }
    print(json.dumps({"faults": found, "compared": cases}))


if __name__ == "__main__":
    main()
