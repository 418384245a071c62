"""What scripts call: every name is there, the example runs as it stands, and importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from handmade import Range, write

import dflash_bench
from dflash_bench.errors import UsageError

ROOT = Path(__file__).parents[2]


def test_every_name_that_is_offered_is_there_and_says_what_it_does():
    for name in set(dflash_bench.__all__) - {"__version__"}:
        assert getattr(dflash_bench, name).__doc__, name
    assert set(dflash_bench.__all__) <= set(dir(dflash_bench))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dflash_bench.nothing


def test_to_import_the_package_loads_nothing_heavy():
    code = (
        "import sys, dflash_bench; print(sorted({'numpy', 'pyarrow', 'pandas', 'scipy', 'typer'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_example_runs_as_it_stands(tmp_path, h200):
    words = [sys.executable, ROOT / "examples" / "notebook.py", h200, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == "h200x2_sync: NVIDIA H200, ranks 0, 1"
    assert [line.split() for line in lines[3:5]] == [["0", "-550.1"], ["1", "-528.6"]]
    assert "step.period: 9,015.9 → 8,218.3 µs" in lines
    assert lines[-1].startswith("gate: ")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_samples_are_a_frame_with_rank_step_and_arm(tmp_path, h200):
    (profile,) = dflash_bench.ingest_captures(
        *(h200 / f"h200x2_nosync_rank{k}.sqlite" for k in (0, 1)), profiles=str(tmp_path / "p"), run="x"
    )
    found = profile.samples("step.lead")
    assert list(found.columns) == ["arm", "rank", "step", "pair", "value"]
    assert set(found.arm) == {"nosync"}
    assert found.groupby("rank").value.median().div(1000).round(1).to_dict() == {0: 6770.4, 1: 6762.2}
    assert found[found["rank"] == 1].step.tolist() == list(range(200))
    with pytest.raises(UsageError, match=r"has no metric 'step\.leed'") as refused:
        profile.samples("step.leed")
    assert "step.lead" in refused.value.hint


def test_samples_of_a_duet_tell_arms_and_pairs(tmp_path):
    rows = [Range("dflash_bench rank=0 world=1", 0, None, kind=34)]
    rows += [Range("decode_step", 100 * k, 100 * k + 80 + k) for k in range(20)]
    for block, arm in enumerate(("a", "b", "b", "a")):
        for word, t in (("open", 500 * block), ("close", 500 * block + 450)):
            rows.append(Range(f"dflash_bench duet pair={block // 2} arm={arm} {word}", t, None, kind=34))
    (profile,) = dflash_bench.ingest_captures(write(tmp_path / "d.sqlite", rows), profiles=tmp_path / "p")
    found = profile.samples("step.period")
    assert found.groupby(["arm", "pair"]).value.count().to_dict() == {
        ("a", 0): 4, ("a", 1): 4, ("b", 0): 4, ("b", 1): 4,
    }  # fmt: skip
    assert set(profile.of_arm("b").samples("step.period").arm) == {"b"}


def test_paths_as_text_work_and_several_runs_behind_one_are_refused(tmp_path, h200):
    dflash_bench.ingest_captures(str(h200), profiles=str(tmp_path))
    base, candidate = str(tmp_path / "h200x2_sync"), str(tmp_path / "h200x2_nosync")
    assert dflash_bench.open_profile(base).info.run == "h200x2_sync"
    found = dflash_bench.compare_runs(base, candidate)
    assert (found.base.info.arm, found.candidate.info.arm) == ("sync", "nosync")
    with pytest.raises(UsageError, match="is 2 runs"):
        dflash_bench.measure(tmp_path)
    with pytest.raises(UsageError, match="there is no preset 'x'"):
        dflash_bench.measure(base, preset="x")
