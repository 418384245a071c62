"""An engine's own ``sitecustomize``: stand-ins for what this machine lacks, in each of its processes; a clock."""

import os

if os.environ.get("ENGINE_STUBS"):
    import stubs

    stubs.install()
if os.environ.get("ENGINE_TIMES"):
    import timing

    timing.install()
if os.environ.get("ENGINE_PLANT"):
    import plug_faults

    plug_faults.install()
