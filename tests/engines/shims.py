"""Doing something to a module as soon as it has been executed."""

import importlib.util


class Shims:
    """Calls functions with modules of the engine, once those have been executed."""

    def __init__(self, shims):
        self.waiting = dict(shims)

    def find_spec(self, name, path=None, target=None):
        shim = self.waiting.pop(name, None)
        if shim is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            shim(module)

        spec.loader.exec_module = exec_module
        return spec
