"""What the facts of a machine mean for captures, one check each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dflash_bench import __version__
from dflash_bench.capture.check import NVTX_MEND, nvtx_problem
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.doctor.facts import FOR_THE_LOOP, NEEDED, MachineFacts

_INSTALL_NSYS = "install nsight-systems-cli from NVIDIA's repository (Debian non-free: apt-get install nsight-systems)"

_BUNDLED: tuple[tuple[tuple[int, int], tuple[int, ...]], ...] = (
    ((11, 8), (2022, 4)),
    ((12, 0), (2022, 4)),
    ((12, 1), (2023, 1)),
    ((12, 2), (2023, 2)),
    ((12, 3), (2023, 3)),
    ((12, 4), (2023, 4)),
    ((12, 5), (2024, 2)),
    ((12, 6), (2024, 5)),
    ((12, 8), (2024, 6)),
    ((12, 9), (2025, 1)),
    ((13, 0), (2025, 3)),
    ((13, 1), (2025, 5)),
)
"""The nsys that each CUDA release brought along: an older one does not know that release's driver."""


class CheckStatus(StrEnum):
    """``warn`` limits what a capture sees, ``fail`` makes a way of capturing impossible."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One finding of the doctor. ``mend`` is the command or step that mends it, None when there is nothing to mend."""

    name: str
    status: CheckStatus
    what: str
    mend: str | None = None


def machine_checks(facts: MachineFacts) -> tuple[MachineCheck, ...]:
    """All checks that need no capture."""
    found = [_packages(facts), _nvtx_package(facts), *_nsys(facts), _gpu_check(facts)]
    found += [
        check
        for tool in facts.tools
        for check in (_importer(tool), _driver_check(facts, tool), _pair(facts, tool))
        if check
    ]
    return (*found, _loop(facts))


def _nsys_for(cuda: tuple[int, int]) -> tuple[int, ...] | None:
    """The oldest nsys known to fit a CUDA driver; None when that driver is older than the table."""
    return max((version for release, version in _BUNDLED if release <= cuda), default=None)


def _packages(facts: MachineFacts) -> MachineCheck:
    missing = [name for name in NEEDED if facts.packages.get(name) is None]
    if missing:
        return MachineCheck(
            "packages", CheckStatus.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}"
        )
    versions = ", ".join(f"{name} {facts.packages[name]}" for name in NEEDED[:5])
    return MachineCheck("packages", CheckStatus.OK, f"dflash-bench {__version__}, Python {facts.python}, {versions}")


def _nvtx_package(facts: MachineFacts) -> MachineCheck:
    if facts.nvtx is None:
        return MachineCheck(
            "nvtx", CheckStatus.WARN, "the python package nvtx is missing: nothing reaches nsys", "pip install nvtx"
        )
    return MachineCheck("nvtx", CheckStatus.OK, f"nvtx {facts.nvtx}")


def _nsys(facts: MachineFacts) -> tuple[MachineCheck, ...]:
    if not facts.tools:
        what = (
            "none on PATH, under /opt/nvidia, in Nsight Compute or Debian's place: only the built-in recorder is left"
        )
        return (MachineCheck("nsys", CheckStatus.WARN, what, _INSTALL_NSYS),)
    return tuple(
        MachineCheck("nsys", CheckStatus.OK, f"nsys {tool.version_text} at {tool.path}") for tool in facts.tools
    )


def _importer(tool: NsysTool) -> MachineCheck:
    name = f"nsys {tool.version_text}: importer"
    if tool.missing_libs:
        lacks = ", ".join(tool.missing_libs)
        return MachineCheck(
            name, CheckStatus.FAIL, f"lacks {lacks}: only a raw .qdstrm would be left", tool.mend or f"install {lacks}"
        )
    if tool.is_wrapper:
        return MachineCheck(
            name, CheckStatus.OK, "not looked at: this nsys is a script around another; its self-test tells"
        )
    if tool.importer is None:
        where = (
            f"is at {tool.stray_importer}, where this nsys does not look" if tool.stray_importer else "is not installed"
        )
        return MachineCheck(
            name,
            CheckStatus.FAIL,
            f"QdstrmImporter {where}: only a raw .qdstrm would be left",
            tool.mend or _INSTALL_NSYS,
        )
    return MachineCheck(name, CheckStatus.OK, f"{tool.importer}, all libraries found")


def _gpu_check(facts: MachineFacts) -> MachineCheck:
    if facts.gpus:
        cuda = f", CUDA {facts.cuda[0]}.{facts.cuda[1]}" if facts.cuda else ""
        return MachineCheck("GPU", CheckStatus.OK, f"{len(facts.gpus)} × {facts.gpus[0]}, driver {facts.driver}{cuda}")
    if facts.driver:
        return MachineCheck(
            "GPU", CheckStatus.WARN, f"driver {facts.driver}, but nvidia-smi lists no GPU: captures see the host only"
        )
    return MachineCheck(
        "GPU", CheckStatus.WARN, "no NVIDIA driver: captures see host ranges only, no launches and no GPU work"
    )


def _driver_check(facts: MachineFacts, tool: NsysTool) -> MachineCheck | None:
    wanted = _nsys_for(facts.cuda) if facts.cuda else None
    if facts.cuda is None or wanted is None:
        return None
    name = f"nsys {tool.version_text}: driver"
    driver = f"the driver's CUDA {facts.cuda[0]}.{facts.cuda[1]}"
    needs = ".".join(map(str, wanted))
    if tool.version >= wanted:
        return MachineCheck(name, CheckStatus.OK, f"knows {driver}")
    first_of_major = _nsys_for((facts.cuda[0], 0))
    if first_of_major is not None and tool.version < first_of_major:
        what = f"older than {driver}: records ranges and driver calls, but no launches and no GPU work"
    else:
        what = f"older than {driver}: some GPU rows may be missing"
    return MachineCheck(name, CheckStatus.WARN, what, f"use nsys {needs} or later")


def _pair(facts: MachineFacts, tool: NsysTool) -> MachineCheck:
    name = f"nsys {tool.version_text}: nvtx"
    problem = nvtx_problem(facts.nvtx, tool.version)
    if problem is None:
        return MachineCheck(name, CheckStatus.OK, f"records the ranges of nvtx {facts.nvtx}")
    mend = "pip install nvtx" if facts.nvtx is None else f"{NVTX_MEND}, or use nsys 2024 or later"
    return MachineCheck(name, CheckStatus.FAIL, problem.text, mend)


def _loop(facts: MachineFacts) -> MachineCheck:
    missing = [name for name in FOR_THE_LOOP if facts.packages.get(name) is None]
    if missing:
        what = f"{' and '.join(missing)} missing: `dflash-bench run` cannot start; everything else works"
        return MachineCheck("decode loop", CheckStatus.WARN, what, 'pip install "dflash-bench[impl]"')
    return MachineCheck(
        "decode loop", CheckStatus.OK, ", ".join(f"{name} {facts.packages[name]}" for name in FOR_THE_LOOP)
    )
