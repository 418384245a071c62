"""Workloads: the named files, what a seed fixes, and what is refused."""

from __future__ import annotations

import pytest

from dflash_prep import workload
from dflash_prep.workload import WorkloadError

GOOD = """
description = "two short requests"
[requests]
concurrency = 2
prompt = { low = 3, high = 9 }
output = { low = 5, high = 5 }
[kv]
page_size = 4
pool_pages = 16
context_len = 14
[speculation]
block = 4
accept_mean = 2.5
[device]
draft_us = 0
verify_us = 0
"""


def _load(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return workload.load(str(path))


def test_the_named_workloads_are_there_and_described() -> None:
    assert workload.names() == [
        "churn",
        "dep16-bs192",
        "dep16-c2884",
        "dep32-c5768",
        "kv-tight",
        "short",
        "short-bs192",
        "smoke",
    ]
    assert all(workload.descriptions().values())


@pytest.mark.parametrize(("name", "running"), [("dep32-c5768", 36), ("dep16-c2884", 40), ("dep16-bs192", 192)])
def test_the_published_shapes(name, running) -> None:
    loaded = workload.load(name)
    assert (loaded.requests.concurrency, loaded.kv.page_size, loaded.speculation.block) == (running, 256, 8)
    assert loaded.speculation.accept_mean == 3.5


def test_a_request_depends_on_seed_rank_and_index_alone() -> None:
    churn, again = workload.load("churn"), workload.load("churn")
    forwards = [churn.request(seed=1, rank=2, index=index) for index in range(80)]
    backwards = [again.request(seed=1, rank=2, index=index) for index in reversed(range(80))]
    assert forwards == backwards[::-1]
    assert forwards != [churn.request(seed=2, rank=2, index=index) for index in range(80)]
    assert forwards != [churn.request(seed=1, rank=3, index=index) for index in range(80)]


def test_poisson_arrivals_come_in_order_at_the_stated_rate_after_the_first_batch() -> None:
    churn = workload.load("churn")
    steps = [churn.request(0, 0, index).arrival_step for index in range(36 + 2000)]
    assert steps[:36] == [0] * 36
    assert steps == sorted(steps)
    assert 2000 / steps[-1] == pytest.approx(0.25, rel=0.1)


def test_lengths_stay_within_their_limits_and_reach_both_ends() -> None:
    lengths = workload.load("dep32-c5768").requests.prompt
    drawn = [workload.load("dep32-c5768").request(0, 0, index).prompt_len for index in range(500)]
    assert lengths.low <= min(drawn) < 2048
    assert 8192 < max(drawn) <= lengths.high


def test_the_hit_rate_gives_the_mean_accept_length() -> None:
    speculation = workload.load("smoke").speculation
    assert sum(speculation.hit_rate**power for power in range(8)) == pytest.approx(3.5)
    assert workload.Speculation(block=4, accept_mean=4).hit_rate == pytest.approx(1)
    assert workload.Speculation(block=4, accept_mean=1).hit_rate == pytest.approx(0)


def test_a_file_of_ones_own_is_named_by_its_file(tmp_path) -> None:
    own = _load(tmp_path, GOOD)
    assert (own.name, own.kv.swa_window, own.requests.prompt.high) == ("own", None, 9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[kv]", "[kv]\npages = 3"), "unknown key 'pages' in kv"),
        (("[kv]", "[pool]\n[kv]"), "unknown key 'pool' in the file"),
        (("high = 9", "hi = 9"), "unknown key 'hi' in prompt"),
        (("concurrency = 2", ""), "requests lacks 'concurrency'"),
        (("description", "name = 'x'\ndescription"), "remove the key name"),
        (("page_size = 4", "page_size = 4.5"), "page_size must be of type int"),
        (("page_size = 4", "page_size = true"), "page_size must be of type int"),
        (("page_size = 4", "page_size = 0"), "kv: page_size"),
        (("output = { low = 5, high = 5 }", "output = 5"), "output must be a table"),
        (("low = 5, high = 5", 'low = 5, high = 5, kind = "normal"'), "one of uniform, lognormal"),
        (("low = 5, high = 5", 'low = 5, high = 5, kind = "lognormal"'), "p50 and sigma"),
        (("low = 3, high = 9", "low = 9, high = 3"), "low <= high"),
        (("concurrency = 2", 'concurrency = 2\narrivals = "poisson"'), "arrivals_per_step"),
        (("accept_mean = 2.5", "accept_mean = 4.5"), "accept_mean must lie in 1 to block = 4"),
        (("accept_mean = 2.5", "accept_mean = 2.5\nblock = 3"), "is not TOML"),
        (("accept_mean = 2.5", "accept_mean = 2.5\nsampler_tp = 0"), "sampler_tp must lie in 1 to 512"),
        (("context_len = 14", "context_len = 13"), "reach 14 tokens"),
        (("pool_pages = 16", "pool_pages = 6"), "pool_pages must be at least 7"),
        (("pool_pages = 16", "pool_pages = 16\nswa_window = 8"), "both swa_pool_pages and swa_window"),
        (("draft_us = 0", "draft_us = -1"), "must not be negative"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path, change, says) -> None:
    with pytest.raises(WorkloadError, match=says) as caught:
        _load(tmp_path, GOOD.replace(*change))
    assert "own.toml" in str(caught.value)


def test_an_unknown_name_and_a_missing_file_are_refused(tmp_path) -> None:
    with pytest.raises(WorkloadError, match="unknown workload 'fast'; the workloads are churn"):
        workload.load("fast")
    with pytest.raises(WorkloadError, match=r"cannot read workload .*none\.toml: No such file"):
        workload.load(str(tmp_path / "none.toml"))
