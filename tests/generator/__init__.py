"""Seeded nsys-schema SQLite exports of any size: for tests and benchmarks, made without GPU and nsys.

`spec.Spec` says what is wanted, `write.write_export` makes the file.
"""

from generator.spec import FAULT_MEANING, Fault, Mode, Schema, Spec
from generator.write import write_export, write_ranks

__all__ = ["FAULT_MEANING", "Fault", "Mode", "Schema", "Spec", "write_export", "write_ranks"]
