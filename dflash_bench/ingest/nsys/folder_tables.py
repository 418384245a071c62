"""The tables of an export in a folder, one Parquet or Arrow file each, as ``nsys export`` makes since 2023.4.

``--type=parquetdir`` writes ``NAME_pqtdir/TABLE.parquet``, ``--type=arrowdir`` ``NAME_arwdir/TABLE.arrow``: the tables
and columns of the SQLite export. Ids are unsigned there, and not of one width in the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys.tables import NSYS_TABLES, Cell, is_null
from dflash_bench.ingest.rows import BATCH_ROWS

SUFFIXES = (".parquet", ".arrow")
FOLDER_ENDINGS = ("_pqtdir", "_arwdir")
"""How nsys calls the folders that it makes."""
_FILE_MAGIC = b"ARROW1"
_BUFFER_BYTES = 1 << 20
"""Of each column this much is read at a time: else a column of a row group, of whatever size, would be read whole."""


@dataclass(frozen=True, slots=True)
class FolderTables:
    """A folder's tables (`tables.Tables`). ``path`` is what a person calls it, ``files`` holds each table's file."""

    path: Path
    files: dict[str, Path]
    columns: dict[str, frozenset[str]]
    left_out: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, folder: Path, path: Path) -> FolderTables:
        """Look which tables there are. Raises DataError when the file of one is damaged."""
        files = {file.stem: file for file in table_files(folder)}
        columns = {}
        for table, file in files.items():
            with _reading(path, file):
                names = _schema(file).names
                if len(set(names)) < len(names):
                    raise pa.ArrowInvalid("two columns bear one name")
                columns[table] = frozenset(names)
        return cls(path, files, columns)

    def num_rows(self, table: str) -> int:
        file = self.files[table]
        with _reading(self.path, file):
            if file.suffix == ".parquet":
                return int(pq.read_metadata(file).num_rows)
            with _arrow(file) as reader:
                return sum(batch.num_rows for batch in reader)

    def cells(self, table: str, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
        file, rows = self.files[table], list[tuple[Cell, ...]]()
        with _reading(self.path, file):
            # a column that is asked for twice would be read as two of one name
            for batch in _batches(file, [*dict.fromkeys(columns)]):
                rows += _tuples(batch, columns)
        return rows

    def distinct(self, table: str, columns: Sequence[str], where: tuple[str, int]) -> list[tuple[Cell, ...]]:
        file, (column, value) = self.files[table], where
        rows: dict[tuple[Cell, ...], None] = {}
        with _reading(self.path, file):
            for batch in _batches(file, [*dict.fromkeys((*columns, column))]):
                found = batch.filter(pc.equal(_integers(batch.column(column), 0), value))
                rows |= dict.fromkeys(_tuples(found, columns))
        return list(rows)

    def batches(self, table: str, numbers: dict[str, int], texts: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        file, known = self.files[table], self.columns[table]
        present = [c for c in (*numbers, *texts) if c in known]
        with _reading(self.path, file):
            for batch in _batches(file, present):
                yield _plain(batch, numbers, texts)


def table_files(folder: Path) -> list[Path]:
    """The files of tables in a folder."""
    return [p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES and p.is_file()]


def is_folder_export(path: Path) -> bool:
    """Whether a folder holds tables of nsys as files. One that cannot be looked into does not."""
    with suppress(OSError):
        return path.is_dir() and any(file.stem in NSYS_TABLES for file in table_files(path))
    return False


@contextmanager
def _reading(path: Path, file: Path) -> Iterator[None]:
    """Turn what Arrow says of a damaged file into DataError."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].replace(str(file), file.name)
        raise DataError(f"{path}: {file.name} is damaged: {reason}", hint="copy or export it again") from None


@contextmanager
def _arrow(file: Path) -> Iterator[Iterator[pa.RecordBatch]]:
    """The record batches of an Arrow file, which may be of the file format or a stream."""
    with pa.memory_map(str(file)) as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            yield (reader.get_batch(k) for k in range(reader.num_record_batches))
        else:
            yield iter(pa.ipc.open_stream(source))


def _schema(file: Path) -> pa.Schema:
    if file.suffix == ".parquet":
        return pq.read_schema(file)
    with pa.memory_map(str(file)) as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).schema


def _batches(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a file, at most `BATCH_ROWS` rows at a time."""
    if file.suffix == ".parquet":
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES) as parquet:
            yield from parquet.iter_batches(BATCH_ROWS, columns=list(columns))
        return
    with _arrow(file) as batches:
        for batch in batches:
            wanted = _sound(batch.select(list(columns)))
            for at in range(0, wanted.num_rows, BATCH_ROWS):
                yield wanted.slice(at, BATCH_ROWS)


def _sound(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its texts as bytes, once its buffers are what they claim: else they could crash their reader.

    Raises ArrowInvalid. Texts are not held to be UTF-8.
    """
    columns = [_texts(c) if pa.types.is_string(c.type) or pa.types.is_large_string(c.type) else c for c in batch]
    for column in columns:
        column.validate(full=True)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plain(batch: pa.RecordBatch, numbers: dict[str, int], texts: Sequence[str]) -> pa.RecordBatch:
    """The batch in the types that every kind of storage gives: int64 and bytes, none of it NULL."""
    n, names = batch.num_rows, batch.schema.names
    columns = {
        c: _integers(batch.column(c), default) if c in names else pa.repeat(pa.scalar(default, pa.int64()), n)
        for c, default in numbers.items()
    }
    for c in texts:
        text = _texts(batch.column(c)) if c in names else pa.nulls(n, pa.binary())
        columns |= {c: text.fill_null(b""), is_null(c): text.is_null().cast(pa.int64())}
    return pa.RecordBatch.from_pydict(columns)


def _integers(column: pa.Array, default: int) -> pa.Array:
    """An integer column of any width as int64. Raises ArrowInvalid where anything else is stored, or does not fit."""
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise pa.ArrowInvalid(f"a column holds {column.type} where integers belong")
    # an unsigned number keeps its bits, as in the SQLite export, which knows signed ones only
    signed = column.view(pa.int64()) if column.type == pa.uint64() else column.cast(pa.int64())
    return signed.fill_null(default)


def _texts(column: pa.Array) -> pa.Array:
    """A text column as bytes. Raises ArrowInvalid where anything else is stored."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(plain.type) for is_kind in (*kinds, pa.types.is_null)):
        raise pa.ArrowInvalid(f"a column holds {column.type} where texts belong")
    return plain.cast(pa.binary())


def _tuples(batch: pa.RecordBatch, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
    return list(zip(*(_cells(batch.column(c)) for c in columns), strict=True))


def _cells(column: pa.Array) -> list[Cell]:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type):
        return column.to_pylist()
    return _texts(column).to_pylist()
