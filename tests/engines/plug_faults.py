"""Faults planted into the plug-in for SGLang: in a step's plan before it is looked at, or in the rows behind its back.

In a real engine ENGINE_PLANT=FAULT does it, in the 5th step that takes pages (`site/sitecustomize.py`).
"""

from __future__ import annotations

import dataclasses
import os
import sys

from shims import Shims

IN_THE_PLAN = ("a wrong slot", "a short page count", "a stale length", "a crash")
IN_THE_ROWS = "rows swapped"
AT = 5
COLUMN = 3


def spoil(fault, plan, page_size):
    """The plan with one thing wrong in it."""
    if fault == "a wrong slot":  # columns of the row that are in use already
        plan.lens.cur[0] -= page_size
    if fault == "a short page count":
        short = plan.watermark._replace(num_needed=plan.watermark.num_needed - page_size)
        return dataclasses.replace(plan, watermark=short)
    if fault == "a stale length":
        plan.lens.committed[0] -= 1
    if fault == "a crash":
        raise IndexError("planted")
    return plan


def faulty(preparation_class, fault):
    """That class with the fault in the 5th plan that takes pages; or, after 5 steps, one slot of two requests' prompts
    swapped for good, which is one wrong slot each and no page less."""

    class Faulty(preparation_class):
        taking = steps = 0

        def plan(self, batch):
            plan = super().plan(batch)
            takes = plan.watermark.num_needed > 0
            self.taking += takes
            if not takes or self.taking != AT or fault not in IN_THE_PLAN:
                return plan
            self.taking += 1
            return spoil(fault, plan, batch.token_to_kv_pool_allocator.page_size)

        def carry_out(self, draft, batch, plan):
            super().carry_out(draft, batch, plan)
            self.steps += len(batch.reqs) > 1
            if fault == IN_THE_ROWS and self.steps == AT:
                self.steps += 1
                table, rows = batch.req_to_token_pool.req_to_token, [req.kv.req_pool_idx for req in batch.reqs[:2]]
                table[rows, COLUMN] = table[rows[::-1], COLUMN]

    return Faulty


def install():
    def replace(module):
        module.Preparation = faulty(module.Preparation, os.environ["ENGINE_PLANT"])

    sys.meta_path.insert(0, Shims({"dflash_prep.sglang.preparation": replace}))
