"""EAGLE and n-gram draft inputs are filtered by the scheduler's one call, host keep list included (T8)."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.variants.other_drafts import EagleDraftInput, NgramDraftInput

KEEP = [0, 2, 3]


def eagle(device: str) -> EagleDraftInput:
    return EagleDraftInput(
        topk_p=torch.arange(8, dtype=torch.float32, device=device).view(4, 2),
        topk_index=torch.arange(8, device=device).view(4, 2) + 100,
        verified_ids=torch.tensor([5, 6, 7, 8], device=device),
        hidden_states=torch.arange(12, dtype=torch.float16, device=device).view(4, 3),
    )


def ngram() -> NgramDraftInput:
    return NgramDraftInput([[1], [2, 2], [3, 3, 3], [4]])


@pytest.mark.parametrize("host_list", [KEEP, None], ids=["host keep list", "device indices only"])
def test_eagle_keeps_the_rows_whichever_way_the_indices_come(host_list) -> None:
    draft = eagle("cpu")
    draft.filter_batch(torch.tensor(KEEP), new_indices_cpu=host_list)
    assert torch.equal(draft.verified_ids, torch.tensor([5, 7, 8]))
    assert torch.equal(draft.topk_index, torch.tensor([[100, 101], [104, 105], [106, 107]]))
    assert torch.equal(draft.topk_p, torch.tensor([[0.0, 1.0], [4.0, 5.0], [6.0, 7.0]]))
    assert torch.equal(draft.hidden_states[:, 0], torch.tensor([0, 6, 9], dtype=torch.float16))


@pytest.mark.parametrize("host_list", [KEEP, None], ids=["host keep list", "device indices only"])
def test_ngram_keeps_the_histories_whichever_way_the_indices_come(host_list) -> None:
    draft = ngram()
    draft.filter_batch(torch.tensor(KEEP), new_indices_cpu=host_list)
    assert draft.histories == [[1], [3, 3, 3], [4]]


def test_with_the_host_list_ngram_does_not_look_at_the_device_indices() -> None:
    draft = ngram()
    draft.filter_batch(torch.empty(0, dtype=torch.int64), new_indices_cpu=[1])
    assert draft.histories == [[2, 2]]


@pytest.mark.gpu
def test_on_a_gpu_the_host_list_saves_the_wait(count_syncs) -> None:
    keep = torch.tensor(KEEP, device="cuda")
    assert count_syncs(lambda: ngram().filter_batch(keep)) == 1
    draft, other = ngram(), eagle("cuda")
    assert count_syncs(lambda: draft.filter_batch(keep, new_indices_cpu=KEEP)) == 0
    assert count_syncs(lambda: other.filter_batch(keep, new_indices_cpu=KEEP)) == 0
