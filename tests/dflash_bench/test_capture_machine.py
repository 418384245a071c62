"""What is kept of the machine that a run was made on: read from the kernel and from nvidia-smi, nothing private."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path

import pytest
from fake_nvidia_smi import H200, install

from dflash_bench.capture.machine import _FIELDS, _parse_rows, gpu_settings, host_settings


def test_a_gpu_states_its_driver_its_clocks_and_its_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, H200, H200)
    assert gpu_settings() == {
        "driver": "580.159.04",
        "clocks": "at most 1980/3201 MHz",
        "clocks_found": "345/3201 MHz",
        "power_limit_w": "700.00",
        "persistence": "Enabled",
    }


def test_application_clocks_are_told_beside_the_highest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "550.54, 1410, 1593, 1095, 1593, 1410, 1593, 400.00, Disabled")
    assert gpu_settings()["clocks"] == "application 1095/1593 MHz, at most 1410/1593 MHz"


def test_gpus_that_differ_are_both_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, H200, H200.replace("700.00", "500.00"))
    assert gpu_settings()["power_limit_w"] == "500.00 and 700.00"


def test_without_nvidia_smi_there_is_nothing_to_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_settings() == {}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        ('Field "clocks.applications.graphics" is not a valid field to query.', 2),
        ("No devices were found", 0),
    ],
)
def test_an_nvidia_smi_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str, code: int
) -> None:
    install(tmp_path, monkeypatch, said, code=code)
    with caplog.at_level(logging.WARNING):
        assert gpu_settings() == {}
    assert f"nvidia-smi said: {said}" in caplog.text


def test_nothing_is_set_and_nothing_that_names_the_machine_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = install(tmp_path, monkeypatch, H200)
    gpu_settings()
    assert asked.read_text().splitlines() == [f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    assert not [f for f in _FIELDS if any(word in f for word in ("serial", "uuid", "pci", "bus", "gpu_name", "vbios"))]


def test_a_line_that_is_no_row_is_left_out() -> None:
    assert _parse_rows(f"a warning, in words\n{H200}\n") == _parse_rows(H200)


def test_the_host_states_its_cpu_and_the_cores_it_may_use(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9354 32-Core Processor\n\nprocessor\t: 1\n")
    assert host_settings(cpuinfo) == {
        "cpu": "AMD EPYC 9354 32-Core Processor",
        "cores": len(os.sched_getaffinity(0)),
    }


def test_a_kernel_that_tells_no_model_leaves_the_architecture(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert host_settings(cpuinfo)["cpu"] == host_settings(tmp_path / "absent")["cpu"] == platform.machine()
