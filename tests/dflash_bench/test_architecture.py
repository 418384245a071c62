"""The shape of the house, read from the source: which module may import which, and what stays out of the start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dflash_bench

ROOT = Path(dflash_bench.__file__).parent
STAGES = ("capture", "ingest", "metrics", "stats", "baseline", "compare", "report", "gate", "doctor", "cli")
"""Top-level packages and modules in the order of the data; none imports a later one."""

SHARED = {"__init__", "errors", "model", "layout", "profile", "findings", "environment", "samples", "storage", "url"}
"""What every stage may import, and what imports no stage."""

HEAVY = ("torch", "pandas", "scipy", "pyarrow", "plotly", "matplotlib", "jinja2", "adbc_driver_sqlite")
ALLOWED_OF_IMPL = {"dflash_prep.arms", "dflash_prep.workload"}
RICH_KNOWERS = ("cli", "report/console.py")


def modules():
    return sorted(ROOT.rglob("*.py"))


def where(path):
    return path.relative_to(ROOT).as_posix()


def imports(path):
    """Every module that a file imports, anywhere in it, with ``from a import b`` as ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path)}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stage_of(dotted):
    """The stage that a module of the harness belongs to, None for shared and foreign ones."""
    parts = dotted.split(".")
    own = parts[1] if parts[0] == "dflash_bench" and len(parts) > 1 else None
    return own if own in STAGES else None


@pytest.mark.parametrize("path", modules(), ids=where)
def test_no_stage_imports_a_later_one(path):
    own = stage_of("dflash_bench." + where(path).removesuffix(".py").replace("/", "."))
    for name in imports(path):
        stage = stage_of(name)
        if stage is None:
            continue
        if path.parent == ROOT and path.stem in SHARED:
            pytest.fail(f"{where(path)} is shared by all stages and imports {name}")
        if own is not None:
            assert STAGES.index(stage) <= STAGES.index(own), f"{where(path)} imports {name}, a later stage"


def test_every_module_belongs_somewhere():
    """A new top-level module is put into the order above before it is imported by half of the house."""
    found = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in modules()}
    assert found - {*STAGES, *SHARED, "__main__"} == set(), "put it into STAGES or SHARED of this test"


def test_no_module_has_more_than_one_noun_in_it():
    """Past 300 lines a file holds two, and is parted."""
    lengths = {where(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: n for name, n in lengths.items() if n > 300} == {}


@pytest.mark.parametrize("path", modules(), ids=where)
def test_nothing_imports_torch_and_of_impl_only_what_is_data(path):
    names = set(imports(path))
    assert not {n for n in names if n.split(".")[0] in ("torch", "triton")}
    of_impl = {n for n in names if n.split(".")[0] == "dflash_prep"}
    for name in of_impl:
        is_allowed = any(name == a or name.startswith(f"{a}.") for a in ALLOWED_OF_IMPL)
        names_allowed = name == "dflash_prep" and of_impl & ALLOWED_OF_IMPL
        assert is_allowed or names_allowed, f"{where(path)} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=where)
def test_only_the_command_line_and_the_console_know_rich_and_nobody_prints(path):
    if not where(path).startswith(RICH_KNOWERS):
        assert not {n for n in imports(path) if n.split(".")[0] in ("rich", "typer")}, where(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{where(path)}:{node.lineno} prints"


@pytest.mark.parametrize("path", modules(), ids=where)
def test_nobody_catches_everything(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            assert caught not in ("everything", "Exception", "BaseException"), f"{where(path)}:{node.lineno}"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["metrics", "--help"], ["compare", "--help"]])
def test_help_and_version_load_nothing_heavy(words):
    code = (
        "import sys\n"
        "from dflash_bench.cli import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        f"print('LOADED', sorted(m for m in {HEAVY!r} if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_every_error_says_its_exit_code_and_1_stays_pythons():
    from dflash_bench import errors

    tree = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.BenchError)]
    assert {e.__name__: int(e.exit_code) for e in tree} == {
        "BenchError": 5, "UsageError": 2, "CaptureError": 5, "DataError": 5, "SchemaError": 5,
    }  # fmt: skip
    assert {int(c) for c in errors.ExitCode} == {0, 2, 3, 4, 5, 130}
