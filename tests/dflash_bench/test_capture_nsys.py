"""Finding nsys in the places installers use, and telling whether it can convert what it records."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_bench.capture import nsys
from dflash_bench.capture.nsys import (
    NsysTool,
    _missing_libraries,
    _parse_version,
    examine_nsys,
    find_all_nsys,
    nsys_candidates,
)
from dflash_bench.errors import CaptureError, UsageError


def script(path: Path, text: str) -> Path:
    """A program that prints a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


def fake_nsys(path: Path, version: str) -> Path:
    return script(path, f"NVIDIA Nsight Systems version {version}")


@pytest.fixture
def ldd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ldd that finds everything, on a PATH of its own; rewrite it to miss something."""
    path = script(tmp_path / "bin" / "ldd", "\tlibc.so.6 => /lib/libc.so.6 (0x00007f)")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVIDIA Nsight Systems version 2022.4.2.1-df9881f", (2022, 4, 2, 1)),
        ("NVIDIA Nsight Systems version 2025.3.1.0\n", (2025, 3, 1, 0)),
        ("NVIDIA Nsight Systems version 2021.3.3.2-b99c4d6", (2021, 3, 3, 2)),
    ],
)
def test_versions_are_read_as_nsys_writes_them(text: str, version: tuple[int, ...]) -> None:
    assert _parse_version(text) == version


def test_a_program_that_names_no_version_is_not_nsys() -> None:
    with pytest.raises(CaptureError, match="this is not nsys"):
        _parse_version("GNU bash")


def test_missing_libraries_are_those_that_ldd_did_not_find() -> None:
    output = "\tlibdw.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibdw.so.1 => not found\n"
    assert _missing_libraries(output) == ("libdw.so.1",)


def test_every_place_that_installers_use_is_searched_newest_first(tmp_path: Path, ldd: Path) -> None:
    root = tmp_path / "root"
    for place, version in (
        ("opt/nvidia/nsight-systems/2024.5.1/target-linux-x64/nsys", "2024.5.1.1"),
        ("opt/nvidia/nsight-systems/2023.4.4/target-linux-x64/nsys", "2023.4.4.1"),
        ("opt/nvidia/nsight-systems-cli/target-linux-x64/nsys", "2025.1.1.1"),
        ("opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys", "2025.3.1.0"),
        ("usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys", "2022.4.2.1-df9881f"),
    ):
        fake_nsys(root / place, version)
    links = root / "opt/nvidia/nsight-systems/2023.4.4/bin"
    links.mkdir()
    (links / "nsys").symlink_to("../target-linux-x64/nsys")
    found = find_all_nsys(path="", root=root)
    assert [tool.version_text for tool in found] == [
        "2025.3.1.0",
        "2025.1.1.1",
        "2024.5.1.1",
        "2023.4.4.1",
        "2022.4.2.1",
    ]


def test_one_that_can_convert_is_better_than_a_newer_one_that_cannot(tmp_path: Path, ldd: Path) -> None:
    root = tmp_path / "root"
    fake_nsys(root / "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys", "2025.3.1.0")
    fake_nsys(root / "opt/nvidia/nsight-systems/2023.4.4/target-linux-x64/nsys", "2023.4.4.1")
    script(root / "opt/nvidia/nsight-systems/2023.4.4/host-linux-x64/QdstrmImporter", "")
    assert [tool.version[0] for tool in find_all_nsys(path="", root=root)] == [2023, 2025]


def test_a_link_on_the_path_and_its_target_are_one_nsys(tmp_path: Path) -> None:
    real = fake_nsys(tmp_path / "opt/nvidia/nsight-systems/2024.5.1/target-linux-x64/nsys", "2024.5.1.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").symlink_to(real)
    assert list(nsys_candidates(path=str(tmp_path / "bin"), root=tmp_path)) == [real]


def test_something_that_only_calls_itself_nsys_is_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script(tmp_path / "bin" / "nsys", "no such luck")
    assert find_all_nsys(path=str(tmp_path / "bin"), root=tmp_path / "root") == ()
    assert "is left out" in caplog.text


def test_nsight_computes_importer_lies_in_a_folder_of_another_name(tmp_path: Path, ldd: Path) -> None:
    host = tmp_path / "opt/nvidia/nsight-compute/2025.3.1/host"
    binary = fake_nsys(host / "target-linux-x64/nsys", "2025.3.1.0")
    importer = script(host / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter", "")
    tool = examine_nsys(binary, root=tmp_path)
    assert tool.importer == importer
    assert tool.can_convert


def test_a_library_that_the_importer_lacks_is_named_with_its_package(tmp_path: Path, ldd: Path) -> None:
    host = tmp_path / "host"
    binary = fake_nsys(host / "target-linux-x64/nsys", "2025.3.1.0")
    script(host / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter", "")
    script(ldd, "\tlibdw.so.1 => not found")
    tool = examine_nsys(binary, root=tmp_path)
    assert tool.missing_libs == ("libdw.so.1",)
    assert tool.mend == "apt-get install libdw1"
    assert not tool.can_convert


def test_debians_importer_that_nsys_does_not_find_is_mended_with_a_link(tmp_path: Path) -> None:
    binary = fake_nsys(tmp_path / "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys", "2022.4.2.1-df9881f")
    stray = script(tmp_path / "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter", "")
    tool = examine_nsys(binary, root=tmp_path)
    assert tool.importer is None
    assert tool.stray_importer == stray
    wanted = tmp_path / "usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64"
    assert tool.mend == f"ln -s {stray.parent} {wanted}"
    wanted.symlink_to(stray.parent)
    assert examine_nsys(binary, root=tmp_path).importer == wanted / "QdstrmImporter", "the mending command mends it"


def test_an_nsys_that_was_asked_for_must_exist_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no nsys at"):
        nsys.find_nsys(tmp_path / "absent")
    with pytest.raises(CaptureError, match="this is not nsys"):
        nsys.find_nsys(script(tmp_path / "other", "I am a teapot"))
    asked = fake_nsys(tmp_path / "folder" / "nsys", "2024.1.1.1")
    assert (
        nsys.find_nsys(asked) == nsys.find_nsys(asked.parent) == NsysTool(asked, (2024, 1, 1, 1), None, is_wrapper=True)
    )


def test_a_script_around_nsys_is_trusted_but_comes_after_the_binary(tmp_path: Path, ldd: Path) -> None:
    real = fake_nsys(tmp_path / "opt/nvidia/nsight-systems/2024.5.1/target-linux-x64/nsys", "2024.5.1.1")
    script(real.parent.parent / "host-linux-x64/QdstrmImporter", "")
    wrapper = fake_nsys(tmp_path / "usr/local/cuda-12.6/bin/nsys", "2024.5.1.1")
    found = find_all_nsys(path="", root=tmp_path)
    assert [tool.path for tool in found] == [real, wrapper]
    assert all(tool.can_convert for tool in found)


def test_a_device_node_alone_is_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert not nsys.has_nvidia_gpu(tmp_path), "nsys itself makes this node when it runs as root"
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert nsys.has_nvidia_gpu(tmp_path)
