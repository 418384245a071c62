"""Two versions of the loop's code: what lies here, against a git ref or against a second Python environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dflash_bench.errors import UsageError
from dflash_bench.run.request import RunRequest

_PACKAGE = "impl"
"""Where in a repository the package `dflash_prep` lies."""


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """A version: the Python that runs it, and the folder put in front of its modules. ``text`` says what it is."""

    label: str
    text: str
    python: str = sys.executable
    folder: Path | None = None


@contextmanager
def two_versions(request: RunRequest) -> Iterator[tuple[CodeVersion, CodeVersion]]:
    """Base and candidate of a request that names something to run against; a ref is checked out while this lasts.

    Raises UsageError when there is no such ref or Python, or no `dflash_prep` in it.
    """
    if request.against_python is not None:
        yield _of_python(request.against_python), CodeVersion("candidate", "this environment")
        return
    assert request.against is not None, "whoever calls this has something to run against"
    top = _repository()
    commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{request.against}^{{commit}}")
    if not commit:
        raise UsageError(f"--against {request.against}: {top} has no such commit", hint="git fetch, or git log --all")
    changed = " with changes" if _git(top, "status", "--porcelain", "--untracked-files=no", "--", _PACKAGE) else ""
    here = CodeVersion("candidate", f"{_git(top, 'rev-parse', 'HEAD')[:12]}{changed}", folder=top / _PACKAGE)
    with TemporaryDirectory(prefix="dflash-bench-") as folder:
        tree = Path(folder) / "base"
        _git(top, "worktree", "add", "--quiet", "--detach", str(tree), commit, is_needed=True)
        try:
            if not (tree / _PACKAGE / "dflash_prep").is_dir():
                raise UsageError(f"--against {request.against}: that commit has no {_PACKAGE}/dflash_prep")
            yield CodeVersion("base", commit[:12], folder=tree / _PACKAGE), here
        finally:
            _git(top, "worktree", "remove", "--force", str(tree))


def _repository() -> Path:
    top = _git(Path(), "rev-parse", "--show-toplevel")
    if not top or not (Path(top) / _PACKAGE / "dflash_prep").is_dir():
        raise UsageError(
            f"--against needs a git repository with {_PACKAGE}/dflash_prep, and {Path.cwd()} lies in none",
            hint="go there, or name a second environment with --against-python PATH",
        )
    return Path(top)


def _of_python(python: Path) -> CodeVersion:
    found = python / "bin" / "python" if python.is_dir() else python
    try:
        code = "import dflash_bench, dflash_prep, torch, sys; print(sys.version.split()[0])"
        done = subprocess.run([str(found), "-c", code], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--against-python {python} does not run: {error}") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"--against-python {python}: {said}", hint=f'{found} -m pip install "dflash-bench[impl]"')
    return CodeVersion("base", f"Python {done.stdout.strip()} of another environment", python=str(found))


def _git(top: Path, *words: str, is_needed: bool = False) -> str:
    """What git answers, nothing where it refuses. Raises UsageError where an answer is needed and none is had."""
    try:
        done = subprocess.run(["git", "-C", str(top), *words], capture_output=True, text=True)
    except OSError:
        raise UsageError("--against needs git, and there is none here") from None
    if done.returncode != 0 and is_needed:
        raise UsageError(f"git {words[0]} {words[1]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout.strip() if done.returncode == 0 else ""
