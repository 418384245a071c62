"""The decode loop of one rank: engine, devices, model, ledger. `python -m dflash_prep.loop` runs it."""
