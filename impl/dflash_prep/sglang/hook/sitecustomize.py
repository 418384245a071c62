"""Python runs this in each process of the engine, before its program. It imports nothing until the engine loads its
draft input; then that module's function is replaced. Whatever `sitecustomize` stood here before is run as well.
"""

import os
import sys

_MODULE = "sglang.srt.speculative.dflash_info_v2"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watcher:
    """Lets the finders behind it find the module, and steps in when it has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None and hasattr(spec.loader, "exec_module"):
                run = spec.loader.exec_module

                def exec_module(module, run=run):
                    run(module)
                    _install(module)

                spec.loader.exec_module = exec_module
                return spec
        return None


def _install(module):
    try:
        from dflash_prep.sglang.install import PlugOptions, install

        options = PlugOptions.from_environment(os.environ)
        if options is not None and (options.arm != "off" or options.duet):
            install(module, options)
    except Exception as error:  # the engine must start, whatever is wrong with us
        sys.stderr.write(f"dflash_prep.sglang: not installed: {type(error).__name__}: {error}\n")


def _run_the_next_sitecustomize():
    # those in front of this one were run before it, so only what is behind it is looked at
    folders = list(dict.fromkeys(os.path.abspath(folder or os.curdir) for folder in sys.path))
    for folder in folders[folders.index(_HERE) + 1 :] if _HERE in folders else []:
        file = os.path.join(folder, "sitecustomize.py")
        if os.path.isfile(file):
            with open(file, "rb") as text:
                code = compile(text.read(), file, "exec")
            exec(code, {"__name__": "sitecustomize", "__file__": file})
            return


if os.environ.get("DFLASH_PREP_SGLANG"):
    sys.meta_path.insert(0, _Watcher())
_run_the_next_sitecustomize()
