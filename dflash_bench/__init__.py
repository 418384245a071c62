"""dflash-bench: a profiling and regression-benchmark harness for the host path of speculative decoding.

Data flows one way, ``capture → ingest → metrics → stats → compare → report``; each stage is a package or module of that
name and none imports a later one. ``errors`` and ``model`` are shared by all of them.
"""

__version__ = "0.1.0"
