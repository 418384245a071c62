"""The table of warning codes is complete: every code in the source is explained, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import dflash_bench
from dflash_bench import environment
from dflash_bench.findings import CODES
from dflash_bench.ingest import rows
from dflash_bench.ingest.nsys import diagnostics

SOURCE = Path(dflash_bench.__file__).parent
COMPUTED = {
    "compare.py": [f"different_{what}" for what in ("workload", "device", "world", "recorder", "nsys_version")],
    "environment.py": [f"different_{each.name.replace(' ', '_')}" for each in environment.CONDITIONS],
    "diagnostics.py": [*diagnostics._KNOWN],
    "rows.py": [*rows._SKIPPED],
    "cache.py": [],  # gives again what was given before
}
"""Codes that are no literals where they are given, by file."""


def codes_in_source():
    """The first argument of every ``Finding(…)``, ``finding(…)``, ``….warn(…)``: a literal, or a computed one above."""
    for path in SOURCE.rglob("*.py"):
        if path.name in ("findings.py", "measurements.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _gives_a_warning(node.func):
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


def _gives_a_warning(called):
    if isinstance(called, ast.Attribute):
        return called.attr == "warn"
    return isinstance(called, ast.Name) and called.id in ("Finding", "finding")


def test_every_code_in_the_source_is_explained_and_no_other():
    in_source = set(codes_in_source())
    explained = {entry.code for entry in CODES}
    assert in_source - explained == set(), "add these to dflash_bench/findings.py"
    assert explained - in_source == set(), "nothing gives these any more"


def test_codes_are_unique_and_every_meaning_is_a_sentence_of_its_own():
    assert len({entry.code for entry in CODES}) == len(CODES)
    assert len({entry.meaning for entry in CODES}) == len(CODES)
