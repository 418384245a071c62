"""What the documents say of the code is so. `python tests/dflash_bench/test_docs.py` writes the tables in them anew."""

from __future__ import annotations

import ast
import functools
import re
from itertools import groupby
from pathlib import Path

import pytest

from dflash_bench.findings import CODES
from dflash_bench.metrics.registry import SPECS, Chapter

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
METRICS = ROOT / "dflash_bench" / "metrics"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "impl" / "README.md", *sorted(DOCS.glob("*.md"))]


@functools.cache
def texts() -> dict[str, set[str]]:
    """The string literals of every file that computes figures, without docstrings, by the file's path."""
    found = {}
    for path in sorted(METRICS.rglob("*.py")):
        if path.name == "registry.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said)
        found[path.relative_to(ROOT).as_posix()] = {c.value for c in constants if isinstance(c.value, str)}
    return found


def files_of(name: str) -> list[str]:
    """Where a metric is computed: the files that hold its name, or the beginning of the names of its family."""
    begin = re.match(r"[^*\[]*", name)[0]
    return [
        file
        for file, known in texts().items()
        if any(text.startswith(begin) if begin != name else text == name for text in known)
    ]


def test_a_metric_is_computed_in_one_file():
    """Searching for the word of a report leads there. Families share theirs with the figure they are kinds of."""
    found = {spec.name: files_of(spec.name) for spec in SPECS if not spec.is_family}
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


# ── tables made from the code ────────────────────────────────────────────────────────────────────────────────────────

ARROWS = {"lower": "↓", "higher": "↑"}


def metrics_table() -> str:
    """One table a chapter. Of a family all names are alike but for ``NAME``."""
    rows = []
    for chapter, specs in groupby(sorted(SPECS, key=lambda s: list(Chapter).index(s.chapter)), lambda s: s.chapter):
        rows += [
            f"### {chapter}",
            "",
            "| metric | meaning | unit | better | | computed in |",
            "|---|---|---|:-:|---|---|",
        ]
        for spec in specs:
            files = ", ".join(f"`{file.removeprefix('dflash_bench/')}`" for file in files_of(spec.name)) or "-"
            name = spec.name.replace("[0-9]*", "NUMBERS").replace("*", "NAME")
            cells = f"`{name}`", spec.meaning, spec.unit, ARROWS.get(spec.better, ""), spec.role, files
            rows.append(f"| {' | '.join(cells)} |")
        rows.append("")
    return "\n".join(rows)


def warnings_table() -> str:
    rows = ["| code | from | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| `{code.code}` | {code.stage} | {code.meaning} |" for code in CODES)])


TABLES = {"metrics": metrics_table, "warnings": warnings_table}


def between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n)(.*?\n)?(?=<!-- end {name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_in_the_documents_is_what_the_code_says(name):
    found = between(name).search((DOCS / "metrics.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == TABLES[name]() + "\n", "python tests/dflash_bench/test_docs.py writes it anew"


# ── words, files, links ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_word_of_a_report_leads_to_a_file_that_holds_it():
    _, table = (DOCS / "architecture.md").read_text(encoding="utf-8").split("## From a word to its file")
    rows = re.findall(r"^\| (`.*`) \| `(\S+)` \|$", table, re.MULTILINE)
    assert len(rows) > 10
    wrong = []
    for words, file in rows:
        text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
        wrong += [f"{word} is not in {file}" for word in re.findall(r"`([^`]+)`", words) if word not in text]
    assert wrong == []


def test_the_order_of_the_stages_is_told_as_the_imports_have_it():
    rules = Path(__file__).with_name("test_architecture.py").read_text(encoding="utf-8")
    stages = re.findall(r'"(\w+)"', re.search(r"^STAGES = \((.*?)\)", rules, re.MULTILINE | re.DOTALL)[1])
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert " → ".join(stages) in page
    assert [stage for stage in stages if f"| {stage} |" not in page] == []


def test_every_file_that_a_document_names_is_there():
    """Paths in code marks, and the targets of links."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        paths = re.findall(
            r"`((?:dflash_bench|impl|tests|docs|examples|profiles|reports|\.github|\.ci)/[\w./-]+)`", text
        )
        wrong += [f"{page.name}: {path}" for path in paths if not (ROOT / path).exists()]
        links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
        wrong += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert wrong == []


def test_the_readme_is_short_and_names_every_command():
    from typer.main import get_command

    from dflash_bench.cli import app

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert [name for name in get_command(app).commands if f"dflash-bench {name}" not in text] == []


def spoken_commands(text: str) -> list[str]:
    """Every use of `dflash-bench` in code: to the end of its line, or of the next where the line is continued."""
    spans = re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)
    lines = "\n".join(spans).replace("\\\n", " ").splitlines()
    return [use for line in lines for use in re.findall(r"dflash-bench ([^|&;`#]*)", line)]


def test_every_option_that_a_document_gives_to_a_command_is_one_of_it():
    from typer.main import get_command

    from dflash_bench.cli import app

    wrong, seen = [], 0
    for page in [*PAGES, *sorted((ROOT / "examples").rglob("*.y*ml")), *sorted((ROOT / "examples").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for use in spoken_commands(text if page.suffix == ".md" else f"```{text}```"):
            words, command = use.partition(" -- ")[0].split(), get_command(app)
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
            options = re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", " ".join(words))
            seen += len(options)
            wrong += [f"{page.name}: dflash-bench {use.strip()}: {option}" for option in options if option not in known]
    assert wrong == []
    assert seen > 100


if __name__ == "__main__":
    page = DOCS / "metrics.md"
    content = page.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        content = between(name).sub(lambda _, made=table: made() + "\n", content)
    page.write_text(content, encoding="utf-8")
