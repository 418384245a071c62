"""Engines' range names find their roles, and names without bound become few."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from generator import Fault, Spec, write_export
from handmade import Range, events, write

from dflash_bench.ingest.ranks import DEFAULT_RANK_PATTERN, RankRule, ranks_in_names
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.events.host import shortened
from dflash_bench.metrics.events.names import REST, short_name, short_names
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.presets import PRESETS, Preset, known_presets, reading_of
from dflash_bench.metrics.reading import Reading

LAYER = "{'Module': 'model.layers.17.self_attn.qkv_proj', 'TrainableParams': {'weight': 42}, 'Inputs': [[36, 4096]]}"


@pytest.mark.parametrize(
    ("preset", "name", "short"),
    [
        (Preset.SGLANG, "scheduler.run_batch", "scheduler.run_batch"),
        (Preset.SGLANG, "scheduler.run_batch (bs=36)", "scheduler.run_batch"),
        (Preset.SGLANG, LAYER, "model.layers.*.self_attn.qkv_proj"),
        (Preset.SGLANG, "{'Module': 'lm_head'}", "lm_head"),
        (Preset.VLLM, "execute_context_0(0)_generation_36(36)", "execute_model step"),
        (Preset.VLLM, "execute_new_1_cached_35", "execute_model step"),
        (Preset.VLLM, "Iteration(515): 0 context requests, 20 generation requests", "Iteration"),
        (Preset.VLLM, "gpu_model_runner: preprocess", "gpu_model_runner: preprocess"),
        (Preset.VLLM, LAYER, "model.layers.*.self_attn.qkv_proj"),
        (Preset.TRTLLM, "[Executor] _forward_step 12: 0 ctx reqs, 36 gen reqs", "[Executor] _forward_step"),
        (Preset.TRTLLM, "[Executor] _forward_step: 0 ctx reqs, 36 gen reqs", "[Executor] _forward_step"),
        (Preset.TRTLLM, "_prepare_inputs", "_prepare_inputs"),
        (Preset.DFLASH_BENCH, "decode_step", "decode_step"),
        (Preset.DFLASH_BENCH, LAYER, LAYER),
    ],
)
def test_a_name_is_written_as_the_engine_means_it(preset: Preset, name: str, short: str) -> None:
    assert short_name(name, PRESETS[preset].rules) == short


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        (Preset.SGLANG, "scheduler.run_batch"),
        (Preset.VLLM, "execute_context_2(700)_generation_36(36)"),
        (Preset.TRTLLM, "[Executor] _forward_step 9: 0 ctx reqs, 0 ctx tokens, 32 gen reqs"),
        (Preset.DFLASH_BENCH, "decode_step"),
    ],
)
def test_the_step_of_each_engine_is_found(preset: Preset, name: str) -> None:
    (found,) = reading_of(preset).is_step(shortened(events([Range(name, 0, 1)]).ranges, PRESETS[preset].rules))
    assert found


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("1699999999.12-TP-3.trace.json.gz", 3),
        ("1699999999.12-TP-3-DP-1.trace.json.gz", 3),
        ("run_rank2.sqlite", 2),
        ("dp0_pp0_tp1_dcp0_ep1_rank5.1699.pt.trace.json.gz", 5),
    ],
)
def test_the_rank_is_read_as_the_engine_writes_it(file: str, rank: int) -> None:
    assert ranks_in_names([Path(file)], RankRule.of(DEFAULT_RANK_PATTERN).pattern) == [rank]


def test_every_preset_has_names_and_is_offered() -> None:
    assert set(PRESETS) == set(Preset)
    assert list(known_presets()) == ["dflash-bench", "sglang", "sglang-trace", "vllm", "trtllm"]


def test_few_names_stay_as_they_are() -> None:
    found = short_names(["a1", "a2", "b"])
    assert found.values == ("a1", "a2", "b")
    assert (found.place, found.num_merged) == ((0, 1, 2), 0)


def test_names_that_differ_in_numbers_are_one_name() -> None:
    found = short_names(["aten::mul, op_id = 12", "aten::mul, op_id = 13", "Step#3", "Step#4", "verify"])
    assert found.values == ("aten::mul, op_id = *", "Step#*", "verify")
    assert found.place == (0, 0, 1, 1, 2)


def test_a_number_in_a_word_is_part_of_it_unless_there_are_many() -> None:
    assert short_names(["stage1", "stage2"]).values == ("stage1", "stage2")
    assert short_names([f"step_{k}" for k in range(400)]).values == ("step_*",)


def test_names_without_any_pattern_are_bounded_all_the_same() -> None:
    found = short_names([chr(0x4E00 + k) for k in range(1000)], limit=100)
    assert len(found.values) == 100
    assert found.values[-1] == REST
    assert found.place[:99] == tuple(range(99))
    assert set(found.place[99:]) == {99}
    assert found.num_merged == 900


def test_names_that_a_rule_makes_equal_share_a_place() -> None:
    found = short_names(["execute_new_1_cached_2", "x", "execute_new_3_cached_4"], PRESETS[Preset.VLLM].rules)
    assert found.values == ("execute_model step", "x")
    assert (found.place, found.num_merged) == ((0, 1, 0), 0)


def test_steps_whose_names_change_every_time_are_measured_as_those_of_one_name(tmp_path: Path) -> None:
    counted = write_export(tmp_path / "a.sqlite", Spec(rows=3000, faults=frozenset({Fault.STEP_NAMES_COUNT})))
    with closing(sqlite3.connect(counted, isolation_level=None)) as database:
        sql = "UPDATE NVTX_EVENTS SET text = 'execute_new_' || rowid || '_cached_3' WHERE text LIKE 'iteration %'"
        database.execute(sql)
    plain = write_export(tmp_path / "b.sqlite", Spec(rows=3000))
    (found,) = ingest([counted], IngestOptions(profiles=tmp_path / "p"))
    (wanted,) = ingest([plain], IngestOptions(profiles=tmp_path / "p"))
    own, other = measure(found, reading_of(Preset.VLLM)), measure(wanted)
    for name in ("step.period", "launch.lead", "graph.lead", "dp.wait"):
        a, b = own.find(name, None), other.find(name, None)
        assert a is not None
        assert b is not None
        assert a.values.tolist() == b.values.tolist(), name
    steps = own.find("range.execute_model step", None)
    assert steps is not None
    assert steps.n == other.find("range.decode_step", None).n  # type: ignore[union-attr]


def test_without_a_preset_names_that_differ_in_numbers_are_one_and_can_be_the_step(tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.sqlite", Spec(rows=1000, faults=frozenset({Fault.STEP_NAMES_COUNT})))
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "p"))
    assert "range.iteration *: * requests" in {m.name for m in measure(profile).metrics}
    for step in ("iteration *: * requests", "iteration 7: 32 requests", r"re:iteration \d+: \d+ requests"):
        assert measure(profile, Reading(step=step)).find("step.period", 0).n > 5


def test_the_engine_of_a_capture_is_found_by_the_names_of_its_steps(tmp_path: Path) -> None:
    ranges = [Range(f"execute_context_0(0)_generation_{k}({k})", 100 * k, 100 * k + 90) for k in range(30)]
    (profile,) = ingest([write(tmp_path / "a.sqlite", ranges)], IngestOptions(profiles=tmp_path / "p"))
    run = measure(profile)
    assert run.find("step.period", 0).n == 29
    assert run.find("steps@decode", 0).values.tolist() == [30]
    assert "--preset vllm" in next(f.text for f in run.findings if f.code == "preset_found")
