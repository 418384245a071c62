"""The metadata glue graph: warm-ups, capture, replay, eligibility, padding, frozen host values."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from dflash_prep.kernels.attention_metadata import MetadataInputs, VerifyMetadata, prepare_verify_metadata
from dflash_prep.kernels.glue_graph import (
    Captured,
    GlueBatch,
    GlueGraphs,
    GlueInputs,
    GlueKey,
    GlueMode,
    GlueRefusal,
    RowTier,
    _FrozenHostValueError,
    glue_refusal,
)

VERIFY = GlueMode.TARGET_VERIFY
KEY = GlueKey(4, VERIFY, VERIFY)


@dataclass(frozen=True, slots=True)
class Metadata:
    lens: torch.Tensor
    max_len: int


class FakeDevice:
    """Runs launches at once, or records them while capturing; a replay runs what was recorded."""

    def __init__(self) -> None:
        self._recording: list[Callable[[], None]] | None = None

    def launch(self, kernel: Callable[[], None]) -> None:
        if self._recording is None:
            kernel()
        else:
            self._recording.append(kernel)

    def capture(self, prepare: Callable[[], Metadata]) -> Captured[Metadata]:
        self._recording = recorded = []
        metadata = prepare()
        self._recording = None
        return Captured(lambda: [kernel() for kernel in recorded], metadata)


class Backend:
    """Derives lengths + 8 from a static input; counts how often Python ran."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.calls = device, 0
        self.seq_lens = torch.tensor([1, 2, 3, 4])
        self.out = torch.zeros(4, dtype=torch.int64)
        self.max_len = 100

    def prepare(self) -> Metadata:
        self.calls += 1
        self.device.launch(lambda: torch.add(self.seq_lens, 8, out=self.out))
        return Metadata(self.out, self.max_len)


def test_two_eager_runs_then_a_capture_on_the_third_then_replays_without_the_backend() -> None:
    device = FakeDevice()
    backend, graphs = Backend(device), GlueGraphs(device.capture)
    for step in range(1, 8):
        backend.seq_lens.fill_(step)
        metadata = graphs.run(KEY, backend.prepare)
        assert backend.calls == min(step, 3)
        assert len(graphs) == (1 if step >= 3 else 0)
        assert metadata.lens.tolist() == [step + 8] * 4, "also the capturing step must produce its outputs"
        assert metadata.max_len == 100


def test_every_key_has_a_graph_of_its_own() -> None:
    device = FakeDevice()
    backend, graphs = Backend(device), GlueGraphs(device.capture)
    keys = [KEY, GlueKey(8, VERIFY, VERIFY), GlueKey(4, VERIFY, GlueMode.DECODE)]
    for _ in range(5):
        for key in keys:
            graphs.run(key, backend.prepare)
    assert len(graphs) == 3
    assert backend.calls == 9


def test_reset_drops_graphs_and_warm_ups() -> None:
    device = FakeDevice()
    backend, graphs = Backend(device), GlueGraphs(device.capture)
    for _ in range(4):
        graphs.run(KEY, backend.prepare)
    graphs.reset()
    assert len(graphs) == 0
    for _ in range(3):
        graphs.run(KEY, backend.prepare)
    assert (len(graphs), backend.calls) == (1, 6)


def test_a_host_value_that_changes_between_steps_is_refused_instead_of_frozen() -> None:
    device = FakeDevice()
    backend, graphs = Backend(device), GlueGraphs(device.capture)
    graphs.run(KEY, backend.prepare)
    graphs.run(KEY, backend.prepare)
    backend.max_len = 101
    with pytest.raises(_FrozenHostValueError, match="max_len"):
        graphs.run(KEY, backend.prepare)
    assert len(graphs) == 0


BACKENDS = [RowTier(row_limit=48, num_draft_tokens=6)]


def test_eligibility_ends_with_the_row_limit() -> None:
    """Section 11.7: row limit 48 and 6 draft tokens, so 8 requests qualify and 9 do not."""
    assert glue_refusal(GlueBatch(8, 8, VERIFY), BACKENDS, padded=False) is None
    assert glue_refusal(GlueBatch(9, 9, VERIFY), BACKENDS, padded=False) is GlueRefusal.BACKEND
    assert glue_refusal(GlueBatch(8, 8, GlueMode.DECODE), BACKENDS, padded=False) is GlueRefusal.BACKEND


def test_a_padded_batch_qualifies_only_in_the_padded_form_and_by_its_padded_size() -> None:
    """#47676."""
    assert glue_refusal(GlueBatch(5, 8, VERIFY), BACKENDS, padded=False) is GlueRefusal.PADDED
    assert glue_refusal(GlueBatch(5, 8, VERIFY), BACKENDS, padded=True) is None
    assert glue_refusal(GlueBatch(5, 9, VERIFY), BACKENDS, padded=True) is GlueRefusal.BACKEND


@pytest.mark.parametrize("padded", [False, True])
def test_every_other_condition_refuses_in_both_forms(padded: bool) -> None:
    def refusal(**facts: bool) -> GlueRefusal | None:
        return glue_refusal(GlueBatch(8, 8, VERIFY, **facts), BACKENDS, padded=padded)

    assert refusal(two_batch_overlap=True) is GlueRefusal.TWO_BATCH_OVERLAP
    assert refusal(pdmux=True) is GlueRefusal.PDMUX
    assert refusal(lora=True) is GlueRefusal.LORA
    assert glue_refusal(GlueBatch(8, 8, VERIFY), [*BACKENDS, object()], padded=padded) is GlueRefusal.BACKEND


def test_staged_inputs_are_padded_with_the_padding_row_and_nothing_beyond_changes() -> None:
    inputs = GlueInputs(8, "cpu")
    inputs.seq_lens.fill_(99)
    inputs.pool_indices.fill_(99)
    inputs.stage(torch.tensor([10, 20, 30]), torch.tensor([5, 6, 7]), padded_bs=6)
    assert inputs.seq_lens.tolist() == [10, 20, 30, 1, 1, 1, 99, 99]
    assert inputs.pool_indices.tolist() == [5, 6, 7, 0, 0, 0, 99, 99]
    with pytest.raises(ValueError, match="cannot pad"):
        inputs.stage(torch.tensor([10, 20]), torch.tensor([5, 6]), padded_bs=1)
    with pytest.raises(ValueError, match="cannot pad"):
        inputs.stage(torch.tensor([10]), torch.tensor([5]), padded_bs=9)


@dataclass(frozen=True, slots=True)
class Rig:
    """A verify-metadata preparation over static inputs, padded to `padded_bs`."""

    inputs: GlueInputs
    table: torch.Tensor
    out: VerifyMetadata
    padded_bs: int

    @classmethod
    def build(cls, device: str, padded_bs: int = 8) -> "Rig":
        table = torch.randint(1, 1 << 20, (20, 256), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
        table[0] = 0
        out = VerifyMetadata.allocate(padded_bs, 256, 16, device)
        return cls(GlueInputs(padded_bs, device), table.to(device), out, padded_bs)

    def prepare(self) -> VerifyMetadata:
        lens, pool = self.inputs.seq_lens[: self.padded_bs], self.inputs.pool_indices[: self.padded_bs]
        prepare_verify_metadata(MetadataInputs(lens, pool, self.table), 6, self.out, fused=True)
        return self.out

    def eager(self, lens: torch.Tensor, pool: torch.Tensor) -> VerifyMetadata:
        """The unpadded batch, prepared eagerly into fresh buffers."""
        out = VerifyMetadata.allocate(lens.numel(), 256, 16, lens.device)
        prepare_verify_metadata(MetadataInputs(lens, pool, self.table), 6, out, fused=False)
        return out


def random_batch(bs: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, 250, (bs,), generator=generator)
    return lens.to(device), (torch.randperm(19, generator=generator)[:bs] + 1).to(device)


def assert_rows_match(rig: Rig, lens: torch.Tensor, pool: torch.Tensor) -> None:
    """Lengths equal, and equal pages wherever the eager run wrote any; padding rows see page 0 of the padding row."""
    expected, bs = rig.eager(lens, pool), lens.numel()
    assert torch.equal(rig.out.seq_lens_k[:bs], expected.seq_lens_k)
    written = expected.block_table != -1
    assert torch.equal(rig.out.block_table[:bs][written], expected.block_table[written])
    assert rig.out.seq_lens_k[bs:].tolist() == [7] * (rig.padded_bs - bs)
    assert rig.out.block_table[bs:, 0].tolist() == [0] * (rig.padded_bs - bs)


@pytest.mark.parametrize("bs", [1, 5, 7, 8])
def test_the_padded_preparation_gives_the_real_rows_what_an_eager_one_gives(bs: int) -> None:
    rig = Rig.build("cpu")
    lens, pool = random_batch(bs, bs, "cpu")
    rig.inputs.stage(lens, pool, rig.padded_bs)
    rig.prepare()
    assert_rows_match(rig, lens, pool)


@pytest.mark.gpu
def test_on_a_gpu_one_graph_serves_every_raw_batch_size_of_its_padded_size(forbid_syncs) -> None:
    rig, graphs = Rig.build("cuda"), GlueGraphs()
    calls = 0

    def prepare() -> VerifyMetadata:
        nonlocal calls
        calls += 1
        return rig.prepare()

    key = GlueKey(rig.padded_bs, VERIFY, VERIFY)
    for step, bs in enumerate([8, 5, 8, 1, 7, 8, 3, 6]):
        lens, pool = random_batch(bs, step, "cuda")
        if step < 3:
            rig.inputs.stage(lens, pool, rig.padded_bs)
            graphs.run(key, prepare)
        else:
            with forbid_syncs():
                rig.inputs.stage(lens, pool, rig.padded_bs)
                graphs.run(key, prepare)
        assert_rows_match(rig, lens, pool)
    assert (calls, len(graphs)) == (3, 1)
