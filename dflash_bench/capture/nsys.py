"""Finding nsys, and telling what it can do: version, importer, and what the importer lacks.

nsys records with its target part and converts with its host part (``QdstrmImporter``). Either can be missing: CUDA
images carry only Nsight Compute's copy, without the importer's libraries; Debian splits the two over two folders.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_bench.errors import CaptureError, UsageError

log = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 30

_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "opt/nvidia/nsight-systems*/target-linux-*/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "usr/lib/nsight-systems/bin/nsys",
    "usr/lib/*/nsight-systems/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
)
"""Where installers put nsys, below the root of the file system: NVIDIA's packages, Nsight Compute's copy, Debian."""

_DEBIAN_HOST = "usr/lib/nsight-systems"
_PACKAGES = {
    "libdw.so.1": "libdw1",
    "libelf.so.1": "libelf1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libz.so.1": "zlib1g",
}
"""Debian and Ubuntu packages of the libraries that importers were seen to lack."""


@dataclass(frozen=True, slots=True)
class NsysTool:
    """One installed nsys. ``path`` is the resolved binary.

    ``importer`` is None when no QdstrmImporter lies where this nsys looks for it: it then leaves only a ``.qdstrm``.
    ``is_wrapper``: the path is a script that starts another nsys, so nothing is known of its importer.
    ``stray_importer`` is one that exists elsewhere; ``mend`` is the command that makes conversion work, if known.
    """

    path: Path
    version: tuple[int, ...]
    importer: Path | None
    missing_libs: tuple[str, ...] = ()
    stray_importer: Path | None = None
    mend: str | None = None
    is_wrapper: bool = False

    @property
    def version_text(self) -> str:
        """The version as nsys writes it."""
        return ".".join(map(str, self.version))

    @property
    def can_convert(self) -> bool:
        """Whether this nsys can turn what it recorded into SQLite, as far as can be seen."""
        return (self.importer is not None or self.is_wrapper) and not self.missing_libs


def _parse_version(text: str) -> tuple[int, ...]:
    """``NVIDIA Nsight Systems version 2022.4.2.1-df9881f`` → ``(2022, 4, 2, 1)``.

    Raises CaptureError when the text names no version.
    """
    found = re.search(r"version\s+(\d+(?:\.\d+)+)", text)
    if not found:
        raise CaptureError(f"this is not nsys: it answered {text.strip()[:80]!r} when asked for its version")
    return tuple(map(int, found[1].split(".")))


def _missing_libraries(ldd_output: str) -> tuple[str, ...]:
    """Names of the libraries that ``ldd`` could not find, in order, once each."""
    return tuple(dict.fromkeys(re.findall(r"^\s*(\S+) => not found", ldd_output, re.MULTILINE)))


def nsys_candidates(*, path: str | None = None, root: Path = Path("/")) -> Iterator[Path]:
    """Every nsys binary of this machine, resolved, once each: those on PATH first."""
    seen: set[Path] = set()
    on_path = (
        Path(folder) / "nsys" for folder in (path if path is not None else os.environ.get("PATH", "")).split(":")
    )
    placed = (found for place in _PLACES for found in sorted(root.glob(place), reverse=True))
    for found in (*on_path, *placed):
        resolved = found.resolve()
        if resolved not in seen and os.access(resolved, os.X_OK) and resolved.is_file():
            seen.add(resolved)
            yield resolved


def examine_nsys(binary: Path, *, root: Path = Path("/")) -> NsysTool:
    """Ask one nsys for its version and look for its importer.

    Raises CaptureError when the file does not run or is not nsys.
    """
    version = _parse_version(_output_of([str(binary), "--version"]))
    resolved = binary.resolve()
    importer = _importer_of(resolved)
    if importer is not None:
        return _with_libraries(NsysTool(resolved, version, importer))
    if _is_wrapper(resolved):
        return NsysTool(resolved, version, None, is_wrapper=True)
    stray = root / _DEBIAN_HOST / "host-linux-x64" / "QdstrmImporter"
    is_debian = resolved.is_relative_to(root / "usr/lib") and resolved.parent.parent.name == "nsight-systems"
    if not is_debian or not stray.is_file():
        return NsysTool(resolved, version, None)
    # Debian's nsys follows its own resolved path and looks for the host part there; the package links it nowhere.
    wanted = resolved.parent.parent / "host-linux-x64"
    return NsysTool(resolved, version, None, stray_importer=stray, mend=f"ln -s {stray.parent} {wanted}")


def find_all_nsys(*, path: str | None = None, root: Path = Path("/")) -> tuple[NsysTool, ...]:
    """All working nsys, best first: those that can convert, then newest, then the binary before a script around it."""
    tools = []
    for binary in nsys_candidates(path=path, root=root):
        try:
            tools.append(examine_nsys(binary, root=root))
        except CaptureError as error:
            log.warning("%s is left out: %s", binary, error)
    return tuple(sorted(tools, key=lambda t: (t.can_convert, t.version, not t.is_wrapper), reverse=True))


def find_nsys(explicit: Path | None = None) -> NsysTool | None:
    """The nsys to use: the one asked for, else the best one found, else None.

    Raises UsageError when `explicit` does not exist, CaptureError when it is not nsys.
    """
    if explicit is None:
        tools = find_all_nsys()
        return tools[0] if tools else None
    located = shutil.which(explicit) or (str(explicit / "nsys") if explicit.is_dir() else None)
    if located is None or not Path(located).is_file():
        raise UsageError(f"there is no nsys at {explicit}", hint="dflash-bench doctor lists those that were found")
    return examine_nsys(Path(located))


def has_nvidia_gpu(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA driver is loaded here, without asking CUDA."""
    # Not /dev/nvidiactl: nsys, run as root, makes that node on machines without any GPU. /dev/dxg is WSL's.
    return (root / "proc/driver/nvidia/version").exists() or (root / "dev/dxg").exists()


def _is_wrapper(binary: Path) -> bool:
    # CUDA's bin/nsys and module systems put a script in front of the real binary, which lies in target-linux-*.
    with binary.open("rb") as file:
        return file.read(2) == b"#!" and not binary.parent.name.startswith("target-linux")


def _importer_of(binary: Path) -> Path | None:
    # Beside `target-linux-x64`: `host-linux-x64` in Nsight Systems, `linux-desktop-glibc_…-x64` in Nsight Compute.
    return next(iter(sorted(binary.parent.parent.glob("*/QdstrmImporter"))), None)


def _with_libraries(tool: NsysTool) -> NsysTool:
    missing = _missing_libraries(_output_of(["ldd", str(tool.importer)])) if shutil.which("ldd") else ()
    packages = sorted({_PACKAGES[lib] for lib in missing if lib in _PACKAGES})
    mend = f"apt-get install {' '.join(packages)}" if packages else None
    return NsysTool(tool.path, tool.version, tool.importer, missing, mend=mend)


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"{command[0]} does not run: {error}") from None
    return done.stdout + done.stderr
