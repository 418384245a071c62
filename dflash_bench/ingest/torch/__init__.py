"""Traces of the torch profiler."""
