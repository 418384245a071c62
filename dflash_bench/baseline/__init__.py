"""Runs of one arm that later runs are held against, in small files that can be read in a diff."""
