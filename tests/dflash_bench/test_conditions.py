"""Every odd condition that exports are met in, planted: it has its warning with the right count, or loses nothing.

The counts are those that plain SQL finds in the planted file.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from generator import Fault, Spec, write_export, write_ranks

RUNTIME, KERNEL, MEMCPY, MEMSET, GRAPH = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
NAMED = "JOIN StringIds ON id = {} WHERE value"
RANGES = "SELECT COUNT(*) FROM NVTX_EVENTS {}"
STEPS = f"SELECT COUNT(*) FROM NVTX_EVENTS {NAMED.format('textId')} = 'decode_step'"
CALLS = f"SELECT COUNT(*) FROM {RUNTIME}"
LAUNCHES = f"{CALLS} {NAMED.format('nameId')} LIKE '%Launch%'"
ROWS = 1500


@dataclass(frozen=True)
class Planted:
    """A condition: how it is planted, the code that names it, and how many rows it concerns (SQL)."""

    what: str
    code: str
    count: str
    faults: tuple[Fault, ...] = ()
    options: dict[str, object] = field(default_factory=dict)

    def spec(self) -> Spec:
        # one rank: what is counted in the file is then what is counted of the rank
        return Spec(**{"rows": ROWS, "ranks": 1, "faults": frozenset(self.faults), **self.options})


PLANTED = (
    Planted("ranges and nothing of CUDA", "no_api_calls", STEPS, (Fault.NO_RUNTIME, Fault.NO_GPU_WORK)),
    Planted("API calls without GPU work", "no_gpu_rows", LAUNCHES, (Fault.NO_GPU_WORK,)),
    Planted("driver calls only", "no_launch_calls", CALLS, (Fault.DRIVER_CALLS_ONLY,)),
    Planted("launches whose work is missing", "launches_without_work",
            f"{LAUNCHES} AND correlationId NOT IN (SELECT correlationId FROM {KERNEL} UNION"
            f" SELECT correlationId FROM {GRAPH})", (Fault.WORK_CUT,)),
    Planted("kernels with correlation id 0", "gpu_work_uncorrelated",
            f"SELECT COUNT(*) FROM {KERNEL} WHERE correlationId = 0", (Fault.KERNELS_UNCORRELATED,)),
)  # fmt: skip


def one(path: Path, sql: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(sql).fetchone()[0])


@pytest.fixture
def warnings(cli, tmp_path):
    """Ingest and measure: warnings of the JSON by (rank, code). The terminal's text must name every one of them too."""

    def run(*paths: Path) -> dict[tuple[int | None, str], dict[str, object]]:
        profiles = tmp_path / "profiles"
        found = cli("metrics", *paths, "--json", "--profiles", profiles)
        assert found.exit_code == 0, found.output
        said = cli("metrics", *paths, "--profiles", profiles)
        document = json.loads(found.stdout)
        for warning in document["warnings"]:
            assert warning["code"] in said.output
        return {(w["rank"], w["code"]): w for w in document["warnings"]}

    return run


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_planted_condition_is_named_with_its_count(warnings, tmp_path, planted):
    path = write_export(tmp_path / "made.sqlite", planted.spec())
    found = warnings(path)
    own = found.get((0, planted.code)) or found[None, planted.code]
    assert own["count"] == one(path, planted.count) > 0


def test_a_sound_export_has_none_of_them(warnings, tmp_path):
    assert warnings(write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=2))) == {}


# ── several ranks ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rank_that_was_not_traced_is_unknown_and_not_idle(warnings, tmp_path):
    """Forked workers: nsys has the CUDA rows of the first one only."""
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, faults=frozenset({Fault.ONE_RANK_TRACED})))
    found = warnings(path)
    assert (0, "no_gpu_rows") not in found
    tid = "SELECT MAX(globalTid) FROM NVTX_EVENTS"
    assert found[1, "no_gpu_rows"]["count"] == one(path, RANGES.format(f"WHERE globalTid = ({tid}) AND eventType = 59"))
    assert "not idle" in found[1, "no_gpu_rows"]["text"]


def test_clocks_that_nothing_lines_up_are_said_and_no_cross_rank_figure_is_made(warnings, cli, tmp_path):
    faults = frozenset({Fault.OWN_CLOCKS, Fault.NO_AGREEMENT})
    paths = write_ranks(tmp_path, Spec(rows=ROWS, ranks=3, faults=faults))
    found = warnings(*paths)
    assert found[None, "clocks_not_aligned"]["count"] == 3
    document = json.loads(cli("metrics", *paths, "--json", "--profiles", tmp_path / "profiles").stdout)
    assert not [m for m in document["metrics"] if m["metric"].startswith(("dp.", "clock."))]


def test_ranks_of_one_file_share_a_clock_and_need_nothing_to_line_them_up(warnings, tmp_path):
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, faults=frozenset({Fault.NO_AGREEMENT})))
    assert (None, "clocks_not_aligned") not in warnings(path)
