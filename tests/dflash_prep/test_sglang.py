"""The plug-in for SGLang: what can be shown without the engine, and what on its own objects where that is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from engines.environments import sglang_parts

from dflash_prep.sglang import fingerprint
from dflash_prep.sglang.__main__ import main
from dflash_prep.sglang.fingerprint import FUNCTIONS, UnknownEngineError, find_engine, read_fingerprints
from dflash_prep.sglang.install import VARIABLE, Plug, PlugOptions
from dflash_prep.sglang.preparation import PlugArm, Preparation
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


def test_marks_that_cannot_be_made_end_the_turns_and_not_the_engine(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(VARIABLE, PlugOptions("off", log=str(tmp_path / "no" / "folder")).to_environment())

    def no_mark(text):
        raise OSError(f"no room for {text}")

    prepared = []
    turns = LiveTurns(PlugArm.OFF, block=2, refill=1, mark=no_mark)
    plug = Plug(lambda _draft, batch: prepared.append(batch), Preparation(PlugArm.OFF, None, 0), turns=turns)
    for _ in range(3):
        plug.prepare_for_decode(None, SimpleNamespace(batch_size=lambda: 1))
    assert len(prepared) == 3
    assert capsys.readouterr().err.count("the engine goes on with its own preparation: OSError: no room for") == 1


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


def differing(cases, name, *but):
    """Of each engine what differs from the first one in a case, in any step; not counting ``but``."""
    return {engine: {*parts} - {*but} for engine, parts in cases["compared"][name]["differences"].items()}


def of_the_plugs(differences):
    return {name: parts for name, parts in differences.items() if name.startswith("plug")}


EQUAL = {name: set() for name in ("plug:bulk", "plug:ring", "plug:topup=0", "ours:bulk,staging_ring=on")}


KINDS = ("plenty", "sent back", "evicted", "window", "window and tree")


@pytest.mark.parametrize(
    ("kind", "page_size"), [("large pages", 256), *((kind, size) for kind in KINDS for size in (1, 16))]
)
def test_bulk_ring_and_topup_without_pages_leave_what_the_engine_leaves_in_every_step(cases, kind, page_size):
    """Watermarks, tokens, slots of both pools, lengths, sums and top_k, who is sent back, how far windows are evicted;
    and all steps compared before they are written too."""
    name = f"{kind}, page {page_size}"
    but = set()
    if page_size == 1:
        but = {"slots"}  # the engine gives single tokens back behind its free list, the reference in front
    if kind == "evicted":
        but = {"slots", "free"}  # the engine's tree evicts whole leaves, the stand-in of the reference what is short
    found = differing(cases, name, *but)
    found.pop("ours:bulk", None)
    assert found == EQUAL
    assert of_the_plugs(differing(cases, name)) == of_the_plugs(EQUAL)
    happened = cases["compared"][name]["happened"]
    assert all(each.get("sent back", 0) == happened["upstream"].get("sent back", 0) for each in happened.values())
    seen = {"sent back": "sent back", "evicted": "evicted", "window": "window", "window and tree": "window"}
    assert kind not in seen or happened["upstream"][seen[kind]] > 0


def test_a_hisparse_pool_is_never_topped_up_and_prepared_as_the_engine_does(cases):
    name = "hisparse, page 16"
    found = differing(cases, name, "slots")  # the engine gives pages back in ascending order, the reference by the row
    assert found == EQUAL | {"plug:topup=2": set()}
    assert of_the_plugs(differing(cases, name)) == of_the_plugs(EQUAL | {"plug:topup=2": set()})
    decisions = cases["compared"][name]["happened"]["plug:topup=2"]
    assert {*decisions} == {"hisparse", "no_allocation"}


@pytest.mark.parametrize(
    ("name", "engine", "decision"),
    [
        ("pages of one token, page 1", "plug:topup=2", "page_size_one"),
        ("never enough in advance, page 16", "plug:topup=8", "short"),
    ],
)
def test_a_top_up_that_may_not_be_taken_changes_nothing(cases, name, engine, decision):
    assert differing(cases, name) == {engine: set()}
    decisions = cases["compared"][name]["happened"][engine]
    assert decisions[decision] > 20
    assert "taken" not in decisions


@pytest.mark.parametrize("kind", ["in advance", "in advance, sent back"])
def test_pages_in_advance_on_the_engines_objects_are_those_of_the_reference_up_to_the_end_of_the_row(cases, kind):
    """The plug-in, `topup` and `floor`: also the guard's figures, and the slots."""
    name = f"{kind}, page 16"
    assert differing(cases, name) == {"ours:topup,staging_ring=on": set(), "ours:floor": set()}
    happened = cases["compared"][name]["happened"]["plug:topup=2"]
    assert happened["taken"] > 0
    assert happened["rows at their end"] > 0
    assert (kind == "in advance") or (happened["short"] > 0 and happened["sent back"] > 0)


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
