"""Runs of the built-in decode loop: asked for, planned, made one after the other, told to whoever listens."""
