"""
Evaluates the condition of `export --where` with DataFusion, on batches that a task has read.

DataFusion gets one batch with the columns of the condition, but no tables and no files, and subqueries are refused.
"""

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.export import BODY_TEXT, COLUMNS, SCHEMA
from jobs.launch.engine import SetupError
from rmq_formats.errors import UnsupportedFormat

if TYPE_CHECKING:
    from datafusion import Expr, SessionContext

_MAX_WORDS = 5_000  # DataFusion's stack overflows at some 5,000 nested operators, each of which has two words or more
# Comments and quoted texts: words inside them are not counted.
_REFUSED_TEXT = re.compile(r"""--|/\*|\*/|\$|(?:[^\WxX]|\w[xX])['"`]""")
_TOKEN = re.compile(r"""'(?:''|[^'])*'|"(?:""|[^"])*"|`[^`]*`|\d+\.\d*|\w+|[^\w\s]""")
_IN_LIST = re.compile(r", (?:- )?(?:\d\S*|'s') (?=[,)])")  # a value after another one
_REFUSED = re.compile("Subquery|Exists|SetComparison|Aggregate|Window|Unnest|Placeholder|Variable|Lambda")
_VOLATILE = frozenset({"rand", "randn", "random", "shuffle", "uuid"})  # another value at each evaluation
_ADVICE = re.compile(r"\n+(?:Valid fields|Did you mean|Hint|This issue)")
# DataFusion's name of a batch, and the kinds of its errors.
_RAW = re.compile(r'"?\?table\?"?\.|^(?:(?:DataFusion|Schema|Arrow|Cast) error: )+')


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
        """Return the value of the condition for each row; raise `UnsupportedFormat` if it cannot be computed."""
        context = _context()
        with _explained("--where: "):
            values = context.read_batch(rows).select(_parse(self)).to_arrow_table().column(0)
        return values.cast(pa.bool_()).combine_chunks()


def parse_condition(text: str) -> Condition:
    """Return a condition; raise `UnsupportedFormat` if *text* is not a boolean expression on the columns."""
    context = _context()
    tokens = ["'s'" if token[0] == "'" else token for token in _TOKEN.findall(text)]
    # The content of quoted texts is not searched.
    if _REFUSED_TEXT.search(_TOKEN.sub(lambda one: one[0][0] * 2 if one[0][0] in "'\"`" else one[0], text)):
        raise UnsupportedFormat("comments, dollar signs and prefixed strings (such as E'…') are not supported")
    if _IN_LIST.sub("", " ".join(tokens)).count(" ") >= _MAX_WORDS:
        raise UnsupportedFormat(
            f"the condition has more than {_MAX_WORDS:,} tokens; to compare with many values, use IN"
        )
    # A column whose name is anywhere in the text may be used. A batch without columns would have no rows.
    named = {*re.findall(r"\w+", text.lower())}
    columns = tuple(name for name in (*COLUMNS, BODY_TEXT) if name in named) or ("physical_offset",)
    every = Condition(text, (*COLUMNS, BODY_TEXT))
    with _explained():
        expression = _parse(every)
        pending = [expression]
        while pending:
            part = pending.pop()
            kind = part.variant_name()
            if _REFUSED.search(kind):
                raise UnsupportedFormat(
                    "the condition must be a boolean expression on the columns of one row, without subqueries, "
                    "aggregates, window functions, UNNEST, parameters or lambdas"
                )
            pending += () if kind in {"Column", "Literal"} else part.rex_call_operands()
        # Errors of types and of constants are found without a row.
        context.read_batch(_no_rows(every)).filter(expression).collect()
    return Condition(text, columns)


@cache
def _context() -> "SessionContext":
    try:
        from datafusion import SessionConfig, SessionContext

        context = SessionContext(SessionConfig().with_target_partitions(1))  # so that rows keep their order
        context.enable_spark_functions()  # length(body), json_tuple, hour and others
    except (ImportError, AttributeError) as error:  # missing, damaged or too old
        remedy = "pip install --upgrade 'rocketmq-lake[where]'"
        raise SetupError(f"--where requires datafusion 55 or newer: {remedy} ({error})") from error
    return context


@cache
def _parse(condition: Condition) -> "Expr":
    return _context().read_batch(_no_rows(condition)).parse_sql_expr(condition.text)


def _no_rows(condition: Condition) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], condition.schema)


@contextmanager
def _explained(before: str = "") -> Iterator[None]:
    """Turn DataFusion's errors into `UnsupportedFormat` with one line."""
    try:
        yield
    except BaseException as error:
        # DataFusion raises `Exception`, and for a failed assertion a PanicException, which cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, UnsupportedFormat) or not (isinstance(error, Exception) or is_panic):
            raise
        cause = str(error).rpartition("caused by\n")[2]
        line = textwrap.shorten(_RAW.sub("", _ADVICE.split(cause)[0]), 200)
        if "RLike {" in str(error):
            line = "RLIKE is not supported; use the operator ~ or regexp_like(TEXT, PATTERN)"
        elif line.startswith("No field named"):
            line += " Put text values in single quotes"
        raise UnsupportedFormat(before + line) from error
