"""How the events of a process are read, joined and kept: arrays, intervals, host events, GPU work and its launches."""
