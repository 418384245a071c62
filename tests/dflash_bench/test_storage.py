"""Files at URLs: copied whole or not at all, and failing in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_bench import storage
from dflash_bench.errors import DataError
from dflash_bench.storage import create, fetch, list_files, put, read_bytes, read_in_folders
from dflash_bench.url import Url

pytest.importorskip("fsspec", reason="files at URLs need the extra remote")


def test_what_was_put_is_fetched(store, tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 1000)
    seen = []
    put(tmp_path / "a", Url("memory://x/a"))
    fetch(Url("memory://x/a"), tmp_path / "b", lambda *progress: seen.append(progress))
    assert (tmp_path / "b").read_bytes() == b"abc" * 1000
    assert seen[-1] == ("a", 3000, 3000)


def test_files_are_listed_by_their_path_in_the_folder(store):
    for name in ("x/a.sqlite", "x/b.txt", "x/deep/c.sqlite", "y/d.sqlite"):
        store.pipe_file(f"/{name}", b"12345")
    assert {name: size for name, (_, size) in list_files(Url("memory://x")).items()} == {
        "a.sqlite": 5, "b.txt": 5, "deep/c.sqlite": 5,
    }  # fmt: skip
    found = list_files(Url("memory://x/*.sqlite"))
    assert {name: str(url) for name, (url, _) in found.items()} == {"a.sqlite": "memory:///x/a.sqlite"}
    assert list_files(Url("memory://nothing")) == {}
    assert list_files(Url("memory://nothing/*")) == {}


def test_a_name_that_leads_out_of_the_folder_is_not_listed():
    class Hostile:
        def find(self, path, detail):
            return {f"{path}/{name}": {"size": 1} for name in ("../evil", "a/../../evil", "/evil", "good")}

        def unstrip_protocol(self, path):
            return f"memory://{path}"

    class HostileUrl(Url):
        def opened(self):
            return Hostile(), "x"

    assert list(list_files(HostileUrl("memory://x"))) == ["good"]


def test_one_small_file_of_every_folder(store):
    store.pipe_file("/p/a/run.json", b"A")
    store.pipe_file("/p/b/other", b"B")
    store.pipe_file("/p/c/run.json", b"C")
    store.pipe_file("/p/run.json", b"not in a folder")
    assert read_in_folders(Url("memory://p"), "run.json") == {"a": b"A", "c": b"C"}
    assert read_in_folders(Url("memory://empty"), "run.json") == {}


def test_a_file_is_created_once(store):
    url = Url("memory://x/claim")
    assert create(url, b"first")
    assert not create(url, b"second")
    assert read_bytes(url) == b"first"


def test_the_later_of_two_writers_that_both_saw_nothing_learns_it_from_the_store(store, monkeypatch):
    def refuse(self, path, value, mode):
        assert mode == "create"
        raise FileExistsError(path)

    monkeypatch.setattr(type(store), "pipe_file", refuse)
    assert not create(Url("memory://x/claim"), b"second")


def test_a_copy_that_is_not_whole_is_refused_and_removed(store, tmp_path, monkeypatch):
    # as after a broken connection, or of a file that is being replaced
    store.pipe_file("/x/a", b"12345")
    monkeypatch.setattr(type(store), "get_file", lambda self, path, target, **_: Path(target).write_bytes(b"12"))
    with pytest.raises(DataError, match=r"memory://x/a: 2 of 5 bytes arrived"):
        fetch(Url("memory://x/a"), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_not_begun(store, tmp_path, monkeypatch):
    store.pipe_file("/x/a", b"12345")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4}))
    with pytest.raises(DataError, match=r"memory://x/a takes 5 bytes, and .* has room for 4") as caught:
        fetch(Url("memory://x/a"), tmp_path / "a")
    assert "TMPDIR" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


class NoCredentialsError(OSError):
    """Named as the driver names it."""


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (FileNotFoundError("The specified bucket does not exist"), "there is no such file, folder or bucket"),
        (PermissionError("key geheim"), "access is denied"),
        (NoCredentialsError("geheim"), "no credentials were found"),
        (ConnectionRefusedError("https://h/?sig=geheim"), "the store does not answer"),
        (TimeoutError("geheim"), "the store does not answer"),
        (OSError(5, "geheim"), "the driver reports OSError"),
        (ValueError("geheim"), "the driver reports ValueError"),
    ],
)
def test_what_a_driver_raises_is_one_sentence_without_its_words(store, tmp_path, monkeypatch, raised, reason):
    def refuse(*_, **__):
        raise raised

    monkeypatch.setattr(type(store), "info", refuse)
    with pytest.raises(DataError) as caught:
        fetch(Url("memory://x/a"), tmp_path / "a")
    assert caught.value.text == f"memory://x/a cannot be read: {reason}"
    assert "geheim" not in f"{caught.value.text} {caught.value.hint}"
    assert caught.value.__cause__ is None


def test_an_exception_of_a_drivers_own_tree_is_one_sentence_too(store, tmp_path, monkeypatch):
    class EndpointConnectionError(Exception):
        pass

    def refuse(*_, **__):
        raise EndpointConnectionError("geheim")

    monkeypatch.setitem(sys.modules, "botocore.exceptions", type(sys)("botocore.exceptions"))
    sys.modules["botocore.exceptions"].BotoCoreError = EndpointConnectionError
    sys.modules["botocore.exceptions"].ClientError = EndpointConnectionError
    monkeypatch.setattr(type(store), "info", refuse)
    with pytest.raises(DataError, match="cannot be read: the store does not answer"):
        fetch(Url("memory://x/a"), tmp_path / "a")


def test_local_work_imports_no_fsspec(h200, tmp_path):
    capture = next(h200.rglob("*.sqlite"))
    code = (
        "import sys\n"
        "from dflash_bench.cli import app\n"
        f"try:\n    app(['ingest', {str(capture)!r}, '--profiles', {str(tmp_path)!r}])\n"
        "except SystemExit as done:\n    assert not done.code, done.code\n"
        "print('LOADED', sorted(m for m in ('fsspec', 'distributed', 'dask') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"
