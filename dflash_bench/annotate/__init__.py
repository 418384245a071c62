"""Ranges around functions of a program that knows nothing of us: which functions, a table in TOML says.

``environment_of`` gives the variables that a command needs; ``hook/sitecustomize.py`` is loaded by each of its Python
processes and wraps the table's functions as their modules are first loaded. What runs inside an engine is the standard
library's alone: ``table``, ``wrapping``, ``sinks``, ``process`` and ``engines``.
"""
