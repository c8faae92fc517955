"""
Evaluates the condition of `export --where` with the SQL engine of `query sql`, on batches that a task has read.

The engine reads Delta tables only, so each batch is a temporary table of one file. Subqueries are refused: they would
see the rows of one batch.
"""

import re
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from jobs.export import BODY_TEXT, COLUMNS, SCHEMA
from jobs.query.lake_tables import ENGINE_SETTINGS
from rmq_formats.errors import UnsupportedFormat

_MAX_WORDS = 5_000  # the engine's stack overflows at some 5,000 nested operators, each of which has two words or more
_TABLE, _NUMBER = "messages", "_number"  # the column has the number of each row in its batch
_SETTINGS = ENGINE_SETTINGS | {"datafusion.execution.target_partitions": "1"}
# Comments and quoted texts: words inside them are not counted.
_REFUSED_TEXT = re.compile(r"""--|/\*|\*/|\$|(?:[^\WxX]|\w[xX])['"`]""")
_TOKEN = re.compile(r"""'(?:''|[^'])*'|"(?:""|[^"])*"|`[^`]*`|\d+\.\d*|\w+|[^\w\s]""")
_IN_LIST = re.compile(r", (?:- )?(?:\d\S*|'s') (?=[,)])")  # a value after another one
_REFUSED_WORDS = frozenset({"select", "with", "values", "over", "unnest", "union", "intersect", "except", ";", "?"})
_VOLATILE = frozenset({"rand", "randn", "random", "shuffle", "uuid"})  # another value at each evaluation
_NOT_BOOLEAN = (
    "the condition must be a boolean expression on the columns of one row, without subqueries, aggregates, window "
    "functions, UNNEST or parameters"
)
_ADVICE = re.compile(r"\n+(?:Valid fields|Did you mean|Hint|This issue)")
_LINE = re.compile(r"(?<=at )Line: (\d+)")  # in errors; the condition begins in line 2 of the statement
# The engine's name of a batch, and the kinds of its errors.
_RAW = re.compile(rf'"?{_TABLE}"?\.|^(?:(?:DataFusion|Schema|External|Arrow|Cast) error: )+')


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in SQL on columns of `messages` and on body_text."""

    text: str
    columns: tuple[str, ...]  # the columns in the text, and possibly others

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that `find_matches` takes."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    @property
    def is_repeatable(self) -> bool:
        """Whether the condition has the same value for a row whenever it is evaluated."""
        return _VOLATILE.isdisjoint(re.findall(r"\w+", self.text.lower()))

    @property
    def uses_bodies(self) -> bool:
        """Whether bodies must be decompressed to evaluate the condition."""
        return not {"body", BODY_TEXT}.isdisjoint(self.columns)

    def find_matches(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether the condition is true; raise `UnsupportedFormat` if it cannot be computed."""
        matches = np.zeros(rows.num_rows, np.bool_)
        if rows.num_rows:
            with _raise_as_unsupported("--where: "):
                matches[_find_matching_numbers(self.text, rows)] = True
        return pa.array(matches)


def parse_condition(text: str) -> Condition:
    """Return a condition; raise `UnsupportedFormat` if *text* is not a boolean expression on the columns."""
    words = ["'s'" if word[0] == "'" else word for word in _TOKEN.findall(text)]
    # The content of quoted texts is not searched.
    if _REFUSED_TEXT.search(_TOKEN.sub(lambda one: one[0][0] * 2 if one[0][0] in "'\"`" else one[0], text)):
        raise UnsupportedFormat("comments, dollar signs and prefixed strings (such as E'…') are not supported")
    if _IN_LIST.sub("", " ".join(words)).count(" ") >= _MAX_WORDS:
        raise UnsupportedFormat(
            f"the condition has more than {_MAX_WORDS:,} tokens; to compare with many values, use IN"
        )
    depths = np.cumsum([(word == "(") - (word == ")") for word in words] or [0])
    if not _REFUSED_WORDS.isdisjoint(map(str.lower, words)) or depths.min() < 0:
        raise UnsupportedFormat(_NOT_BOOLEAN)
    # A column whose name is anywhere in the text may be used. A batch without columns would have no rows.
    named = {*re.findall(r"\w+", text.lower())}
    columns = tuple(name for name in (*COLUMNS, BODY_TEXT) if name in named) or ("physical_offset",)
    with _raise_as_unsupported():  # errors of types and of constants are found without a row
        _find_matching_numbers(
            text, pa.RecordBatch.from_pylist([], SCHEMA.remove(SCHEMA.get_field_index("body_error")))
        )
    return Condition(text, columns)


def _find_matching_numbers(text: str, rows: pa.RecordBatch) -> list[int]:
    """Return the numbers of the rows for which the condition is true."""
    numbered = pa.Table.from_batches([rows]).append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    with tempfile.TemporaryDirectory(prefix="rmq-lake-where-") as directory:
        write_deltalake(directory, numbered)
        engine = QueryBuilder(_SETTINGS).register(_TABLE, DeltaTable(directory))
        # A column, and no WHERE: in a filter of files, the engine overflows its stack at long lists. The line breaks
        # end a number or a name, and keep the columns that errors name.
        found = pa.table(engine.execute(f"SELECT {_NUMBER}, (\n{text}\n) FROM {_TABLE}").read_all())  # noqa: S608 - the user's own condition
    values = found.column(1)
    if found.num_rows != rows.num_rows or not (pa.types.is_boolean(values.type) or pa.types.is_null(values.type)):
        raise UnsupportedFormat(_NOT_BOOLEAN)
    numbers: list[int] = found.column(0).filter(values.cast(pa.bool_())).to_pylist()
    return numbers


@contextmanager
def _raise_as_unsupported(before: str = "") -> Iterator[None]:
    """Turn the engine's errors into `UnsupportedFormat` with one line."""
    try:
        yield
    except BaseException as error:
        # A failed assertion of the engine is a PanicException, which cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, UnsupportedFormat) or not (isinstance(error, Exception) or is_panic):
            raise
        cause = str(error).rpartition("caused by\n")[2]
        line = textwrap.shorten(_RAW.sub("", _ADVICE.split(cause)[0]), 200)
        if "RLike {" in str(error):
            line = "RLIKE is not supported; use the operator ~ or regexp_like(TEXT, PATTERN)"
        elif "must be in GROUP BY" in line:
            line = _NOT_BOOLEAN
        elif line.startswith("No field named"):
            line += " Put text values in single quotes"
        line = _LINE.sub(lambda found: f"Line: {int(found[1]) - 1}", line)
        raise UnsupportedFormat(before + line) from error
