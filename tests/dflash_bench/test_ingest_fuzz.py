"""Captures mutated at random: ingest and metrics give figures or one sentence, never a crash, a hang or a stray file.

And where they give figures, these are what a plain reading of the mutated file gives, or a warning says that and why
they are not.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from generator import Fault, Mode, Schema, Spec, write_export
from generator.chrome import write_trace
from generator.folders import FolderKind, write_folder
from plain_reading import differing

from dflash_bench.errors import BenchError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure

LIMIT_S = 10
EVENT_TABLES = (
    "NVTX_EVENTS",
    *(f"CUPTI_ACTIVITY_KIND_{t}" for t in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")),
)
ODD_VALUES = (
    None, 0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 1.5, -1e300,
    "text", "", "12", "-7x", b"\xff\x00", "é" * 50,
)  # fmt: skip
INJECTED = ('x"; DROP TABLE NVTX_EVENTS; --', "../../escaped", "a\nb", "'", '"', "é", "x" * 300)

Mutation = Callable[[sqlite3.Connection, random.Random], None]


def tables_of(database: sqlite3.Connection) -> list[str]:
    return [n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def columns_of(database: sqlite3.Connection, table: str) -> list[str]:
    return [n for (n,) in database.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def some_cell(database: sqlite3.Connection, rng: random.Random) -> tuple[str, str]:
    table = rng.choice([t for t in tables_of(database) if t in EVENT_TABLES] or tables_of(database))
    return quoted(table), quoted(rng.choice(columns_of(database, table)))


def loosened(database: sqlite3.Connection, table: str) -> None:
    """Rebuild a table without NOT NULL and without types, as a hand would make it: then any value fits."""
    columns = ", ".join(quoted(c) for c in columns_of(database, table.strip('"')))
    database.execute(f"CREATE TABLE loose ({columns})")
    database.execute(f"INSERT INTO loose SELECT * FROM {table}")
    database.execute(f"DROP TABLE {table}")
    database.execute(f"ALTER TABLE loose RENAME TO {table}")


def drop_table(database: sqlite3.Connection, rng: random.Random) -> None:
    database.execute(f"DROP TABLE {quoted(rng.choice(tables_of(database)))}")


def drop_column(database: sqlite3.Connection, rng: random.Random) -> None:
    table, column = some_cell(database, rng)
    database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def rename_column(database: sqlite3.Connection, rng: random.Random) -> None:
    table, column = some_cell(database, rng)
    database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO {quoted(rng.choice(INJECTED))}")


def odd_values(database: sqlite3.Connection, rng: random.Random) -> None:
    table, column = some_cell(database, rng)
    loosened(database, table)
    every = rng.choice((1, 2, 7, 50))
    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % ? = 0", (rng.choice(ODD_VALUES), every))


def shuffled_column(database: sqlite3.Connection, rng: random.Random) -> None:
    table, column = some_cell(database, rng)
    loosened(database, table)
    database.execute(
        f"UPDATE {table} SET {column} = (SELECT {column} FROM {table} AS o WHERE o.rowid = {table}.rowid / 3 + 1)"
    )


def scaled_column(database: sqlite3.Connection, rng: random.Random) -> None:
    table, column = some_cell(database, rng)
    loosened(database, table)
    database.execute(
        f"UPDATE {table} SET {column} = {column} * ? WHERE typeof({column}) = 'integer'", (rng.choice((-1, 0, 1000)),)
    )


def doubled_rows(database: sqlite3.Connection, rng: random.Random) -> None:
    table, _ = some_cell(database, rng)
    database.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE rowid % ? = 0", (rng.choice((1, 3)),))


def emptied(database: sqlite3.Connection, rng: random.Random) -> None:
    database.execute(f"DELETE FROM {some_cell(database, rng)[0]}")


def injected_table(database: sqlite3.Connection, rng: random.Random) -> None:
    name = rng.choice(INJECTED)
    database.execute(f"CREATE TABLE {quoted(name)} ({quoted(rng.choice(INJECTED))} TEXT)")


def table_as_view(database: sqlite3.Connection, rng: random.Random) -> None:
    table, _ = some_cell(database, rng)
    database.execute(f"ALTER TABLE {table} RENAME TO was")
    database.execute(f"CREATE VIEW {table} AS SELECT * FROM was")


def odd_string(database: sqlite3.Connection, rng: random.Random) -> None:
    if "StringIds" in tables_of(database):
        loosened(database, '"StringIds"')
        value = rng.choice((*INJECTED, b"\xff\xfe\x00", None, 5, "decode_step"))
        database.execute("UPDATE StringIds SET value = CAST(? AS TEXT) WHERE rowid % 3 = 0", (value,))


MUTATIONS: tuple[Mutation, ...] = (
    drop_table, drop_column, rename_column, odd_values, odd_values, odd_values, shuffled_column, scaled_column,
    doubled_rows, emptied, injected_table, table_as_view, odd_string,
)  # fmt: skip


def mutated_bytes(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 40))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if rng.random() < 0.4:
        del content[rng.randrange(len(content)) :]
    path.write_bytes(content)


class TooLongError(Exception):
    """Not TimeoutError: that is an OSError, which a reader may take for one of its file."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(_signal: int, _frame: object) -> None:
        raise TooLongError(f"more than {LIMIT_S} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@dataclass(frozen=True)
class Base:
    """A capture as it is before it is mutated, with its warnings, and the figures that it withholds for them."""

    content: bytes
    warnings: frozenset[str]
    withheld: frozenset[str]


def base_of(path: Path, folder: Path) -> Base:
    (profile,) = ingest([path], IngestOptions(profiles=folder / "profiles", run=path.stem))
    measured = measure(profile)
    withheld = differing(path, measured)
    assert not any(shown for shown, _ in withheld.values()), f"{path}: {withheld}"
    assert not withheld or measured.findings
    return Base(path.read_bytes(), frozenset(finding.code for finding in measured.findings), frozenset(withheld))


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    folder = tmp_path_factory.mktemp("bases")
    specs = [Spec(rows=400, ranks=2, schema=s, mode=m, seed=k) for k, s in enumerate(Schema) for m in Mode]
    specs += [
        Spec(rows=400, ranks=2, faults=frozenset({f})) for f in (Fault.SHARED_IDS, Fault.BACKTRACES, Fault.NO_MARKS)
    ]
    return [base_of(write_export(folder / f"{k}.sqlite", spec), folder) for k, spec in enumerate(specs)]


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    folder = tmp_path_factory.mktemp("traces")
    return [base_of(write_trace(folder / f"{k}.json", Spec(rows=300, ranks=1, seed=k), 0), folder) for k in range(3)]


# ── mutations of a whole file ────────────────────────────────────────────────────────────────────────────────────────

Mutate = Callable[[Path, random.Random], tuple[Path, Path | None]]
"""Mutates a capture; returns what to ingest, and what a plain reading can check it by, if anything."""


def mutated_tables(path: Path, rng: random.Random) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous=OFF")  # a test waits for no disk
        for mutation in rng.choices(MUTATIONS, k=rng.choice((1, 1, 2, 3))):
            try:
                mutation(database, rng)
            except sqlite3.Error:
                continue  # that cannot be done to this file any more


def mutated_export(path: Path, rng: random.Random) -> tuple[Path, Path | None]:
    if rng.random() < 0.35:
        mutated_bytes(path, rng)
        return path, None
    mutated_tables(path, rng)
    return path, path


def mutated_folder(path: Path, rng: random.Random) -> tuple[Path, Path | None]:
    """Tables of a mutated export, or of a sound one whose files are mutated: cut, overwritten, gone or misnamed."""
    is_sound = rng.random() < 0.5
    if is_sound:
        mutated_tables(path, rng)
    folder = write_folder(path, rng.choice(list(FolderKind)), group_rows=rng.choice((7, 1000)))
    for file in rng.sample(sorted(folder.iterdir()), 0 if is_sound else 2):
        if rng.random() < 0.7:
            mutated_bytes(file, rng)
        elif rng.random() < 0.5:
            file.unlink()
        else:
            file.replace(rng.choice(sorted(folder.iterdir())))
    plain = path.rename(path.parent.parent / "plain.sqlite")
    return folder, plain if is_sound else None


def mutated_trace(path: Path, rng: random.Random) -> tuple[Path, Path | None]:
    if rng.random() < 0.4:
        mutated_bytes(path, rng)
        return path, None
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    for _ in range(rng.choice((1, 3, 40))):
        event = rng.choice(events)
        key = rng.choice(("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"))
        if rng.random() < 0.2:
            events.insert(rng.randrange(len(events)), dict(rng.choice(events)))
        elif rng.random() < 0.2:
            event.pop(key, None)
        else:
            event[key] = rng.choice([v for v in ODD_VALUES if not isinstance(v, bytes)] + [[], {}, True])
    if rng.random() < 0.2:
        document[rng.choice(("distributedInfo", "deviceProperties", "baseTimeNanoseconds"))] = rng.choice(([], -1, "x"))
    path.write_text(json.dumps(document))
    return path, path


def try_one(seed: int, base: Base, folder: Path, mutate: Mutate = mutated_export, name: str = "a.sqlite") -> str:
    """Mutate, ingest, measure. Returns what came of it: ``figures`` or the class of the error."""
    rng = random.Random(seed)
    path = folder / "in" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(base.content)
    capture, plain = mutate(path, rng)
    before = contents(path.parent)
    profiles = folder / "profiles"
    measured, outcome, sentence = None, "figures", ""
    try:
        with time_limit():
            (profile,) = ingest([capture], IngestOptions(profiles=profiles, run="r"))
            measured = measure(profile)
    except BenchError as error:
        outcome, sentence = type(error).__name__, error.text
    assert "\n" not in sentence, f"seed {seed}: {sentence}"
    left = {p.name for p in profiles.iterdir()} if profiles.exists() else set()
    assert left == ({"r"} if measured is not None else set()), f"seed {seed}"
    if measured is not None and plain is not None:
        # where figures are not those of a plain reading, a warning that the sound file does not give says why
        codes = {finding.code for finding in measured.findings}
        wrong = {k: figures for k, figures in differing(plain, measured).items() if k not in base.withheld}
        assert codes - base.warnings or not wrong, f"seed {seed}: {wrong}"
    assert contents(path.parent) == before, f"seed {seed}: the capture was changed, or a file was left beside it"
    assert {p.name for p in folder.iterdir()} <= {"in", "profiles", "plain.sqlite"}, f"seed {seed}: a stray file"
    return outcome


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run_many(
    seeds: range, bases: list[Base], tmp_path: Path, mutate: Mutate = mutated_export, name: str = "a.sqlite"
) -> None:
    outcomes = {try_one(seed, bases[seed % len(bases)], tmp_path / str(seed), mutate, name) for seed in seeds}
    # a run that only ever fails, or never does, tries nothing
    assert {"figures", "DataError"} <= outcomes


def test_mutated_exports_give_figures_or_one_sentence(bases: list[Base], tmp_path: Path) -> None:
    run_many(range(70), bases, tmp_path)


def test_mutated_folders_of_tables_give_figures_or_one_sentence(bases: list[Base], tmp_path: Path) -> None:
    run_many(range(25), bases, tmp_path, mutated_folder)


def test_mutated_traces_give_figures_or_one_sentence(traces: list[Base], tmp_path: Path) -> None:
    run_many(range(50), traces, tmp_path, mutated_trace, "a.json")


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_many_mutated_exports_give_figures_or_one_sentence(bases: list[Base], tmp_path: Path, part: int) -> None:
    run_many(range(1000 + 100 * part, 1100 + 100 * part), bases, tmp_path)


@pytest.mark.soak
def test_many_mutated_folders_and_traces_give_figures_or_one_sentence(
    bases: list[Base], traces: list[Base], tmp_path: Path
) -> None:
    run_many(range(1000, 1300), bases, tmp_path / "folders", mutated_folder)
    run_many(range(1000, 1300), traces, tmp_path / "traces", mutated_trace, "a.json")
