"""FutureMap: publish, stash, both resolutions, poison."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep import ranges
from dflash_prep.kernels.future_map import FutureMap, _StaleFutureError

ROWS = 9


def published(device: str = "cpu", *, poison: bool = False) -> FutureMap:
    """Rows 5, 2, 7 hold lengths 50, 20, 70 and bonus tokens 500, 200, 700."""
    futures = FutureMap(ROWS, device, poison=poison)
    rows = torch.tensor([5, 2, 7], device=device)
    futures.publish(rows, torch.tensor([50, 20, 70], device=device))
    futures.stash(rows, torch.tensor([500, 200, 700], device=device))
    return futures


def test_gpu_only_resolution_gives_device_lengths_and_tells_the_host_nothing() -> None:
    rows = torch.tensor([7, 5])
    resolved = published().resolve_seq_lens(rows, rows, needs_cpu=False)
    assert resolved is not None
    assert resolved.seq_lens.tolist() == [70, 50]
    assert resolved.seq_lens.dtype == torch.int64
    assert resolved.seq_lens_cpu is None
    assert resolved.seq_lens_sum is None


def test_cpu_resolution_gives_the_same_lengths_and_their_sum_to_the_host() -> None:
    rows = torch.tensor([7, 5])
    resolved = published().resolve_seq_lens(rows, rows, needs_cpu=True)
    assert resolved is not None
    assert resolved.seq_lens_cpu is not None
    assert torch.equal(resolved.seq_lens_cpu, resolved.seq_lens)
    assert resolved.seq_lens_sum == 120


def test_host_lengths_are_the_callers_own_and_survive_the_next_resolution() -> None:
    futures, rows = published(), torch.tensor([5])
    first = futures.resolve_seq_lens(rows, rows, needs_cpu=True)
    futures.publish(rows, torch.tensor([58]))
    second = futures.resolve_seq_lens(rows, rows, needs_cpu=True)
    assert first is not None
    assert second is not None
    assert (first.seq_lens_cpu.tolist(), second.seq_lens_cpu.tolist()) == ([50], [58])


def test_without_a_future_there_is_nothing_to_resolve_and_no_range() -> None:
    ranges.use(ranges.NullSink())
    assert published().resolve_seq_lens(None, torch.tensor([5]), needs_cpu=True) is None
    assert ranges.emitted() == {}
    published().resolve_seq_lens(torch.tensor([5]), torch.tensor([5]), needs_cpu=True)
    assert ranges.emitted() == {"resolve_seq_lens": 1}


def test_bonus_tokens_come_back_by_row() -> None:
    assert published().resolve_bonus_tokens(torch.tensor([2, 7, 5])).tolist() == [200, 700, 500]


def test_an_empty_publish_changes_nothing() -> None:
    futures = published()
    before = futures.new_seq_lens.clone()
    nothing = torch.empty(0, dtype=torch.int64)
    futures.publish(nothing, nothing)
    futures.stash(nothing, nothing)
    assert torch.equal(futures.new_seq_lens, before)


def test_poison_marks_consumed_rows_and_catches_a_second_consumption() -> None:
    futures, rows = published(poison=True), torch.tensor([5, 7])
    futures.resolve_seq_lens(rows, rows, needs_cpu=True)
    futures.resolve_bonus_tokens(rows)
    assert futures.new_seq_lens[rows].tolist() == [-1, -1]
    assert futures.output_tokens[rows].tolist() == [-1, -1]
    assert futures.new_seq_lens[2] == 20
    with pytest.raises(_StaleFutureError, match=r"\[7\]"):
        futures.resolve_seq_lens(torch.tensor([2, 7]), torch.tensor([2, 7]), needs_cpu=False)
    with pytest.raises(_StaleFutureError, match=r"\[5\]"):
        futures.resolve_bonus_tokens(torch.tensor([5]))


def test_poison_catches_a_row_that_was_never_published() -> None:
    row = torch.tensor([8])
    with pytest.raises(_StaleFutureError):
        published(poison=True).resolve_seq_lens(row, row, needs_cpu=False)


@given(
    steps=st.lists(
        st.dictionaries(st.integers(1, ROWS - 1), st.integers(0, 1 << 40), min_size=1, max_size=ROWS - 1), max_size=6
    ),
    needs_cpu=st.booleans(),
)
def test_every_step_reads_back_exactly_what_the_last_one_published(
    steps: list[dict[int, int]], needs_cpu: bool
) -> None:
    futures = FutureMap(ROWS, "cpu", poison=True)
    for lens in steps:
        rows = torch.tensor(list(lens))
        futures.publish(rows, torch.tensor(list(lens.values())))
        order = rows.flip(0)
        resolved = futures.resolve_seq_lens(order, order, needs_cpu=needs_cpu)
        assert resolved is not None
        assert resolved.seq_lens.tolist() == [lens[row] for row in order.tolist()]
        if needs_cpu:
            assert resolved.seq_lens_cpu.tolist() == resolved.seq_lens.tolist()
            assert resolved.seq_lens_sum == sum(lens.values())


@pytest.mark.gpu
def test_on_a_gpu_only_the_cpu_resolution_waits_and_only_once(count_syncs, forbid_syncs) -> None:
    """Section 8.2 names it: one stream synchronisation a step."""
    futures = published("cuda")
    rows, rows_cpu = torch.tensor([7, 5], device="cuda"), torch.tensor([7, 5])
    lens = torch.tensor([1, 2], device="cuda")
    assert count_syncs(lambda: futures.resolve_seq_lens(rows, rows_cpu, needs_cpu=True)) == 1
    with forbid_syncs():
        futures.publish(rows, lens)
        futures.stash(rows, lens)
        resolved = futures.resolve_seq_lens(rows, rows_cpu, needs_cpu=False)
        bonus = futures.resolve_bonus_tokens(rows)
    assert resolved is not None
    assert resolved.seq_lens.tolist() == bonus.tolist() == [1, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("needs_cpu", [False, True])
def test_on_a_gpu_a_schedule_stream_sees_what_a_busy_forward_stream_publishes(needs_cpu: bool) -> None:
    forward, schedule = torch.cuda.Stream(), torch.cuda.Stream()
    futures = FutureMap(ROWS, "cuda", poison=True)
    rows, rows_cpu = torch.tensor([3, 6], device="cuda"), torch.tensor([3, 6])
    torch.cuda.synchronize()
    for step in range(1, 9):
        with torch.cuda.stream(forward):
            forward.wait_stream(schedule)
            torch.cuda._sleep(20_000_000)
            futures.publish(rows, torch.tensor([step, 10 * step]).pin_memory().to("cuda", non_blocking=True))
        with torch.cuda.stream(schedule):
            resolved = futures.resolve_seq_lens(rows, rows_cpu, needs_cpu=needs_cpu)
            assert resolved is not None
            assert resolved.seq_lens.tolist() == [step, 10 * step]
        if needs_cpu:
            assert resolved.seq_lens_cpu.tolist() == [step, 10 * step]
