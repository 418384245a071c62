"""The shape of the house, read from the source: which module may import which, and what stays out of the start-up.

Each rule is one test that lists every offender.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import dflash_bench

ROOT = Path(dflash_bench.__file__).parent
IMPL = ROOT.parent / "impl" / "dflash_prep"
STAGES = (
    "capture",
    "annotate",
    "ingest",
    "run",
    "metrics",
    "stats",
    "baseline",
    "compare",
    "predict",
    "report",
    "gate",
    "api",
    "doctor",
    "cli",
)
"""Top-level packages and modules in the order of the data; none imports a later one."""

SHARED = {
    "session",
    "duet",
    "__init__",
    "errors",
    "model",
    "layout",
    "profile",
    "findings",
    "environment",
    "samples",
    "storage",
    "url",
    "whole",
}
"""What every stage may import, and what imports no stage."""

HEAVY = ("torch", "pandas", "scipy", "pyarrow", "matplotlib", "jinja2", "adbc_driver_sqlite")
ALLOWED_OF_IMPL = {"dflash_prep.arms", "dflash_prep.workload"}
RICH_KNOWERS = ("cli", "report/console.py")
INSIDE_A_PROGRAM = ("dflash_bench.annotate.wrapping", "dflash_bench.annotate.hook.sitecustomize")
"""What runs inside a foreign program, which must not die of it, and hands on whatever is thrown into a function."""


@functools.cache
def sources(package: Path) -> dict[str, ast.Module]:
    """Every file of a package, parsed, by its dotted name: ``dflash_bench.metrics.leads``; a package by its own."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.AST) -> set[str]:
    """Every module that a file imports, anywhere in it, with ``from a import b`` as ``a`` and ``a.b``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # a relative import shows as ".x", which no rule lets pass
            base = "." * node.level + (node.module or "")
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def stage_of(module: str) -> str | None:
    """The stage that a module of the harness belongs to, None for shared and foreign ones."""
    package, _, rest = module.partition(".")
    own = rest.partition(".")[0]
    return own if package == "dflash_bench" and own in STAGES else None


def public(module: str, tree: ast.Module) -> set[str]:
    """The functions, classes and constants at the top of a file that others may use.

    The functions of ``cli`` and ``api`` are left out: they are spelled as what they call.
    """
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, ast.FunctionDef) and stage_of(module) not in ("cli", "api")
        ):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def test_no_stage_imports_a_later_one_and_what_is_shared_imports_none():
    wrong = []
    for module, tree in sources(ROOT).items():
        own, top = stage_of(module), module.removeprefix("dflash_bench").lstrip(".") or "__init__"
        for name in imports(tree):
            stage = stage_of(name)
            if stage is None or module == "dflash_bench":
                continue  # the package itself offers names of many stages, on demand
            if top in SHARED or (own is not None and STAGES.index(stage) > STAGES.index(own)):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_every_module_belongs_somewhere():
    """A new top-level module is put into the order above before it is imported by half of the house."""
    found = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert found - {*STAGES, *SHARED, "__main__"} == set(), "put it into STAGES or SHARED of this test"


def circles(package: Path) -> list[list[str]]:
    """Groups of modules of which each reaches every other by imports, wherever in the file these stand."""
    known = sources(package)
    edges = {module: imports(tree) & known.keys() - {module} for module, tree in known.items()}
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen, todo = set(), list(edges[start])
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += edges[here]
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in reached if a in reached[a]}
    return sorted(sorted(group) for group in groups)


@pytest.mark.parametrize("package", [ROOT, IMPL], ids=lambda p: p.name)
def test_no_imports_go_in_a_circle(package):
    assert circles(package) == []


@pytest.mark.parametrize("packages", [(ROOT,), (IMPL,), (ROOT, IMPL)], ids=["dflash_bench", "dflash_prep", "both"])
def test_a_noun_names_one_thing(packages):
    """Public names at the top of a file; over both packages, which share no module, those of classes.

    `main` and `app` are what a program is started by, `log` is where each file writes.
    """
    where = defaultdict(set)
    for module, tree in (pair for package in packages for pair in sources(package).items()):
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for name in public(module, tree) & (classes if len(packages) > 1 else public(module, tree)):
            where[name].add(module)
    known = {"main", "app", "log", "logger"}
    assert {name: sorted(found) for name, found in where.items() if len(found) > 1 and name not in known} == {}


def test_nothing_imports_torch_and_of_impl_only_what_is_data():
    wrong = []
    for module, tree in sources(ROOT).items():
        for name in imports(tree):
            top = name.partition(".")[0]
            is_data = any(f"{name}.".startswith(f"{allowed}.") for allowed in ALLOWED_OF_IMPL)
            if top in ("torch", "triton") or (top == "dflash_prep" and name != top and not is_data):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_only_the_command_line_and_the_console_know_rich_and_nobody_prints():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not where.startswith(RICH_KNOWERS):
            wrong += [f"{where} imports {n}" for n in imports(tree) if n.partition(".")[0] in ("rich", "typer")]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                wrong.append(f"{where}:{node.lineno} prints")
    assert wrong == []


def test_nobody_catches_everything():
    wrong = []
    for module, tree in sources(ROOT).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                if caught in ("everything", "Exception", "BaseException") and module not in INSIDE_A_PROGRAM:
                    wrong.append(f"{module}:{node.lineno} catches {caught}")
    assert wrong == []


def test_help_and_version_load_nothing_heavy():
    """One process for all of them: what one command had loaded, the next would show too."""
    code = (
        "import sys\n"
        "from dflash_bench.cli import app\n"
        "for words in (['--help'], ['--version'], ['metrics', '--help'], ['compare', '--help']):\n"
        "    try:\n        app(words)\n"
        "    except SystemExit as done:\n        assert not done.code, (words, done.code)\n"
        f"    print('LOADED', words, sorted(m for m in {HEAVY!r} if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert len(loaded) == 4
    assert [line for line in loaded if not line.endswith(" []")] == []


def test_every_error_says_its_exit_code_and_1_stays_pythons():
    from dflash_bench import errors

    tree = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.BenchError)]
    assert {e.__name__: int(e.exit_code) for e in tree} == {
        "BenchError": 5, "UsageError": 2, "CaptureError": 5, "DataError": 5, "SchemaError": 5,
    }  # fmt: skip
    assert {int(c) for c in errors.ExitCode} == {0, 2, 3, 4, 5, 130}
