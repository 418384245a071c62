"""The nsys command lines, as --dry-run shows them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from dflash_bench.capture import nsys
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import (
    ProfileOptions,
    TraceKind,
    export_command,
    import_command,
    parse_traces,
    profile_command,
    shell_line,
)
from dflash_bench.errors import UsageError

TOOL = NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter"))
INSTALLED = nsys.find_nsys()
EVERYTHING = (
    ProfileOptions(capture_range="cudaProfilerApi"),
    ProfileOptions(capture_range="decode_step@dflash", kill="none"),
    ProfileOptions(traces=(TraceKind.NVTX,), delay_s=5, duration_s=30, kill="sigterm", wait="all"),
)


def test_the_plain_line_traces_cuda_and_nvtx_without_sampling_and_exports() -> None:
    line = shlex.join(profile_command(TOOL, "out/rank%q{RANK}", ["python", "x.py", "--a b"]))
    assert line == (
        "/opt/nsys profile -t cuda,nvtx -s none --cpuctxsw=none --trace-fork-before-exec=true --wait=primary "
        "--export=sqlite --force-overwrite=true -o 'out/rank%q{RANK}' python x.py '--a b'"
    )


def test_a_capture_range_never_ends_the_program_with_it() -> None:
    for options in EVERYTHING[:2]:
        line = profile_command(TOOL, "o", ["x"], options)
        assert "--capture-range-end=stop" in line
    assert "--capture-range=cudaProfilerApi" in profile_command(TOOL, "o", ["x"], EVERYTHING[0])


def test_a_range_is_looked_for_in_any_domain_unless_one_is_named() -> None:
    bare = profile_command(TOOL, "o", ["x"], ProfileOptions(capture_range="decode_step"))
    named = profile_command(TOOL, "o", ["x"], ProfileOptions(capture_range="decode_step@dflash"))
    assert "--nvtx-capture=decode_step@*" in bare
    assert "--nvtx-capture=decode_step@dflash" in named


def test_a_window_by_time_and_what_follows_it() -> None:
    line = profile_command(TOOL, "o", ["x"], EVERYTHING[2])
    assert {"--delay=5", "--duration=30", "--kill=sigterm", "--wait=all"} <= set(line)
    assert line[line.index("-t") + 1] == "nvtx"


def test_two_ways_of_saying_when_to_record_are_refused() -> None:
    with pytest.raises(UsageError, match="both say when"):
        ProfileOptions(capture_range="x", delay_s=1)
    with pytest.raises(UsageError, match="needs CUDA tracing"):
        ProfileOptions(traces=(TraceKind.NVTX,), capture_range="cudaProfilerApi")
    with pytest.raises(UsageError, match="nothing to trace"):
        ProfileOptions(traces=())


def test_traces_are_named_and_others_refused() -> None:
    assert parse_traces("nvtx, cuda,nvtx") == (TraceKind.NVTX, TraceKind.CUDA)
    with pytest.raises(UsageError, match="cannot trace 'opengl'"):
        parse_traces("opengl")


def test_converting_lines_name_input_and_output() -> None:
    assert export_command(TOOL, Path("a.nsys-rep"), Path("a.sqlite"))[-3:] == ["-o", "a.sqlite", "a.nsys-rep"]
    line = import_command(Path("/opt/QdstrmImporter"), Path("a.qdstrm"), Path("a.nsys-rep"))
    assert line == ["/opt/QdstrmImporter", "--force-overwrite", "--output-file=a.nsys-rep", "--input-file=a.qdstrm"]


def test_a_shown_line_can_be_pasted_into_a_shell() -> None:
    text = shell_line(["echo", "a b", "$HOME", "%q{RANK}"], {"X": "1 2"})
    assert text == "X='1 2' echo 'a b' '$HOME' '%q{RANK}'"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "a b $HOME %q{RANK}\n"


@pytest.mark.nsys
@pytest.mark.skipif(INSTALLED is None, reason="no nsys here")
def test_the_installed_nsys_knows_every_option_that_is_used() -> None:
    assert INSTALLED is not None
    known = subprocess.run([INSTALLED.path, "profile", "--help"], capture_output=True, text=True, check=False)
    options = set(re.findall(r"(?:^|\s)(--?[a-z][a-z-]*)(?==|,|\s)", known.stdout + known.stderr))
    for chosen in EVERYTHING:
        line = profile_command(INSTALLED, "o", [], chosen)
        used = {part.partition("=")[0] for part in line if part.startswith("-")}
        assert used <= options, used - options
