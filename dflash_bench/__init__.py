"""dflash-bench: a profiling and regression-benchmark harness for the host path of speculative decoding.

Data flows one way, ``capture → ingest → metrics → stats → compare → report``; each stage is a package or module of that
name and none imports a later one. ``errors`` and ``model`` are shared by all of them.

What is supported for scripts and notebooks is in ``__all__``; `api` says what each does, and is imported when one of
them is first used. ``examples/notebook.py`` shows them at work.
"""

from importlib import import_module

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Decision",
    "Profile",
    "RunMetrics",
    "__version__",
    "compare_runs",
    "ingest_captures",
    "measure",
    "open_profile",
    "run_gate",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("dflash_bench.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
