"""The draft's greedy sampler: split over ranks, folded or eager, it is an argmax over the full vocabulary.

Most tests use small integers as hidden states and weights: all logits are exact in every dtype and full of ties.
Run as a program this file is one rank of the tests over real process groups.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.kernels import sampler
from dflash_prep.kernels.sampler import (
    DistributedGroup,
    DraftHead,
    EagerReason,
    FoldedSampler,
    SamplerSetup,
    SoloGroup,
    TpGroup,
    VocabShard,
    _draft_rows,
    agree_free_bytes,
    eager_reason,
    sample_drafts,
    sample_greedy_eager,
)


class Mailbox:
    """All ranks of a simulated group in one process.

    Each all-gather drops its input into the slot of (call, size, dtype) and reads what all ranks dropped there last.
    Let all ranks run twice: in the second round everything read is what the same call of every rank sent. Slots keep
    their address, so the same works inside a CUDA graph.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def group(self, rank: int) -> "SimulatedGroup":
        return SimulatedGroup(self, rank)


class SimulatedGroup:
    def __init__(self, mailbox: Mailbox, rank: int) -> None:
        self._mailbox, self.rank, self.size = mailbox, rank, mailbox.size
        self.calls = 0

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        key = (self.calls, tensor.numel(), tensor.dtype)
        self.calls += 1
        slot = self._mailbox.slots.get(key)
        if slot is None:
            slot = self._mailbox.slots[key] = tensor.new_zeros(self.size, tensor.numel())
        slot[self.rank].copy_(tensor)
        out.copy_(slot.view(-1))


def on_all_ranks(size: int, run: Callable[[TpGroup], torch.Tensor]) -> list[torch.Tensor]:
    """What `run` returns on each rank of a simulated group."""
    mailbox = Mailbox(size)
    for rank in range(size):
        run(mailbox.group(rank))
    return [run(mailbox.group(rank)) for rank in range(size)]


def head_of(weight: torch.Tensor, rank: int, size: int) -> DraftHead:
    """Rank `rank`'s contiguous part of a full head [vocab, H]."""
    shard = VocabShard.split(weight.shape[0], rank, size)
    return DraftHead(weight[shard.org_start : shard.org_start + shard.num_org].clone(), shard)


def full_argmax(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden.to(weight.dtype) @ weight.T).argmax(dim=-1)


def folded_ids(hidden: torch.Tensor, weight: torch.Tensor, B: int, size: int) -> list[torch.Tensor]:
    def run(group: TpGroup) -> torch.Tensor:
        folded = FoldedSampler(head_of(weight, group.rank, group.size), group, hidden.shape[0] // B + 1, B)
        folded.out.fill_(-1)
        folded(hidden)
        count = hidden.shape[0] // B * (B - 1)
        assert bool((folded.out[count:] == -1).all()), "nothing beyond the batch is written"
        return folded.out[:count]

    return on_all_ranks(size, run)


def eager_ids(hidden: torch.Tensor, weight: torch.Tensor, size: int) -> list[torch.Tensor]:
    return on_all_ranks(size, lambda group: sample_greedy_eager(hidden, head_of(weight, group.rank, group.size), group))


def test_every_rank_gets_the_full_argmax() -> None:
    """T3: vocabulary 512, hidden 64, bs 3, B 8, 4 ranks, f32, seed 0."""
    generator = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(512, 64, generator=generator), torch.randn(24, 64, generator=generator)
    expected = full_argmax(_draft_rows(hidden, 8), weight)
    for ids in folded_ids(hidden, weight, 8, 4) + eager_ids(_draft_rows(hidden, 8), weight, 4):
        assert ids.dtype == torch.int64
        assert torch.equal(ids, expected)


def test_a_tie_across_the_shard_boundary_goes_to_the_first_id() -> None:
    """T4: vocabulary 256 over 2 ranks, all weights zero but rows 10 and 200."""
    weight = torch.zeros(256, 32)
    weight[[10, 200]] = 1
    hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.where(_draft_rows(hidden, 4).sum(dim=-1) > 0, 10, 0)
    assert set(expected.tolist()) == {0, 10}, "both a positive and a negative sum must occur"
    for ids in folded_ids(hidden, weight, 4, 2) + eager_ids(_draft_rows(hidden, 4), weight, 2):
        assert torch.equal(ids, full_argmax(_draft_rows(hidden, 4), weight))
        assert torch.equal(ids, expected)


def small_integers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(
    size=st.integers(1, 5),
    vocab=st.integers(1, 40),
    bs=st.integers(0, 5),
    B=st.integers(2, 6),
    seed=st.integers(0, 1 << 30),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_folded_and_eager_are_the_full_argmax_with_any_ties(
    size: int, vocab: int, bs: int, B: int, seed: int, dtype: torch.dtype
) -> None:
    """Invariant 13, with fewer ids than ranks too: such ranks have no base vocabulary."""
    weight, hidden = small_integers(vocab, 3, seed=seed, dtype=dtype), small_integers(bs * B, 3, seed=seed + 1)
    expected = full_argmax(_draft_rows(hidden, B), weight)
    for ids in folded_ids(hidden, weight, B, size) + eager_ids(_draft_rows(hidden, B), weight, size):
        assert torch.equal(ids, expected)


def test_a_vocabulary_of_240_000_keeps_ids_that_no_half_float_could_hold() -> None:
    weight = torch.zeros(240_000, 2, dtype=torch.bfloat16)
    weight[239_999] = 1
    for ids in folded_ids(torch.ones(4, 2), weight, 4, 4):
        assert ids.tolist() == [239_999] * 3


@pytest.mark.parametrize("bs", [0, 1, 7, 192])
def test_batch_sizes_share_one_samplers_static_buffers(bs: int) -> None:
    weight, hidden = small_integers(50, 4, seed=1), small_integers(bs * 8, 4, seed=2)
    folded = FoldedSampler(head_of(weight, 0, 1), SoloGroup(), 192, 8)
    address = folded.out.data_ptr()
    folded(hidden)
    drafts = folded.drafts(bs)
    assert drafts.shape == (bs, 7)
    assert bs == 0 or drafts.data_ptr() == address
    assert torch.equal(drafts.reshape(-1), full_argmax(_draft_rows(hidden, 8), weight))


def test_a_batch_beyond_the_static_buffers_is_refused() -> None:
    folded = FoldedSampler(head_of(torch.ones(5, 2), 0, 1), SoloGroup(), 2, 4)
    with pytest.raises(ValueError, match="exceed"):
        folded(torch.ones(12, 2))


def with_added(base: torch.Tensor, added: torch.Tensor, rank: int, size: int) -> DraftHead:
    """A rank's head: base rows, two padding rows with huge weights that must never win, added rows."""
    org, more = VocabShard.split(base.shape[0], rank, size), VocabShard.split(added.shape[0], rank, size)
    padding = torch.full((2, base.shape[1]), 1e6)
    parts = [base[org.org_start :][: org.num_org], padding, added[more.org_start :][: more.num_org]]
    shard = VocabShard(
        org.org_start,
        org.num_org,
        added_row=org.num_org + 2,
        added_start=base.shape[0] + more.org_start,
        num_added=more.num_org,
        has_added=True,
    )
    return DraftHead(torch.cat(parts), shard)


def added_ids(hidden: torch.Tensor, base: torch.Tensor, added: torch.Tensor, size: int) -> list[torch.Tensor]:
    def run(group: TpGroup) -> torch.Tensor:
        return sample_greedy_eager(hidden, with_added(base, added, group.rank, group.size), group)

    return on_all_ranks(size, run)


def test_an_added_token_wins_only_if_it_is_strictly_greater() -> None:
    one = torch.ones(1, 1)
    base = torch.tensor([[1.0], [5.0], [2.0]])
    for size in (1, 2, 3):
        assert added_ids(one, base, torch.tensor([[5.0]]), size)[0].tolist() == [1]
        assert added_ids(one, base, torch.tensor([[6.0]]), size)[0].tolist() == [3]


def test_an_added_token_of_rank_0_does_not_beat_an_equal_base_token_of_rank_1() -> None:
    # Base 0, 1 on rank 0, base 2, 3 on rank 1; added 4 on rank 0. Base 3 and added 4 tie.
    base, added = torch.tensor([[1.0], [1.0], [1.0], [5.0]]), torch.tensor([[5.0]])
    for ids in added_ids(torch.ones(1, 1), base, added, 2):
        assert ids.tolist() == [3]


@given(
    size=st.integers(1, 4),
    vocab=st.integers(1, 9),
    num_added=st.integers(1, 5),
    rows=st.integers(0, 6),
    seed=st.integers(0, 1 << 30),
)
def test_added_vocabulary_is_a_full_argmax_with_the_added_ids_behind(
    size: int, vocab: int, num_added: int, rows: int, seed: int
) -> None:
    base, added = small_integers(vocab, 3, seed=seed), small_integers(num_added, 3, seed=seed + 1)
    hidden = small_integers(rows, 3, seed=seed + 2)
    expected = full_argmax(hidden, torch.cat([base, added]))
    for ids in added_ids(hidden, base, added, size):
        assert torch.equal(ids, expected)


def test_eager_sampling_goes_in_chunks_of_256_rows_with_two_collectives_each() -> None:
    weight, hidden = small_integers(40, 3, seed=5), small_integers(600, 3, seed=6)
    mailbox = Mailbox(2)
    for _ in range(2):
        groups = [mailbox.group(rank) for rank in range(2)]
        ids = [sample_greedy_eager(hidden, head_of(weight, group.rank, 2), group) for group in groups]
    assert [group.calls for group in groups] == [6, 6]
    assert {rows for _, rows, _ in mailbox.slots} == {256, 88}
    assert torch.equal(ids[0], full_argmax(hidden, weight))
    assert torch.equal(ids[1], ids[0])
    alone = SimulatedGroup(Mailbox(1), 0)
    assert torch.equal(sample_greedy_eager(small_integers(2500, 3, seed=6), head_of(weight, 0, 1), alone)[:600], ids[0])
    assert alone.calls == 0, "a single rank needs no collective"


def test_published_chunk_sizes() -> None:
    assert sampler._CHUNK_ROWS == 256
    assert sampler._CHUNK_ROWS_SOLO >= 1024


def setup(**changes: object) -> SamplerSetup:
    facts = {"B": 8, "weight": torch.ones(4, 2), "shard": VocabShard(0, 4), "group": Mailbox(2).group(0)}
    return SamplerSetup(**{**facts, "free_bytes": 1 << 30, **changes})


def test_the_sampler_is_folded_unless_one_of_the_published_reasons_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 7.2."""
    monkeypatch.delenv(sampler._EAGER_VARIABLE, raising=False)
    assert eager_reason(setup()) is None
    assert eager_reason(setup(B=1)) is EagerReason.BLOCK
    assert eager_reason(setup(weight=None)) is EagerReason.NO_HEAD
    assert eager_reason(setup(weight=torch.ones(4, 2, dtype=torch.int8))) is EagerReason.HEAD_NOT_DENSE
    assert eager_reason(setup(weight=torch.ones(4, 2).to_sparse())) is EagerReason.HEAD_NOT_DENSE
    assert eager_reason(setup(shard=None)) is EagerReason.NO_SHARDS
    assert eager_reason(setup(shard=None, group=SoloGroup())) is None
    assert eager_reason(setup(shard=VocabShard(0, 4, has_added=True))) is EagerReason.ADDED_VOCABULARY
    assert eager_reason(setup(free_bytes=(1 << 30) - 1)) is EagerReason.MEMORY


def test_the_environment_can_ask_for_the_eager_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sampler._EAGER_VARIABLE, "1")
    assert eager_reason(setup()) is EagerReason.ENVIRONMENT
    monkeypatch.setenv(sampler._EAGER_VARIABLE, "0")
    assert eager_reason(setup()) is None
    monkeypatch.setenv(sampler._EAGER_VARIABLE, "yes")
    with pytest.raises(ValueError, match="must be 0 or 1"):
        eager_reason(setup())


@pytest.mark.parametrize(("B", "shard"), [(1, VocabShard(0, 4)), (8, VocabShard(0, 4, has_added=True))])
def test_what_must_not_be_folded_cannot_be(B: int, shard: VocabShard) -> None:
    with pytest.raises(ValueError, match="cannot be folded"):
        FoldedSampler(DraftHead(torch.ones(4, 2), shard), SoloGroup(), 4, B)


def test_all_ranks_agree_on_the_least_free_memory() -> None:
    free = on_all_ranks(3, lambda group: torch.tensor(agree_free_bytes([7, 3, 5][group.rank], group, "cpu")))
    assert [int(each) for each in free] == [3, 3, 3]


def test_a_batch_that_did_not_run_as_a_graph_is_sampled_eagerly_with_the_same_result() -> None:
    weight, hidden = small_integers(30, 4, seed=3), small_integers(5 * 4, 4, seed=4)
    head, group = head_of(weight, 0, 1), SoloGroup()
    folded = FoldedSampler(head, group, 8, 4)
    folded(hidden)
    from_graph = sample_drafts(hidden, head, group, 4, folded=folded)
    eager = sample_drafts(hidden, head, group, 4, folded=None)
    assert from_graph.shape == (5, 3)
    assert torch.equal(from_graph, eager)


def test_a_block_of_one_token_has_no_drafts() -> None:
    drafts = sample_drafts(torch.ones(5, 2), head_of(torch.ones(3, 2), 0, 1), SoloGroup(), 1, folded=None)
    assert drafts.shape == (5, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 2, 4])
def test_on_a_gpu_the_folded_sampler_lives_inside_a_cuda_graph(size: int, forbid_syncs) -> None:
    """Two captured batch sizes share the static buffers; replays see new hidden states and never wait."""
    B, H, weight, mailbox = 8, 16, small_integers(300, 16, seed=0).cuda(), Mailbox(size)
    heads = [head_of(weight, rank, size) for rank in range(size)]
    groups = [mailbox.group(rank) for rank in range(size)]
    samplers = [FoldedSampler(head, group, 7, B) for head, group in zip(heads, groups, strict=True)]
    hidden = torch.zeros(7 * B, H, device="cuda")

    def run(bs: int) -> None:
        for _ in range(2):
            for group, folded in zip(groups, samplers, strict=True):
                group.calls = 0
                folded(hidden[: bs * B])

    graphs = {}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for bs in (7, 3):
        with torch.cuda.stream(side):
            run(bs)
        torch.cuda.current_stream().wait_stream(side)
        graphs[bs] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[bs]):
            run(bs)
    for seed, bs in enumerate([7, 3, 3, 7, 3]):
        fresh = small_integers(7 * B, H, seed=seed).cuda()
        with forbid_syncs():
            hidden.copy_(fresh)
            graphs[bs].replay()
        expected = full_argmax(_draft_rows(fresh[: bs * B], B), weight).view(bs, B - 1)
        for folded in samplers:
            assert torch.equal(folded.drafts(bs), expected)


def one_rank(backend: str, rank: int, size: int, store: str) -> None:
    """One rank over a real process group: folded (in a CUDA graph with NCCL) and eager equal the full argmax."""
    cuda = backend == "nccl"
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    device = "cuda" if cuda else "cpu"
    weight, hidden = small_integers(101, 8, seed=0).to(device), small_integers(5 * 4, 8, seed=1).to(device)
    head, group = head_of(weight, rank, size), DistributedGroup()
    folded = FoldedSampler(head, group, 5, 4)
    folded(hidden)
    if cuda:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            folded(hidden)
        hidden.copy_(small_integers(5 * 4, 8, seed=2))
        folded.out.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        del graph  # NCCL dissolves no group that a living graph still calls: the two would wait for each other
    expected = full_argmax(_draft_rows(hidden, 4), weight).view(5, 3)
    for ids in (folded.drafts(5), sample_drafts(hidden, head, group, 4, folded=None)):
        if not torch.equal(ids, expected):
            raise SystemExit(f"rank {rank}: {ids.tolist()} is not {expected.tolist()}")
    if agree_free_bytes(100 + rank, group, device) != 100:
        raise SystemExit(f"rank {rank}: the group did not agree on the minimum")
    dist.destroy_process_group()


def run_ranks(backend: str, size: int, store: Path) -> None:
    command = [sys.executable, __file__, backend]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(store)], stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        errors = [each.communicate(timeout=200)[1] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert [each.returncode for each in ranks] == [0] * size, errors


def test_two_ranks_over_gloo_agree_with_the_full_argmax(tmp_path: Path) -> None:
    run_ranks("gloo", 2, tmp_path / "store")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_over_nccl_agree_inside_a_cuda_graph(tmp_path: Path) -> None:
    run_ranks("nccl", 2, tmp_path / "store")


if __name__ == "__main__":
    one_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
