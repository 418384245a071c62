"""`prepare_for_decode`, filter and merge: what they hand out, in which order, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep import ranges
from dflash_prep.errors import OutOfPagesError, RowOverflowError
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.decode_prep import DecodePrep, PrepOptions
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import KVState, Request, SamplingParams
from dflash_prep.state.staging import Fill
from dflash_prep.state.topup import TopUpDecision

CPU = torch.device("cpu")


def pools_of(num_pages: int, page_size: int, width: int = 4096, device: str = "cpu") -> KVPools:
    allocator = PagedAllocator(num_pages * page_size, page_size, device)
    return KVPools(ReqToTokenPool(200, width, device), allocator, ChunkCache(allocator))


def batch_of(pools: KVPools, *lens: tuple[int, int], top_ks: list[int] | None = None) -> DecodeBatch:
    """A batch by (committed, allocated), rows taken and slots written as an aligned history would have."""
    reqs = []
    for i, (committed, allocated) in enumerate(lens):
        row = pools.rows.alloc(1)[0]
        pages = -(-allocated // pools.allocator.page_size)
        slots = pools.allocator.alloc(pages * pools.allocator.page_size)
        pools.rows.req_to_token[row, :allocated] = slots[:allocated].to(torch.int32)
        top_k = 1 if top_ks is None else top_ks[i]
        reqs.append(Request(i, committed, SamplingParams(top_k), kv=KVState(row, allocated, committed)))
    return DecodeBatch.of(reqs, pools.rows.device, DraftInput.create_idle_input(pools.rows.device))


FILLS = pytest.mark.parametrize("fill", list(Fill))


@FILLS
def test_a_step_hands_out_committed_lengths_bounds_sums_and_top_k_and_raises_the_watermarks(fill):
    pools = pools_of(40, 256)
    batch = batch_of(pools, (1000, 1000), (1009, 1024), (1000, 1024), top_ks=[5, 7, 7])
    device_lens = batch.seq_lens
    reservation = DecodePrep(pools, PrepOptions(8, fill=fill)).prepare(batch)
    draft = batch.spec_info
    assert reservation.watermark == ([1000, 1024, 1024], [1024, 1280, 1024], 280)
    assert batch.seq_lens_cpu.tolist() == [1000, 1009, 1000]
    assert batch.seq_lens_cpu.dtype == torch.int64
    assert batch.seq_lens_sum == 3009
    assert draft.nxt_kv_lens_cpu.tolist() == [1024, 1280, 1024]
    assert draft.nxt_kv_lens_cpu.dtype == torch.int32
    assert draft.nxt_kv_lens_sum == 3328
    assert (draft.max_top_k, draft.uniform_top_k_value) == (7, None)
    assert [req.kv.kv_allocated_len for req in batch.reqs] == [1024, 1280, 1024]
    assert [req.decode_batch_idx for req in batch.reqs] == [1, 1, 1]
    assert batch.seq_lens is device_lens
    assert device_lens.tolist() == [1000, 1009, 1000]


@FILLS
def test_every_fill_prepares_the_same_steps(fill):
    def steps(fill: Fill) -> tuple:
        pools = pools_of(60, 64)
        batch, prep = batch_of(pools, *[(100 + i, 128) for i in range(5)]), DecodePrep(pools, PrepOptions(8, fill=fill))
        seen = []
        for step in range(40):
            batch.spec_info = DraftInput.create_idle_input(CPU)
            reservation = prep.prepare(batch)
            for i, req in enumerate(batch.reqs):
                req.kv.kv_committed_len += 1 + (step + i) % 5
            seen.append((reservation.watermark, batch.seq_lens_cpu.tolist(), batch.spec_info.nxt_kv_lens_cpu.tolist()))
        return seen, pools.rows.req_to_token.tolist(), pools.allocator.free_pages.tolist()

    assert steps(fill) == steps(Fill.LOOP)


def test_an_empty_batch_is_left_alone():
    pools = pools_of(4, 4)
    batch = DecodeBatch.of([], CPU, DraftInput.create_idle_input(CPU))
    before = batch.seq_lens_cpu
    assert DecodePrep(pools, PrepOptions(8)).prepare(batch) is None
    assert batch.seq_lens_cpu is before
    assert batch.spec_info.nxt_kv_lens_cpu is None


def test_a_batch_without_draft_input_is_told_what_is_missing():
    pools = pools_of(4, 4)
    batch = batch_of(pools, (4, 4))
    batch.spec_info = None
    with pytest.raises(ValueError, match="has no draft input"):
        DecodePrep(pools, PrepOptions(2)).prepare(batch)


@FILLS
@pytest.mark.parametrize(
    ("num_pages", "width", "error"), [(3, 4096, OutOfPagesError), (9, 15, RowOverflowError)], ids=["pages", "row width"]
)
def test_a_step_that_cannot_be_served_changes_no_row_counter_or_page(fill, num_pages, width, error):
    pools = pools_of(num_pages, 4, width)
    batch = batch_of(pools, (4, 4), (3, 4))
    rows, free = pools.rows.req_to_token.clone(), pools.allocator.free_pages.clone()
    with pytest.raises(error):
        DecodePrep(pools, PrepOptions(5, fill=fill)).prepare(batch)
    assert torch.equal(pools.rows.req_to_token, rows)
    assert torch.equal(pools.allocator.free_pages, free)
    assert [req.kv.kv_allocated_len for req in batch.reqs] == [4, 4]
    assert [req.decode_batch_idx for req in batch.reqs] == [0, 0]


def test_on_pages_of_one_token_a_request_at_its_context_limit_is_refused_not_spilled_into_its_neighbour():
    # 17 draft tokens: the published row has 21 columns of slack, the reserve wants 34
    pools = pools_of(400, 1, width=100 + 21)
    batch = batch_of(pools, (90, 90), (20, 20))
    neighbour = pools.rows.req_to_token[2].clone()
    with pytest.raises(RowOverflowError, match="needs 124 columns and its req_to_token row has 121"):
        DecodePrep(pools, PrepOptions(17)).prepare(batch)
    assert torch.equal(pools.rows.req_to_token[2], neighbour)


def test_pages_are_added_in_advance_only_when_the_step_allocates_anyway():
    pools = pools_of(100, 256)
    batch, prep = batch_of(pools, (1521, 1536), (1400, 1536)), DecodePrep(pools, PrepOptions(8, topup_pages=2))
    first = prep.prepare(batch)
    assert first.guard.decision is TopUpDecision.TAKEN
    assert batch.spec_info.nxt_kv_lens_cpu.tolist() == [2304, 2048]
    second = prep.prepare(batch)
    assert second.guard.decision is TopUpDecision.NO_ALLOCATION
    assert second.watermark.num_needed == 0


class Recorder:
    """Remembers the order in which ranges begin."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def push(self, name: str) -> None:
        self.names.append(name)

    def pop(self) -> None:
        pass

    def mark(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_allocation_step_runs_fill_copy_and_allocation_in_this_order_and_others_stop_after_the_copy():
    pools = pools_of(100, 256)
    batch, prep = batch_of(pools, (1521, 1536)), DecodePrep(pools, PrepOptions(8, check=True))
    recorder = Recorder()
    ranges.use(recorder)
    try:
        prep.prepare(batch)
        allocating, recorder.names = recorder.names, []
        prep.prepare(batch)
    finally:
        ranges.use(ranges.NullSink())
    assert allocating == [
        "prepare_for_decode",
        "fill",
        "h2d",
        "kv_alloc",
        "get_last_loc",
        "alloc_extend",
        "assign_req_to_token",
        "consistency",
    ]
    assert recorder.names == ["prepare_for_decode", "fill", "h2d", "consistency"]
    assert (prep.consistency.checks, prep.consistency.bad) == (1, 0)


# --- filter and merge -------------------------------------------------------------------------------------------


def overlapped(nxt: list[int] | None, future: list[int]) -> DraftInput:
    draft = DraftInput.for_next_step(torch.tensor(future) * 10, torch.tensor(future) * 100, torch.tensor(future))
    if nxt is not None:
        draft.nxt_kv_lens_cpu, draft.nxt_kv_lens_sum = torch.tensor(nxt, dtype=torch.int32), sum(nxt)
    return draft


@pytest.mark.parametrize("host_list", [[0, 2], None], ids=["host keep list", "indices fetched from the device"])
def test_filtering_keeps_the_rows_of_lengths_and_future_indices_whichever_way_the_indices_come(host_list):
    draft = overlapped([10, 20, 30, 40], [5, 6, 7, 8])
    assert draft.nxt_kv_lens_sum == 100
    bonus = draft.bonus_tokens
    draft.filter_batch(torch.tensor([0, 2]), host_list)
    assert draft.nxt_kv_lens_cpu.tolist() == [10, 30]
    assert draft.nxt_kv_lens_cpu.dtype == torch.int32
    assert draft.nxt_kv_lens_sum == 40
    assert draft.future_indices.tolist() == [5, 7]
    assert draft.bonus_tokens is bonus, "the FutureMap refills it, so it is not sliced"


@given(st.lists(st.tuples(st.integers(0, 9999), st.booleans()), min_size=1, max_size=30))
def test_host_list_and_device_indices_keep_the_same_and_merging_the_rest_back_restores_the_sums(rows):
    lens = [length for length, _ in rows]
    keep = [i for i, (_, is_kept) in enumerate(rows) if is_kept]
    rest = [i for i, (_, is_kept) in enumerate(rows) if not is_kept]
    kept, same, others = (overlapped(lens, list(range(len(lens)))) for _ in range(3))
    kept.filter_batch(torch.tensor(keep, dtype=torch.int64), keep)
    same.filter_batch(torch.tensor(keep, dtype=torch.int64))
    assert torch.equal(kept.nxt_kv_lens_cpu, same.nxt_kv_lens_cpu)
    assert torch.equal(kept.future_indices, same.future_indices)
    assert kept.nxt_kv_lens_sum == same.nxt_kv_lens_sum == sum(lens[i] for i in keep)
    others.filter_batch(torch.tensor(rest, dtype=torch.int64), rest)
    kept.merge_batch(others)
    assert kept.nxt_kv_lens_cpu.tolist() == [lens[i] for i in keep + rest]
    assert kept.nxt_kv_lens_sum == sum(lens)
    assert kept.future_indices.tolist() == keep + rest


def test_without_overlap_filtering_slices_every_device_field_and_no_top_k_figure():
    draft = DraftInput.for_next_step(torch.tensor([1, 2, 3]), torch.tensor([10, 20, 30]))
    draft.max_top_k, draft.uniform_top_k_value = 9, 9
    draft.filter_batch(torch.tensor([2]), [2])
    assert draft.bonus_tokens.tolist() == [3]
    assert draft.new_seq_lens.tolist() == [30]
    assert draft.topk_p.shape == draft.topk_index.shape == draft.hidden_states.shape == (1, 0)
    assert draft.nxt_kv_lens_cpu is None
    assert (draft.max_top_k, draft.uniform_top_k_value) == (9, 9)


def test_the_keep_list_survives_a_pipeline_relay_of_two_requests_on_pages_of_64():
    pools = pools_of(40, 64)
    batch = batch_of(pools, (65, 64), (100, 192))
    DecodePrep(pools, PrepOptions(8)).prepare(batch)
    first = batch.spec_info
    assert first.nxt_kv_lens_cpu.tolist() == [128, 192]
    assert first.nxt_kv_lens_sum == 320
    assert sum(req.kv.kv_allocated_len for req in batch.reqs) == 256 + 64
    second = overlapped([128], [3])
    first.future_indices = torch.tensor([1, 2])
    first.filter_batch(torch.tensor([1]), [1])
    assert first.nxt_kv_lens_cpu.tolist() == [192]
    assert first.nxt_kv_lens_sum == 192
    second.merge_batch(first)
    assert second.nxt_kv_lens_cpu.tolist() == [128, 192]
    assert second.nxt_kv_lens_sum == 320
    assert second.future_indices.tolist() == [3, 2]


def test_merging_concatenates_device_fields_without_overlap():
    one = DraftInput.for_next_step(torch.tensor([1]), torch.tensor([10]))
    one.merge_batch(DraftInput.for_next_step(torch.tensor([2, 3]), torch.tensor([20, 30])))
    assert one.bonus_tokens.tolist() == [1, 2, 3]
    assert one.new_seq_lens.tolist() == [10, 20, 30]
    assert one.hidden_states.shape == (3, 0)


def test_a_prepared_input_takes_in_only_prepared_ones_and_an_unprepared_one_takes_over_the_lengths():
    with pytest.raises(AssertionError, match="unprepared"):
        overlapped([5], [1]).merge_batch(overlapped(None, [2]))
    fresh = overlapped(None, [1])
    fresh.merge_batch(overlapped([7], [2]))
    assert fresh.nxt_kv_lens_cpu.tolist() == [7]
    assert fresh.nxt_kv_lens_sum == 7


def test_overlap_is_for_both_sides_of_a_merge_or_for_neither():
    with pytest.raises(AssertionError, match="both overlap or neither"):
        overlapped(None, [1]).merge_batch(DraftInput.create_idle_input(CPU))


def test_an_idle_input_is_empty_with_the_dtypes_of_a_real_one():
    idle = DraftInput.create_idle_input(CPU)
    assert idle.topk_p.shape == idle.topk_index.shape == idle.hidden_states.shape == (0, 0)
    assert [idle.topk_p.dtype, idle.topk_index.dtype] == [torch.float32, torch.int64]
    assert [idle.bonus_tokens.dtype, idle.new_seq_lens.dtype] == [torch.int64, torch.int64]
    assert idle.hidden_states.dtype == torch.float16


# --- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@FILLS
@pytest.mark.parametrize("plan_stream", [False, True])
@pytest.mark.parametrize("topup_pages", [0, 2])
def test_preparing_filtering_and_merging_never_make_the_host_wait(fill, plan_stream, topup_pages, forbid_syncs):
    pools = pools_of(600, 256, device="cuda")
    prep = DecodePrep(pools, PrepOptions(8, fill=fill, plan_stream=plan_stream, topup_pages=topup_pages))
    batch = batch_of(pools, (1000, 1000), (1009, 1024), (300, 512), (300, 512))
    prep.prepare(batch)  # compiles the kernels and warms the caching allocators
    batch.spec_info = overlapped_on_gpu(4)
    with forbid_syncs():
        for req in batch.reqs:
            req.kv.kv_committed_len += 300
            req.kv.kv_allocated_len = max(req.kv.kv_allocated_len, req.kv.kv_committed_len)
        prep.prepare(batch)
        batch.filter_batch([0, 2, 3])
        batch.spec_info.merge_batch(batch.spec_info)
    assert batch.spec_info.nxt_kv_lens_cpu.shape == (6,)


def overlapped_on_gpu(bs: int) -> DraftInput:
    rows = torch.arange(1, bs + 1, device="cuda")
    return DraftInput.for_next_step(rows, rows.clone(), rows.clone())


@pytest.mark.gpu
def test_the_legacy_filter_fetches_its_indices_with_exactly_one_wait(count_syncs):
    draft = overlapped_on_gpu(4)
    draft.nxt_kv_lens_cpu, draft.nxt_kv_lens_sum = torch.tensor([1, 2, 3, 4], dtype=torch.int32), 10
    keep = torch.tensor([0, 2], device="cuda")
    assert count_syncs(lambda: draft.filter_batch(keep)) == 1
    assert draft.nxt_kv_lens_sum == 4


@pytest.mark.gpu
@FILLS
@pytest.mark.parametrize("plan_stream", [False, True])
def test_on_a_gpu_steps_write_the_rows_that_the_cpu_writes(fill, plan_stream):
    def rows(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        pools = pools_of(300, 64, device=device)
        prep = DecodePrep(pools, PrepOptions(8, fill=fill, topup_pages=1, plan_stream=plan_stream))
        batch = batch_of(pools, *[(100 + 7 * i, 100 + 7 * i) for i in range(7)])
        for step in range(60):
            batch.spec_info = DraftInput.create_idle_input(device)
            prep.prepare(batch)
            for i, req in enumerate(batch.reqs):
                req.kv.kv_committed_len += 1 + (step + i) % 8
        return pools.rows.req_to_token.cpu(), pools.allocator.free_pages.cpu()

    for on_gpu, on_cpu in zip(rows("cuda"), rows("cpu"), strict=True):
        assert torch.equal(on_gpu, on_cpu)
