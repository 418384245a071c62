"""Parts of the program: how progress is written, and where the rank comes from. Whole runs are in `tests/e2e`."""

from __future__ import annotations

from dflash_prep.loop.__main__ import Place, Progress


def test_progress_is_written_in_batches_and_completed_at_the_end(tmp_path) -> None:
    now, path = [0.0], tmp_path / "progress"
    progress = Progress(path, clock=lambda: now[0])
    sizes = []
    for done, at in [(1, 0.01), (2, 0.04), (3, 0.05), (4, 0.06), (5, 0.11)]:
        now[0] = at
        progress(done)
        sizes.append(path.stat().st_size)
    progress.close(7)
    assert sizes == [0, 0, 3, 3, 5]
    assert path.stat().st_size == 7


def test_without_a_file_progress_goes_nowhere() -> None:
    progress = Progress(None)
    progress(1)
    progress.close(1)


def test_the_rank_is_what_torchrun_says_and_0_of_1_without_it(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Place.of_environment() == Place(0, 1, 0)
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert Place.of_environment() == Place(5, 8, 1)
