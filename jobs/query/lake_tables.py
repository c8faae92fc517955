"""
SQL on a lake's tables and views without a JVM.

The SQL engine, DataFusion, is part of `deltalake`: it skips files by the statistics in Delta's log, row groups by those
of Parquet, and then uses bloom filters. Statements of users only read; their rows are returned in batches, so that
memory does not grow with their number.
"""

import json
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from arro3.core import RecordBatchReader
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from jobs.console.amounts import size_text
from jobs.console.process import ABANDONED_THREAD
from jobs.lake.lake import Lake, list_views, parse_run_detail, why_without_messages
from jobs.lake.snapshots import (
    open_delta,
    read_newest_transaction,
    refuse_files_elsewhere,
    refuse_older_version,
    refuse_wrong_row_counts,
    rows_without_timestamps,
)
from jobs.launch.engine import count_memory
from jobs.query.message import removed_column_text
from jobs.storage.local import explaining_full_disk, temporary_directory_for
from jobs.storage.locations import is_local, join_location, local_path, normalize_location, why_unsupported
from jobs.storage.paths import refuse_special_file
from jobs.store.selection import TOPIC_CHOICES_KEY, TopicChoices
from rmq_formats.arrow import MESSAGE_SCHEMA, type_without_dictionary
from rmq_formats.errors import NotAStore, UnsupportedFormat
from rmq_formats.properties import MAX_LONG

MESSAGES_NAME = "messages"
INDEX_ENTRIES_NAME = "index_entries"
QUARANTINE_NAME = "quarantine"
SUPERSEDED_NAME = "superseded_messages"
RUNS_NAME = "runs"
# Every table except messages, and except dead_letters, which is also a view. Importing the tables would load the
# compiler.
TABLES_EXCEPT_MESSAGES = (
    *("runs", "quarantine", "findings", "consumer_offsets", "broker_config", "traces", "tiered", "consume_queue"),
    *("index_files", "index_entries", "superseded_messages", "config_files", "log_pieces", "typings"),
    "accepted_findings",
)
INGESTED_ROWS = "total_size IS NOT NULL"  # NULL in rows that another engine has added
_TYPED, _DEAD_LETTERS, _LOG = "typed", "dead_letters", "_delta_log/"
_FILE = re.compile(r"[^\s/]+/[^\s/]+\.parquet")  # table and name, in an error of the engine
# Errors of the engine about files; the last pattern is a panic.
_ABOUT_FILES = re.compile(r"Parquet|Object Store|Join Error")
_OUT_OF_MEMORY = "Resources exhausted"
_MISSING_COLUMN = re.compile(r'Schema error: No field named (?:\w+\.)?"?(\w+)')
_SEARCHED_S = 10.0  # time limit of the search for the damaged file, if the engine's error does not name it


# This rule of DataFusion names values that it reads from maps twice, and then refuses views that join such tables.
ENGINE_SETTINGS = {"datafusion.optimizer.enable_leaf_expression_pushdown": "false"}
_Value = TypeVar("_Value")
_SPACE = r"(?:\s|--.*(?:\n|$)|/\*(?s:.*?)\*/)"  # with comments
_FIRST_WORD = re.compile(
    rf"(?:{_SPACE}|\()*(?:explain{_SPACE}+(?:(?:analyze|verbose){_SPACE}+)*\(*)?(?P<word>\w*)", re.IGNORECASE
)
_READING = frozenset(("select", "with", "values", "describe"))
_ONLY_READS = "only read-only statements are allowed: SELECT, WITH, VALUES, DESCRIBE, EXPLAIN"
# Statements that only read, but that the engine does not know, and what to write instead.
_INSTEAD = {
    "show": "SHOW is not supported: without a statement, `query sql` lists tables; DESCRIBE NAME lists columns",
    "table": "TABLE is not supported: write SELECT * FROM NAME",
    "summarize": "SUMMARIZE is not supported: write a SELECT with min, max, count and approx_distinct",
}
# Parts of DataFusion's messages that mean nothing to a user: the kind of error, and the names of the default catalog.
_RAW = re.compile(
    r'^(?:Error during planning|SQL error|This feature is not implemented): |datafusion\.public\.|ParserError\("|"\)$'
)
_STACK_BYTES = 512 << 20  # address space: only the part that is used takes memory
_LIMIT = re.compile(r"\b(?:limit|fetch)\b", re.IGNORECASE)
_SCAN_WITHOUT_COLUMNS = re.compile(r"TableScan: (?P<table>\S+) projection=\[\].*, fetch=\d+")
_MOST_VALUES = 1000  # of an IN list in our own statements
_MOST_FOOTERS = 200  # a table with more files is not checked: a query opens only the files that it needs
_ALWAYS = 1 << 63  # a file without statistics may hold messages of any time


# A store in a lake: the label that runs were given, and its id. Offsets are only meaningful within one store.
LabeledStore = tuple[str, str]


class FileStatistics(NamedTuple):
    """A file of a table, with the limits of an integer column and its number of rows, if known."""

    lowest: int | None
    highest: int | None
    row_count: int | None
    store_id: str | None  # None if it has rows of several stores


class LakeTables:
    """The tables of one lake that queries read."""

    def __init__(self, lake: str, options: Mapping[str, str], needed: Sequence[str] = (MESSAGES_NAME,)) -> None:
        """Open the lake at *lake*; raise `NotAStore` if it has none of the tables *needed*."""
        self.location = normalize_location(lake)
        self._options = options
        self._builder = QueryBuilder(ENGINE_SETTINGS)
        # A statement that needs more writes to temporary files, or fails; the engine does not count all of its memory.
        self._memory_limit = count_memory() // 2
        self._builder.execute(f"SET datafusion.runtime.memory_limit = '{self._memory_limit >> 10}K'")
        self._opened: dict[str, DeltaTable | None] = {}
        self._directories: dict[str, str] = {}  # the directories of the opened tables, below the lake
        self._unchecked: dict[str, list[str]] = {}  # the local files of tables whose footers were not checked yet
        self._files: dict[tuple[str, str], list[FileStatistics]] = {}
        self._values: dict[str, list[Any]] = {}
        self.unreadable: dict[str, OSError] = {}  # by table or view; only statements that name it fail
        if not any(map(self.has_table, needed)):
            raise NotAStore(why_without_messages(has_runs=self.has_table(RUNS_NAME)), None, self.location)

    def _table(self, name: str, path: str = "") -> DeltaTable | None:
        """Register a table with SQL; raise `OSError` if another engine has enabled unsupported features."""
        if name in self._opened:
            return self._opened[name]
        location = join_location(self.location, *(path or name).split("/"))
        recorded = (
            0 if name == RUNS_NAME or path else self._recorded_versions.get(name, 0)
        )  # before the table is opened
        try:
            table = open_delta(location, self._options)
        except TableNotFoundError:
            self._opened[name] = None
            return None
        refuse_older_version(location, table.version(), recorded)
        if name == MESSAGES_NAME:
            ours = Schema.from_arrow(
                pa.schema([field.with_type(type_without_dictionary(field.type)) for field in MESSAGE_SCHEMA])
            )
            types = {field.name: field.type for field in ours.fields}
            for field in table.schema().fields:  # with another type, SQL would compare other values
                if types.get(field.name, field.type) != field.type:
                    reason = (
                        f"has an unexpected type for the column {field.name}: another engine has rewritten the table"
                    )
                    raise OSError(f"the lake's table {MESSAGES_NAME} {reason}")
        # The engine would also read a file that a crafted log names.
        paths = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()["path"].to_pylist()
        refuse_files_elsewhere(table, paths)
        try:
            self._builder.register(quote_identifier(name), table)
        except DeltaError as error:
            reason = str(error).rpartition(": ")[2]
            advice = "Spark SQL, restore, diff and export can read it"
            raise OSError(f"{location}: queries cannot read this table: {reason}; {advice}") from error
        self._opened[name], self._directories[name] = table, path or name
        # Elsewhere, every footer would be a request, and the storage itself has checksums.
        if is_local(location) and len(paths) <= _MOST_FOOTERS:
            self._unchecked[name] = [f"{local_path(location)}/{unquote(file)}" for file in paths]
        return table

    @cached_property
    def _recorded_versions(self) -> Mapping[str, int]:
        """The version of each table that the newest finished run of any store recorded."""
        if self._table(RUNS_NAME) is None:
            return {}
        # Two statements: a join would hold all rows of `runs` in memory.
        newest = self.rows("SELECT store_id, max(run) AS run FROM runs WHERE state = 'done' GROUP BY store_id")
        of_run = "SELECT detail FROM runs WHERE state = 'done' AND store_id = {} AND run = {}"
        rows = [
            row
            for one in newest
            if one["store_id"] is not None and one["run"] is not None  # another engine may have removed them
            for row in self.rows(of_run.format(quote_literal(one["store_id"]), one["run"]))
        ]
        found: dict[str, int] = {}
        for row in rows:
            versions = parse_run_detail(self.location, row["detail"]).get("versions") or {}
            found |= {name: max(version, found.get(name, 0)) for name, version in versions.items()}
        return found

    def _list_add_actions(self, name: str) -> list[dict[str, Any]]:
        table = self._table(name)
        return [] if table is None else rows_without_timestamps(table.get_add_actions(flatten=True))

    @cached_property
    def stores(self) -> Sequence[LabeledStore]:
        """The stores that have messages, by their labels."""
        columns, files = ("broker", "store_id"), self._list_add_actions(MESSAGES_NAME)
        of_one = [
            row
            for row in files
            if all(row.get(f"min.{name}") == row.get(f"max.{name}") is not None for name in columns)
            and all(row.get(f"null_count.{name}") == 0 for name in columns)
        ]
        found = {(row["min.broker"], row["min.store_id"]) for row in of_one}
        if len(of_one) < len(files):  # a file of several stores, or one without statistics
            rows = self.rows(
                f"SELECT DISTINCT coalesce(broker, '') AS broker, store_id FROM {MESSAGES_NAME} "  # noqa: S608 - a name of ours
                f"WHERE {INGESTED_ROWS} AND store_id IS NOT NULL"  # a row without it belongs to no store
            )
            found = {(row["broker"], row["store_id"]) for row in rows}
        by_id = {store_id: (broker, store_id) for broker, store_id in sorted(found)}  # an engine may change a label
        return sorted(by_id.values())

    def list_files(self, name: str, column: str) -> Sequence[FileStatistics]:
        """Return the files of a table from Delta's log, highest values of *column* first."""
        known = self._files.get((name, column))
        if known is None:
            known = []
            for row in self._list_add_actions(name):
                has_limits = row.get(f"null_count.{column}") == 0  # a row without a value is within no limits
                low, high = (row.get(f"{end}.{column}") if has_limits else None for end in ("min", "max"))
                store_id = row.get("min.store_id") if row.get("min.store_id") == row.get("max.store_id") else None
                known.append(FileStatistics(low, high, row.get("num_records"), store_id))
            known.sort(key=lambda file: _ALWAYS if file.highest is None else file.highest, reverse=True)
            self._files[name, column] = known
        return known

    def has_table(self, name: str) -> bool:
        """Return whether the lake has a table, which is then registered."""
        return self._table(name) is not None

    @cached_property
    def view_descriptions(self) -> Mapping[str, str]:
        """The views whose tables exist, by name, with the meaning of a row; SQL statements can then use them."""
        found = {}
        for view in list_views():
            if all(self._is_readable(name, name, view.name) for name in view.tables):
                try:
                    self._builder.execute(f"CREATE VIEW {view.name} AS {view.sql}")
                    found[view.name] = view.row_meaning.removeprefix("Each row is ")
                except DeltaError as error:  # only fails statements that name it
                    self.unreadable[view.name] = OSError(f"{self.location}: {_explain(error)}")
        return found

    def _is_readable(self, name: str, path: str, user: str) -> bool:
        """Return whether the lake has a table; note the error of an unreadable one for its *user*, a view or itself."""
        try:
            return self._table(name, path) is not None
        except OSError as error:  # only fails statements that name it
            self.unreadable[user] = error
            return False

    @cached_property
    def tables_and_views(self) -> Mapping[str, tuple[str, str]]:
        """Every readable table and view by name, with its kind and the meaning of a row, if known; SQL can use them."""
        names = (MESSAGES_NAME, *TABLES_EXCEPT_MESSAGES)
        found = {name: ("table", "") for name in names if self._is_readable(name, name, name)}
        found |= {name: ("view", row) for name, row in self.view_descriptions.items()}
        lake = Lake(self.location, self._options)
        for topic in sorted({file.name.split("/")[0] for file in lake.list_files(_TYPED) if _LOG in file.name}):
            name = f"{_TYPED}_{topic}"
            if self._is_readable(name, f"{_TYPED}/{topic}", name):
                found[name] = "table", f"one body of the topic {topic}, typed"
        # The view `dead_letters` has messages that consumers failed to process; this table has bodies that fit no type.
        refused = f"{_TYPED}_{_DEAD_LETTERS}"
        if refused not in {*found, *self.unreadable} and self._is_readable(refused, _DEAD_LETTERS, refused):
            found[refused] = "table", "one body that does not fit its topic's declaration"
        return found

    def table_version(self, name: str) -> int | None:
        """Return the version of a table that answers use; None if the lake lacks it."""
        table = self._table(name)
        return None if table is None else int(table.version())

    def newest_run(self, name: str, store_id: str) -> int:
        """Return the newest run of a store that wrote a table; 0 if there is none."""
        table = self._table(name)
        return 0 if table is None else read_newest_transaction(table, store_id)

    def is_indexed(self, manifest: str) -> bool:
        """Return whether a run's manifest shows that all messages up to the run's end were indexed."""
        try:
            known = json.loads(Lake(self.location, self._options).read(manifest))
            return bool(known["state"]["index"]["to_offset"] >= known["to_offset"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # it may be deleted: the keys are searched
            return False

    def selected_topics(self, detail: str, manifest: str) -> TopicChoices | str:
        """Return the topics that runs selected, or why they are unknown; early runs stored them only in manifests."""
        try:
            known = json.loads(detail)
            if TOPIC_CHOICES_KEY in known:
                return TopicChoices.from_state(known[TOPIC_CHOICES_KEY], {})
            known = json.loads(Lake(self.location, self._options).read(manifest))
            return TopicChoices.from_state(known["state"], known["selection"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # reported
            return f"runs may have omitted topics: {manifest} cannot be read ({type(error).__name__})"

    def column_types(self, sql: str) -> dict[str, str]:
        """Return the columns of a query, with their Arrow type names."""
        return {field.name: str(field.type) for field in pa.schema(self._builder.execute(f"{sql} LIMIT 0").schema)}

    def distinct_values(self, column: str, condition: str) -> Sequence[Any]:
        """Return the distinct values of a column of messages; the column is read once."""
        sql = f"SELECT DISTINCT {column} FROM {MESSAGES_NAME} WHERE {condition}"  # noqa: S608 - quoted
        if sql not in self._values:
            self._values[sql] = [row[column] for row in self.rows(sql)]
        return self._values[sql]

    def execute(self, sql: str) -> RecordBatchReader:
        """Run a statement on the tables that are registered."""
        self._check_row_counts(sql)
        return self._builder.execute(sql)

    def _check_row_counts(self, sql: str) -> None:
        """Check the footers of the files of tables and views that *sql* names, unless an earlier statement did."""
        lower = sql.lower()  # names without quotation marks may have any case
        used = {name for view in list_views() if view.name in lower for name in view.tables}
        for name in [name for name in self._unchecked if name in used or name.lower() in lower]:
            for file in self._unchecked[name]:
                _check_row_count(file)
            del self._unchecked[name]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Run a query and return its rows; raise `OSError` if a file in Delta's log is missing or damaged."""
        # The engine's own reader would hold Python's lock until it is done, and block every other thread.
        return self._read_batches(sql, rows_without_timestamps)

    def read_integers(self, sql: str) -> list[int]:
        """Run a query with one integer column and return its values."""
        return self._read_batches(sql, lambda found: pa.RecordBatchReader.from_stream(found).read_all()[0].to_pylist())

    def _read_batches(self, sql: str, take: Callable[[RecordBatchReader], list[_Value]]) -> list[_Value]:
        """Run a statement of ours and return what *take* makes of its batches; an error names the damaged file."""
        try:
            with self.naming_damaged_files():
                return take(self.execute(sql))
        except DeltaError as error:
            raise OSError(f"{self.location}: {_explain(error)}") from error

    @contextmanager
    def naming_damaged_files(self) -> Iterator[None]:
        """Raise `OSError` with the name of the file for errors of the engine about a missing or damaged file."""
        try:
            yield
        except Exception as error:  # the engine's own
            text = str(error)
            if _OUT_OF_MEMORY in text:
                limit = f"{size_text(self._memory_limit)}, half of the memory that this process may use"
                raise MemoryError(f"the statement needs more than {limit}. Read fewer rows or columns") from error
            found = _FILE.search(text)
            if found is None and _ABOUT_FILES.search(text) is None:
                raise
            file = self._find_unreadable_file() if found is None else found[0]
            reason = text.rpartition(": ")[2]
            raise OSError(f"{self.location}: cannot read {file or 'a file of a table'}: {reason}") from error

    def _find_unreadable_file(self) -> str | None:
        """Return a damaged file of a table that queries have opened; None if the search finds none in its time."""
        from jobs.lake.snapshot_files import find_damaged_file  # loads the compiler

        files = (
            f"{self._directories[name]}/{unquote(row['path'])}"
            for name, table in self._opened.items()
            for row in (rows_without_timestamps(table.get_add_actions(flatten=True)) if table is not None else ())
        )
        return find_damaged_file(Lake(self.location, self._options), files, _SEARCHED_S)


def _explain(error: DeltaError) -> str:
    """Return why the engine refuses a statement of ours: another engine has changed a table."""
    text = _RAW.sub("", " ".join(str(error).split()))
    found = _MISSING_COLUMN.match(text)
    return text if found is None else removed_column_text("a table of this lake", found[1])


def _check_row_count(file: str) -> None:
    """Raise `OSError` if a Parquet file states a wrong number of rows: the engine would allocate memory for all."""
    from pyarrow import parquet  # lazy import: a statement without tables does not need it

    refuse_special_file(Path(file))
    try:
        metadata = parquet.read_metadata(file)
    except (pa.ArrowException, OSError):  # the engine reports it, if it needs the file
        return
    try:
        refuse_wrong_row_counts(metadata)
    except pa.ArrowInvalid as error:
        raise OSError(f"{file}: {error}") from error


def is_lake(location: str, options: Mapping[str, str]) -> bool:
    """Return whether a location has a table of messages or of runs; an unsupported location has none."""
    if why_unsupported(location) is not None:
        return False
    try:
        LakeTables(location, options, (MESSAGES_NAME, RUNS_NAME))
    except NotAStore:
        return False
    return True


def quote_literal(value: str) -> str:
    """Quote a text for SQL."""
    return "'" + value.replace("'", "''") + "'"


def quote_identifier(name: str) -> str:
    """Return the name of a table as SQL writes it: a topic's may have capital letters and signs."""
    return name if name.isidentifier() and name.islower() else f'"{name}"'


def sql_in_condition(column: str, values: Iterable[int | str]) -> str:
    """Return the condition that a column has one of *values*; the engine recurses for each value of a list."""
    listed = [quote_literal(value) if isinstance(value, str) else str(value) for value in values]
    if len(listed) <= _MOST_VALUES:
        return f"{column} IN ({', '.join(listed)})"
    return f"{column} IN (SELECT column1 FROM (VALUES {', '.join(f'({value})' for value in listed)}) AS listed)"  # noqa: S608 - quoted


def describe_tables(tables: LakeTables) -> Generator[dict[str, object]]:
    """Yield the tables and views of a lake, and what one row of each is."""
    from jobs.lake.tables import TABLES  # loads the compiler

    rows = {table.name: table.row_meaning for table in TABLES}
    for name, (kind, row) in tables.tables_and_views.items():
        yield {"name": name, "kind": kind, "row": row or rows.get(name, "")}


class ResultBatches:
    """The rows of a statement in batches."""

    def __init__(self, tables: LakeTables, sql: str) -> None:
        """Run a statement on all tables and views; `UnsupportedFormat` if it is invalid or not read-only."""
        found = _FIRST_WORD.match(sql)
        word = found["word"].lower() if found is not None else ""
        if word not in _READING or not tables.tables_and_views:
            raise UnsupportedFormat(_INSTEAD.get(word, _ONLY_READS))
        # The engine cannot be interrupted: its thread is left behind when the command ends early, and ends with the
        # process.
        self._thread = _start_engine_thread()
        self._tables = tables
        try:
            if word in {"select", "with"} and _LIMIT.search(sql):
                self._refuse_ignored_limit(sql)
            opened = self._thread.submit(lambda: pa.RecordBatchReader.from_stream(tables.execute(sql)))
            self._reader = self._await_result(opened)
        except DeltaError as error:
            reason = _RAW.sub("", " ".join(str(error).split()))
            unreadable = (why for name, why in tables.unreadable.items() if reason == f"table '{name}' not found")
            raise next(unreadable, UnsupportedFormat(f"the statement failed: {reason}")) from error
        if not self._reader.schema.names:  # SELECT … INTO has created a table in memory
            raise UnsupportedFormat(f"the statement returns no columns; {_ONLY_READS}, and no SELECT … INTO")
        # Views and dictionaries are how the engine holds values in memory.
        views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
        types = [views.get(field.type) or type_without_dictionary(field.type) for field in self._reader.schema]
        self.schema = pa.schema(list(zip(_distinct_names(self._reader.schema.names), types, strict=True)))

    def _refuse_ignored_limit(self, sql: str) -> None:
        """Raise `UnsupportedFormat` if a LIMIT became part of a scan without columns, which returns all rows."""
        explained = self._thread.submit(lambda: rows_without_timestamps(self._tables.execute(f"EXPLAIN {sql}")))
        plans = self._await_result(explained)
        found = next((scan for row in plans if (scan := _SCAN_WITHOUT_COLUMNS.search(str(row["plan"])))), None)
        if found is not None:
            raise UnsupportedFormat(
                f"the engine ignores the LIMIT of a SELECT that reads no column of {found['table']}. Select one of its "
                "columns too"
            )

    def _await_result(self, asked: Future[_Value]) -> _Value:
        with self._tables.naming_damaged_files():
            return asked.result()

    def close(self) -> None:
        """Stop the engine after the current batch."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        following = self._thread.submit(next, self._reader, None)
        while (batch := self._await_result(following)) is not None:
            following = self._thread.submit(next, self._reader, None)  # the engine is one batch ahead
            columns = [column.cast(field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def rows(self) -> Generator[dict[str, object]]:
        """Yield rows, with times as ISO 8601 in UTC, bytes as hexadecimal digits, and maps as objects."""
        try:
            for batch in self:
                columns = [_plain_values(column) for column in batch.columns]
                for values in zip(*columns, strict=True) if columns else ():
                    yield dict(zip(self.schema.names, values, strict=True))
        finally:
            self.close()


def _start_engine_thread() -> ThreadPoolExecutor:
    """
    Return a thread for a statement of a user.

    The engine recurses for each value of an IN list: 22,000 values end a process whose stack has the usual 8 MiB.
    """
    default = threading.stack_size(_STACK_BYTES)
    try:
        thread = ThreadPoolExecutor(1, ABANDONED_THREAD)
        thread.submit(int).result()  # starts the thread while this size applies
    finally:
        threading.stack_size(default)
    return thread


def _distinct_names(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of columns; a join may have several of one name, and the second one becomes NAME_2."""
    given = set[str]()
    for name in names:
        others = (f"{name}_{number}" for number in count(2) if f"{name}_{number}" not in names)
        given.add(unused := next(one for one in chain((name,), others) if one not in given))
        yield unused


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # JSON has no such numbers


def _plain_values(column: pa.Array) -> list[object]:
    """Return the values of a column as JSON has them."""
    if _is_time(column.type):
        return [*_time_text(column).to_pylist()]
    if _contains_times(column.type):
        return [_plain_scalar(scalar) for scalar in column]
    return [_plain(value) for value in column.to_pylist(maps_as_pydicts="lossy")]


def _plain_scalar(scalar: pa.Scalar) -> object:
    """Return a value that may contain times; Python's own times have neither nanoseconds nor the year 10000."""
    if not scalar.is_valid:
        return None
    if _is_time(scalar.type):
        return _time_text(scalar).as_py()
    if isinstance(scalar, pa.StructScalar):
        return {name: _plain_scalar(part) for name, part in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        pairs = (pair.values() for pair in scalar.values)
        return {str(_plain_scalar(key)): _plain_scalar(value) for key, value in pairs}
    if pa.types.is_nested(scalar.type):
        return [_plain_scalar(part) for part in scalar.values]
    return _plain(scalar.as_py())


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))


def _contains_times(kind: pa.DataType) -> bool:
    return _is_time(kind) or any(_contains_times(kind.field(number).type) for number in range(kind.num_fields))


def _time_text(times: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Return times as text; Arrow would load pandas to determine the zone of a Python object."""
    import pyarrow.compute as pc

    if not pa.types.is_timestamp(times.type):
        return times.cast(pa.string())
    return pc.strftime(times.cast(pa.timestamp(times.type.unit, "UTC")), "%Y-%m-%dT%H:%M:%SZ")


def _plain(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {str(key): _plain(part) for key, part in value.items()}
        case list():
            return [_plain(part) for part in value]
        case None | bool() | int() | float() | str():
            return _NOT_FINITE.get(str(value), value) if isinstance(value, float) else value
        case _:
            return str(value)


def write_parquet(batches: ResultBatches, out: Path, limit: int) -> bool:
    """Write rows to a new file atomically; return whether there are more than *limit* (0: no limit)."""
    import pyarrow.parquet as pq

    left = limit or MAX_LONG
    with closing(batches), explaining_full_disk(str(out)), temporary_directory_for(out) as directory:
        attempt = directory / out.name
        with pq.ParquetWriter(attempt, batches.schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch.slice(0, left))
                left -= batch.num_rows
                if left < 0:
                    break
        attempt.replace(out)
    return left < 0
