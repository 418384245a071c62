"""Loading a package from a folder that must not be on the path: its neighbours belong to another environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_package(name: str, folder: Path) -> ModuleType:
    """The package in `folder`; its modules are imported as usual from then on. Raises ImportError when it fails."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError:
        del sys.modules[name]
        raise
    return module
