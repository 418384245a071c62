"""The plug-in for SGLang: what can be shown without the engine, and what on its own objects where that is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engines.environments import sglang_parts

from dflash_prep.sglang import fingerprint
from dflash_prep.sglang.__main__ import main
from dflash_prep.sglang.fingerprint import FUNCTIONS, UnknownEngineError, find_engine, read_fingerprints
from dflash_prep.sglang.install import VARIABLE, PlugOptions
from dflash_prep.sglang.preparation import PlugArm
from dflash_prep.sglang.turns import UPSTREAM, LiveTurns, default_refill

ROOT = Path(__file__).parents[2]


# ── which engine it is ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with functions of the engine's names, taken as known."""
    sources = {
        "srt/speculative/dflash_info_v2.py": (
            "from sglang.srt.mem_cache.allocation import alloc_for_spec_decode\n"
            "def _get_overlap_plan_stream(device):\n    return None, None\n"
            "class DFlashDraftInputV2:\n"
            "    def prepare_for_decode(self, batch):\n        '''Doc.'''\n        batch.append('upstream')\n"
        ),
        "srt/mem_cache/allocation_sizing.py": "def page_aligned_decode_alloc_lens(reqs, *, reserve, page_size):\n    pass\n",  # noqa: E501
        "srt/mem_cache/allocation.py": "def alloc_for_spec_decode(tree, rows, **lens):\n    return 1\n",
    }
    for name, text in sources.items():
        file = tmp_path / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    known = read_fingerprints(tmp_path / "sglang")
    monkeypatch.setattr(fingerprint, "KNOWN", {"9.9": known})
    return tmp_path / "sglang"


def test_an_engine_is_known_by_what_its_functions_do_and_not_by_their_layout(package):
    assert find_engine(package).version == "9.9"
    file = package / "srt/speculative/dflash_info_v2.py"
    file.write_text(file.read_text().replace("'''Doc.'''", "'''Other.'''  # a comment\n"))
    assert find_engine(package).version == "9.9"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_function_that_differs_is_refused_by_its_name(package, name):
    file = package / FUNCTIONS[name]
    file.write_text(file.read_text().replace("pass", "return 0").replace("return 1", "return 2")
                    .replace("None, None", "device, None").replace("'upstream'", "'other'"))  # fmt: skip
    with pytest.raises(UnknownEngineError, match=name.replace(".", r"\.")):
        find_engine(package)


def test_a_function_that_is_not_there_is_refused_too(package):
    (package / "srt/mem_cache/allocation.py").unlink()
    with pytest.raises(UnknownEngineError, match=r"alloc_for_spec_decode is not as in 9\.9"):
        find_engine(package)


def test_an_unknown_engine_is_refused_before_it_starts(package, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(fingerprint, "KNOWN", {"9.9": dict.fromkeys(FUNCTIONS, "0")})
    assert main(["--arm", "topup", "--", "true"]) == 2
    assert "error: this SGLang is not one that the plug-in was compared with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--arm", "topup"], "a command is missing behind --"),
        (["--arm", "legacy", "--", "true"], "invalid choice"),
        (["--arm", "topup", "--duet", "many", "--", "true"], "a whole number is expected"),
        (["--arm", "topup", "--topup-pages", "9", "--", "true"], "invalid choice"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_2(words, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


def test_a_wrong_number_of_pages_in_the_environment_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("SGLANG_OPT_DFLASH_DECODE_TOPUP_PAGES", "many")
    assert main(["--arm", "topup", "--", "true"]) == 2
    assert "SGLANG_OPT_DFLASH_DECODE_TOPUP_PAGES" in capsys.readouterr().err


# ── the hook ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("hooks", [["plug"], ["plug", "annotate"], ["annotate", "plug"]], ids=" ".join)
def test_the_hook_reaches_a_spawned_child_keeps_an_own_sitecustomize_and_refuses_what_it_does_not_know(
    package, tmp_path, hooks
):
    """The engine's function stays as it is, and both processes say why; also where the engine is annotated as well."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess, sys\n"
        "from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2\n"
        "seen = []\nDFlashDraftInputV2().prepare_for_decode(seen)\nprint(seen, os.environ['OWN'])\n"
        "if len(sys.argv) == 1: subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
    )
    folders = {"plug": ROOT / "impl" / "dflash_prep" / "sglang", "annotate": ROOT / "dflash_bench" / "annotate"}
    path = os.pathsep.join(map(str, (*(folders[name] / "hook" for name in hooks), own, package.parent, ROOT / "impl")))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: PlugOptions("topup").to_environment()}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['upstream'] ran"] * 2
    assert done.stderr.count("the engine keeps its own preparation") == 2


def test_without_options_the_hook_does_nothing(package, tmp_path):
    hook = ROOT / "impl" / "dflash_prep" / "sglang" / "hook"
    code = "import sys; print([type(f).__name__ for f in sys.meta_path])"
    environment = {**os.environ, "PYTHONPATH": str(hook)}
    environment.pop(VARIABLE, None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "_Watcher" not in done.stdout


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_marks_stand_around_the_counted_steps_of_each_block_and_both_play_in_every_pair():
    marks, log = [], []
    turns = LiveTurns(PlugArm.TOPUP, block=5, refill=2, mark=lambda text: marks.append((len(log), text)), seed=3)
    for _ in range(7 * 2 * 20):
        log.append((turns.label, turns.is_counted))
        turns.advance()
    for (opened, first), (closed, second) in zip(marks[::2], marks[1::2], strict=True):
        assert first.removesuffix("open") == second.removesuffix("close")
        label = first.split("arm=")[1].split()[0]
        # a mark comes behind its step: the steps that start between the two are the counted ones
        assert log[opened:closed] == [(label, True)] * 5
    pairs = [text.split("pair=")[1].split()[0] for _, text in marks[::2]]
    arms = [text.split("arm=")[1].split()[0] for _, text in marks[::2]]
    assert pairs == [str(k // 2) for k in range(40)]
    assert all({*arms[k : k + 2]} == {UPSTREAM, "topup"} for k in range(0, 40, 2))
    assert len({arms[k] for k in range(0, 40, 2)}) == 2, "the order is drawn anew for each pair"


def test_pages_in_advance_are_used_up_before_upstream_is_counted():
    assert default_refill(2, 256) * 3 >= 3 * 256


# ── on the engine's own objects ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def parts():
    """SGLang's classes for this Python: the wheel without what it needs, from a cache, or fetched into it."""
    try:
        return sglang_parts()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"SGLang's wheel cannot be had here: {error}")


def run_in_engine(parts, script, *words):
    folders = [ROOT / "impl", ROOT / "tests" / "benchmarks", ROOT / "tests" / "engines", parts]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    line = [sys.executable, str(ROOT / "tests" / script), *words]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


ENGINES = ("upstream", "plug:bulk", "plug:ring", "plug:topup=0", "ours:bulk", "ours:bulk,staging_ring=on")


@pytest.fixture(scope="module")
def cases(parts):
    return run_in_engine(parts, "engines/plug_cases.py")


def test_bulk_ring_and_topup_without_pages_leave_what_the_engine_leaves_in_every_step(cases):
    """Watermarks, tokens, slots, lengths, sums and top_k, and all steps compared before they are written too."""
    single, *pages = (cases["compared"][size] for size in ("1", "16", "256"))
    assert pages == [{name: {} for name in ENGINES[1:]}] * 2
    # on pages of one token the engine gives slots back in the order of the row, this allocator sorted
    assert {name: {*keys} - {"slots"} for name, keys in single.items()} == {name: set() for name in ENGINES[1:]}
    assert all(single[name] == {} for name in ENGINES if name.startswith("plug"))


@pytest.mark.soak
@pytest.mark.parametrize("sorted_lists", [[], ["--need-sort"]])
@pytest.mark.parametrize("block", ["5", "16", "300"])
def test_the_same_over_batch_sizes_pages_and_blocks(parts, block, sorted_lists):
    words = ["--compare", "--steps", "150", "--warm-up", "0", "--context", "4096", "--block", block, *sorted_lists]
    found = run_in_engine(
        parts,
        "benchmarks/sglang_prep.py",
        *ENGINES,
        *words,
        "--bs",
        "1",
        "7",
        "36",
        "64",
        "--page-size",
        "16",
        "64",
        "256",
    )
    assert [r["differences"] for r in found["results"]] == [{name: {} for name in ENGINES[1:]}] * 12


def test_a_planted_fault_is_seen_before_it_is_written_and_the_engine_goes_on_as_if_alone(cases):
    found = dict(cases["faults"])
    assert found.pop("none") == {"off": None, "compared": 35, "requests": 12, "differences": {}}
    assert {fault: each["off"].split(": ")[1].split(" is")[0] for fault, each in found.items()} == {
        "a wrong slot": "cur_kv_lens of request 0",
        "a short page count": "num_needed_tokens",
        "a stale length": "seq_lens_cpu of request 0",
        "a crash": "planted",
    }
    for fault, each in found.items():
        assert each["differences"] == {}, fault
        assert each["requests"] == 12, "no request is lost"
