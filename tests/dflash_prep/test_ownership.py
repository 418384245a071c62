"""Who may write a request's counters: the package's source is read and compared with a closed list.

A new site fails, and so does one that disappeared: the list is what a reader may rely on.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import dflash_prep

COUNTERS = {"decode_batch_idx", "extend_batch_idx", "kv_committed_len", "kv_allocated_len", "spec_verify_ct"}
ARRAYS = {"committed", "allocated", "joined", "verified"}
"""The same counters where pages are kept on the host."""
ROOT = Path(dflash_prep.__file__).parent

# (file, scope, what) -> number of sites. Assignments of 0 (resets) and the fields' own defaults do not count.
ALLOWED = {
    ("variants/plain_decode.py", "prepare_without_speculation", "kv_allocated_len"): 1,
    ("variants/plain_decode.py", "prepare_without_speculation", "kv_committed_len"): 1,
    ("variants/plain_decode.py", "prepare_without_speculation", "decode_batch_idx"): 1,
    ("state/decode_prep.py", "DecodePrep.prepare", "decode_batch_idx"): 1,
    ("state/decode_prep.py", "DecodePrep.prepare", "maybe_evict_swa()"): 1,
    ("variants/eagle.py", "prepare_for_decode_eagle", "decode_batch_idx"): 1,
    ("state/lifetime.py", "alloc_for_extend", "extend_batch_idx"): 1,
    ("state/lifetime.py", "commit_accepted", "kv_committed_len"): 1,
    ("state/lifetime.py", "commit_accepted", "spec_verify_ct"): 1,
    ("state/req_to_token.py", "ReqToTokenPool.kv_state", "KVState()"): 1,
    ("state/host_pages.py", "HostRows.commit", "committed[]"): 1,
    ("state/host_pages.py", "HostRows.commit", "verified[]"): 1,
    ("state/host_pages.py", "_HostKVState.kv_allocated_len", "allocated[]"): 1,
    ("state/host_pages.py", "_HostKVState.kv_committed_len", "committed[]"): 1,
    ("state/host_pages.py", "HostRequest.kv", "joined[]"): 1,
    ("state/host_pages.py", "HostRequest.kv", "verified[]"): 1,
    ("state/host_pages.py", "HostRequest.decode_batch_idx", "joined[]"): 1,
    ("state/host_pages.py", "HostRequest.spec_verify_ct", "verified[]"): 1,
    ("state/host_prep.py", "HostPrep._allocate", "allocated[]"): 1,
    ("state/staging.py", "fill_loop", "committed[]"): 1,  # a length buffer of the name
    ("variants/pd_admission.py", "preallocate", "kv_committed_len"): 1,
    ("state/spec_alloc.py", "alloc_for_spec_decode", "kv_allocated_len"): 1,
    # in the place of SGLang's own preparation, on its objects
    ("sglang/install.py", "Plug._prepare", "maybe_evict_swa()"): 1,
    ("sglang/preparation.py", "Preparation.carry_out", "decode_batch_idx"): 1,
}


class Sites(ast.NodeVisitor):
    """Counts writes of the counters, constructions of KVState (which sets two) and calls of maybe_evict_swa."""

    def __init__(self, file: str) -> None:
        self.file, self.scope, self.found = file, [], Counter()

    def _enter(self, node: ast.AST) -> None:
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _enter  # noqa: N815 - ast's names

    def _count(self, what: str) -> None:
        self.found[self.file, ".".join(self.scope), what] += 1

    def _targets(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        for target in targets:
            if isinstance(target, ast.Tuple | ast.List):
                self._targets(target.elts, None)
            elif isinstance(target, ast.Subscript) and getattr(target.value, "attr", None) in ARRAYS:
                self._count(f"{target.value.attr}[]")
            elif isinstance(target, ast.Attribute) and target.attr in COUNTERS:
                is_reset = isinstance(value, ast.Constant) and value.value == 0
                if not is_reset:
                    self._count(target.attr)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._targets(node.targets, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._targets([node.target], node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._targets([node.target], None)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in {"maybe_evict_swa", "KVState"}:
            self._count(f"{name}()")
        if name == "setattr" and isinstance(node.args[1], ast.Constant) and node.args[1].value in COUNTERS:
            self._count(node.args[1].value)
        self.generic_visit(node)


def sites(source: str, file: str) -> Counter:
    visitor = Sites(file)
    visitor.visit(ast.parse(source))
    return visitor.found


def test_counters_are_written_where_the_list_says_and_nowhere_else():
    found: Counter = Counter()
    for path in sorted(ROOT.rglob("*.py")):
        found += sites(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    assert dict(found) == ALLOWED


def test_the_worker_and_all_it_is_made_of_write_none():
    names = {path.name for path in ROOT.rglob("*.py")}
    workers = {"worker.py", "compact.py", "block_prep.py", "accept.py"}
    assert workers <= names
    assert not workers & {file.split("/")[-1] for file, _, _ in ALLOWED}


def test_the_scan_sees_every_way_to_write_a_counter_and_exempts_resets():
    source = """
class Worker:
    def step(self, req):
        req.kv.kv_committed_len += 1
        req.kv.kv_allocated_len, other = 5, 6
        req.decode_batch_idx: int = 3
        setattr(req, "spec_verify_ct", 1)
        req.extend_batch_idx = 0
        maybe_evict_swa(req)
        self.rows.committed[row] += 1
"""
    assert dict(sites(source, "worker.py")) == {
        ("worker.py", "Worker.step", what): 1
        for what in (
            "kv_committed_len",
            "kv_allocated_len",
            "decode_batch_idx",
            "spec_verify_ct",
            "maybe_evict_swa()",
            "committed[]",
        )
    }
