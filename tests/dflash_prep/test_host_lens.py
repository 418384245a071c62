"""Who needs host lengths, and which ones the planner takes."""

import pytest
import torch

from dflash_prep.kernels.host_lens import (
    HybridBackend,
    HybridDelegation,
    SpeculativeMode,
    _HostLensSource,
    committed_host_lens,
    decide_needs_cpu_seq_lens,
    verify_host_lens,
)


class Reads:
    needs_cpu_seq_lens = True


class Ignores:
    needs_cpu_seq_lens = False


class Silent:
    """A backend that predates the attribute."""


def backend(needs: bool) -> object:
    return Reads() if needs else Ignores()


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_hybrid_flag_as_merged_is_the_or(prefill: bool, decode: bool, expected: bool) -> None:
    """T6, #31468, whatever the mode."""
    for mode in SpeculativeMode:
        hybrid = HybridBackend(backend(prefill), backend(decode), HybridDelegation.UNION, mode)
        assert hybrid.needs_cpu_seq_lens is expected


@pytest.mark.parametrize(
    ("mode", "prefill", "decode", "expected"),
    [
        (SpeculativeMode.DECODE, False, False, False),
        (SpeculativeMode.DECODE, True, False, False),
        (SpeculativeMode.DECODE, False, True, True),
        (SpeculativeMode.PREFILL, True, False, True),
        (SpeculativeMode.PREFILL, False, False, False),
        (SpeculativeMode.PREFILL, False, True, True),
    ],
)
def test_hybrid_flag_as_refined_asks_prefill_only_if_it_verifies(
    mode: SpeculativeMode, prefill: bool, decode: bool, expected: bool
) -> None:
    """T6, later form."""
    hybrid = HybridBackend(backend(prefill), backend(decode), HybridDelegation.BY_MODE, mode)
    assert hybrid.needs_cpu_seq_lens is expected


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("decode", [False, True])
def test_before_31468_the_hybrid_wrapper_always_forced_the_copy(prefill: bool, decode: bool) -> None:
    hybrid = HybridBackend(backend(prefill), backend(decode), HybridDelegation.ABSENT)
    assert decide_needs_cpu_seq_lens([hybrid, Ignores()])


def test_the_decision_over_all_backends() -> None:
    assert not decide_needs_cpu_seq_lens([Ignores(), None, Ignores()])
    assert not decide_needs_cpu_seq_lens([])
    assert decide_needs_cpu_seq_lens([Ignores(), Reads()])
    assert decide_needs_cpu_seq_lens([Ignores(), Silent()]), "a backend that does not say counts as reading"
    assert decide_needs_cpu_seq_lens([Ignores()], two_batch_overlap=True)
    assert decide_needs_cpu_seq_lens([Ignores()], ngram=True)


def test_the_wrapper_of_a_silent_backend_counts_as_reading() -> None:
    assert HybridBackend(Ignores(), Silent(), HybridDelegation.BY_MODE).needs_cpu_seq_lens
    assert not HybridBackend(Silent(), Ignores(), HybridDelegation.BY_MODE).needs_cpu_seq_lens


EXACT, RESERVED, DEVICE = torch.tensor([10, 20]), torch.tensor([64, 64], dtype=torch.int32), torch.tensor([10, 20])


def test_exact_lengths_are_preferred_and_the_block_is_added_for_verify() -> None:
    committed = committed_host_lens(EXACT, RESERVED, DEVICE)
    assert (committed.source, committed.lens.tolist()) == (_HostLensSource.EXACT, [10, 20])
    verify = verify_host_lens(EXACT, RESERVED, DEVICE, 8)
    assert (verify.source, verify.lens.tolist(), verify.total) == (_HostLensSource.EXACT, [18, 28], 46)


def test_in_gpu_only_mode_the_reservation_stands_as_it_is_because_it_holds_the_block_already() -> None:
    for each in (committed_host_lens(None, RESERVED, DEVICE), verify_host_lens(None, RESERVED, DEVICE, 8)):
        assert (each.source, each.lens.tolist(), each.total) == (_HostLensSource.RESERVED, [64, 64], 128)


def test_with_neither_the_device_is_asked() -> None:
    verify = verify_host_lens(None, None, DEVICE, 8)
    assert (verify.source, verify.lens.tolist()) == (_HostLensSource.BLOCKING, [18, 28])


@pytest.mark.gpu
def test_on_a_gpu_only_the_blocking_source_waits(count_syncs) -> None:
    lens = DEVICE.cuda()
    assert count_syncs(lambda: verify_host_lens(None, None, lens, 8)) == 1
    assert count_syncs(lambda: verify_host_lens(None, RESERVED, lens, 8)) == 0
    assert count_syncs(lambda: verify_host_lens(EXACT, None, lens, 8)) == 0
