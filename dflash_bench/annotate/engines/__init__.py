"""Conditions of our tables that are longer than an expression. Nothing of an engine is imported here."""
