"""The table of warning codes is complete: every code in the source is explained, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import dflash_bench
from dflash_bench import environment
from dflash_bench.findings import CODES
from dflash_bench.ingest.nsys import diagnostics

SOURCE = Path(dflash_bench.__file__).parent
COMPUTED = {
    "compare.py": [f"different_{what}" for what in ("workload", "device", "world", "recorder", "nsys_version")],
    "environment.py": [f"different_{each.name.replace(' ', '_')}" for each in environment.CONDITIONS],
    "diagnostics.py": [*diagnostics._SKIPPED, *diagnostics._KNOWN],
}
"""Codes that are no literals where they are given, by file."""


def codes_in_source():
    """The first argument of every ``Finding(…)``: a literal, or one of the computed ones above."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                if not node.args:
                    continue
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    yield code.value
                elif isinstance(code, ast.JoinedStr):
                    known = COMPUTED.get(path.name)
                    assert known, f"{path}: a computed code that this test does not know"
                    yield from known
                else:
                    yield from COMPUTED[path.name]


def test_every_code_in_the_source_is_explained_and_no_other():
    in_source = set(codes_in_source())
    explained = {entry.code for entry in CODES}
    assert in_source - explained == set(), "add these to dflash_bench/findings.py"
    assert explained - in_source == set(), "nothing gives these any more"


def test_codes_are_unique_and_every_meaning_is_a_sentence_of_its_own():
    assert len({entry.code for entry in CODES}) == len(CODES)
    assert len({entry.meaning for entry in CODES}) == len(CODES)
