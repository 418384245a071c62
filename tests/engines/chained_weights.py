"""Weights whose drafts are accepted, and whose tokens hang on the whole context.

Tokens lie on a circle: the vector of token k + 1 is that of token k turned once (`_turn`), and the head of the target
says "the next one". A target of the head alone would count. Its layers are random: what attention brings from the whole
context disturbs the count, so every token depends on all keys and values before it. The drafter knows only the count. A
head for each place of the block looks back exactly as far as the block's first token lies, by rotary positions alone,
and turns what it finds there as often; what the target said of earlier tokens has a small vote. So drafts are right
until the context disturbs: 1 to all of a block are accepted, and none without the target's agreement.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

CIRCLE = 64
"""Tokens that are ever said; those of prompts lie near one of them."""
DRAFT_ROPE_THETA = 20.0
_SHARPNESS = 4.0
_VOTE = 0.1
_DISTURBANCE = 3.0
_CONTRAST = 2.5
_TOKEN = CIRCLE
"""Dimensions of a token's vector: two for each of the frequencies below, which make any two tokens all but orthogonal.
Behind them one that is the same for every token, and some that nothing reads but the random layers."""
SHAPES = {"hidden_size": _TOKEN + 32, "intermediate_size": 128, "head_dim": _TOKEN, "rms_norm_eps": 1e-5}
"""What a configuration must say."""
_ANGLES = 2 * math.pi * torch.arange(1, _TOKEN // 2 + 1) / CIRCLE


def _turn(times: int) -> torch.Tensor:
    """The matrix that turns a token's vector into that of the token so many further."""
    cos, sin = torch.cos(times * _ANGLES), torch.sin(times * _ANGLES)
    return torch.block_diag(*torch.stack([cos, -sin, sin, cos], -1).view(-1, 2, 2))


def _circle() -> torch.Tensor:
    """The vectors of the tokens, of length 1."""
    around = torch.arange(CIRCLE)[:, None] * _ANGLES
    return torch.stack([torch.cos(around), torch.sin(around)], -1).flatten(1) / len(_ANGLES) ** 0.5


def write_target(folder: Path, seed: int = 0) -> None:
    """Beside the configuration of a Llama or a Qwen3 with `shapes`."""
    from safetensors.torch import save_file

    config = json.loads((folder / "config.json").read_text())
    random = torch.Generator().manual_seed(seed)
    hidden, wide, tokens = config["hidden_size"], config["intermediate_size"], _TOKEN
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    circle = _circle()

    def noise(rows: int, columns: int, scale: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * scale / columns**0.5

    embedding = torch.zeros(config["vocab_size"], hidden)
    embedding[:, :tokens] = circle[torch.arange(config["vocab_size"]) % CIRCLE]
    embedding[CIRCLE:, :tokens] += noise(config["vocab_size"] - CIRCLE, tokens, 0.3)
    embedding[:, tokens] = 1.0
    embedding[-1, :tokens] = 0.0  # the mask: nothing but the constant
    head = torch.zeros(config["vocab_size"], hidden)
    head[:CIRCLE, :tokens] = circle.roll(1, 0)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.ones(hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        out = noise(hidden, heads * tokens, _DISTURBANCE / tokens**0.5)
        down = noise(hidden, wide, 0.3 * _DISTURBANCE / tokens**0.5)
        out[tokens], down[tokens] = 0.0, 0.0  # nobody writes the constant
        query, key, value = (noise(each * tokens, hidden, _CONTRAST) for each in (heads, kv_heads, kv_heads))
        for each in (query, key, value):  # … and attention does not see it: what it brings is the context's alone
            each[:, tokens] = 0.0
        weights |= {
            name + "self_attn.q_proj.weight": query,
            name + "self_attn.k_proj.weight": key,
            name + "self_attn.v_proj.weight": value / _CONTRAST,
            name + "self_attn.o_proj.weight": out,
            name + "mlp.gate_proj.weight": noise(wide, hidden, 1.0),
            name + "mlp.up_proj.weight": noise(wide, hidden, 1.0),
            name + "mlp.down_proj.weight": down,
            name + "input_layernorm.weight": torch.ones(hidden),
            name + "post_attention_layernorm.weight": torch.ones(hidden),
        }
        if config["model_type"] == "qwen3":
            weights |= {name + f"self_attn.{each}_norm.weight": torch.ones(tokens) for each in "qk"}
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / "model.safetensors")


def write_drafter(folder: Path) -> None:
    """Beside the configuration of a DFlash drafter of one layer, with a head for each drafted token."""
    from safetensors.torch import save_file

    config = json.loads((folder / "config.json").read_text())
    hidden, wide, tokens = config["hidden_size"], config["intermediate_size"], _TOKEN
    places = torch.arange(1, config["block_size"])
    rotary = DRAFT_ROPE_THETA ** (-torch.arange(0, tokens, 2) / tokens)
    # a key is the same for every token, a query that key seen from so many places further on
    query = torch.zeros(len(places) * tokens, hidden)
    back = -places[:, None] * rotary
    query[:, tokens] = torch.stack([torch.cos(back), torch.sin(back)], -1).flatten()
    key = torch.zeros(tokens, hidden)
    key[0::2, tokens] = 1.0
    value = torch.zeros(tokens, hidden)
    value[:, :tokens] = torch.eye(tokens) / (hidden / 2) ** 0.5
    out = torch.zeros(hidden, len(places) * tokens)
    out[:tokens] = torch.cat([_turn(int(place) - 1) for place in places], 1)
    features = len(config["dflash_config"]["target_layer_ids"])
    context = torch.zeros(hidden, features * hidden)
    context[:tokens, :tokens] = _VOTE * torch.eye(tokens)
    context[tokens, tokens] = 1.0
    name = "layers.0."
    weights = {
        "fc.weight": context,
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        name + "self_attn.q_proj.weight": query,
        name + "self_attn.k_proj.weight": key,
        name + "self_attn.v_proj.weight": value,
        name + "self_attn.o_proj.weight": out,
        name + "self_attn.q_norm.weight": torch.full((tokens,), _SHARPNESS),
        name + "self_attn.k_norm.weight": torch.full((tokens,), _SHARPNESS),
        name + "mlp.gate_proj.weight": torch.zeros(wide, hidden),
        name + "mlp.up_proj.weight": torch.zeros(wide, hidden),
        name + "mlp.down_proj.weight": torch.zeros(hidden, wide),
        name + "input_layernorm.weight": torch.ones(hidden),
        name + "post_attention_layernorm.weight": torch.ones(hidden),
    }
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / "model.safetensors")
