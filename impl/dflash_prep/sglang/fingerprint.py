"""Which SGLang this is, by the content of the functions that are replaced or relied on, not by its number.

A function's fingerprint is that of its statements as Python writes them back: comments, layout and docstrings do not
count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_prep.errors import SettingError

FUNCTIONS = {
    "DFlashDraftInputV2.prepare_for_decode": "srt/speculative/dflash_info_v2.py",
    "_get_overlap_plan_stream": "srt/speculative/dflash_info_v2.py",
    "page_aligned_decode_alloc_lens": "srt/mem_cache/allocation_sizing.py",
    "alloc_for_spec_decode": "srt/mem_cache/allocation.py",
}
"""What is replaced (the first), and what it is replaced by relies on; with the file below the package."""

KNOWN: Mapping[str, Mapping[str, str]] = {
    "0.5.23": {
        "DFlashDraftInputV2.prepare_for_decode": "35b7358f4e385f02",
        "_get_overlap_plan_stream": "5e630dbca79dd9d6",
        "page_aligned_decode_alloc_lens": "819efe2f4c3f7633",
        "alloc_for_spec_decode": "cf518c7ebc3b5cd1",
    },
}
"""Version → fingerprint of each function. An engine whose functions are those of any of them is known."""


class UnknownEngineError(SettingError):
    """This SGLang is none that the plug-in was compared with; the message says what differs."""


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """An SGLang: the folder of its package, and the version whose functions it has."""

    folder: Path
    version: str


def find_engine(folder: Path) -> KnownEngine:
    """Recognise the SGLang in a package folder, read and not imported. Raises UnknownEngineError."""
    found = read_fingerprints(folder)
    for version, known in reversed(KNOWN.items()):
        if known == found:
            return KnownEngine(folder, version)
    nearest = max(KNOWN, key=lambda version: sum(KNOWN[version][name] == found[name] for name in FUNCTIONS))
    differing = [name for name in FUNCTIONS if KNOWN[nearest][name] != found[name]]
    raise UnknownEngineError(
        f"this SGLang is not one that the plug-in was compared with: {', '.join(differing)} "
        f"{'is' if len(differing) == 1 else 'are'} not as in {nearest}"
    )


def read_fingerprints(folder: Path) -> dict[str, str | None]:
    """The fingerprint of each of `FUNCTIONS` in a package folder; None where there is no such function."""
    return {name: _fingerprint(folder / file, name) for name, file in FUNCTIONS.items()}


def _fingerprint(file: Path, name: str) -> str | None:
    try:
        tree: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    for part in name.split("."):
        inside = [node for node in getattr(tree, "body", []) if getattr(node, "name", None) == part]
        if not inside:
            return None
        tree = inside[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]
