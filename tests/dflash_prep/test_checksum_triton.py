"""The model's kernels: integers equal to those of torch and of the oracle, on whatever they read; and that they compile
for a GPU, on a machine without one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from dflash_prep.errors import SettingError
from dflash_prep.loop.checksum import VOCAB, ModelKind
from dflash_prep.loop.checksum_lm import ChecksumModel, PageTableView, TableView
from dflash_prep.loop.checksum_triton import TritonChecksumModel, checksum_model

HIT_RATE = 0.74
PAGE = 16


class Damaged:
    """Two models over the same random KV, and tables, lengths and blocks without any sense: rows that share slots and
    name slot 0, prefixes from 0 on, blocks that reach beyond the length or the row.
    """

    def __init__(self, bs: int, B: int, device: torch.device, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.device, self.bs, self.B = device, bs, B
        self.width, self.num_slots = 12 * PAGE, 40 * PAGE
        self.torch = ChecksumModel(self.num_slots, B, HIT_RATE, device)
        self.triton = TritonChecksumModel(self.num_slots, B, HIT_RATE, device)
        for name in ("target_kv", "draft_kv"):
            tokens = self.draw(VOCAB, self.num_slots).to(torch.int32)
            tokens[0] = 0
            for model in self.models:
                getattr(model, name).copy_(tokens)
        self.rows = torch.randperm(2 * bs + 1, generator=self.random)[:bs].to(device)
        self.table = self.draw(self.num_slots, 2 * bs + 1, self.width).to(torch.int32)
        self.blocks = self.draw(self.num_slots // PAGE, bs, self.width // PAGE).to(torch.int32)
        self.prefix = self.draw(self.width - B // 2, bs)
        self.positions = (self.prefix[:, None] + torch.arange(B, device=device)).contiguous()

    def draw(self, limit: int, *shape: int) -> torch.Tensor:
        return torch.randint(limit, shape, generator=self.random).to(self.device)

    @property
    def models(self) -> tuple[ChecksumModel, ChecksumModel]:
        return self.torch, self.triton

    def distinct_slots(self) -> torch.Tensor:
        """Where a block's KV goes: no slot twice, or which write wins is nobody's promise; but slot 0 at will."""
        slots = torch.randperm(self.num_slots, generator=self.random)[: self.bs * self.B].view(self.bs, self.B)
        slots[torch.rand(slots.shape, generator=self.random) < 0.1] = 0
        return slots.to(self.device)

    def own_pages(self) -> torch.Tensor:
        """Block table without a page in two rows, for what writes through it; page 0 nowhere."""
        shape = self.bs, self.width // PAGE
        pages = 1 + torch.randperm(shape[0] * shape[1], generator=self.random).view(shape)
        return pages.to(torch.int32).to(self.device)

    def grow_to(self, num_slots: int) -> None:
        for model in self.models:
            more = torch.zeros(num_slots - len(model.target_kv), dtype=torch.int32, device=self.device)
            model.target_kv = torch.cat([model.target_kv, more])

    def assert_equal_kv(self) -> None:
        assert torch.equal(self.torch.target_kv, self.triton.target_kv)
        assert torch.equal(self.torch.draft_kv, self.triton.draft_kv)
        assert self.triton.target_kv[0] == self.triton.draft_kv[0] == 0


SHAPES = [(1, 2, 0), (5, 8, 1), (13, 8, 2), (4, 6, 3), (3, 16, 4), (0, 8, 5)]


@pytest.mark.parametrize(("bs", "B", "seed"), SHAPES)
@pytest.mark.parametrize("lens_dtype", [torch.int32, torch.int64])
def test_the_targets_tokens_through_rows_and_through_pages(bs, B, seed, lens_dtype, device) -> None:
    case = Damaged(bs, B, device, seed)
    views = (
        TableView(case.table, case.rows, (case.prefix + B // 2).to(lens_dtype)),
        PageTableView(case.blocks, (case.prefix + B).to(lens_dtype), PAGE),
    )
    for view in views:
        assert torch.equal(*(model.target_tokens(view, case.positions) for model in case.models))
    first = TableView(case.table, case.rows, (case.prefix + 1).to(lens_dtype))
    assert torch.equal(*(model.next_tokens(first) for model in case.models))


@pytest.mark.parametrize(("bs", "B", "seed"), SHAPES)
def test_verify_writes_the_block_and_reads_it_back(bs, B, seed, device) -> None:
    case = Damaged(bs, B, device, seed)
    case.grow_to((1 + bs * (case.width // PAGE)) * PAGE + case.num_slots)
    view = PageTableView(case.own_pages(), (case.prefix + B).to(torch.int32), PAGE)
    tokens = case.draw(VOCAB, bs, B)
    assert torch.equal(*(model.verify(view, tokens, case.positions) for model in case.models))
    case.assert_equal_kv()


@pytest.mark.parametrize(("bs", "B", "seed"), SHAPES)
def test_proposals_and_the_kv_of_their_block(bs, B, seed, device) -> None:
    """Rows share slots with other rows' blocks here: what is read is what all have written."""
    case = Damaged(bs, B, device, seed)
    view = TableView(case.table, case.rows, case.prefix.to(torch.int32))
    ids, slots = case.draw(VOCAB, bs, B), case.distinct_slots()
    for _ in range(2):  # with rows as they are; then with rows that name their own block, as those of an engine do
        drafts = [model.draft(view, ids, case.positions, slots) for model in case.models]
        assert drafts[1].dtype == torch.int64
        assert torch.equal(*drafts)
        case.assert_equal_kv()
        for row, start in enumerate(case.prefix.tolist()):
            fits = min(B, case.width - start)
            case.table[case.rows[row], start : start + fits] = slots[row, :fits].to(torch.int32)


@pytest.mark.parametrize(("bs", "B", "seed"), SHAPES)
def test_only_the_committed_prefix_is_kept(bs, B, seed, device) -> None:
    case = Damaged(bs, B, device, seed)
    tokens, slots = case.draw(VOCAB, bs, B), case.distinct_slots()
    commits = (1 + case.draw(B, bs)).to(torch.int32)
    for model in case.models:
        model.keep_committed(tokens, slots, commits)
    case.assert_equal_kv()


def test_kernels_are_chosen_where_they_run_natively_and_nowhere_else_by_themselves(monkeypatch) -> None:
    monkeypatch.delenv("DFLASH_PREP_FORCE_TRITON", raising=False)
    assert checksum_model(ModelKind.AUTO, 8, 2, 0.5, "cpu").kind is ModelKind.TORCH
    with pytest.raises(SettingError, match="--model triton needs a GPU"):
        checksum_model(ModelKind.TRITON, 8, 2, 0.5, "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("DFLASH_PREP_FORCE_TRITON", "1")
    for asked in ModelKind:
        expected = ModelKind.TORCH if asked is ModelKind.TORCH else ModelKind.TRITON
        assert checksum_model(asked, 8, 2, 0.5, "cpu").kind is expected


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dflash_prep.loop import checksum_triton as kernels

FIXED = {"B": 4, "N": 4, "BLOCK": 4, "PAGE_SIZE": 256}
HALF = ("table_ptr", "kv_ptr", "commit_lens_ptr", "lens_ptr")
BY_REQUEST = ("_write_target_kernel", "_target_kernel")  # without row numbers, as through a block table
for name in (*BY_REQUEST, "_write_draft_kernel", "_propose_kernel", "_keep_kernel"):
    kernel, signature, fixed = getattr(kernels, name), {}, {}
    absent = {"rows_ptr": None} if name in BY_REQUEST else {}
    for index, each in enumerate(kernel.arg_names):
        if each in FIXED | absent:
            signature[each], fixed[index,] = "constexpr", FIXED.get(each)
        elif each.endswith("_ptr"):
            signature[each] = "*i32" if each in HALF else "*i64"
        else:
            signature[each] = "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    assert len(made.asm["cubin"]) > 1000
"""


def test_every_kernel_compiles_for_an_h200_without_one(tmp_path) -> None:
    """The interpreter forgives what the compiler does not: a global that is no constant, a type that changes."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
