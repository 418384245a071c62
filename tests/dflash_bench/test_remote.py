"""Captures and profiles at URLs: the same results as from a disk, whole or not there, and no copy left behind."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from generator import Spec, write_ranks
from generator.folders import FolderKind, write_folder
from profile_files import contents, timeless

from dflash_bench.cli.sides import resolve_side
from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.remote import mirror as remote
from dflash_bench.ingest.remote.mirror import mirrored, publish
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.layout import RUN_FILE
from dflash_bench.url import Url

pytest.importorskip("fsspec", reason="files at URLs need the extra remote")
PROFILES = Url("memory://bucket/profiles")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the captures of two ranks."""
    folder = tmp_path_factory.mktemp("captures") / "night"
    folder.mkdir()
    write_ranks(folder, Spec(rows=3_000, ranks=2), "night")
    return folder


@pytest.fixture(autouse=True)
def no_copy_is_left(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert list(scratch.iterdir()) == []


def upload(store, folder: Path, place: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/{place}/{path.relative_to(folder)}", path.read_bytes())


def local_profile(captures: Path, profiles: Path, run: str = "r", **more) -> Path:
    return ingest([captures], IngestOptions(profiles=profiles, run=run, **more))[0].path


def stored(store, place: str) -> dict[str, bytes]:
    files = {p.removeprefix(f"/{place}/"): store.cat_file(p) for p in store.find(f"/{place}")}
    return {name: timeless(name, content) for name, content in files.items() if name != remote._CLAIM}


@pytest.mark.parametrize(
    "words", [["night"], ["night/*.sqlite"], ["night/night_rank0.sqlite", "night/night_rank1.sqlite"]]
)
def test_captures_at_a_url_become_the_same_profile_at_a_url(store, captures, tmp_path, cli, words):
    upload(store, captures, "bucket/night")
    found = cli("ingest", *(f"memory://bucket/{w}" for w in words), "--run", "r", "--profiles", PROFILES.text)
    assert found.exit_code == 0, found.stderr
    assert found.stdout.splitlines()[0] == "memory://bucket/profiles/r"
    assert stored(store, "bucket/profiles/r") == contents(local_profile(captures, tmp_path / "local"))


@pytest.mark.parametrize("word", ["night", "night/night_rank0_pqtdir"])
def test_a_folder_of_tables_at_a_url_becomes_the_same_profile(store, captures, tmp_path, cli, word):
    export = shutil.copy(captures / "night_rank0.sqlite", tmp_path)
    folder = write_folder(Path(export), FolderKind.PARQUET)
    upload(store, folder, "bucket/night/night_rank0_pqtdir")
    found = cli("ingest", f"memory://bucket/{word}", "--run", "r", "--profiles", PROFILES.text)
    assert found.exit_code == 0, found.stderr
    assert stored(store, "bucket/profiles/r") == contents(local_profile(folder, tmp_path / "local"))


def test_a_run_at_a_url_is_named_as_from_a_disk(store, captures, tmp_path, cli):
    upload(store, captures, "bucket/night")
    cli("ingest", "memory://bucket/night", "--profiles", PROFILES.text)
    ingest([captures], IngestOptions(profiles=tmp_path / "local"))
    assert {p.name for p in (tmp_path / "local").iterdir()} == {"night"}
    assert set(store.ls("/bucket/profiles", detail=False)) == {"/bucket/profiles/night"}


def test_what_lies_beside_a_capture_comes_along(store, captures, tmp_path):
    upload(store, captures, "bucket/night")
    for name in ("night_rank0.sqlite-wal", "rank0.steps.csv", "unprofiled/rank0.steps.csv", "notes.txt"):
        store.pipe_file(f"/bucket/night/{name}", b"x")
    own = {"night_rank0.sqlite", "night_rank0.sqlite-wal", "rank0.steps.csv", "unprofiled/rank0.steps.csv"}
    for word, wanted in (
        ("", own | {"night_rank1.sqlite"}),
        ("/night_rank0.sqlite", own),
        ("/night_rank0*.sqlite", own),
    ):
        with mirrored(tmp_path, [f"memory://bucket/night{word}"]) as mirror:
            near = Path(mirror.near(f"memory://bucket/night{word}"))
            folder = near if near.is_dir() else near.parent
            assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == wanted
            assert folder.name == "night"


def test_metrics_of_a_profile_at_a_url_are_those_of_the_local_one(store, captures, tmp_path, cli):
    upload(store, local_profile(captures, tmp_path / "local"), "bucket/profiles/r")
    wanted = cli("metrics", "r", "--json", "--profiles", tmp_path / "local")
    for words in (["r", "--profiles", PROFILES.text], ["memory://bucket/profiles/r"], ["memory://bucket/profiles/r/"]):
        found = cli("metrics", *words, "--json")
        assert found.exit_code == 0, found.stderr
        assert found.stdout == wanted.stdout


def test_a_side_of_a_comparison_at_a_url_is_named_as_on_a_disk(store, captures, tmp_path):
    for k, arm in enumerate(("control", "control", "topup")):
        local = local_profile(captures / "night_rank0.sqlite", tmp_path / "local", f"{arm}-{k}", arm=arm)
        upload(store, local, f"bucket/profiles/{arm}-{k}")
    url = PROFILES.text
    for words in ("control-0,control-1", "control-*", f"{url}/control-0,{url}/control-1", f"control-0,{url}/control-1"):
        with mirrored(PROFILES, [words]) as mirror:
            found = resolve_side(mirror.near(words), IngestOptions(profiles=mirror.profiles))
            assert [p.info.run for p in found] == ["control-0", "control-1"]
            for profile in found:
                assert contents(profile.path) == contents(tmp_path / "local" / profile.info.run)


def test_without_words_the_newest_two_arms_at_the_url_are_compared(store, captures, tmp_path, cli):
    for arm in ("control", "topup"):
        local = local_profile(captures / "night_rank0.sqlite", tmp_path / "local", arm, arm=arm)
        upload(store, local, f"bucket/profiles/{arm}")
    found = cli("compare", "--brief", "--profiles", PROFILES.text)
    assert found.exit_code == 0, found.stderr
    assert "base control, candidate topup" in found.stderr
    assert "step.period" in found.stdout


def test_a_report_is_written_of_profiles_at_urls(store, captures, tmp_path, cli):
    for run in ("a", "b"):
        upload(store, local_profile(captures / "night_rank0.sqlite", tmp_path / "local", run), f"bucket/profiles/{run}")
    page = tmp_path / "report.html"
    found = cli("report", "memory://bucket/profiles/a", "b", "--profiles", PROFILES.text, "-o", page)
    assert found.exit_code == 0, found.stderr
    assert "memory://" not in page.read_text()
    assert "step.period" in page.read_text()


def test_a_capture_that_metrics_met_on_the_way_is_kept_at_the_url_and_read_from_there(
    store, captures, tmp_path, cli, monkeypatch
):
    capture = captures / "night_rank0.sqlite"
    upload(store, captures, "bucket/night")
    wanted = cli("metrics", capture, "--json", "--profiles", PROFILES.text).stdout
    local = cli("metrics", capture, "--json", "--profiles", tmp_path / "local").stdout
    assert re.sub(r'"created_utc": "[^"]+"', "", wanted) == re.sub(r'"created_utc": "[^"]+"', "", local)
    assert store.ls("/bucket/profiles", detail=False) == ["/bucket/profiles/night"]
    # a second look makes nothing, whether the capture lies here or at a URL
    monkeypatch.setattr(remote, "publish", None)
    for word in (capture, "memory://bucket/night/night_rank0.sqlite"):
        assert cli("metrics", word, "--json", "--profiles", PROFILES.text).stdout == wanted


def test_the_same_capture_again_changes_nothing_and_another_is_refused(store, captures, tmp_path, cli):
    first, second = captures / "night_rank0.sqlite", captures / "night_rank1.sqlite"
    words = ["--run", "r", "--profiles", PROFILES.text]
    assert cli("ingest", first, *words).exit_code == 0
    before = {path: store.cat_file(path) for path in store.find("/")}
    assert cli("ingest", first, *words).exit_code == 0
    found = cli("ingest", second, *words)
    assert found.exit_code == 2
    assert "memory://bucket/profiles/r already holds another run" in found.stderr
    assert {path: store.cat_file(path) for path in store.find("/")} == before
    assert cli("ingest", second, *words, "--replace").exit_code == 0
    assert stored(store, "bucket/profiles/r") == contents(local_profile(second, tmp_path / "local"))


def test_the_mark_of_a_whole_profile_is_written_last(store, captures, tmp_path, monkeypatch):
    profile = local_profile(captures, tmp_path / "local")
    order = []
    for name in ("put_file", "pipe_file"):
        real = getattr(type(store), name)

        def noting(self, first, second, *args, _name=name, _real=real, **more):
            order.append(second if _name == "put_file" else first)
            return _real(self, first, second, *args, **more)

        monkeypatch.setattr(type(store), name, noting)
    publish(profile, PROFILES / "r")
    assert order[0] == "/bucket/profiles/r/_claim"
    assert order[-1] == "/bucket/profiles/r/run.json"
    assert len(order) == 1 + len(contents(profile))


class Killed(BaseException):
    """What no handler takes for an error."""


def killed_while_publishing(store, profile: Path, after: int, monkeypatch) -> None:
    real, done = type(store).put_file, []

    def dying(self, source, path, **more):
        if len(done) == after:
            raise Killed
        done.append(path)
        real(self, source, path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "put_file", dying)
        with pytest.raises(Killed):
            publish(profile, PROFILES / "r")


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_writer_that_is_killed_leaves_no_profile_and_the_same_ingest_makes_it_whole(
    store, captures, tmp_path, cli, monkeypatch, after
):
    profile = local_profile(captures, tmp_path / "local")
    killed_while_publishing(store, profile, after, monkeypatch)
    found = cli("metrics", "memory://bucket/profiles/r")
    assert found.exit_code == (5 if after else 2)
    assert ("is no whole profile: it has no run.json" if after else "no captures in this folder") in found.stderr
    assert cli("metrics", "r", "--profiles", PROFILES.text).exit_code == 2
    assert cli("ingest", captures, "--run", "r", "--profiles", PROFILES.text).exit_code == 0
    assert stored(store, "bucket/profiles/r") == contents(profile)


def test_what_another_run_left_unfinished_is_not_mixed_with(store, captures, tmp_path, cli, monkeypatch):
    killed_while_publishing(store, local_profile(captures / "night_rank0.sqlite", tmp_path / "local"), 2, monkeypatch)
    before = {path: store.cat_file(path) for path in store.find("/")}
    words = [captures / "night_rank1.sqlite", "--run", "r", "--profiles", PROFILES.text]
    found = cli("ingest", *words)
    assert found.exit_code == 2
    assert "another run is being written there, or was begun and never finished" in found.stderr
    assert {path: store.cat_file(path) for path in store.find("/")} == before
    assert cli("ingest", *words, "--replace").exit_code == 0
    wanted = contents(local_profile(captures / "night_rank1.sqlite", tmp_path / "other"))
    assert stored(store, "bucket/profiles/r") == wanted


@pytest.mark.parametrize("after", range(5))
def test_two_writers_of_one_run_at_once_give_one_whole_profile(store, captures, tmp_path, monkeypatch, after):
    # the second one runs from begin to end at one moment of the first
    profile = local_profile(captures, tmp_path / "local")
    other = shutil.copytree(profile, tmp_path / "other" / "r")
    run = json.loads((other / RUN_FILE).read_text())
    (other / RUN_FILE).write_text(json.dumps({**run, "created_utc": "2000-01-01T00:00:00+00:00"}))
    real, calls = remote.put, []

    def meeting(source, url, progress=None):
        calls.append(url)
        if len(calls) == after + 1:
            publish(other, PROFILES / "r")
        real(source, url, progress)

    monkeypatch.setattr(remote, "put", meeting)
    publish(profile, PROFILES / "r")
    assert stored(store, "bucket/profiles/r") == contents(profile)
    assert json.loads(store.cat_file("/bucket/profiles/r/run.json"))["created_utc"] == "2000-01-01T00:00:00+00:00"


def test_of_two_runs_at_once_under_one_name_the_first_wins_whole(store, captures, tmp_path, monkeypatch):
    first = local_profile(captures / "night_rank0.sqlite", tmp_path / "first")
    second = local_profile(captures / "night_rank1.sqlite", tmp_path / "second")
    real, refused = remote.put, []

    def meeting(source, url, progress=None):
        if not refused:
            refused.append(True)
            with pytest.raises(UsageError, match="another run is being written there"):
                publish(second, PROFILES / "r")
        real(source, url, progress)

    monkeypatch.setattr(remote, "put", meeting)
    publish(first, PROFILES / "r")
    assert refused
    assert stored(store, "bucket/profiles/r") == contents(first)


def test_a_run_that_was_replaced_while_it_was_written_gives_up(store, captures, tmp_path, monkeypatch):
    first = local_profile(captures / "night_rank0.sqlite", tmp_path / "first")
    second = local_profile(captures / "night_rank1.sqlite", tmp_path / "second")
    real, met = remote.put, []

    def meeting(source, url, progress=None):
        real(source, url, progress)
        if not met:
            met.append(True)
            publish(second, PROFILES / "r", is_replace=True)

    monkeypatch.setattr(remote, "put", meeting)
    with pytest.raises(DataError, match="was replaced by another run meanwhile"):
        publish(first, PROFILES / "r")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ingest", "memory://bucket/nothing"], "memory://bucket/nothing: no such profile, file or folder"),
        (["ingest", "memory://bucket/nothing/*.sqlite"], "memory://bucket/nothing/*.sqlite: no file there matches"),
        (["metrics", "memory://bucket/text"], "memory://bucket/text: no captures in this folder"),
        (["metrics", "nobody", "--profiles", "memory://bucket/profiles"], "nobody: no such profile, file or folder"),
        (["ingest", "memory://bucket/broken/a.sqlite"], "memory://bucket/broken/a.sqlite: not a SQLite database"),
        (["metrics", "nowhere://bucket/x"], "nowhere:// is no protocol that can be read or written here"),
    ],
)
def test_what_is_not_there_or_is_no_capture_is_one_sentence_that_names_the_url(store, cli, words, sentence):
    store.pipe_file("/bucket/text/a.txt", b"text")
    store.pipe_file("/bucket/broken/a.sqlite", b"text")
    found = cli(*words)
    assert found.exit_code in (2, 5)
    assert sentence in found.stderr
    assert "scratch" not in found.stderr


def test_commands_that_record_refuse_a_url_before_they_do_anything(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["run", "--arm", "control"], ["capture", "--", "true"]):
        found = cli(words[0], "--profiles", "s3://ann:geheim@bucket/p", *words[1:])
        assert found.exit_code == 2
        assert "s3://bucket/p: this command writes captures while it runs" in found.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "scratch"]


@pytest.mark.parametrize(
    "words",
    [
        ["scrub", "s3://ann:geheim@bucket/x", "out.sqlite"],
        ["scrub", "in.sqlite", "s3://ann:geheim@bucket/x"],
        ["compare", "a", "b", "--markdown", "s3://ann:geheim@bucket/x"],
        ["report", "a", "b", "-o", "s3://ann:geheim@bucket/x"],
        ["gate", "a", "--junit", "s3://ann:geheim@bucket/x"],
        ["baseline", "show", "s3://ann:geheim@bucket/x"],
        ["baseline", "list", "--baselines", "s3://ann:geheim@bucket/x"],
    ],
)
def test_where_only_a_path_can_be_given_a_url_is_refused(cli, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    found = cli(*words)
    assert found.exit_code == 2
    assert "s3://bucket/x: only a path of this machine can be given here" in found.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "scratch"]


def test_runs_at_a_url_become_a_baseline(store, captures, tmp_path, cli):
    upload(store, local_profile(captures / "night_rank0.sqlite", tmp_path / "local"), "bucket/profiles/r")
    words = ["baseline", "save", "r", "--baselines", tmp_path / "b", "--profiles"]
    local = cli(*words, tmp_path / "local")
    assert cli(*words, PROFILES.text).stdout == local.stdout


def test_what_a_killed_command_left_in_scratch_is_cleared_up_and_what_runs_is_not(store, tmp_path):
    left = tmp_path / "scratch" / ".dflash-bench.left.partial"
    left.mkdir()
    with mirrored(PROFILES) as first, mirrored(PROFILES):
        assert first.scratch is not None
        assert first.scratch.exists()
        assert not left.exists()


def test_without_urls_nothing_is_copied(tmp_path):
    with mirrored(tmp_path / "profiles", ["a", "b/c.sqlite"]) as mirror:
        assert mirror.profiles == tmp_path / "profiles"
        assert [mirror.near(word) for word in ("a", "b/c.sqlite")] == ["a", "b/c.sqlite"]
        assert mirror.scratch is None
        assert not (tmp_path / "profiles").exists()
