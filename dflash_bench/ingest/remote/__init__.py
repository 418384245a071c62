"""Captures and profiles at URLs, and readers on other machines."""
