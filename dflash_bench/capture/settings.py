"""What ``run.json`` keeps of how a run of the built-in loop was made, and how to ask for the same run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dflash_bench.capture.launch import Backend, Device, Launch, Reports
from dflash_bench.capture.machine import host_settings
from dflash_bench.capture.record import RunCapture
from dflash_bench.capture.supervise import Limits
from dflash_bench.model import Recorder, RunInfo, Value


def run_settings(launch: Launch, capture: RunCapture, gpu: Mapping[str, Value]) -> dict[str, Value]:
    """Name → value of everything that the launch asked for, and of what it ran on: by these, runs are told comparable.

    ``gpu``: this machine's `gpu_settings`, kept where the ranks decoded on it.
    """
    tool, options = launch.choice.tool, launch.options
    settings: dict[str, Value] = {
        "recorder": str(launch.choice.recorder),
        "nsys": tool.version_text if tool else None,
        "reports": str(launch.reports) if tool else None,
        "ranks": launch.ranks,
        "seed": launch.seed,
        "steps_asked": launch.steps,
        "device_asked": str(options.device),
        "backend": str(options.backend),
        "verify": options.is_verified,
        "check": options.is_checked,
        "delay": options.delay,
        **host_settings(),
    }
    if ledgers := capture.ledgers:
        first = ledgers[0]
        settings |= {"steps": min(ledger.steps for ledger in ledgers), "device": first.device}
        settings["interrupted"] = any(ledger.interrupted for ledger in ledgers)
        settings["model"] = first.settings.get("model")
        settings["verified_tokens"] = verified_tokens(capture)
        settings |= gpu if first.device == "cuda" else {}
        settings |= {f"switch.{key}": value for key, value in sorted(first.switches.items())}
        settings |= {f"version.{key}": value for key, value in sorted(first.versions.items())}
    return settings


def verified_tokens(capture: RunCapture) -> int:
    """Tokens that the loop itself compared with its oracle, over all ranks."""
    return sum(int(ledger.checks.get("verified_tokens", 0)) for ledger in capture.ledgers)


# ── the same again ───────────────────────────────────────────────────────────────────────────────────────────────────


def is_repeatable(info: RunInfo) -> bool:
    """Whether the run is one of the built-in loop's, so that another can be made like it."""
    numbers = (info.settings.get(name) for name in ("ranks", "steps_asked", "seed"))
    return info.arm is not None and info.workload is not None and all(isinstance(n, int) for n in numbers)


def asked(info: RunInfo) -> dict[str, Any]:
    """The options of ``dflash-bench run`` that made a run which `is_repeatable`: parameter → value, as plain data.

    What profiles of earlier versions do not say has its default. A workload that came from a file is that file's name;
    where it lies is not kept, what it says is (``workload_toml``).
    """
    return {name: read(info) for name, (read, _) in _ASKED.items()}


def asked_words(info: RunInfo) -> list[str]:
    """The same as words to type, without what is the default anyway."""
    found = ["dflash-bench", "run"]
    for name, value in asked(info).items():
        if value == _ASKED[name][1]:
            continue
        option = f"--{name.replace('_', '-')}"
        found += [option] if value is True else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return found


def _own(name: str, default: Value = None) -> tuple[Callable[[RunInfo], Value], Value]:
    return lambda info: default if info.settings.get(name) is None else info.settings[name], default


_ASKED: dict[str, tuple[Callable[[RunInfo], Any], Value]] = {
    "arm": (lambda info: info.arm, None),
    "workload": (lambda info: f"{info.workload}.toml" if info.settings.get("workload_toml") else info.workload, None),
    "ranks": _own("ranks"),
    "steps": _own("steps_asked"),
    "seed": _own("seed"),
    "unprofiled": _own("unprofiled", False),
    "verify": _own("verify", False),
    "check": _own("check", False),
    "delay": _own("delay"),
    "device": _own("device_asked", str(Device.AUTO)),
    "backend": _own("backend", str(Backend.GLOO)),
    "recorder": (lambda info: info.settings.get("recorder") == Recorder.BUILTIN, False),
    "reports": _own("reports", str(Reports.PER_RANK)),
    "timeout": _own("timeout_s", Limits().silence_s),
    "allow_missing": _own("allow_missing", False),
    "discard_captures": _own("discard_captures", False),
}
"""Option → how a run tells its value, and the value that need not be typed."""
