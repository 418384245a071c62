"""The engine on a real GPU: the oracle's tokens in every arm, host syncs where legacy has them and nowhere else."""

from __future__ import annotations

import gc

import pytest
import torch
from decoding import decode as decode_simulated
from decoding import given

from dflash_prep import workload as workloads
from dflash_prep.arms import ARMS, parse_arm
from dflash_prep.errors import ResultOverrunError
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec, build
from dflash_prep.loop.checksum import ModelKind
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.faults import Fault, FaultKind
from dflash_prep.loop.launch import warm_up

pytestmark = pytest.mark.gpu

SHAPE = """
description = "long enough to finish nobody in the first dozen of steps"
[requests]
concurrency = 13
prompt = { low = 30, high = 300 }
output = { low = 150, high = 400 }
[kv]
page_size = 64
pool_pages = 400
context_len = 768
[speculation]
block = 8
window = 128
accept_mean = 3.5
[device]
draft_us = 150
verify_us = 300
"""


@pytest.fixture
def shape(tmp_path) -> workloads.Workload:
    path = tmp_path / "shape.toml"
    path.write_text(SHAPE)
    return workloads.load(str(path))


@pytest.fixture
def make():
    """Engines on the GPU; afterwards the thread's current stream is what it was."""
    from dflash_prep.loop.cuda_device import CudaDevice

    before = torch.cuda.current_stream()

    def engine(
        workload: workloads.Workload,
        arm: str,
        *,
        check: bool = False,
        fault: Fault | None = None,
        model: ModelKind = ModelKind.AUTO,
    ) -> Engine:
        parsed = parse_arm(arm)
        spec = RunSpec(parsed, workload, seed=0, rank=0, world=1, check=check, verify=True, fault=fault, model=model)
        one, reuse = parsed.switches.step_graph, parsed.switches.event_ring
        return build(spec, CudaDevice(0, reuse_events=reuse, one_stream=one), AgreementGroup(1))

    yield engine
    torch.cuda.synchronize()
    torch.cuda.set_stream(before)


def decode(engine: Engine, steps: int) -> None:
    engine.run(steps, lambda: False, lambda _done: None)


NOT_IN = {"topup": [FaultKind.RING], "floor": [FaultKind.RING, FaultKind.REBUILD]}
OTHERS = ["topup,host_pages=on", "topup,staging_ring=on", "topup,plan_stream=on", "topup,topup_pages=8"]


@pytest.mark.parametrize("arm", [*ARMS, *OTHERS])
def test_every_arm_gives_the_tokens_of_the_oracle_and_loses_no_page(make, shape, arm) -> None:
    engine = make(shape, arm, check=True)
    decode(engine, 120)
    engine.close()
    mismatch, compared = engine.first_mismatch()
    assert mismatch is None
    assert compared > 120 * 13
    assert engine.leaked_tokens == 0
    assert engine.prep.consistency.bad == 0


@pytest.mark.parametrize("kind", [ModelKind.TORCH, ModelKind.TRITON])
@pytest.mark.parametrize("arm", ["legacy", "topup", "floor"])
def test_gpu_and_cpu_decode_the_same_tokens_with_kernels_and_with_torch(make, shape, arm, kind) -> None:
    engine = make(shape, arm, model=kind)
    assert engine.parts.model.kind is kind
    decode(engine, 60)
    engine.close()
    assert given(engine) == given(decode_simulated(shape, arm, 60))


@pytest.mark.parametrize(
    "arm", ["counts", "topup", "topup,staging_ring=on", "topup,plan_stream=on", "topup,host_pages=on", "floor"]
)
def test_from_counts_on_no_step_makes_the_host_wait_but_for_the_result(make, shape, forbid_syncs, arm) -> None:
    """The wait for a result's event is no synchronisation in torch's sense; arrivals and finishes are included."""
    engine = make(shape, arm)
    decode(engine, 3)
    with forbid_syncs():
        decode(engine, 100)
    engine.close()
    assert engine.first_mismatch()[0] is None


@pytest.mark.parametrize(("arm", "per_step"), [("legacy", 7), ("syncfree", 3), ("glue", 3), ("counts", 0)])
def test_the_syncs_of_a_step_are_those_of_the_published_sites(make, shape, count_syncs, arm, per_step) -> None:
    """Lengths to the host 1 (#31468), compact rebuild 3 (#31468), DP-MoE counts 3 (#47677)."""
    engine = make(shape, arm)
    decode(engine, 3)
    assert count_syncs(lambda: decode(engine, 10)) == 10 * per_step
    engine.close()


@pytest.mark.parametrize(
    ("arm", "kind"),
    [(arm, kind) for arm in ("topup", "floor") for kind in FaultKind if kind not in NOT_IN[arm]],
)
def test_a_planted_fault_is_found(make, shape, arm, kind) -> None:
    engine = make(shape, arm, fault=Fault(kind, step=6))
    decode(engine, 14)
    engine.close()
    assert 6 <= engine.first_mismatch()[0].step <= 9


def test_a_result_in_the_slot_of_another_step_is_refused(make, shape) -> None:
    engine = make(shape, "floor", fault=Fault(FaultKind.RING, step=6))
    with pytest.raises(ResultOverrunError, match=r"the result of step 6 .* was due"):
        decode(engine, 14)


def test_a_graph_keeps_the_gpu_busy_for_its_time_and_the_host_not_at_all(make, shape) -> None:
    engine = make(shape, "control")
    ran = torch.zeros(1, device="cuda")
    device = engine.parts.device
    graph = device.graph("spin", lambda: ran.add_(1), 3000)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with device.forward_stream():
        before.record()
        graph.replay()
        after.record()
        assert not after.query()
    after.synchronize()
    assert before.elapsed_time(after) >= 2.9
    assert ran.item() == 3  # two warm-ups, one replay: a capture runs nothing


@pytest.mark.parametrize("arm", ARMS)
def test_an_engine_can_be_built_after_the_warm_up_and_all_its_graphs_are_gone(make, shape, arm) -> None:
    first = make(shape, arm)
    device = first.parts.device
    first.close()
    del first
    spec = RunSpec(parse_arm(arm), shape, seed=0, rank=0, world=1, check=False, verify=True, fault=None)
    warm_up(spec, device)
    gc.collect()
    engine = build(spec, device, AgreementGroup(1))
    decode(engine, 6)
    engine.close()
    assert engine.first_mismatch()[0] is None


@pytest.mark.parametrize("arm", ["legacy", "topup"])
def test_the_models_kernels_are_all_compiled_when_the_warm_up_is_over(make, tmp_path, monkeypatch, arm) -> None:
    """Block sizes that no other test has, so that this process has compiled nothing for them before."""
    import triton

    text = SHAPE.replace("block = 8", f"block = {5 if arm == 'legacy' else 7}")
    (tmp_path / "own.toml").write_text(text)
    own = workloads.load(str(tmp_path / "own.toml"))
    compiled: list[tuple[str, str]] = []

    def note(*, fn, **_known) -> None:
        compiled.append((fn.module, fn.name))

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", note)
    first = make(own, arm)
    spec = RunSpec(parse_arm(arm), own, seed=0, rank=0, world=1, check=False, verify=True)
    warm_up(spec, first.parts.device)
    ours = "dflash_prep.loop.checksum_triton"
    assert {name for module, name in compiled if module == ours} == {
        "_write_target_kernel",
        "_target_kernel",
        "_write_draft_kernel",
        "_propose_kernel",
        "_keep_kernel",
    }
    compiled.clear()
    engine = build(spec, first.parts.device, AgreementGroup(1))
    decode(engine, 60)
    assert [name for module, name in compiled if module == ours] == []
    engine.close()
    assert engine.first_mismatch()[0] is None
