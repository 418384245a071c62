"""The preparation of this package in the engine that people run: SGLang, unmodified, patched from outside.

``python -m dflash_prep.sglang --arm topup -- python -m sglang.launch_server …`` starts the command with a hook that
reaches every process of it (`hook/`). When a process loads SGLang's DFlash draft input, ours takes the place of its
``prepare_for_decode`` (`install.py`), if that is one which ours was compared with (`fingerprint.py`). `preparation.py`
is the step; `shadow.py` compares it with the engine's own before anything is written; `turns.py` lets both take turns.
"""
