"""Exports mutated at random: ingest and metrics give figures or one sentence, never a crash, a hang or a stray file.

And where they give figures, the rows they rest on are those that plain SQL counts in the mutated file.
"""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from generator import Fault, Mode, Schema, Spec, write_export

from dflash_bench.errors import BenchError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.profile import Events, Profile

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


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("bases")
    specs = [Spec(rows=400, ranks=2, schema=s, mode=m, seed=k) for k, s in enumerate(Schema) for m in Mode]
    specs += [
        Spec(rows=400, ranks=2, faults=frozenset({f})) for f in (Fault.SHARED_IDS, Fault.BACKTRACES, Fault.NO_MARKS)
    ]
    return [write_export(folder / f"{k}.sqlite", spec).read_bytes() for k, spec in enumerate(specs)]


def mutate(path: Path, rng: random.Random) -> bool:
    """Mutate a file in place. Returns whether it is still sound as a database."""
    if rng.random() < 0.35:
        mutated_bytes(path, rng)
        return False
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for mutation in rng.choices(MUTATIONS, k=rng.choice((1, 1, 2, 3))):
            try:
                mutation(database, rng)
            except sqlite3.Error:
                continue  # that cannot be done to this file any more
    return True


def plain_counts(path: Path) -> dict[str, int]:
    """Ranges and API calls as plain SQL counts them: rows with sound times that belong to a process."""
    sound = (
        "typeof(start) = 'integer' AND typeof(\"end\") = 'integer' AND \"end\" >= start"
        # the least integer stands for NULL while reading: counted among the rows without a time
        f" AND typeof(globalTid) = 'integer' AND {-(2**63)} NOT IN (start, \"end\")"
    )
    found = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        known = {t: columns_of(database, t) for t in tables_of(database)}
        if {"start", "end", "globalTid", "eventType"} <= set(known.get("NVTX_EVENTS", ())):
            sql = f"SELECT COUNT(*) FROM NVTX_EVENTS WHERE {sound} AND eventType IN (59, 60, 70, 71)"
            found["ranges"] = database.execute(sql).fetchone()[0]
        table = "CUPTI_ACTIVITY_KIND_RUNTIME"
        if {"start", "end", "globalTid", "correlationId", "nameId"} <= set(known.get(table, ())):
            of_class = "AND eventClass IN (0, 1)" if "eventClass" in known[table] else ""
            found["calls"] = database.execute(f"SELECT COUNT(*) FROM {table} WHERE {sound} {of_class}").fetchone()[0]
    return found


def closed_ranges(profile: Profile) -> int:
    tables = (profile.events(Events.RANGES, p) for p in profile.info.processes)
    return sum(t.num_rows - t.column("end_ns").null_count for t in tables)


def try_one(seed: int, base: bytes, folder: Path) -> str:
    """Mutate, ingest, measure. Returns what came of it: ``figures`` or the class of the error."""
    rng = random.Random(seed)
    folder.mkdir()
    path = folder / "in" / "mutated.sqlite"
    path.parent.mkdir()
    path.write_bytes(base)
    is_sound = mutate(path, rng)
    content = path.read_bytes()
    profiles = folder / "profiles"
    try:
        with time_limit():
            (profile,) = ingest([path], IngestOptions(profiles=profiles, run="r"))
            measure(profile)
    except BenchError as error:
        outcome, text = type(error).__name__, error.text
    else:
        outcome, text = "figures", ""
    if outcome == "figures":
        assert {p.name for p in profiles.iterdir()} == {"r"}, f"seed {seed}"
        if is_sound:
            counts = plain_counts(path)
            assert closed_ranges(profile) == counts.get("ranges", 0), f"seed {seed}: ranges"
            assert sum(p.num_api_calls for p in profile.info.processes) == counts.get("calls", 0), f"seed {seed}: calls"
    else:
        assert "\n" not in text, f"seed {seed}: {text}"
        assert not profiles.exists() or not any(profiles.iterdir()), f"seed {seed}: a failed ingest left something"
    assert path.read_bytes() == content, f"seed {seed}: the capture was changed"
    assert {p.name for p in folder.iterdir()} <= {"in", "profiles"}, f"seed {seed}: a file outside the profile"
    assert [p.name for p in path.parent.iterdir()] == ["mutated.sqlite"], f"seed {seed}: a file beside the capture"
    return outcome


def run_many(seeds: range, bases: list[bytes], tmp_path: Path) -> None:
    outcomes = {try_one(seed, bases[seed % len(bases)], tmp_path / str(seed)) for seed in seeds}
    # a run that only ever fails, or never does, tries nothing
    assert {"figures", "DataError"} <= outcomes


def test_mutated_exports_give_figures_or_one_sentence(bases: list[bytes], tmp_path: Path) -> None:
    run_many(range(200), bases, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_many_mutated_exports_give_figures_or_one_sentence(bases: list[bytes], tmp_path: Path, part: int) -> None:
    run_many(range(1000 + 100 * part, 1100 + 100 * part), bases, tmp_path)
