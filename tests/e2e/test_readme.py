"""The sessions in README.md are run and print what it shows. `python tests/e2e/test_readme.py` writes them anew."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SESSION = re.compile(
    r"<!-- session: (?P<name>[\w-]+) -->\n```console\n(?P<text>.*?)```\n<!-- end session -->",
    re.DOTALL,
)


def sessions() -> dict[str, str]:
    """The sessions by name, as they stand."""
    return {found["name"]: found["text"] for found in SESSION.finditer(README.read_text(encoding="utf-8"))}


def played(text: str, folder: Path) -> str:
    """A session with the commands as they stand (lines after ``$``) and the output they have now.

    ``| head -n N`` behind a command cuts its output, in the README as in a shell.
    """
    (folder / "tests").symlink_to(ROOT / "tests", target_is_directory=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DFLASH_")} | {"COLUMNS": "160"}
    out = []
    for line in text.splitlines():
        if not line.startswith("$ dflash-bench "):
            continue
        words, _, limit = line.partition(" | head -n ")
        command = [sys.executable, "-m", "dflash_bench", *shlex.split(words)[2:]]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        out.append(
            f"{line}\n" + "".join(f"{row.rstrip()}\n" for row in done.stdout.splitlines()[: int(limit or 10**6)])
        )
    return "".join(out)


@pytest.mark.parametrize("name", sorted(sessions()))
def test_a_session_in_the_readme_prints_what_the_readme_shows(name: str, tmp_path: Path) -> None:
    text = sessions()[name]
    assert played(text, tmp_path) == text, "README.md is out of date: python tests/e2e/test_readme.py writes it anew"


def test_the_readme_shows_a_session() -> None:
    assert "captures" in sessions()


if __name__ == "__main__":
    content = README.read_text(encoding="utf-8")
    for found in reversed(list(SESSION.finditer(content))):
        with TemporaryDirectory() as scratch:
            new = played(found["text"], Path(scratch))
        content = content[: found.start("text")] + new + content[found.end("text") :]
    README.write_text(content, encoding="utf-8")
