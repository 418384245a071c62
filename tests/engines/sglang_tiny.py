"""A real SGLang engine decoding with a made-up model, on a CPU or a GPU: no download, no tokenizer.

    ENGINE_STUBS=cpu PYTHONPATH=tests/engines/site:tests/engines:WHEEL python sglang_tiny.py --page-size 16

Target and drafter have random weights, their folders are made here and removed at the end; prompts are token ids. The
engine is SGLang's own, its scheduler in a child process. Random weights accept no drafts, so ``--accept`` has the
engine's own switch for benchmarks force the mean number of tokens a step. The last line on stdout is JSON: ``expected``
says what a capture must hold, from page size and lengths alone, ``engine`` what the engine's log counted, ``output`` is
a hash of all tokens, which drafts must not change.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import expected
import models

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "1")
WARM_UP_TOKENS = {"cpu": 4, "cuda": 64}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100, help="of each request")
    parser.add_argument("--prompt", type=int, nargs=2, default=(16, 63), metavar=("LEAST", "MOST"))
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--no-overlap", action="store_true", help="the scheduler's plain loop")
    parser.add_argument("--spec", choices=["none", "ngram", "dflash"], default="none")
    parser.add_argument("--block", type=int, default=4, help="drafted tokens")
    parser.add_argument(
        "--weights",
        choices=["dummy", "chained"],
        default="dummy",
        help="chained: drafts are right until the context disturbs them (chained_weights.py)",
    )
    parser.add_argument("--pool", type=int, help="tokens of the KV pool: few make the scheduler retract requests")
    parser.add_argument("--prefix-cache", action="store_true", help="keep the radix cache on")
    parser.add_argument("--accept", type=float, default=0.0, help="mean tokens a step to force; 0: as verified")
    parser.add_argument(
        "--layers", type=int, help="of the target; default 2 on a CPU, 3 on a GPU, where it is the least"
    )
    parser.add_argument("--dp", type=int, default=1, help="ranks with DP attention, over gloo, a core each")
    parser.add_argument("--warm-up", type=int, help="requests of the warm-up: ranks that get none idle")
    parser.add_argument("--profile-steps", type=int, default=0, help="CUDA profiler range of so many forwards")
    parser.add_argument("--profile-after", type=float, default=1.0, help="seconds into the measured round")
    parser.add_argument("--quiet-engine", action="store_true", help="no log line a step, and so no count by the engine")
    args = parser.parse_args()
    args.layers = args.layers or {"cpu": 2, "cuda": 3}[args.device]
    args.warm_up = args.warm_up or {"cpu": 1, "cuda": args.requests}[args.device]
    return args


def prepare_environment(args):
    """Before torch is loaded."""
    if args.accept:
        os.environ["SGLANG_SIMULATE_ACC_LEN"] = str(args.accept)
    if args.device == "cpu":
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    if args.dp > 1:  # SGLang asks for the cores if there are more ranks than NUMA nodes
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, range(args.dp))))
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def engine_options(args, folder):
    is_chained = args.weights == "chained"
    options = {
        "model_path": str(models.write_target(folder / "model", args.device, args.layers, args.dp > 1, is_chained)),
        "load_format": "auto" if is_chained else "dummy",
        "skip_tokenizer_init": True,
        "device": args.device,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_radix_cache": not args.prefix_cache,
        "disable_overlap_schedule": args.no_overlap,
        "context_length": args.context,
        "max_running_requests": args.requests,
        "page_size": args.page_size,
        "log_level": "error" if args.quiet_engine else "info",
    }
    options |= on_a_cpu(args) if args.device == "cpu" else on_a_gpu(args)
    if args.spec == "ngram":  # drafts in a row: plain torch attention has no tree mask
        options |= {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": args.block}
        options["speculative_ngram_max_bfs_breadth"] = 1
    if args.spec == "dflash":
        options |= {"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": args.block}
        drafter = models.write_drafter(folder / "draft", args.device, args.layers, args.block, is_chained)
        options["speculative_draft_model_path"] = str(drafter)
        if args.device == "cuda":
            options["speculative_draft_attention_backend"] = "triton"
            options["speculative_draft_load_format"] = options["load_format"]
    if args.pool:  # and let in whoever fits now, or nobody would ever be sent back: not without --prefix-cache
        options |= {"max_total_tokens": args.pool, "schedule_conservativeness": 0.01}
    return options


def on_a_cpu(args):
    found = {
        "dtype": "float32",  # a near tie is one in a million tokens then, whatever else is in the batch
        "attention_backend": "torch_native",
        "disable_cuda_graph": True,
        "max_total_tokens": args.requests * 1024,
        "decode_log_interval": 1,
        "random_seed": 0,
    }
    if args.dp > 1:  # DFlash needs a head of each rank's own
        found |= {"tp_size": args.dp, "dp_size": args.dp, "enable_dp_attention": True, "enable_dp_lm_head": True}
    return found


def on_a_gpu(args):
    row = -(-args.context // args.page_size) * args.page_size + 4 * args.page_size
    return {
        "dtype": "bfloat16",
        "attention_backend": "triton",
        "max_total_tokens": args.requests * row,
        "mem_fraction_static": 0.5,
        "chunked_prefill_size": 16384,
        "random_seed": 1,
        "watchdog_timeout": 400,
        "skip_server_warmup": True,
        "cuda_graph_config": {
            "decode": {"bs": sorted({1, args.requests}), "max_bs": args.requests},
            "prefill": {"backend": "disabled"},
        },
    }


@contextlib.contextmanager
def stderr_into(path):
    """This process's stderr, and that of its children, in a file; its end is shown if something fails."""
    own = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(own, path.read_bytes()[-8000:])
        raise
    finally:
        os.dup2(own, 2)
        os.close(own)


class Rounds:
    """Rounds of requests, all begun together: token ids without text travel as one message."""

    def __init__(self, engine, args):
        self.engine, self.args, self.digest, self.found = engine, args, hashlib.sha256(), []
        self.accepted, self.retractions = Counter(), 0

    def run(self, prompts, tokens):
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        began = time.perf_counter()
        outputs = self.engine.loop.run_until_complete(self._outputs(prompts, sampling))
        seconds = time.perf_counter() - began
        assert all(len(output["output_ids"]) == tokens for output in outputs)
        self.retractions += sum(output["meta_info"].get("num_retractions", 0) for output in outputs)
        for output in outputs:  # how many steps gave a request 1, 2, … tokens
            histogram = output["meta_info"].get("spec_correct_drafts_histogram") or []
            self.accepted.update({length: count for length, count in enumerate(histogram, 1) if count})
        self.digest.update(json.dumps([output["output_ids"] for output in outputs]).encode())
        self.found.append({"tokens": tokens * len(prompts), "seconds": round(seconds, 4)})

    async def _outputs(self, prompts, sampling):
        work = asyncio.ensure_future(self.engine.async_generate(input_ids=prompts, sampling_params=sampling))
        if self.args.profile_steps and sampling["max_new_tokens"] == self.args.tokens:
            from sglang.srt.managers.io_struct import ProfileReq

            await asyncio.sleep(self.args.profile_after)
            request = ProfileReq(num_steps=self.args.profile_steps, activities=["CUDA_PROFILER"])
            profile = asyncio.ensure_future(self.engine.tokenizer_manager.start_profile(request))
            outputs = await work
            profile.cancel()
            return outputs
        return await work


def counted_by_the_engine(log):
    kinds = re.findall(r"\b(Prefill|Decode) batch", log)
    found = {"prefill_batches": kinds.count("Prefill"), "decode_batches": kinds.count("Decode")}
    if cached := re.findall(r"#cached-token: (\d+)", log):
        found["cached_tokens"] = sum(map(int, cached))
    if accepted := [float(each) for each in re.findall(r"accept len: ([\d.]+)", log)]:
        found["accept_len_mean"] = round(sum(accepted) / len(accepted), 3)
        found["accept_len_max"] = max(accepted)
    return found


def main():
    args = arguments()
    prepare_environment(args)
    from sglang.srt.entrypoints.engine import Engine
    from sglang.version import __version__

    rng = random.Random(0)
    # prompts of unlike lengths, so that requests cross a page's end in different steps
    lengths = [rng.randrange(args.prompt[0], args.prompt[1] + 1) for _ in range(args.requests)]
    prompts = [[rng.randrange(3, models.VOCABULARY) for _ in range(n)] for n in lengths]
    warm_up = WARM_UP_TOKENS[args.device]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with stderr_into(log):
            began = time.perf_counter()
            engine = Engine(**engine_options(args, Path(name)))
            ready = time.perf_counter() - began
            rounds = Rounds(engine, args)
            rounds.run(prompts[: args.warm_up], warm_up)
            for _ in range(args.rounds):
                rounds.run(prompts, args.tokens)
            if args.device == "cuda":
                time.sleep(2.0)  # nsys fetches what the profiler range left
            engine.shutdown()
        said = log.read_text(errors="replace")
    found = {
        "sglang": __version__, "engine_s": round(ready, 1), "rounds": rounds.found[1:],
        "output": rounds.digest.hexdigest()[:16],
    }  # fmt: skip
    if args.pool:
        found["retractions"] = rounds.retractions
    if rounds.accepted:
        found["accepted"] = dict(sorted(rounds.accepted.items()))
    if "stubs" in sys.modules:
        found["stubs"] = sorted({name.partition(".")[0] for name in sys.modules["stubs"].LOADED})
    if not args.quiet_engine:
        found["engine"] = counted_by_the_engine(said)
    is_plain = args.spec == "none" or (args.spec == "dflash" and found.get("engine", {}).get("accept_len_max") == 1.0)
    if is_plain and args.dp == 1 and args.device == "cpu":  # which rank gets which request is not known ahead
        each_round = [(lengths[: args.warm_up], warm_up)] + [(lengths, args.tokens)] * args.rounds
        found["expected"] = expected.of_sglang(each_round, args.page_size, args.block, args.spec, not args.no_overlap)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
