"""Which line of code: frames, operators and call chains name what ranges are silent of."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from handmade import Call, Range, Work, mark, write
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.events.code_lines import CodeLines, line_of_frame
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import Table
from dflash_bench.profile import open_profile
from dflash_bench.report.causes import Cause, by_line
from dflash_bench.report.headline import run_headline
from dflash_bench.report.run import run_report

US = 1000


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ("sglang/srt/managers/scheduler.py(812): run_batch", "run_batch (scheduler.py:812)"),
        ("serve.py(3): <module>", "<module> (serve.py:3)"),
        ("torch/nn/modules/module.py(5): _call_impl", None),
        ("triton/runtime/jit.py(695): run", None),
        ("threading.py(10): run", None),
        ("asyncio/base_events.py(1): run", None),
        ("<built-in function len>", None),
        ("dflash_bench/annotate/wrapping.py(78): always", None),
        ("nn.Module: Linear_0", None),
    ],
)
def test_a_line_is_the_program_s_own(frame, line):
    assert line_of_frame(frame) == line


# ── cutting, against instants ────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def nested(draw, begin=0, end=60, depth=3):
    found, at = [], begin
    while depth and at < end and draw(st.booleans()):
        start = draw(st.integers(at, end - 1))
        stop = draw(st.integers(start + 1, end))
        found += [(start, stop), *draw(nested(start, stop, depth - 1))]
        at = stop
    return found


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6)


@given(st.lists(nested(), min_size=1, max_size=2), st.data())
def test_each_instant_goes_to_the_innermost_line(of_threads, data):
    """Intervals may overlap, lie outside all functions, and be empty."""
    ran = [(t, k % 3, *span) for t, spans_ in enumerate(of_threads) for k, span in enumerate(spans_)]
    asked = [(t, b, b + n) for t in range(2) for b, n in data.draw(spans)]
    thread, code, start, end = (np.array(c, np.int64) for c in (zip(*ran, strict=True) if ran else ((),) * 4))
    lines = CodeLines(None, None)
    lines.__dict__["_running"] = thread, SimpleNamespace(codes=code), start, end
    row, line, length = lines.cut(*(np.array(c, np.int64) for c in (zip(*asked, strict=True) if asked else ((),) * 3)))
    found = Counter()
    for key in zip(row.tolist(), line.tolist(), length.tolist(), strict=True):
        found[key[:2]] += key[2]
    wanted = Counter()
    for k, (t, begin, stop) in enumerate(asked):
        for instant in range(begin, stop):
            around = [r for r in ran if r[0] == t and r[2] <= instant < r[3]]
            # of equals the last that began
            latest = max((r[2:] for r in around), key=lambda span: (span[0], -span[1]), default=None)
            wanted[k, next((r[1] for r in reversed(around) if r[2:] == latest), -1)] += 1
    assert +found == +wanted


# ── a trace ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def trace(tmp_path, frames=True, steps=8):
    """Steps of 1 ms. The host plans for 300 µs (of which 100 in a library), copies for 100 µs and waits for 200 µs."""
    events, correlation = [], 0

    def add(cat, name, start, duration, **more):
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": start, "dur": duration} | more)

    def call(name, start, duration):
        nonlocal correlation
        correlation += 1
        add("cuda_runtime", name, start, duration, args={"correlation": correlation})
        return correlation

    for k in range(steps):
        at = 1000 * (k + 1)
        add("user_annotation", "decode_step", at, 990)
        add("user_annotation", "run_batch", at + 10, 900)
        if frames:
            add("python_function", "/srv/engine/scheduler.py(10): run_batch", at + 10, 900)
            add("python_function", "/srv/engine/plan.py(20): plan", at + 20, 300)
            add("python_function", "torch/functional.py(1): cumsum", at + 100, 100)
            add("python_function", "/srv/engine/result.py(30): resolve", at + 600, 250)
        add("cpu_op", "aten::copy_", at + 320, 100)
        work = call("cudaLaunchKernel", at + 500, 20)
        add("kernel", "k", at + 530, 270, pid=0, tid=7, args={"correlation": work, "device": 0, "stream": 7})
        add("cpu_op", "aten::item", at + 600, 210)
        call("cudaStreamSynchronize", at + 600, 205)
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (made,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    return measure(open_profile(made.path), Reading())


def lines_of(run):
    tables = [t for t in run.tables if t.name == "lines.by_cause"]
    return {row[1:5]: row[5] for t in tables for row in t.rows if row[0] is None}


def test_a_dry_gap_and_a_wait_are_told_by_function(tmp_path):
    run = trace(tmp_path)
    found = lines_of(run)
    gaps, steps = 7, 8  # the first launch ends no gap
    dry = "dry.by_cause", "run_batch · -", None
    # from the end of the work at 800 µs to the launch of the next step at 500 µs
    assert found[*dry, "plan (plan.py:20)"] == gaps * 300 * US
    assert found[*dry, "resolve (result.py:30)"] == gaps * (850 - 805) * US
    assert found[*dry, "run_batch (scheduler.py:10)"] == gaps * (10 + 180 + 60) * US
    assert not [key for key in found if "cumsum" in str(key) or "aten" in str(key)]
    wait = "sync.by_range", "decode_step > run_batch", "cudaStreamSynchronize", "resolve (result.py:30)"
    assert found[wait] == steps * 205 * US
    # what is cut adds up to what the cause tables say
    (table,) = [t for t in run.tables if t.name == "dry.by_cause"]
    total = {row[1]: row[3] for row in table.rows if row[0] is None}["run_batch · -"]
    assert sum(ns for key, ns in found.items() if key[:2] == dry[:2]) == total


def test_without_functions_the_operator_is_named(tmp_path):
    found = lines_of(trace(tmp_path, frames=False))
    assert found["dry.by_cause", "run_batch · -", None, "aten::copy_"] == 7 * 100 * US
    assert found["sync.by_range", "decode_step > run_batch", "cudaStreamSynchronize", "aten::item"] == 8 * 205 * US


def test_the_answer_names_the_line(tmp_path):
    run = trace(tmp_path)
    (why,) = run_headline(run).why
    assert "in run_batch · CPU work (" in why
    assert ", above all plan (plan.py:20))" in why
    rows = [row for sheet in run_report(run).sheets for row in sheet.rows]
    below = [row[0] for row in rows].index("GPU dry in run_batch · CPU work") + 1
    assert rows[below][0] == "└ plan (plan.py:20)"
    assert "└ resolve (result.py:30)" in [row[0] for row in rows]


# ── call chains of nsys ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_that_nsys_took_a_chain_of_names_its_frame(tmp_path):
    ranges, calls, work, chains = [mark(0, 1)], [], [], []
    for k in range(6):
        at = (k + 1) * 1000 * US
        ranges += [Range("decode_step", at, at + 900 * US), Range("fill", at + 10 * US, at + 800 * US)]
        calls.append(Call("cudaLaunchKernel", at + 500 * US, at + 510 * US, 2 * k + 1))
        work.append(Work(at + 520 * US, at + 700 * US, 2 * k + 1))
        calls.append(Call("cudaStreamSynchronize", at + 600 * US, at + 710 * US, 2 * k + 2))
        chains.append((calls[-1].id, k % 2))
    path = write(tmp_path / "a.sqlite", ranges, calls, work)
    with closing(sqlite3.connect(path)) as db, db:
        texts = ["get_seq_lens", "/srv/engine.so", "rebuild", "cudaStreamSynchronize", "/usr/lib/libcudart.so.12"]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(90 + k, text) for k, text in enumerate(texts)])
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN callchainId INTEGER")
        db.execute("CREATE TABLE CUDA_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER)")
        for chain, own in ((1, 90), (2, 92)):
            db.executemany("INSERT INTO CUDA_CALLCHAINS VALUES (?, ?, ?, ?)", [(chain, 93, 94, 0), (chain, own, 91, 1)])
        db.executemany(
            "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = ? WHERE correlationId = ?",
            [(kind + 1, correlation) for correlation, kind in chains],
        )
    (made,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    found = lines_of(measure(open_profile(made.path), Reading()))
    wait = "sync.by_range", "decode_step > fill", "cudaStreamSynchronize"
    assert found[*wait, "get_seq_lens (engine.so)"] == 3 * 110 * US
    assert found[*wait, "rebuild (engine.so)"] == 3 * 110 * US
    # behind the work's end the host still waits: that part of the dry gap has the same line
    assert found["dry.by_cause", "fill · cudaStreamSynchronize", None, "rebuild (engine.so)"] > 0


def test_what_made_a_launch_late_is_shared_out_over_lines_and_the_rest_and_no_more():
    wait = Cause("run", "cudaStreamSynchronize", 9, 1000, 400)
    columns = ("rank", "table", "cause", "api", "line", "total_ns")
    rows = ((None, "sync.by_range", "run", "cudaStreamSynchronize", f"f{k} (a.py:1)", 100 * k) for k in (2, 3))
    parts = by_line(SimpleNamespace(tables=[Table("lines.by_cause", columns, tuple(rows))]), [wait])
    assert [(c.line, c.total_ns, c.late_ns) for c in parts] == [
        ("", 500, 200),
        ("f3 (a.py:1)", 300, 120),
        ("f2 (a.py:1)", 200, 80),
    ]
