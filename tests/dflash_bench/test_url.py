"""URLs: told from paths, shown without secrets, and refused in one sentence where nothing here can open them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflash_bench.errors import UsageError
from dflash_bench.url import Url, is_url, location


@pytest.mark.parametrize(
    ("word", "is_one"),
    [("s3://b/x.sqlite", True), ("file:///x", True), ("profiles/x", False), ("C:/x", False), ("a,s3://b", False)],
)
def test_a_url_begins_with_a_scheme(word, is_one):
    assert is_url(word) is is_one


def test_a_file_url_is_a_path():
    assert location("file:///data/run%201/x.sqlite") == Path("/data/run 1/x.sqlite")
    assert location("runs/x") == Path("runs/x")
    assert location("s3://bucket/x") == Url("s3://bucket/x")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/run/rank0.sqlite", "s3://bucket/run/rank0.sqlite"),
        ("sftp://ann:geheim@host/x.sqlite", "sftp://host/x.sqlite"),
        ("https://token@host/x.sqlite?X-Amz-Signature=geheim", "https://host/x.sqlite"),
        ("s3://key:geheim@bucket/rank?.sqlite", "s3://bucket/rank?.sqlite"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("s3://bucket/user@host/x", "s3://bucket/user@host/x"),
    ],
)
def test_a_url_is_shown_without_what_identifies_its_user(text, shown):
    url = Url(text)
    assert str(url) == shown
    assert "geheim" not in f"{url} {url!r} {url.name}"


@pytest.mark.parametrize(
    ("text", "name"),
    [("https://h/a%20b.sqlite?sig=1/2", "a b.sqlite"), ("s3://b/run/", "run"), ("s3://b/a?.sqlite", "a?.sqlite")],
)
def test_a_url_has_a_name(text, name):
    assert Url(text).name == name


def test_a_protocol_that_nobody_knows_is_a_usage_error():
    pytest.importorskip("fsspec", reason="files at URLs need the extra remote")
    with pytest.raises(UsageError, match="nowhere:// is no protocol"):
        Url("nowhere://x/a").opened()


def test_a_missing_driver_is_named(monkeypatch):
    pytest.importorskip("fsspec", reason="files at URLs need the extra remote")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"the driver for s3:// is not installed") as caught:
        Url("s3://bucket/a").opened()
    assert caught.value.hint == "pip install s3fs"


def test_a_missing_fsspec_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match="need fsspec, which is not installed") as caught:
        Url("s3://bucket/a").opened()
    assert caught.value.hint == "pip install 'dflash-bench[remote]'"
