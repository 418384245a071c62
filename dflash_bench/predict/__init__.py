"""What a run would be with more ranks, on another GPU, with more requests or pages in advance: `docs/predict.md`.

Read in this order: `trace` (what a profile says of every step), `replay` (the loop, step by step), `allocation` (which
steps would take pages), `communication` (what an agreement costs among more ranks), `prediction` (all of it together).
"""
