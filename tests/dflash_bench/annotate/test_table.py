"""What a table may say, and what is said of one that is wrong."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.annotate.check import check_table
from dflash_bench.annotate.table import Expression, Target, Versions, own_tables, read_table, table_file
from dflash_bench.errors import UsageError

HEAD = 'engine = "toy"\npackage = "toy"\nstep = "decode_step"\n'
STEP = '[[range]]\nname = "decode_step"\ntarget = "toy:Loop.step"\n'


@pytest.fixture
def table(tmp_path):
    def read(text):
        path = tmp_path / "table.toml"
        path.write_text(text)
        return read_table(path)

    return read


def test_our_own_tables_are_tables():
    assert own_tables() == ("loop", "sglang", "vllm")
    for name in own_tables():
        assert read_table(table_file(name)).modules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine = 'toy'\n", "the table: 'package' is missing"),
        (HEAD + "colour = 'red'\n" + STEP, "the table: 'colour' is unknown; known are"),
        (HEAD, "step = 'decode_step' is the name of no range"),
        (HEAD + STEP + "wenn = 'x'\n", r"\[\[range\]\] 1 \(decode_step\): 'wenn' is unknown"),
        (HEAD + STEP + STEP.replace("toy:Loop.step", "toy.Loop.step"), r"2 \(decode_step\): 'toy.Loop.step' is not of"),
        (HEAD + STEP + "when = 'x >'\n", "'x >' is no Python expression"),
        (HEAD + STEP + "when = 3\n", "when = 3 is no text"),
        (HEAD + STEP + "which = 'x'\n", "which chooses among several names"),
        (HEAD + STEP.replace('"decode_step"', '["decode_step", "x"]'), r"\(decode_step, x\): which chooses among"),
        (HEAD + STEP + "versions = '~2'\n", "'~2' is no bound of a version"),
        (HEAD + STEP + "ends_if = 'result'\n", "ends_if is for a range that another target closes"),
        (
            HEAD + STEP + "[[rank]]\nafter = 'toy:f'\nrank = '0'\nworld = '1'\nrole = 'boss'\n",
            "role = 'boss' is neither",
        ),
        (HEAD + "range = 3\n", "range = 3 is no text"),
        ("engine =", "Invalid value"),
    ],
)
def test_a_wrong_table_names_the_entry_and_the_key(table, text, said):
    with pytest.raises(UsageError, match=said) as caught:
        table(text)
    assert "table.toml" in caught.value.text


def test_a_table_that_is_not_there_names_ours():
    with pytest.raises(UsageError, match="there is no table of annotations 'vlm'") as caught:
        table_file("vlm")
    assert "loop, sglang, vllm" in caught.value.hint


def test_entries_are_put_around_a_function_innermost_first(table):
    found = table(HEAD + STEP + '[[range]]\nname = "schedule"\ntarget = "toy:Loop.step"\n')
    assert [entry.names for entry in found.entries] == [("schedule",), ("decode_step",)]


@pytest.mark.parametrize(
    ("span", "inside", "outside"),
    [
        (">=0.5.18", ["0.5.18", "0.5.23", "0.6", "1.0rc1"], ["0.5.15", "0.5", "0.5.17.post1"]),
        (">=0.5.18,<0.6", ["0.5.20+cpu"], ["0.6", "0.6.0"]),
        ("==0.32", ["0.32", "0.32.0"], ["0.32.1"]),
        ("!=2.0", ["2.0.1"], ["2"]),
        ("<=1.2, >1", ["1.2.0", "1.1"], ["1", "1.2.1"]),
    ],
)
def test_spans_of_versions(span, inside, outside):
    versions = Versions.parse(span)
    assert all(versions.holds(each) for each in inside)
    assert not any(versions.holds(each) for each in outside)
    assert versions.holds(None)  # unknown: everything is tried


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_a_version_is_at_least_and_at_most_itself(numbers):
    text = ".".join(map(str, numbers))
    assert Versions.parse(f">={text},<={text},=={text}").holds(f"{text}.0")
    assert not Versions.parse(f"!={text}").holds(text)


def test_the_names_of_an_expression_are_its_free_ones():
    assert Expression.parse("any(x > limit for x in batch.lens)").names == {"any", "limit", "batch"}
    assert Expression.parse("a.b:c").function == Target("a.b", "c")


def test_targets_are_looked_for_in_the_sources_alone(table, tmp_path):
    (tmp_path / "lib").mkdir()
    source = (
        "raise SystemExit('imported')\nif True:\n    class Loop:\n        def step(self, batch): ...\n    size = 3\n"
    )
    (tmp_path / "lib" / "toy.py").write_text(source)
    (tmp_path / "lib" / "other.py").write_text("from toy import Loop as Again\n")
    entries = [
        STEP + "when = 'batch.size > size'\n",
        STEP + "when = 'len(batch) > 0'\n",
        STEP.replace("Loop.step", "Loop.gone"),
        STEP.replace("Loop.step", "size"),
        STEP.replace("toy:", "toy.more:"),
        STEP.replace("toy:Loop.step", "other:Again.step"),
    ]
    problems = [each.problem for each in check_table(table(HEAD + "".join(entries)), tmp_path / "lib", None)]
    assert problems[::-1] == [
        "Loop.step has no parameter size",
        None,
        "there is no Loop.gone in toy",
        "there is no size in toy",
        "there is no module toy.more",
        None,
    ]


def test_the_command_says_what_is_wrong_and_runs_nothing(tmp_path):
    for words, code, said in (
        (["vlm", "--", "true"], 2, "there is no table of annotations"),
        (["vllm"], 2, "no command is given"),
        (["vllm", "--", "no-such-command"], 2, "no-such-command: No such file"),
        (["vllm", "--check", str(tmp_path)], 5, ""),
        (["vllm", "--dry-run", "--", "engine", "a b"], 0, ""),
    ):
        line = [sys.executable, "-m", "dflash_bench.annotate", *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert done.stdout.endswith("engine 'a b'\n")
    assert re.search(r"PYTHONPATH=\S*annotate/hook", done.stdout)
