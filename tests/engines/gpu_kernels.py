"""What SGLang calls of packages that do not fit this machine's torch, by what it compiles itself.

``sgl_kernel`` is built for the torch that SGLang pins. Two modules of SGLang want what is not there: CUTLASS's DSL
(every dense layer asks whether it may be used) and FlashInfer (verification by sampling; without it the engine
verifies greedily).
"""

DUAL_GEMM = "sglang.kernels.ops.gemm.cutedsl_dual_gemm"
SAMPLING = "sglang.kernels.ops.speculative.sampling"
REPLACED = {"cutlass": DUAL_GEMM, "flashinfer": SAMPLING}


def weak_ref_tensor(tensor):
    """Theirs shares the storage without owning it; this one owns it, which costs memory only."""
    return tensor


def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    from sglang.kernels.ops.layernorm.norm import rmsnorm as compiled

    out = input.new_empty(input.shape) if out is None else out
    compiled(input, weight, out, eps)
    return out


def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    """Both tensors are changed in place."""
    from sglang.kernels.ops.layernorm.norm import fused_add_rmsnorm as compiled

    compiled(input, residual, weight, eps)


_REAL = {
    ("sgl_kernel", "weak_ref_tensor"): weak_ref_tensor,
    ("sgl_kernel", "rmsnorm"): rmsnorm,
    ("sgl_kernel", "fused_add_rmsnorm"): fused_add_rmsnorm,
    ("sgl_kernel.utils", "is_arch_support_pdl"): lambda *args: True,  # a Hopper's answer
    (DUAL_GEMM, "can_use_dual_gemm"): lambda *args, **kwargs: False,
    (DUAL_GEMM, "MAX_DUAL_GEMM_DECODE_TOKENS"): 0,
    (SAMPLING, "tree_speculative_sampling_target_only"): None,
}


def real(module, name):
    """The attribute of a stand-in module."""
    from stubs import made_up

    return _REAL[module, name] if (module, name) in _REAL else made_up(name)
