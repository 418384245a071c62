"""Programs that know nothing of us, run with the hook: which ranges and marks they leave, process by process."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_engine import TABLE, Toy, only_file, ranges

import dflash_bench
from dflash_bench.annotate.sinks import SinkKind


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


RUN = "from toy.engine import Loop\nLoop().run(4)\n"


def test_conditions_hold_and_ranges_nest_as_the_table_says(toy):
    toy.run(RUN)
    (count,) = toy.processes()
    # the fifth call finds nothing to do: it closes the last step and opens none
    assert count == {"decode_step": 3, "schedule": 5, "prepare_for_decode": 4, "kv_alloc": 2, "make": 1}
    found = ranges(only_file(toy))
    steps = [(start, end) for name, start, end in found if name == "decode_step"]
    for name, start, end in found:
        holders = [n for n, s, e in found if (s, e) != (start, end) and s <= start and end <= e]
        if name == "kv_alloc":
            assert "prepare_for_decode" in holders
        if name == "prepare_for_decode" and start < steps[-1][1]:
            assert holders == ["decode_step"]
    assert all(end <= after for (_, end), (after, _) in itertools.pairwise(steps))


def test_a_process_says_its_rank_its_engine_and_its_version(toy):
    toy.run("from toy.engine import Loop\nLoop(3, 4).run(4)\n")
    assert set(toy.marks()) == {"dflash_bench rank=3 world=4 arm=toy", "dflash_bench engine=toy version=2.5.1"}


def test_who_it_is_is_said_again_in_the_course_of_many_steps(toy):
    toy.run("from toy.engine import Loop\nLoop(3, 4).run(1000)\n")
    assert toy.marks().count("dflash_bench rank=3 world=4 arm=toy") == 1 + 8


def test_a_function_bound_by_from_import_is_wrapped_before_it_is_bound(toy):
    toy.run("from toy.engine import taken\nassert taken(1) == 1\n")
    assert toy.processes() == [{"kv_alloc": 1}]


def test_static_and_class_methods_stay_what_they_are(toy):
    toy.run(
        "from toy.engine import Pool\n"
        "assert Pool.first(7) == 7 and Pool().first(8) == 8\n"
        "class Small(Pool):\n    size = 1\n"
        "assert type(Small.make()) is Small and type(Pool.make()) is Pool\n"
    )
    assert toy.processes() == [{"first": 2, "make": 1}]


def test_a_coroutine_is_a_range_each_time_it_runs(toy):
    toy.run(
        "import asyncio, inspect\nfrom toy.engine import Loop\nloop = Loop()\n"
        "assert inspect.iscoroutinefunction(loop.talk)\n"
        "async def both():\n    return await asyncio.gather(loop.talk(), loop.talk())\n"
        "assert asyncio.run(both()) == [3, 3]\n"
    )
    (count,) = toy.processes()
    assert count["talk"] == 2 * 3
    found = [(start, end) for name, start, end in ranges(only_file(toy)) if name == "talk"]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(found))


def test_generators_give_and_take_values_and_errors_as_before(toy):
    toy.run(
        "import asyncio, inspect\nfrom toy.engine import Loop\nloop = Loop()\n"
        "assert inspect.isgeneratorfunction(loop.tokens) and inspect.isasyncgenfunction(loop.stream)\n"
        "tokens = loop.tokens()\nassert next(tokens) == 1 and tokens.send(5) == 5\n"
        "try:\n    tokens.throw(KeyError('x'))\nexcept KeyError:\n    pass\n"
        "tokens = loop.tokens()\nnext(tokens)\ntokens.close()\n"
        "async def read():\n    return [each async for each in loop.stream()]\n"
        "assert asyncio.run(read()) == [1, 2]\n"
        "async def leave():\n    stream = loop.stream()\n"
        "    assert await anext(stream) == 1\n    await stream.aclose()\n"
        "asyncio.run(leave())\n"
    )
    (count,) = toy.processes()
    assert count["tokens"] == 3 + 2
    assert count["stream"] == 3 + 1 + 1 + 1  # three values awaited with one suspension inside, then one and the close


def test_an_error_passes_and_its_range_is_closed(toy):
    toy.run("from toy.engine import Loop\ntry:\n    Loop().prepare('x')\nexcept TypeError:\n    pass\n")
    (count,) = toy.processes()
    assert count["prepare_for_decode"] == 1
    assert all(end is not None for _, _, end in ranges(only_file(toy)))


HALVES = """
engine = "toy"
package = "toy"
step = "decode_step"
[[range]]
name = "decode_step"
target = "toy.engine:Loop.run"
when = "steps == 3"
[[range]]
name = "decode_step"
target = "toy.engine:Loop.forward"
until = "toy.engine:Loop.sample"
ends_if = "result == 'done'"
[[range]]
name = "sample"
target = "toy.engine:Loop.sample"
"""


def test_a_step_of_two_halves_lasts_from_one_function_to_the_end_of_another(toy):
    toy.run("from toy.engine import Loop\nLoop().run(4)\n", HALVES)
    found = ranges(only_file(toy))
    steps = [(start, end) for name, start, end in found if name == "decode_step"]
    samples = [(start, end) for name, start, end in found if name == "sample"]
    assert len(steps) == 4
    assert len(samples) == 4
    held = [any(a <= start and end <= b for a, b in steps) for start, end in samples]
    assert held == [True, True, True, False]  # the last forward is done, and ended its step itself


def test_halves_leave_alone_what_an_outer_function_holds_open(toy):
    toy.run("from toy.engine import Loop\nLoop().run(3)\n", HALVES)
    found = ranges(only_file(toy))
    ((start, end),) = [(s, e) for name, s, e in found if name == "decode_step"]
    assert all(start <= s and e <= end for name, s, e in found if name == "sample")


def test_what_is_missing_is_a_warning_and_the_rest_is_annotated(toy):
    missing = TABLE + (
        '[[range]]\nname = "gone"\ntarget = "toy.engine:Loop.gone"\n'
        '[[range]]\nname = "odd"\ntarget = "toy.engine:Loop.prepare"\nwhen = "batch.size > 0"\n'
        '[[range]]\nname = "old"\ntarget = "toy.engine:Loop.older"\nversions = "<2.5"\n'
    )
    done = toy.run(RUN, missing)
    (count,) = toy.processes()
    assert count["prepare_for_decode"] == 4
    warnings = {mark for mark in toy.marks() if mark.startswith("dflash_bench warning")}
    assert warnings == {
        "dflash_bench warning annotations of toy: gone: there is no toy.engine:Loop.gone",
        "dflash_bench warning annotations of toy: odd at toy.engine:Loop.prepare: "
        "'batch.size > 0' names batch, and the function has only (self, pages)",
    }
    assert "gone: there is no toy.engine:Loop.gone" in done.stderr


def test_a_call_is_the_range_that_the_table_names_for_it(toy):
    choosing = '[[range]]\nname = ["odd", "even"]\ntarget = "toy.engine:{}"\nwhich = "{}"\n'
    table = TABLE + choosing.format("Pool.take", "'odd' if pages % 2 else 'even' if self.size > 4 else None")
    toy.run(RUN, table + choosing.format("Loop.sample", "'unknown'"))
    (count,) = toy.processes()
    assert (count["odd"], count["prepare_for_decode"]) == (2, 4)
    assert not {"even", "unknown"} & count.keys()


def test_a_condition_that_fails_is_said_once_and_its_range_left_out(toy):
    table = TABLE.replace('when = "pages > 0 and free == 8"', 'when = "pages.size > 0"')
    done = toy.run(RUN, table)
    (count,) = toy.processes()
    assert "kv_alloc" not in count
    assert count["prepare_for_decode"] == 4
    assert done.stderr.count("'int' object has no attribute 'size'") == 1


SPAWNED = """
import multiprocessing
from toy.engine import Loop

def child(rank):
    Loop(rank, 2).run(3)

if __name__ == "__main__":
    context = multiprocessing.get_context("{how}")
    children = [context.Process(target=child, args=(rank,)) for rank in range(2)]
    for each in children:
        each.start()
    for each in children:
        each.join()
    assert [each.exitcode for each in children] == [0, 0]
"""


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_spawned_children_are_annotated(toy, how):
    toy.run(SPAWNED.format(how=how))
    assert [count["decode_step"] for count in toy.processes()] == [2, 2]
    assert {mark for mark in toy.marks() if "rank=" in mark} == {
        "dflash_bench rank=0 world=2 arm=toy",
        "dflash_bench rank=1 world=2 arm=toy",
    }


def test_forked_children_are_annotated_each_in_a_file_of_its_own(toy):
    program = SPAWNED.format(how="fork").replace("    context =", "    Loop(7, 8).run(2)\n    context =")
    toy.run(program)
    counts = toy.processes()
    assert [count["decode_step"] for count in counts] == [2, 2, 1]
    assert sum("rank=7" in mark for mark in toy.marks()) == 1 + 1  # at construction and in its first step


def test_two_processes_of_torchrun_are_annotated(toy):
    pytest.importorskip("torch")
    program = "import os\nfrom toy.engine import Loop\nLoop(int(os.environ['RANK']), 2).run(3)\n"
    toy.run(program, command=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"))
    assert [count["decode_step"] for count in toy.processes()] == [2, 2]


def test_a_process_that_is_killed_leaves_its_note_and_one_that_gets_sigterm_its_ranges(toy):
    program = "import os, signal\nfrom toy.engine import Loop\nLoop().run(4)\nos.kill(os.getpid(), signal.{how})\n"
    for how, left in (("SIGKILL", {"running"}), ("SIGTERM", {"sqlite"})):
        (toy.folder / "program.py").write_text(program.format(how=how))
        subprocess.run([sys.executable, toy.folder / "program.py"], env=toy.environment(TABLE), check=False)
        assert {file.suffix[1:] for file in toy.out.iterdir()} == left
        for file in toy.out.iterdir():
            file.unlink()


def test_a_sitecustomize_of_the_environment_is_kept(toy):
    (toy.folder / "lib" / "sitecustomize.py").write_text("MINE = 5\n")
    toy.run("import sitecustomize\nassert sitecustomize.MINE == 5\n" + RUN)
    assert len(toy.processes()) == 1


def test_without_nvtx_the_program_runs_and_it_is_said(toy, tmp_path):
    environment = toy.environment(TABLE, SinkKind.NVTX)
    environment["DFLASH_BENCH_ANNOTATE_NVTX"] = f"cpython-1:{tmp_path}"  # built for another Python
    blocked = "import sys\nsys.modules['nvtx'] = None\n"
    done = toy.run(blocked + RUN + "print('ran')\n", environment=environment)
    assert done.stdout == "ran\n"
    assert "nothing is annotated" in done.stderr


def bare_python(toy, program: str, sink: SinkKind) -> subprocess.CompletedProcess:
    """The program in a Python without site-packages: only the hook's folder and the engine's are on the path."""
    environment = toy.environment(TABLE, sink)
    (toy.folder / "program.py").write_text(program)
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    start = (
        "import sys, runpy; sys.path[:0] = sys.argv[2].split(':'); import sitecustomize; "
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; runpy.run_path(sys.argv[1])"
    )
    line = [base, "-S", "-c", start, toy.folder / "program.py", environment["PYTHONPATH"]]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_the_hook_needs_nothing_but_our_files_and_starts_with_no_import(toy):
    program = (
        "import sys\nbefore = set(sys.modules)\n"
        "assert not {'dflash_bench', 'tomllib', 'inspect', 'multiprocessing'} & before, before\n"
        + RUN
        + "assert 'numpy' not in sys.modules and 'typer' not in sys.modules\n"
        "assert not any('site-packages' in path for path in sys.path)\n"
    )
    bare_python(toy, program, SinkKind.RECORDER)
    assert toy.processes()[0]["decode_step"] == 3


def test_an_environment_without_nvtx_takes_ours_where_it_was_built_for_the_same_python(toy):
    program = f"import sys\n{RUN}print(sys.modules['nvtx'].__file__)\n"
    done = bare_python(toy, program, SinkKind.NVTX)
    assert done.stderr == ""
    assert Path(done.stdout.strip()).samefile(importlib.util.find_spec("nvtx").origin)


def test_our_own_folder_does_not_come_onto_the_path_of_the_program(toy):
    package = str(Path(dflash_bench.__file__).parent.parent)
    environment = toy.environment(TABLE)
    assert package not in environment["PYTHONPATH"].split(os.pathsep)
