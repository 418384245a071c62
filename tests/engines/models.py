"""Made-up models: a configuration is all that ``load_format="dummy"`` needs."""

import json

import chained_weights

VOCABULARY = 512
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "head_dim": 32}
# the least that SGLang's run-time compiled kernels take
_ON_A_GPU = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 128}


def _write(folder, device, layers, **changes):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32768 if device == "cuda" else 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16" if device == "cuda" else "float32",
        **(_ON_A_GPU if device == "cuda" else _SMALL),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def write_target(folder, device, layers=2, has_dp_attention=False, is_chained=False):
    """A Llama; a Qwen3 where attention is data parallel, which SGLang's Llama is not."""
    changes = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} if has_dp_attention else {}
    if not is_chained:
        return _write(folder, device, layers, **changes)
    _write(folder, device, layers, **changes, **chained_weights.SHAPES)
    chained_weights.write_target(folder)
    return folder


def write_drafter(folder, device, target_layers, block, is_chained=False):
    """A DFlash drafter of one layer. It may not read the target's last one: Llama records before its layers only."""
    read = [0] if target_layers < 3 else [0, target_layers - 2]
    rows = {"block_size": block, "target_layer_ids": read, "num_target_layers": target_layers}
    # on a CPU neox rope would go through a Triton kernel: interpreted, a second a step
    changes = {"layer_types": ["full_attention"], "rope_is_neox_style": False} if device == "cpu" else {}
    if is_chained:
        changes |= {"num_attention_heads": block - 1, "num_key_value_heads": 1, **chained_weights.SHAPES}
        changes["rope_theta"] = chained_weights.DRAFT_ROPE_THETA
    _write(
        folder,
        device,
        1,
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        num_target_layers=target_layers,
        block_size=block,
        dflash_config=rows | {"mask_token_id": VOCABULARY - 1},
        **changes,
    )
    if is_chained:
        chained_weights.write_drafter(folder)
    return folder


def write_llama(folder):
    """What vLLM gets."""
    return _write(folder, "cpu", 2, torch_dtype="bfloat16")
