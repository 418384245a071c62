"""A real vLLM engine decoding with a made-up model: no GPU, no download, no tokenizer.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 python tests/engines/vllm_tiny.py --spec ngram

A Llama of two layers with random weights; prompts are token ids. The last line on stdout is JSON. Without drafts and
with the engine in this process its ``expected`` says what a capture of the run must hold: all requests enter in one
step, so their lengths say which steps take KV blocks.
"""

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

import expected
import models

WARM_UP_TOKENS = 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--spec", choices=["none", "ngram"], default="none")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tp", type=int, default=1)
    args = parser.parse_args()
    for variable, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("HF_HUB_OFFLINE", "1")):
        os.environ.setdefault(variable, value)
    return args


def made_up_prompts(num):
    """Of unlike lengths, so that requests cross a block's end in different steps."""
    rng = random.Random(0)
    lengths = [rng.randrange(16, 64) for _ in range(num)]
    return [{"prompt_token_ids": [rng.randrange(3, models.VOCABULARY) for _ in range(n)]} for n in lengths]


def generate(llm, prompts, tokens):
    """The seconds that it takes."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return round(time.perf_counter() - began, 4)


def engine_of(folder, args, speculative=None):
    """An engine with a made-up model, in this process or as the environment says."""
    from vllm import LLM

    return LLM(
        model=str(models.write_llama(folder / "model")),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=args.requests,
        block_size=args.block_size,
        tensor_parallel_size=args.tp,
        enable_prefix_caching=False,
        speculative_config=speculative,
        seed=0,
    )


def main():
    args = arguments()
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": args.draft_tokens,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    prompts = made_up_prompts(args.requests)
    lengths = [len(each["prompt_token_ids"]) for each in prompts]
    with tempfile.TemporaryDirectory() as name:
        llm = engine_of(Path(name), args, ngram if args.spec == "ngram" else None)
        generate(llm, prompts[:1], WARM_UP_TOKENS)
        found = {"rounds": [generate(llm, prompts, args.tokens) for _ in range(args.rounds)]}
        if args.spec == "none" and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
            each_round = [(lengths[:1], WARM_UP_TOKENS)] + [(lengths, args.tokens)] * args.rounds
            found["expected"] = expected.of_vllm(each_round, args.block_size)
        print(json.dumps(found), flush=True)
        del llm


if __name__ == "__main__":
    main()
