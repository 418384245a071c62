"""The ledger: what a rank says about its own run."""

from __future__ import annotations

import json

from dflash_prep import ranges
from dflash_prep.loop.ledger import Ledger
from dflash_prep.ranges import NullSink, Range, mark, span


def _ledger(steps: int) -> Ledger:
    return Ledger(
        rank=1,
        world=2,
        arm="topup",
        arms=("topup",),
        switches={"topup_pages": 2},
        workload="smoke",
        seed=3,
        steps=steps,
        interrupted=False,
        device="simulated",
        counters={"tokens.per_s": 1.5},
        settings={},
        checks={},
    )


def test_it_is_one_json_file_per_rank_with_what_was_emitted_counted_at_the_source(tmp_path) -> None:
    ranges.use(NullSink())
    with span(Range.DECODE_STEP), span(Range.FILL):
        mark("x")
    path = _ledger(7).write(tmp_path / "new" / "folder")
    read = json.loads(path.read_text())
    assert path.name == "rank1.json"
    assert (read["version"], read["rank"], read["world"], read["steps"]) == (1, 1, 2, 7)
    assert read["ranges"] == {"decode_step": 1, "fill": 1}
    assert (read["marks"], read["domain"]) == (1, "dflash")
    assert {"python", "torch"} <= read["versions"].keys()


def test_writing_again_replaces_the_file_and_leaves_nothing_else(tmp_path) -> None:
    _ledger(1).write(tmp_path)
    _ledger(2).write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank1.json"]
    assert json.loads((tmp_path / "rank1.json").read_text())["steps"] == 2
