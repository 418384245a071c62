"""Greedy acceptance: leading run, bonus, shifted tokens, rotating buffers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.kernels.accept import AcceptBuffers, Accepted, greedy_accept, greedy_accept_torch, greedy_accept_triton

POISON = -77
FIELDS = ("accept_lens", "commit_lens", "bonus_tokens", "out_tokens", "new_seq_lens")


def poisoned(bs: int, B: int, device: torch.device) -> Accepted:
    out = AcceptBuffers(bs, B, device).take(bs)
    for name in FIELDS:
        getattr(out, name).fill_(POISON)
    return out


def forced_block(
    accept: list[int], B: int, vocab: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts and targets whose leading runs have exactly these lengths, and agree by chance nowhere at the break."""
    target = torch.randint(0, vocab, (len(accept), B), generator=generator)
    draft = torch.randint(0, vocab, (len(accept), B), generator=generator)
    for i, run in enumerate(accept):
        draft[i, 1 : run + 1] = target[i, :run]
        if run < B - 1:
            draft[i, run + 1] = (target[i, run] + 1) % vocab
    return draft, target


def test_acceptance_told_in_numbers(device: torch.device) -> None:
    # B = 4. Row 0: both first drafts agree, the third does not. Row 1: none agrees. Row 2: all three agree.
    draft = torch.tensor([[9, 1, 2, 3], [9, 1, 2, 3], [9, 1, 2, 3]], device=device)
    target = torch.tensor([[1, 2, 7, 8], [5, 2, 3, 4], [1, 2, 3, 6]], device=device)
    prefix = torch.tensor([100, 200, 300], device=device)
    for accept in (greedy_accept_torch, greedy_accept_triton):
        out = poisoned(3, 4, device)
        accept(draft, target, prefix, out)
        assert out.accept_lens.tolist() == [2, 0, 3]
        assert out.commit_lens.tolist() == [3, 1, 4]
        assert out.bonus_tokens.tolist() == [7, 5, 6]
        assert out.out_tokens.tolist() == [[1, 2, 7, 0], [5, 2, 3, 0], [1, 2, 3, 6]]
        assert out.new_seq_lens.tolist() == [103, 201, 304]


@pytest.mark.parametrize("bs", [1, 2, 3, 8, 48])
def test_kernel_equals_eager_for_forced_accept_lengths(bs: int, device: torch.device) -> None:
    """T9: B 16, vocabulary 240,000, 20 trials, run (trial + row) mod B, prefixes around block and page borders."""
    B, cycle = 16, [47, 48, 63, 64, 65, 1023, 1024]
    generator = torch.Generator().manual_seed(0)
    for trial in range(20):
        runs = [(trial + row) % B for row in range(bs)]
        draft, target = (each.to(device) for each in forced_block(runs, B, 240_000, generator))
        prefix = torch.tensor([cycle[row % len(cycle)] for row in range(bs)], device=device)
        expected, actual = poisoned(bs, B, device), poisoned(bs, B, device)
        greedy_accept_torch(draft, target, prefix, expected)
        greedy_accept_triton(draft, target, prefix, actual)
        assert actual.accept_lens.tolist() == runs
        for name in FIELDS:
            assert torch.equal(getattr(actual, name), getattr(expected, name)), name


@pytest.mark.parametrize("bs", [0, 1, 7, 192, 200])
def test_kernel_writes_nothing_beyond_the_batch_and_reads_strided_blocks(bs: int, device: torch.device) -> None:
    B, generator = 6, torch.Generator().manual_seed(bs)
    draft, target = forced_block([row % B for row in range(bs)], B, 50, generator)
    wide = torch.full((bs, B + 3), POISON)
    wide[:, :B] = draft
    draft, target = wide.to(device)[:, :B], target.to(device)
    prefix = torch.arange(2 * bs, device=device)[::2]
    expected, actual = poisoned(bs + 2, B, device), poisoned(bs + 2, B, device)
    greedy_accept_torch(draft, target, prefix, expected[:bs])
    greedy_accept_triton(draft, target, prefix, actual[:bs])
    for name in FIELDS:
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
        assert bool((getattr(actual, name)[bs:] == POISON).all()), name


@given(
    runs=st.lists(st.integers(0, 7), min_size=1, max_size=9),
    vocab=st.integers(2, 5),
    seed=st.integers(0, 1 << 30),
)
def test_committed_tokens_are_the_targets_own(runs: list[int], vocab: int, seed: int) -> None:
    """Greedy verify never changes the output: the committed tokens are the target's first commit_len predictions."""
    B = 8
    draft, target = forced_block(runs, B, vocab, torch.Generator().manual_seed(seed))
    out = poisoned(len(runs), B, torch.device("cpu"))
    greedy_accept(draft, target, torch.zeros(len(runs), dtype=torch.int64), out)
    assert out.accept_lens.tolist() == runs
    for i, commit in enumerate(out.commit_lens.tolist()):
        assert torch.equal(out.out_tokens[i, :commit], target[i, :commit])
        assert out.bonus_tokens[i] == target[i, commit - 1]


def test_a_block_of_one_token_commits_the_bonus_alone(device: torch.device) -> None:
    out = poisoned(2, 1, device)
    target = torch.tensor([[7], [8]], device=device)
    greedy_accept_triton(torch.tensor([[1], [7]], device=device), target, torch.tensor([5, 6], device=device), out)
    assert (out.commit_lens.tolist(), out.out_tokens.tolist()) == ([1, 1], [[7], [8]])


def test_results_rotate_through_two_slots_except_accept_lens() -> None:
    buffers = AcceptBuffers(4, 8, "cpu")
    first, second, third = buffers.take(3), buffers.take(3), buffers.take(3)
    for name in ("commit_lens", "bonus_tokens", "out_tokens", "new_seq_lens"):
        addresses = [getattr(each, name).data_ptr() for each in (first, second, third)]
        assert addresses[0] != addresses[1], name
        assert addresses[0] == addresses[2], name
    assert first.accept_lens.data_ptr() == second.accept_lens.data_ptr()
    with pytest.raises(ValueError, match="do not fit"):
        buffers.take(5)


@pytest.mark.gpu
def test_on_a_gpu_acceptance_does_not_synchronise(forbid_syncs) -> None:
    cuda = torch.device("cuda")
    draft, target = (each.cuda() for each in forced_block([3, 0, 7], 8, 100, torch.Generator().manual_seed(1)))
    prefix, out = torch.tensor([1, 2, 3], device=cuda), poisoned(3, 8, cuda)
    greedy_accept(draft, target, prefix, out)
    with forbid_syncs():
        greedy_accept(draft, target, prefix, out)
    assert out.new_seq_lens.tolist() == [5, 3, 11]
