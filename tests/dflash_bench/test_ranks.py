"""Which rank a process is, in layouts that people's captures have: right, or refused with the option that says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade import Call, Range, Work, mark, write

from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.ranks import DEFAULT_RANK_PATTERN, RankMark, RankRule, ranks_in_names
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.model import ProcessRole, RankSource


def steps(pid: int, period: int = 1000, num: int = 10, name: str = "decode_step") -> list[Range]:
    return [Range(name, k * period, k * period + 900, pid=pid, tid=pid) for k in range(num)]


def calls(pid: int, num: int = 3) -> list[Call]:
    return [Call("cudaLaunchKernel", k * 10, k * 10 + 5, id=k + 1, pid=pid, tid=pid) for k in range(num)]


def work(pid: int, num: int = 3) -> list[Work]:
    return [Work(k * 10 + 5, k * 10 + 9, id=k + 1, pid=pid) for k in range(num)]


@pytest.fixture
def profiles(tmp_path: Path):
    """Ingest of paths as one run, and its profile."""

    def make(*paths: Path, **more):
        (profile,) = ingest(paths, IngestOptions(tmp_path / "profiles", run=more.pop("run", "x"), **more))
        return profile

    return make


def ranks(profile) -> dict[int, int | None]:
    return {p.pid: p.rank for p in profile.info.processes}


def codes(profile) -> set[str]:
    return {finding.code for finding in profile.info.findings}


def test_reports_are_in_the_order_of_their_numbers(profiles, tmp_path):
    """`-o report_%q{OMPI_COMM_WORLD_RANK}`: report_2 before report_10, whose step is another."""
    for r in range(12):
        write(tmp_path / f"report_{r}.sqlite", steps(100, 1000 + 100 * r))
    found = measure(profiles(tmp_path))
    assert [found.find("step.period", r).values[0] for r in range(12)] == [1000 + 100 * r for r in range(12)]


def test_a_name_is_not_the_rank_of_several_processes(profiles, tmp_path):
    """A report per node with two ranks in each, called node_rank0 and node_rank1: four ranks, node by node."""
    for node in (0, 1):
        rows = [*steps(20 + node), *steps(10 + node)]
        write(tmp_path / f"node_rank{node}.sqlite", rows, [*calls(20 + node), *calls(10 + node)])
    profile = profiles(tmp_path)
    assert ranks(profile) == {10: 0, 20: 1, 11: 2, 21: 3}
    assert profile.info.rank_source is RankSource.PROCESS_ORDER


def test_a_name_is_the_rank_of_the_one_process_that_did_the_work(profiles, tmp_path):
    for k in (0, 1):
        launcher = [Call("cudaGetDeviceCount", 0, 5, id=1, pid=5, tid=5)]
        write(tmp_path / f"rank{k}.sqlite", steps(10 + k), [*launcher, *calls(10 + k)])
    profile = profiles(tmp_path)
    assert [(p.pid, p.rank) for p in profile.info.processes] == [(5, None), (10, 0), (5, None), (11, 1)]
    assert profile.info.rank_source is RankSource.FILE_NAME


def test_the_same_ranks_on_several_nodes_are_counted_on(tmp_path):
    for node in (0, 1):
        (tmp_path / "in" / f"node{node}").mkdir(parents=True)
        for k in (0, 1):
            write(tmp_path / "in" / f"node{node}" / f"rank{k}.sqlite", steps(10 * node + k + 1))
    (profile,) = ingest([tmp_path / "in"], IngestOptions(tmp_path / "profiles"))
    assert ranks(profile) == {1: 0, 2: 1, 11: 2, 12: 3}
    assert profile.info.run == "in"


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a-TP-0-DP-0", "a-TP-0-DP-1"], [0, 1]),
        (["a-TP-1-DP-1", "a-TP-0-DP-0"], [1, 0]),
        (["a-TP-0-DP-1", "a-TP-1-DP-1", "a-TP-0-DP-0", "a-TP-1-DP-0"], [2, 3, 0, 1]),
        (["a-TP-3"], [3]),
        (["dp0_pp0_tp1_dcp0_ep1_rank5", "dp0_pp0_tp0_dcp0_ep0_rank4"], [5, 4]),
        (["trace-rank-0", "trace-rank-1"], [0, 1]),
        (["a-TP-0", "b"], None),
        (["step-2", "http-3"], None),
    ],
)
def test_places_in_parallel_groups_are_ranks(names, wanted):
    pattern = RankRule.of(DEFAULT_RANK_PATTERN).pattern
    assert ranks_in_names([Path(f"{name}.trace.json") for name in names], pattern) == wanted


def test_an_engines_core_is_no_rank_and_is_named_with_the_option_that_says_so(profiles, tmp_path):
    """The core has ranges and neither steps nor CUDA; its workers are the ranks."""
    rows = [*steps(5, name="engine_step"), *steps(20), *steps(30)]
    path = write(tmp_path / "a.sqlite", rows, [*calls(20), *calls(30)], [*work(20), *work(30)])
    profile = profiles(path)
    assert ranks(profile) == {5: None, 20: 0, 30: 1}
    (found,) = [f for f in profile.info.findings if f.code == "process_unassigned"]
    assert found.count == 10
    assert "process 5 holds 10 ranges (engine_step)" in found.text
    assert "--ranks 5=core" in found.text
    core = profiles(path, run="y", ranks="5=core")
    assert ranks(core) == {5: None, 20: 0, 30: 1}
    assert [p.role for p in core.info.processes] == [ProcessRole.CORE, None, None]
    assert "process_unassigned" not in codes(core)


def test_a_core_beside_a_worker_without_cuda_is_told_by_its_steps(profiles, tmp_path):
    path = write(tmp_path / "a.sqlite", [*steps(5, name="engine_step"), *steps(20)])
    assert ranks(profiles(path)) == {5: None, 20: 0}


def test_a_forked_worker_that_was_not_traced_stays_a_rank(profiles, tmp_path):
    """Of forked workers nsys traces the first: the others do the same and show no CUDA."""
    path = write(tmp_path / "a.sqlite", [*steps(20), *steps(30)], calls(20), work(20))
    assert ranks(profiles(path)) == {20: 0, 30: 1}


def test_ranges_in_one_process_and_cuda_in_its_child_are_said_to_be(profiles, tmp_path):
    path = write(tmp_path / "server.sqlite", steps(20), calls(30), work(30))
    profile = profiles(path)
    assert ranks(profile) == {20: 0, 30: None}
    (found,) = profile.info.findings
    assert found.code == "cuda_in_another_process"
    assert "the ranges lie in process 20 and 3 CUDA calls in process 30" in found.text
    metrics = measure(profile)
    assert metrics.find("step.period", 0).values.tolist() == [1000.0] * 9
    assert not [m.name for m in metrics.metrics if m.name.startswith(("launch.", "stall.", "sync.", "graph."))]


def test_a_mark_says_group_and_role(profiles, tmp_path):
    rows = [
        mark(0, 2, "topup group=g0 role=core", pid=5),
        mark(0, 2, "topup group=g0 role=worker", pid=20),
        mark(1, 2, "topup group=g0 role=worker", pid=30),
        *steps(5, name="engine_step"), *steps(20), *steps(30),
    ]  # fmt: skip
    profile = profiles(write(tmp_path / "a.sqlite", rows))
    found = [(p.pid, p.rank, p.group, p.role, p.arm) for p in profile.info.processes]
    assert found == [
        (5, None, "g0", ProcessRole.CORE, "topup"),
        (20, 0, "g0", ProcessRole.WORKER, "topup"),
        (30, 1, "g0", ProcessRole.WORKER, "topup"),
    ]
    assert codes(profile) == set()


@pytest.mark.parametrize(
    ("text", "arm", "group", "role"),
    [
        ("dflash_bench rank=1 world=2", None, None, None),
        ("dflash_bench rank=1 world=2 arm=control,topup_pages=4", "control,topup_pages=4", None, None),
        ("dflash_bench rank=1 world=2 arm=a b group=7 role=worker", "a b", "7", "worker"),
        ("dflash_bench rank=1 world=2 role=core", None, None, "core"),
    ],
)
def test_the_parts_of_a_mark_are_optional(text, arm, group, role):
    found = RankMark.parse(text)
    assert (found.rank, found.world, found.arm, found.group, found.role) == (1, 2, arm, group, role)


def test_a_pattern_that_fits_no_name_is_an_error(profiles, tmp_path):
    path = write(tmp_path / "a.sqlite", steps(20))
    with pytest.raises(UsageError, match=r"finds no rank in a\.sqlite"):
        profiles(path, rank_pattern=r"gpu(\d+)")


def test_a_pattern_for_a_file_of_several_ranks_is_an_error(profiles, tmp_path):
    path = write(tmp_path / "gpu1.sqlite", [*steps(20), *steps(30)])
    with pytest.raises(UsageError, match="holds 2 processes, and its name only one rank"):
        profiles(path, rank_pattern=r"gpu(\d+)")


def test_the_option_overrides_whatever_the_capture_says(profiles, tmp_path):
    path = write(tmp_path / "a_rank7.sqlite", [mark(3, 8, pid=20), *steps(20)])
    assert ranks(profiles(path, run="m")) == {20: 3}
    assert ranks(profiles(path, run="n", ranks="name")) == {20: 7}
    assert ranks(profiles(path, run="o", ranks="order")) == {20: 0}
    own = profiles(path, run="p", ranks="20=5")
    assert ranks(own) == {20: 5}
    assert own.info.rank_source is RankSource.OPTION


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("nonsense", "says nothing of ranks"),
        ("99=0", "names process 99, which is not there"),
        ("mark", "no process wrote a rank mark"),
        ("name", "finds no rank in a.sqlite"),
    ],
)
def test_an_option_that_means_nothing_is_an_error(profiles, tmp_path, option, reason):
    path = write(tmp_path / "a.sqlite", steps(20))
    with pytest.raises(UsageError, match=reason):
        profiles(path, ranks=option)


def test_the_same_captures_with_another_option_are_another_reading(tmp_path, cli):
    path = write(tmp_path / "a_rank7.sqlite", steps(20))
    for words in ([], [], ["--ranks", "order"]):
        assert cli("ingest", path, "--profiles", tmp_path / "p", *words).exit_code == (2 if words else 0)
    assert cli("ingest", path, "--profiles", tmp_path / "p", "--ranks", "order", "--replace").exit_code == 0
    assert json.loads((tmp_path / "p" / "a" / "run.json").read_text())["processes"][0]["rank"] == 0


def test_the_output_says_which_file_and_mark_each_rank_came_from(tmp_path, cli):
    for k in (0, 1):
        write(tmp_path / f"r{k}.sqlite", [mark(1 - k, 2, pid=20 + k), *steps(20 + k)])
    said = cli("ingest", tmp_path, "--run", "x", "--profiles", tmp_path / "p").stdout
    assert "rank 1 (mark, r0.sqlite): 10 ranges" in said
    assert "rank 0 (mark, r1.sqlite): 10 ranges" in said


def test_two_captures_of_one_rank_are_refused(profiles, tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.sqlite", [mark(0, 1, pid=20), *steps(20)])
    with pytest.raises(DataError, match=r"a.sqlite and b.sqlite both hold rank 0"):
        profiles(tmp_path)


def test_the_arms_of_a_duet_come_from_its_marks(profiles, tmp_path):
    def duet(pair, arm, t, word):
        return Range(f"dflash_bench duet pair={pair} arm={arm} {word}", t, None, pid=20, tid=20, kind=34)

    rows = [Range("dflash_bench rank=0 world=1", 0, None, pid=20, tid=20, kind=34), *steps(20)]
    rows += [duet(0, "topup", 0, "open"), duet(0, "topup", 2000, "close"), duet(0, "control", 3000, "open")]
    profile = profiles(write(tmp_path / "a.sqlite", rows))
    assert profile.info.arms == ("control", "topup")
    assert profile.info.arm is None
    asked = profiles(tmp_path / "a.sqlite", run="y", settings={"arms": "topup control"})
    assert asked.info.arms == ("topup", "control")


def test_two_versions_side_by_side_have_a_process_each_of_every_rank(profiles, tmp_path):
    rows = []
    for pid, arm in ((20, "base"), (30, "candidate")):
        rows += [Range("dflash_bench rank=0 world=1", 0, None, pid=pid, tid=pid, kind=34), *steps(pid)]
        rows.append(Range(f"dflash_bench duet pair=0 arm={arm} open", 0, None, pid=pid, tid=pid, kind=34))
    profile = profiles(write(tmp_path / "a.sqlite", rows))
    assert profile.info.arms == ("base", "candidate")
    assert [(p.pid, p.rank, p.arm) for p in profile.info.processes] == [(20, 0, "base"), (30, 0, "candidate")]
