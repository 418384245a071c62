"""The plug-in in a real SGLang on a CPU: the tokens of the unpatched engine, whatever is planted; then a live duet.

The weights are those of `chained_weights.py`: drafts are accepted one to all of a block, and one wrong slot shows.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from engines.environments import SGLANG

pytestmark = pytest.mark.engines
HAS_NSYS = shutil.which("nsys") is not None
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DFLASH = ("--weights", "chained", "--spec", "dflash", "--block", "8")
FEW_PAGES = ("--pool", "1024", "--prefix-cache")
ALL_AT_ONCE = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "1"}
"""Whoever fits now is let in, as if one token each were to come: then memory runs out and requests are sent back."""
ARMS = ("bulk", "ring", "topup")


@dataclass(frozen=True)
class Said:
    """What the program printed at its end, and what the plug-in wrote to its file."""

    json: dict
    log: str

    @property
    def tokens(self) -> tuple[str, dict[str, int]]:
        """The hash of all of them, and how often a request got how many at once."""
        return self.json["output"], self.json.get("accepted", {})


def environment(**more: str) -> dict[str, str]:
    if not SGLANG.is_there:
        pytest.skip(SGLANG.reason)
    path = os.pathsep.join([SGLANG.variables["PYTHONPATH"], str(ROOT / "impl")])
    return {**os.environ, **SGLANG.variables, "PYTHONPATH": path, **more}


def plugged(log: Path, *options: str) -> list[str]:
    return [SGLANG.python, "-m", "dflash_prep.sglang", *options, "--log", str(log), "--"]


def run(log: Path | None, options: tuple[str, ...], words: tuple[str, ...], **more: str) -> Said:
    """With the plug-in, or as it is without a log file."""
    line = [] if log is None else plugged(log, *options)
    line += [SGLANG.python, str(HERE / "sglang_tiny.py"), *words]
    done = subprocess.run(line, env=environment(**more), capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return Said(json.loads(done.stdout.splitlines()[-1]), log.read_text() if log is not None and log.exists() else "")


@functools.cache
def unpatched(*words: str) -> Said:
    return run(None, (), words)


def test_the_weights_have_drafts_accepted_one_to_all_of_a_block_and_change_no_token_of_plain_decoding():
    drafted = unpatched(*DFLASH)
    assert drafted.json["output"] == unpatched("--weights", "chained").json["output"]
    counts = drafted.json["accepted"]
    assert sorted(map(int, counts)) == list(range(1, 9))
    assert min(counts.values()) >= 5


@pytest.mark.parametrize("page_size", ["1", "16", "256"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_gives_the_tokens_of_the_unpatched_engine(tmp_path, arm, page_size):
    said = run(tmp_path / "log", ("--arm", arm, "--shadow", "20"), (*DFLASH, "--page-size", page_size))
    assert said.tokens == unpatched(*DFLASH).tokens
    assert f"arm {arm} in place of" in said.log
    assert "20 steps compared with the engine's own: no difference" in said.log


@pytest.mark.parametrize("page_size", ["1", "16"])
@pytest.mark.parametrize("arm", ARMS)
def test_the_same_where_memory_runs_out_and_requests_are_sent_back(tmp_path, arm, page_size):
    words = (*DFLASH, *FEW_PAGES, "--page-size", page_size)
    said = run(tmp_path / "log", ("--arm", arm, "--shadow", "20"), words, **ALL_AT_ONCE)
    assert said.json["retractions"] > 5
    assert said.json["output"] == unpatched(*DFLASH).json["output"]
    assert "no difference" in said.log


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_with_prompts_from_the_prefix_cache(tmp_path, arm):
    words = (*DFLASH, "--prefix-cache", "--rounds", "2")
    said = run(tmp_path / "log", ("--arm", arm, "--shadow", "20"), words)
    assert said.json["engine"]["cached_tokens"] > 0
    assert said.tokens == unpatched(*words).tokens
    assert "no difference" in said.log


@pytest.mark.parametrize("page_size", ["1", "16", "256"])
def test_ngram_does_not_go_through_what_is_replaced(tmp_path, page_size):
    words = ("--weights", "chained", "--spec", "ngram")
    said = run(tmp_path / "log", ("--arm", "topup", "--shadow", "20"), (*words, "--page-size", page_size))
    assert said.tokens == unpatched(*words).tokens
    assert said.json["engine"]["accept_len_mean"] > 2
    assert "compared" not in said.log


def test_one_wrong_slot_shows_in_the_tokens(tmp_path):
    """Planted behind the plan, where no comparison looks: two requests read one slot of each other's prompt."""
    words = (*DFLASH, "--page-size", "1")
    said = run(tmp_path / "log", ("--arm", "topup"), words, ENGINE_PLANT="rows swapped")
    assert said.json["output"] != unpatched(*DFLASH).json["output"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("a wrong slot", "cur_kv_lens of request 0 is"),
        ("a short page count", "num_needed_tokens is"),
        ("a stale length", "seq_lens_cpu of request 0 is"),
        ("a crash", "IndexError: planted"),
    ],
)
def test_a_planted_fault_is_seen_and_the_engine_goes_on_with_its_own_code(tmp_path, fault, says):
    said = run(tmp_path / "log", ("--arm", "topup", "--shadow", "100000"), DFLASH, ENGINE_PLANT=fault)
    assert "the engine goes on with its own preparation: " in said.log
    assert says in said.log
    assert said.tokens == unpatched(*DFLASH).tokens


def test_turns_change_no_token(tmp_path):
    said = run(tmp_path / "log", ("--arm", "topup", "--duet", "4", "--refill", "2"), DFLASH)
    assert said.tokens == unpatched(*DFLASH).tokens


NSYS = pytest.param(None, marks=[pytest.mark.nsys, pytest.mark.skipif(not HAS_NSYS, reason="no nsys here")], id="nsys")


@pytest.mark.parametrize("recorder", ["--recorder", NSYS])
@pytest.mark.timeout(400)
def test_one_capture_of_live_traffic_decides_between_upstream_and_the_arm(tmp_path, recorder):
    bench = [sys.executable, "-m", "dflash_bench"]
    line = [*bench, "capture", "--annotate", "sglang", *filter(None, [recorder])]
    line += ["--profiles", str(tmp_path), "--name", "turns", "--"]
    line += plugged(tmp_path / "log", "--arm", "topup", "--duet", "16", "--refill", "8")
    line += [SGLANG.python, str(HERE / "sglang_tiny.py"), *DFLASH, "--rounds", "8", "--tokens", "300", "--quiet-engine"]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    line = [*bench, "compare", "turns", "--profiles", str(tmp_path), "--json"]
    found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert (found["base"]["arm"], found["candidate"]["arm"]) == ("upstream", "topup")
    (share,) = [row for row in found["verdicts"] if row["metric"] == "alloc.step_share"]
    assert share["verdict"] == "improved"
    assert share["candidate"] < 0.5 < share["base"]


def test_off_leaves_the_engine_alone(tmp_path):
    said = run(tmp_path / "log", ("--arm", "off"), DFLASH)
    assert (said.tokens, said.log) == (unpatched(*DFLASH).tokens, "")


def test_one_function_that_differs_is_refused_with_one_sentence(tmp_path):
    whole, own = SGLANG.folder / "wheel" / "sglang", tmp_path / "sglang"
    if not SGLANG.is_there:
        pytest.skip(SGLANG.reason)
    for folder in ("", "srt", "srt/mem_cache"):
        (own / folder).mkdir()
        for each in (whole / folder).iterdir():
            if each.name not in ("srt", "mem_cache"):
                (own / folder / each.name).symlink_to(each)
    changed = own / "srt" / "mem_cache" / "allocation.py"
    text = changed.read_text()
    changed.unlink()
    changed.write_text(text.replace("if num_needed_tokens > 0:", "if num_needed_tokens >= 1:"))
    path = environment()["PYTHONPATH"]
    line = [*plugged(tmp_path / "log", "--arm", "topup"), "true"]
    more = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), path]))
    done = subprocess.run(line, env=more, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: this SGLang is not one that the plug-in was compared with: alloc_for_spec_decode is not as in 0.5.23\n"
    )


def post(address: str, body: dict) -> dict:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def tokens_over_http(tmp_path: Path, line: list[str], log: Path) -> list[list[int]]:
    """Of one request to a server that is then told to end, by SIGTERM, and does, with 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "models"
    if not folder.exists():
        folder.mkdir()
        code = (
            "import pathlib, sys, models; folder = pathlib.Path(sys.argv[1]); "
            "models.write_target(folder / 'target', 'cpu', 2, False, True); "
            "models.write_drafter(folder / 'draft', 'cpu', 2, 8, True)"
        )
        subprocess.run([SGLANG.python, "-c", code, str(folder)], env=environment(), check=True)
    line += [SGLANG.python, "-m", "sglang.launch_server", "--model-path", str(folder / "target"), "--device", "cpu"]
    line += ["--speculative-draft-model-path", str(folder / "draft"), "--speculative-algorithm", "DFLASH"]
    line += ["--speculative-num-draft-tokens", "8", "--dtype", "float32", "--attention-backend", "torch_native"]
    line += ["--disable-cuda-graph", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
    line += ["--skip-tokenizer-init", "--max-total-tokens", "4096", "--page-size", "16", "--port", str(port)]
    own = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as said:
        server = subprocess.Popen(line, env=environment(**own), stdout=said, stderr=subprocess.STDOUT)
    body = {"input_ids": [[*range(5, 30)]] * 4}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    try:
        until = time.monotonic() + 200
        while True:
            try:
                answers = post(f"http://127.0.0.1:{port}/generate", body)
                break
            except OSError:
                assert server.poll() is None, log.read_text()[-5000:]
                assert time.monotonic() < until, log.read_text()[-5000:]
                time.sleep(0.5)
        server.terminate()
        assert server.wait(60) == 0, log.read_text()[-5000:]
    finally:
        server.kill()
    return [answer["output_ids"] for answer in answers]


@pytest.mark.timeout(900)
def test_a_server_answers_over_http_as_without_the_plug_in_ends_with_sigterm_and_starts_again_as_it_was(tmp_path):
    said = tmp_path / "log"
    options = ("--arm", "topup", "--shadow", "10")
    patched = tokens_over_http(tmp_path, plugged(said, *options), tmp_path / "patched")
    assert "10 steps compared with the engine's own: no difference" in said.read_text()
    written = said.read_text()
    assert tokens_over_http(tmp_path, [], tmp_path / "again") == patched
    assert said.read_text() == written
