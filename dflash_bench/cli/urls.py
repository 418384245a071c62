"""URLs on the command line: what they name is brought near before a command runs, and what it made is sent back."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import typer
from typer.core import TyperCommand

from dflash_bench.cli.console import transfer_progress
from dflash_bench.errors import UsageError
from dflash_bench.url import Url, location

P = ParamSpec("P")


def place(word: str | Path) -> Path | Url:
    """A folder of the command line, at a path or a URL. (A `Path` of ``s3://x`` would lose a slash.)

    Raises UsageError where a file is.
    """
    found = location(str(word))
    if isinstance(found, Path) and found.is_file():
        raise UsageError(f"{found} is a file, and profiles lie in a folder", hint="--profiles FOLDER")
    return found


def local_folder(word: str | Path) -> Path:
    """A folder that must be here. Raises UsageError for a file and for a URL."""
    found = place(word)
    if isinstance(found, Url):
        raise UsageError(
            f"{found}: this command writes captures while it runs, and needs a folder of this machine",
            hint=f"record into a local folder, then: dflash-bench ingest CAPTURES --profiles {found}",
        )
    return found


class Command(TyperCommand):
    """A command. Where it takes a path it refuses a URL, which `Path` would make a folder called ``s3:`` of."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for value in ctx.params.values():
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path) and re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", str(path)):
                    url = Url(str(path).replace(":/", "://", 1))
                    raise UsageError(f"{url}: only a path of this machine can be given here")
        return rest


def with_urls(*names: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Let the parameters ``names`` of a command (words, or lists of words) and its ``profiles`` be URLs.

    The command itself sees local paths only. Profiles that it made are published when it is done, whatever it found.
    """

    def decorate(command: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            if isinstance(kwargs["profiles"], Path) and not any("://" in word for word in _words(kwargs, names)):
                command(*args, **kwargs)
            else:
                _run_near(command, kwargs, names)

        return run

    return decorate


def _run_near(command: Callable[..., None], kwargs: dict[str, Any], names: tuple[str, ...]) -> None:
    from dflash_bench.cli.sides import newest_sides
    from dflash_bench.ingest.remote.mirror import mirrored

    words = _words(kwargs, names)
    with mirrored(kwargs["profiles"], words) as mirror:
        with transfer_progress() as progress:
            if not words:
                mirror.complete([p.path.name for side in newest_sides(mirror.profiles) for p in side], progress)
            near = {name: _mapped(kwargs[name], lambda word: mirror.near(word, progress)) for name in names}
        try:
            command(**{**kwargs, **near, "profiles": mirror.profiles})
        except typer.Exit:
            mirror.publish()
            raise
        with transfer_progress() as progress:
            mirror.publish(progress)


def _words(kwargs: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    values = [kwargs[name] for name in names if kwargs[name] is not None]
    return [word for value in values for word in (value if isinstance(value, list) else [value])]


def _mapped(value: str | list[str] | None, near: Callable[[str], str]) -> str | list[str] | None:
    if value is None:
        return None
    return [near(word) for word in value] if isinstance(value, list) else near(value)
