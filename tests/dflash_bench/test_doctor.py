"""The doctor: facts become checks, every problem has the command that mends it, and the self-tests really capture."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_bench.capture import nsys
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.cli import app
from dflash_bench.doctor.checks import CheckStatus, MachineCheck, _nsys_for, machine_checks
from dflash_bench.doctor.facts import FOR_THE_LOOP, NEEDED, MachineFacts, _driver_from_proc, _parse_smi, machine_facts
from dflash_bench.doctor.self_test import self_tests, ways_to_capture

OLD = NsysTool(Path("/usr/bin/nsys"), (2022, 4, 2, 1), Path("/usr/lib/QdstrmImporter"))
PACKAGES = dict.fromkeys((*NEEDED, *FOR_THE_LOOP), "1.0")
CPU = MachineFacts("3.11.7", PACKAGES, "0.2.11", (OLD,), (), None, None)
GPU = replace(CPU, gpus=("NVIDIA H200",), driver="580.159.04", cuda=(13, 0))
INSTALLED = nsys.find_nsys()


def found(facts: MachineFacts, name: str) -> MachineCheck:
    (check,) = [check for check in machine_checks(facts) if check.name == name]
    return check


def test_a_cpu_machine_with_an_old_nsys_ways_to_capture_host_ranges_only() -> None:
    assert {check.status for check in machine_checks(CPU)} == {CheckStatus.OK, CheckStatus.WARN}
    assert "host ranges only" in found(CPU, "GPU").what


def test_every_problem_names_what_mends_it() -> None:
    broken = MachineFacts(
        "3.11.7",
        {**PACKAGES, "pyarrow": None, "torch": None},
        None,
        (replace(OLD, missing_libs=("libdw.so.1",), mend="apt-get install libdw1"), replace(OLD, importer=None)),
        ("NVIDIA H200",),
        "580.1",
        (13, 0),
    )
    problems = [check for check in machine_checks(broken) if check.status is not CheckStatus.OK]
    assert {check.mend for check in problems} >= {
        "pip install pyarrow",
        "pip install nvtx",
        "apt-get install libdw1",
        'pip install "dflash-bench[impl]"',
    }
    assert all(check.mend for check in problems)


def test_without_nsys_the_recorder_is_what_is_left() -> None:
    check = found(replace(CPU, tools=()), "nsys")
    assert check.status is CheckStatus.WARN
    assert "only the built-in recorder is left" in check.what
    assert check.mend is not None


@pytest.mark.parametrize(
    ("version", "status", "what"),
    [
        ((2023, 4, 4), CheckStatus.WARN, "no launches and no GPU work"),
        ((2025, 1, 3), CheckStatus.WARN, "no launches and no GPU work"),
        ((2025, 3, 1, 0), CheckStatus.OK, "knows the driver's CUDA 13.0"),
        ((2026, 1, 1), CheckStatus.OK, "knows"),
    ],
)
def test_an_nsys_older_than_the_cuda_driver_sees_the_host_only(
    version: tuple[int, ...], status: CheckStatus, what: str
) -> None:
    tool = replace(OLD, version=version)
    check = found(replace(GPU, tools=(tool,)), f"nsys {tool.version_text}: driver")
    assert check.status is status
    assert what in check.what


def test_an_nsys_of_the_same_cuda_major_may_miss_rows() -> None:
    tool = replace(OLD, version=(2024, 5, 1))
    check = found(replace(GPU, cuda=(12, 8), tools=(tool,)), "nsys 2024.5.1: driver")
    assert check.status is CheckStatus.WARN
    assert "some GPU rows may be missing" in check.what
    assert check.mend == "use nsys 2024.6 or later"


def test_the_nsys_for_a_cuda_release_is_the_one_it_brought_along() -> None:
    assert _nsys_for((13, 0)) == (2025, 3)
    assert _nsys_for((12, 7)) == (2024, 5)
    assert _nsys_for((14, 0)) == (2025, 5)
    assert _nsys_for((10, 2)) is None


def test_the_nvtx_trap_is_a_failure_with_its_cure() -> None:
    check = found(replace(CPU, nvtx="0.2.17"), "nsys 2022.4.2.1: nvtx")
    assert check.status is CheckStatus.FAIL
    assert check.mend is not None
    assert 'pip install "nvtx<0.2.12"' in check.mend


def test_nvidia_smi_is_read_as_it_prints() -> None:
    banner = "| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |"
    query = "NVIDIA H200, 580.159.04\nNVIDIA H200, 580.159.04\n"
    assert _parse_smi(query, banner) == (("NVIDIA H200", "NVIDIA H200"), "580.159.04", (13, 0))
    assert _parse_smi("", "NVIDIA-SMI has failed") == ((), None, None)


def test_the_driver_version_is_read_from_proc_when_nvidia_smi_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 15\n"
    )
    assert _driver_from_proc(path) == "580.159.04"
    assert _driver_from_proc(tmp_path / "absent") is None


def test_the_recorder_self_test_really_captures() -> None:
    (check,) = self_tests(replace(CPU, tools=()))
    assert check == MachineCheck(
        "self-test: built-in recorder", CheckStatus.OK, "captured 10 of 10 ranges and read them back"
    )
    assert ways_to_capture((check,)) == ("built-in recorder",)


def test_an_nsys_that_records_nothing_fails_its_self_test(tmp_path: Path) -> None:
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    first, second = self_tests(replace(CPU, tools=(replace(OLD, path=fake),)))
    assert first.status is CheckStatus.FAIL
    assert "wrote no report" in first.what
    assert ways_to_capture((first, second)) == ("built-in recorder",)
    assert not ways_to_capture((first,))


@pytest.mark.parametrize(
    ("tools", "passed", "sentence"),
    [
        ((OLD,), ("built-in recorder",), "nsys is here and captures nothing: only the built-in recorder works"),
        ((), ("built-in recorder",), "there is no nsys here: only the built-in recorder works"),
        ((OLD,), ("nsys 2022.4.2.1", "built-in recorder"), "captures are possible here, with nsys 2022.4.2.1 and"),
    ],
)
def test_the_last_line_says_with_what_a_capture_is_possible(
    monkeypatch: pytest.MonkeyPatch, tools: tuple[NsysTool, ...], passed: tuple[str, ...], sentence: str
) -> None:
    """An nsys whose self-test failed is no way to capture, whatever else works."""
    names = [*(f"nsys {tool.version_text}" for tool in tools), "built-in recorder"]
    checks = tuple(
        MachineCheck(f"self-test: {name}", CheckStatus.OK if name in passed else CheckStatus.FAIL, "") for name in names
    )
    monkeypatch.setattr("dflash_bench.doctor.facts.machine_facts", lambda: replace(CPU, tools=tools))
    monkeypatch.setattr("dflash_bench.doctor.self_test.self_tests", lambda _facts: checks)
    assert sentence in CliRunner().invoke(app, ["doctor"]).stdout.splitlines()[-1]
    assert json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["with"] == list(passed)


def test_an_nsys_that_crashes_is_quoted(tmp_path: Path) -> None:
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\necho 'the agent died' >&2\nexit 3\n")
    fake.chmod(0o755)
    first, _ = self_tests(replace(CPU, tools=(replace(OLD, path=fake),)))
    assert first.what == "nsys ended with exit code 3: the agent died"


@pytest.mark.nsys
@pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")
def test_the_self_test_of_the_installed_nsys_agrees_with_the_pair_check() -> None:
    facts = machine_facts()
    assert INSTALLED is not None
    (pair,) = [check for check in machine_checks(facts) if check.name == f"nsys {INSTALLED.version_text}: nvtx"]
    tests = {check.name: check for check in self_tests(facts)}
    assert tests[f"self-test: nsys {INSTALLED.version_text}"].status is pair.status


def test_the_command_prints_json_and_says_by_its_exit_code_whether_capturing_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dflash_bench.doctor.facts.machine_facts", lambda: replace(CPU, tools=()))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["can_capture"] is True
    assert {"name", "status", "what", "mend"} == set(answer["checks"][0])
    monkeypatch.setattr("dflash_bench.doctor.self_test.self_tests", lambda facts: ())
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 5


def test_the_doctor_does_not_import_torch_to_find_it() -> None:
    code = (
        "import sys; from dflash_bench.doctor.checks import machine_checks;"
        " from dflash_bench.doctor.facts import machine_facts;"
        " machine_checks(machine_facts()); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
