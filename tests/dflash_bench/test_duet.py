"""Arms that take turns in one run: each one's figures are those of its own blocks of steps, told by pair."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from handmade import Call, Range, Work, write

from dflash_bench.cli.sides import both_sides
from dflash_bench.compare import compare
from dflash_bench.duet import DuetMark, duet_mark
from dflash_bench.errors import UsageError
from dflash_bench.ingest.sources import IngestOptions, resolve
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Sides
from dflash_bench.report.comparison import comparison_report

PERIODS = {"control": 100, "topup": 60}
ORDER = ("control", "topup", "topup", "control", "topup", "control")
"""The arm of each block; two of them are a pair."""


def block(arm, pair, at):
    """A refill step that does not count, then four that do, whose agreement takes a tenth of the period."""
    period = PERIODS.get(arm, 100)
    ranges, calls, work = [Range("decode_step", at, at + 7)], [], []
    at += 10
    ranges.append(Range(f"dflash_bench duet pair={pair} arm={arm} open", at, None, kind=34))
    for k in range(4):
        start = at + k * period
        ranges += [Range("decode_step", start, start + period - 5), Range("fill", start + 1, start + 1 + period // 10)]
        calls.append(Call("cudaLaunchKernel", start + 20, start + 21, id=start))
        work.append(Work(start + 22, start + 30, id=start))
    at += 4 * period - 5
    ranges.append(Range(f"dflash_bench duet pair={pair} arm={arm} close", at, None, kind=34))
    # the step in flight is finished, and is none that counts
    ranges.append(Range("decode_step", at, at + 9))
    return ranges, calls, work, at + 1000


@pytest.fixture(scope="module")
def duet(tmp_path_factory):
    folder, at = tmp_path_factory.mktemp("duet"), 0
    ranges, calls, work = [Range("dflash_bench rank=0 world=1", 0, None, kind=34)], [], []
    for k, arm in enumerate(ORDER):
        *rows, at = block(arm, k // 2, at)
        for mine, more in zip((ranges, calls, work), rows, strict=True):
            mine += more
    export = write(folder / "pair.sqlite", ranges, calls, work)
    (profile,) = resolve(str(export), IngestOptions(profiles=folder / "profiles", settings={"arms": "topup control"}))
    return profile


def test_a_run_knows_the_arms_that_take_turns_in_the_order_asked_for(duet):
    assert (duet.info.arms, duet.info.arm) == (("topup", "control"), None)
    assert [p.rank for p in duet.info.processes] == [0]


@pytest.mark.parametrize(
    ("arms", "order"), [("topup upstream", ("upstream", "topup")), ("topup control", ("control", "topup"))]
)
def test_of_arms_that_nobody_asked_for_the_one_called_a_base_is_the_base(tmp_path, arms, order):
    rows, at = [Range("dflash_bench rank=0 world=1", 0, None, kind=34)], 0
    for arm in arms.split():
        ranges, _, _, at = block(arm, 0, at)
        rows += ranges
    export = write(tmp_path / "live.sqlite", rows, [], [])
    (profile,) = resolve(str(export), IngestOptions(profiles=tmp_path / "profiles"))
    assert profile.info.arms == order


@pytest.mark.parametrize("arm", PERIODS)
def test_an_arm_has_the_figures_of_its_own_blocks_and_each_sample_its_pair(duet, arm):
    """The last step of a block has no next one: of four steps three have a period."""
    run, period = measure(duet, Reading(arm=arm)), PERIODS[arm]
    assert run.info.arm == arm
    found = run.find("step.period", 0)
    assert (found.values.tolist(), found.pair.tolist()) == ([period] * 9, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert run.find("step.period", None).pair.tolist() == found.pair.tolist()
    fill = run.find("range.fill", 0)
    assert (fill.values.tolist(), fill.pair.tolist()) == ([period // 10] * 12, [k for k in range(3) for _ in range(4)])
    calls = run.find("launch.calls_per_step", 0)
    assert (figure(calls), calls.pair.tolist()) == (1.0, fill.pair.tolist())
    lead = run.find("launch.lead", 0)
    assert len(lead.pair) == len(lead.values) > 0


def test_without_an_arm_all_steps_count_and_none_has_a_pair(duet):
    """Those that launch nothing do not."""
    found = measure(duet).find("launch.calls_per_step", 0)
    assert (found.n, found.pair) == (6 * 4, None)


def test_an_arm_is_named_behind_its_run_and_a_run_of_two_arms_has_both_sides(duet):
    options = IngestOptions(profiles=duet.path.parent)
    run = duet.info.run
    base, candidate = both_sides(run, None, options)
    assert [side[0].arm for side in (base, candidate)] == ["topup", "control"]
    named, other = both_sides(f"{run}:control", f"{run}:topup", options)
    assert (measure(named[0]).info.arm, measure(other[0]).info.arm) == ("control", "topup")
    with pytest.raises(UsageError, match="no blocks of an arm 'glue': topup, control"):
        resolve(f"{run}:glue", options)
    (of_pattern,) = resolve(f"{run[:-1]}*:topup", options)
    assert (of_pattern.info.run, of_pattern.arm) == (run, "topup")


def test_a_block_that_never_closed_does_not_count(tmp_path):
    ranges, calls, work, at = block("control", 0, 0)
    more, *_ = block("control", 1, at)
    ranges += [r for r in more if not (r.name or "").endswith("close")]
    export = write(
        tmp_path / "cut.sqlite", [Range("dflash_bench rank=0 world=1", 0, None, kind=34), *ranges], calls, work
    )
    (profile,) = resolve(str(export), IngestOptions(profiles=tmp_path / "profiles"))
    assert measure(profile, Reading(arm="control")).find("step.period", 0).n == 3


def test_agreements_of_the_other_arm_are_none_of_this_one_and_no_warning(tmp_path):
    """Two ranks, the second always 2 ns later; the steps that fill and drain agree too, and do not count."""
    rows, at = [[], [], []], 0
    for k, arm in enumerate(ORDER):
        *more, at = block(arm, k // 2, at)
        for mine, own in zip(rows, more, strict=True):
            mine += own
    ranges, calls, work = rows
    steps = [r.start for r in ranges if r.name == "decode_step"]
    both = []
    for rank, pid in enumerate((101, 102)):
        late = 2 * rank
        own = [Range(f"dflash_bench rank={rank} world=2", 0, None, kind=34)]
        own += [*ranges, *(Range("dp_agreement", t + 2 + late, t + 6) for t in steps)]
        both.append([replace(each, pid=pid, tid=pid) for each in (*own, *calls)] + [replace(w, pid=pid) for w in work])
    of = [[row for own in both for row in own if isinstance(row, kind)] for kind in (Range, Call, Work)]
    export = write(tmp_path / "two.sqlite", *of)
    (profile,) = resolve(str(export), IngestOptions(profiles=tmp_path / "profiles"))
    for arm in PERIODS:
        run = measure(profile, Reading(arm=arm))
        assert run.find("dp.agreement_tax", None).values.tolist() == [1.0] * 12  # above the median of the two
        assert not [f.code for f in run.findings if f.code.startswith("agreements")]


def test_windows_of_steps_count_from_0_in_each_process(duet):
    run = measure(duet, Reading(first=1, last=4))
    assert run.find("step.period", 0).values.tolist() == [PERIODS["control"]] * 3
    assert run.find("launch.calls_per_step", 0).n == 3
    assert run.find("range.fill", 0).n == 3


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("dflash_bench duet pair=12 arm=topup,staging_ring=on open", DuetMark(12, "topup,staging_ring=on", True)),
        ("dflash_bench duet pair=0 arm=control close", DuetMark(0, "control", False)),
        ("dflash_bench rank=0 world=2", None),
        ("dflash_bench duet pair=x arm=control open", None),
    ],
)
def test_marks_are_read_as_they_are_written(text, mark):
    assert duet_mark(text) == mark


def test_one_word_of_several_duets_is_one_comparison_of_their_arms(duet, tmp_path, cli):
    """As the command that made them says it: a pattern, or their names with commas between."""
    for name in ("turns-r1", "turns-r2"):
        shutil.copytree(duet.path, tmp_path / name)
        file = tmp_path / name / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"run": name}), "utf-8")
    options = IngestOptions(profiles=tmp_path)
    for word in ("turns-*", "turns-r1,turns-r2", None):
        base, candidate = both_sides(word, None, options)
        assert {p.info.run for p in base} == {p.info.run for p in candidate} == {"turns-r1", "turns-r2"} or word is None
        assert {p.arm for p in base} == {"topup"}
        assert {p.arm for p in candidate} == {"control"}
    with pytest.raises(UsageError, match="compare it with what"):
        both_sides("turns-r1:topup", None, options)
    shown = cli("metrics", "turns-r1", "--profiles", tmp_path).stdout
    assert [line for line in shown.splitlines() if line.startswith("turns-r1")] == [
        "turns-r1:topup",
        "turns-r1:control",
    ]
    base, candidate = (tuple(measure(p) for p in side) for side in both_sides("turns-*", None, options))
    found = compare(Sides(base, candidate))
    report = comparison_report(found, found.judgements)
    assert report.title == "turns: topup → control"
    assert report.following == ("dflash-bench report turns-r1,turns-r2",)
    assert "2 processes × 3 pairs of blocks" in report.lines[-1]
