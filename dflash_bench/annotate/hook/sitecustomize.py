"""Python imports this in each process of an annotated command, before its program; spawned children included.

It imports nothing: it waits until a module that the table names has been executed and only then loads the rest of
``dflash_bench.annotate``, by its place, since only this folder is on the path. A ``sitecustomize`` that the environment
has anyway is run as if this one were not there.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is not imported here
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watcher:
    """A finder that finds nothing itself: those behind it find a module of the table, and it steps in when that has
    run, before others that say ``from … import …`` bind its functions."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.waiting = set(modules)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return self.watched(spec)
        return None

    def watched(self, spec: ModuleSpec) -> ModuleSpec:
        """The same spec; whoever executes the module then tells us."""
        run = getattr(spec.loader, "exec_module", None)
        if spec.loader is not None and run is not None:

            def exec_module(module: ModuleType) -> None:
                run(module)
                if module.__name__ in self.waiting:
                    self.waiting.discard(module.__name__)
                    _loaded(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _loaded(module: ModuleType) -> None:
    try:
        if "dflash_bench" not in sys.modules:
            _load_dflash_bench()
        from dflash_bench.annotate.process import annotation

        if (found := annotation()) is not None:
            found.loaded(module)
    except Exception as error:  # the engine must run, whatever is wrong with us
        sys.stderr.write(f"dflash-bench annotate: {module.__name__}: {type(error).__name__}: {error}\n")


def _load_dflash_bench() -> None:
    import importlib.util

    folder = os.path.dirname(os.path.dirname(_HERE))
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("dflash_bench", init, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["dflash_bench"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _run_the_other_sitecustomize() -> None:
    from importlib.machinery import PathFinder

    # those in front of this one were run before it, or may be about to run it: only what is behind is looked at
    places = list(dict.fromkeys(os.path.abspath(path or ".") for path in sys.path))
    behind = places.index(_HERE) + 1 if _HERE in places else 0
    spec = PathFinder.find_spec("sitecustomize", places[behind:])
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("DFLASH_BENCH_ANNOTATE_MODULES"):
    if sys.version_info >= (3, 11):
        sys.meta_path.insert(0, _Watcher(os.environ["DFLASH_BENCH_ANNOTATE_MODULES"].split(",")))
    else:
        sys.stderr.write("dflash-bench annotate: this Python is older than 3.11, nothing is annotated\n")
_run_the_other_sitecustomize()
