"""Starting a rank: the warm-up on a GPU decodes alone, whatever the rank and the world."""

from __future__ import annotations

import pytest

from dflash_prep.arms import ARMS, parse_arm
from dflash_prep.assembly import RunSpec
from dflash_prep.launch import warm_up
from dflash_prep.simulated_device import SimulatedDevice
from dflash_prep.workload import load


class SimulatedAsCuda(SimulatedDevice):
    """Works on the CPU, and says that it is a GPU, so that the warm-up takes place."""

    kind = "cuda"


@pytest.mark.parametrize("arm", ["legacy", "control", "topup"])
@pytest.mark.parametrize("rank", [0, 1, 15])
def test_a_rank_of_many_warms_up_alone(arm: str, rank: int) -> None:
    assert arm in ARMS
    spec = RunSpec(parse_arm(arm), load("smoke"), seed=0, rank=rank, world=16, check=False, verify=False, fault=None)
    warm_up(spec, SimulatedAsCuda())
