"""Every metric that the tool prints is explained to its reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_bench.metrics.registry import SPECS

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
def test_the_readme_says_what_a_metric_means(name: str) -> None:
    table = README.read_text(encoding="utf-8").partition("## What the numbers mean")[2].partition("\n## ")[0]
    words = [word.removesuffix("*") for word in re.findall(r"`([^`]+)`", table)]
    if name.endswith("*"):
        assert any(word.startswith(name[:-1]) for word in words)
    else:
        assert any(word == name or (word.endswith(".") and name.startswith(word)) for word in words)
