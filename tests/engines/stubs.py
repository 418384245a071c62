"""Stands in for packages that SGLang imports and a machine lacks, and for what its paths without a GPU need.

``install()`` puts one finder behind all others: what is installed comes first, and of the rest only the names
below are made up. A made-up module has any attribute asked of it: a class that can be subclassed, called and used as a
decorator. What is really called of these packages is in the two files of kernels. ``LOADED`` lists what was taken.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

import cpu_kernels
import gpu_kernels
from shims import Shims

# SGLang's kernels, other kernels and their compilers, and what only other models, devices or front ends use
WITHOUT_A_GPU = (
    "sgl_kernel", "tvm_ffi", "flashinfer", "deep_gemm", "cuda", "cutlass", "tilelang", "flash_attn", "quack",
    "torchao", "xgrammar", "llguidance", "outlines", "compressed_tensors", "gguf", "torchvision", "torchaudio",
    "torch_memory_saver", "nvshmem", "sgl_flash_mla", "humming", "kernels", "triton_kernels", "deep_ep",
    "mistral_common", "soundfile", "av", "decord", "timm", "datasets", "modelscope", "blobfile", "openai_harmony",
    "anthropic", "tiktoken", "pynvml", "redis", "IPython", "triton",
)  # fmt: skip
# as few as possible: transformers probes some packages with find_spec and believes what it finds
WITH_A_GPU = ("IPython", "sgl_kernel", "llguidance", "outlines")
LOADED: list[str] = []


class _Meta(type):
    """Attributes, subscripts and unions of a made-up class are made up too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return made_up(name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())

    def __instancecheck__(cls, instance):
        return type(instance) is cls


def _decorated(args, kwargs):
    return len(args) == 1 and callable(args[0]) and not kwargs


def made_up(name):
    """A class of that name; called with one function it gives it back, as a decorator would."""

    def new(cls, *args, **kwargs):
        return args[0] if _decorated(args, kwargs) else object.__new__(cls)

    def attribute(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return made_up(name)

    def call(self, *args, **kwargs):
        return args[0] if _decorated(args, kwargs) else None

    def schema(cls, source, handler):  # a field of a pydantic model can have such a type
        from pydantic_core import core_schema

        return core_schema.any_schema()

    members = {
        "__new__": new,
        "__init__": lambda self, *args, **kwargs: None,
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__getattr__": attribute,
        "__call__": call,
        "__version__": "0",
        "__get_pydantic_core_schema__": classmethod(schema),
    }
    return _Meta(name, (), members)


class Finder:
    """Finds a made-up module for every name in or under the given ones. ``real``: what is not made up of them."""

    def __init__(self, names, real):
        self.names, self.real = tuple(names), real

    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        LOADED.append(module.__name__)
        module.__path__, module.__all__, module.__version__ = [], [], "999.0"

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            value = self.real(module.__name__, name)
            setattr(module, name, value)
            return value

        module.__getattr__ = attribute


def install(device=None):
    """For ``cpu`` or ``cuda``, by default as the environment says; once a process."""
    if any(isinstance(each, Finder) for each in sys.meta_path):
        return
    if (device or os.environ["ENGINE_STUBS"]) == "cpu":
        sys.meta_path.append(Finder(WITHOUT_A_GPU, cpu_kernels.real))
        sys.meta_path.insert(0, Shims(cpu_kernels.SHIMS))
        return
    find = importlib.machinery.PathFinder.find_spec
    replaced = [module for wants, module in gpu_kernels.REPLACED.items() if find(wants) is None]
    sys.meta_path.insert(0, Finder(replaced, gpu_kernels.real))
    sys.meta_path.append(Finder(WITH_A_GPU, gpu_kernels.real))
