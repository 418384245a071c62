"""The session that a run belongs to: what else changed between two runs, beside the code.

Runs of one machine, day and job share what a machine does to all of them (its clocks, its neighbours, its temperature);
runs of another session do not, however many there are.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dflash_bench.model import RunInfo

_JOBS = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILD_ID", "SLURM_JOB_ID", "BUILDKITE_JOB_ID")


@dataclass(frozen=True, slots=True, order=True)
class Session:
    """``machine``: a fingerprint, None where the run does not say; ``day`` in UTC; ``job`` of a CI or batch system."""

    machine: str | None
    day: str
    job: str | None

    @classmethod
    def of(cls, info: RunInfo) -> Session:
        """The session of a run."""
        machine, job = info.settings.get("machine"), info.settings.get("job")
        return cls(None if machine is None else str(machine), info.created_utc[:10], None if job is None else str(job))

    @property
    def text(self) -> str:
        """In words."""
        return ", ".join(part for part in (self.day, self.machine and f"machine {self.machine}", self.job) if part)


def commit_of(info: RunInfo) -> str | None:
    """The commit that a run measured, where it says so."""
    commit = info.settings.get("commit")
    return None if commit is None else str(commit)


def session_settings(folder: Path | None = None) -> dict[str, str]:
    """What a run made here and now says of its session: ``machine``, ``job`` and the ``commit`` of ``folder``.

    The machine is a fingerprint that tells machines apart and names none.
    """
    found = {"machine": _fingerprint()}
    if job := next((os.environ[name] for name in _JOBS if os.environ.get(name)), None):
        found["job"] = job
    command = ["git", "-C", str(folder or Path()), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return found
    return found | ({"commit": done.stdout.strip()} if done.returncode == 0 and done.stdout.strip() else {})


def _fingerprint() -> str:
    try:
        own = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        own = ""
    return hashlib.sha256(f"dflash-bench {own or platform.node()}".encode()).hexdigest()[:8]
