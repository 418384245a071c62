"""stats: what a difference between samples is worth."""
