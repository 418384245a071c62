"""Pages into rows: the kernel equals its oracle and writes nothing that it was not told."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_prep.kernels.page_rows import PageEntries, write_pages_torch, write_pages_triton


@pytest.mark.parametrize("page_size", [1, 16, 256, 512])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_kernel_writes_what_the_oracle_writes(page_size, count, device) -> None:
    generator = np.random.default_rng(page_size + count)
    places = (generator.permutation(8)[:5] + 1) * 3 + generator.integers(0, 3, 5)  # of three pages a row
    entries = np.stack([places, generator.integers(1, 99, 5)])
    width = 2 * page_size + page_size // 2 + 1  # the last page of a row is cut off
    expected = torch.full((10, width), -7, dtype=torch.int32)
    found = expected.to(device)
    table = torch.from_numpy(entries.astype(np.int32))
    write_pages_torch(expected, PageEntries(table, torch.tensor([count], dtype=torch.int32)), page_size)
    counted = torch.tensor([count], dtype=torch.int32, device=device)
    write_pages_triton(found, PageEntries(table.to(device), counted), page_size)
    assert torch.equal(found.cpu(), expected)


def test_a_page_of_four_tokens_in_the_second_place_of_row_one() -> None:
    table = torch.zeros((2, 10), dtype=torch.int32)
    write_pages_torch(table, PageEntries.of(np.array([[4], [5]]), torch.device("cpu")), 4)
    assert table.tolist() == [[0] * 10, [0, 0, 0, 0, 20, 21, 22, 23, 0, 0]]
