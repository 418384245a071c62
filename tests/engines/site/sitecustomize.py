"""An engine's own ``sitecustomize``: stands-ins for what this machine lacks, in each of its processes."""

import os

if os.environ.get("ENGINE_STUBS"):
    import stubs

    stubs.install()
