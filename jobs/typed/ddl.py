"""
Columns of typed tables as declared in SQL: `id bigint NOT NULL, who struct<name: string>, tags array<string>`.

In memory, columns are Arrow fields; NOT NULL columns are not nullable. A row of a typed table first has the columns of
the message, then those of its body. Each type of a topic has its own table.
"""

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa

from jobs.lake.tables import INGESTED_AT, JSON_TEXT, PROVENANCE_COLUMNS, SQL_TYPES, TIMESTAMP, Table, sql_type
from rmq_formats.arrow import column

TYPED_DIRECTORY = "typed"
TYPING = "typing"
# Columns of typed tables, unless the body has a column of this name.
STORE_DATE = "store_date"
LOAD_COLUMNS = (
    column(STORE_DATE, pa.date32(), "UTC day of store_timestamp; NULL in rows of earlier releases"),
    column(TYPING, pa.int64(), "number of the run of `type` that wrote the row; NULL in rows of earlier releases"),
    column(INGESTED_AT, TIMESTAMP, "time at which this run of `type` started; NULL in rows of earlier releases"),
)
_MOST_LIMITS = 32  # declared columns of a table whose minimum and maximum are in Delta's log
MAX_DIRECTORY_LENGTH = 200  # bytes: file systems allow 255
RESERVED_COLUMNS = frozenset({"broker", "store_id", *(field.name for field in PROVENANCE_COLUMNS)})
MAX_DECIMAL_DIGITS = 38
_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_NAME = re.compile(r"\s*(?:([A-Za-z_]\w*)|`((?:[^`]|``)+)`)", re.ASCII)
_WORD = re.compile(r"\s*([A-Za-z_]\w*|[<>(),:])", re.ASCII)
# The precision and scale of a decimal, if it states them.
_DIGITS = re.compile(r"\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)|(?!\s*\()", re.ASCII)
_COMMENT = re.compile(r"\s*'(?:[^'\\]|\\.)*'")
_NOT_IN_DELTA = re.compile(r"[ ,;{}()\n\t=.`]")
_DEEPEST = 16
_NESTED = ("array", "map", "struct", "decimal")
_JSON = "json"  # only the type of a column, never of a nested field
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
# Each type can hold every value of the types before it in its row.
_WIDER = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.int8(), pa.int16(), pa.float32(), pa.float64()),
    (pa.int32(), pa.float64()),
)


MAX_FIELDS = 10_000  # each use of a named type counts, because thirty types can stand for a billion fields
MANY_FIELDS_REASON = f"more than {MAX_FIELDS:,} fields, including those of nested types"


class SchemaError(ValueError):
    """A text does not declare valid columns, or the columns cannot hold the values that a table has."""


def parse_columns(text: str) -> tuple[pa.Field, ...]:
    """Return the columns that *text* declares; `SchemaError` names the character at which it is wrong."""
    columns = _Parser(text).fields("", "")
    _refuse_names(columns)
    return columns


def _refuse_names(columns: Iterable[pa.Field]) -> None:
    """Raise `SchemaError` for column names that Delta does not allow, and for duplicates."""
    seen: set[str] = set()
    for field in columns:
        if _NOT_IN_DELTA.search(field.name) or not field.name.isprintable():
            raise SchemaError(f"{field.name!r}: a column name must not contain a space, dot, comma, bracket, ` or =")
        if field.name.lower() in seen:
            raise SchemaError(f"{field.name!r}: duplicate column name")
        seen.add(field.name.lower())
        _refuse_names(_fields(field.type))


def _fields(type_: pa.DataType) -> list[pa.Field]:
    """Return the child fields of a type."""
    return [type_.field(number) for number in range(type_.num_fields)]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def fields(self, separator: str, end: str, depth: int = 0) -> tuple[pa.Field, ...]:
        """Return the fields up to *end*; *separator* separates a name from its type."""
        found = [self._field(separator, depth)]
        while self._skip_if_next(","):
            found.append(self._field(separator, depth))
        if end:
            self._demand(end)
        elif self._text[self._at :].strip():
            raise self._error("a comma or the end")
        return tuple(found)

    def _field(self, separator: str, depth: int) -> pa.Field:
        name = self._name("the name of a column")
        if self._text[self._at : self._at + 1] in set("-./@#$"):
            raise self._error("a name of letters, digits and _ (enclose any other name in backticks: `order-id` int)")
        if separator:
            self._demand(separator)
        type_ = self._type(depth)
        nullable = not self._skip_if_next("not")
        if not nullable:
            self._demand("null")
        if self._skip_if_next("comment"):
            self._token(_COMMENT, "a comment in '…'")
        return pa.field(name, type_, nullable)

    def _type(self, depth: int) -> pa.DataType:
        if depth == _DEEPEST:
            raise self._error(f"at most {_DEEPEST} levels of nested types")
        begin = self._at
        name = self._name("a type").lower()
        name = _ALIASES.get(name, name)
        if name in SQL_TYPES:
            return SQL_TYPES[name]
        if name == _JSON and not depth:
            return JSON_TEXT
        if name == "decimal":
            digits = self._token(_DIGITS, "(precision, scale)")
            precision, scale = (int((text or "0")[:4]) for text in digits.groups()) if digits[0] else (10, 0)
            if not (1 <= precision <= MAX_DECIMAL_DIGITS and scale <= precision):
                raise self._error(
                    f"decimal(precision, scale) with 1 <= precision <= {MAX_DECIMAL_DIGITS} and scale <= precision"
                )
            return pa.decimal128(precision, scale)
        if name not in _NESTED:
            self._at = begin
            names = (*SQL_TYPES, *_NESTED, *(() if depth else (_JSON,)))
            raise self._error(f"a type ({', '.join(names)})")
        self._demand("<")
        if name == "struct":
            return pa.struct(self.fields(":", ">", depth + 1))
        if name == "map":
            if self._type(depth + 1) != pa.string():
                raise self._error("string, because the keys of a map must be strings")
            self._demand(",")
        inner = self._type(depth + 1)
        self._demand(">")
        return pa.list_(inner) if name == "array" else pa.map_(pa.string(), inner)

    def _name(self, wanted: str) -> str:
        found = self._token(_NAME, wanted)
        return found[1] or str(found[2]).replace("``", "`")

    def _skip_if_next(self, wanted: str) -> bool:
        """Move past the next word or sign if it is *wanted*; return whether it was."""
        found = _WORD.match(self._text, self._at)
        is_there = found is not None and found[1].lower() == wanted
        self._at = found.end() if found is not None and is_there else self._at
        return is_there

    def _demand(self, wanted: str) -> None:
        if not self._skip_if_next(wanted):
            raise self._error(repr(wanted))

    def _token(self, form: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = form.match(self._text, self._at)
        if found is None:
            raise self._error(wanted)
        self._at = found.end()
        return found

    def _error(self, wanted: str) -> SchemaError:
        rest = self._text[self._at :].lstrip()
        at = len(self._text) - len(rest) + 1
        return SchemaError(f"character {at}: expected {wanted}, found {rest[:20]!r}")


def all_nullable(type_: pa.DataType) -> pa.DataType:
    """Return the type as in tables: all nested fields are nullable, and the text of a JSON value is a string."""
    if type_ == JSON_TEXT:
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(all_nullable(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), all_nullable(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, all_nullable(field.type)) for field in type_])
    return type_


def is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Return whether the new type can hold every value of the old one."""
    if new == old:
        return True
    if pa.types.is_decimal(new) and pa.types.is_decimal(old):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if new.num_fields and new.id == old.id:
        return not list_narrowed_columns(_fields(new), _fields(old))
    return any(old in row and new in row[row.index(old) :] for row in _WIDER)


def list_narrowed_columns(new: Iterable[pa.Field], old: Iterable[pa.Field]) -> list[str]:
    """Return the old columns whose values the new columns cannot hold."""
    types = {field.name: field.type for field in new}
    return [
        f"{field.name} {sql_type(field.type)}"
        for field in old
        if field.name not in types or not is_wider(types[field.name], field.type)
    ]


def table_name(topic: str, type_: str | None) -> str:
    """Return the table name of a topic, or of one of its types; it is a safe directory name for any topic."""
    names = [topic] if type_ is None else [topic, type_]
    safe = (_UNSAFE.sub(lambda match: b"~%02X" % match[0][0], name.encode()).decode() for name in names)
    return f"{TYPED_DIRECTORY}/{'.'.join(safe)}"


def typed_table(name: str, columns: Sequence[pa.Field]) -> Table:
    """Return a typed table: the columns of the message, then those of its body."""
    refuse_reserved(columns)
    of_body = (column(field.name, all_nullable(field.type), "of the body") for field in columns)
    names = {field.name.lower() for field in columns}
    of_load = [field for field in LOAD_COLUMNS if field.name not in names]
    return Table(
        name,
        "the body of one message",
        (*PROVENANCE_COLUMNS, *of_load, *of_body),
        statistics=(
            *("physical_offset", "store_timestamp"),
            *(field.name for field in of_load),
            *[field.name for field in columns if _has_limits(field.type)][:_MOST_LIMITS],
        ),
    )


def _has_limits(type_: pa.DataType) -> bool:
    """Return whether readers skip files by the minimum and maximum of a column, which must be exact."""
    return bool(pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_string(type_))


def refuse_reserved(columns: Sequence[pa.Field]) -> None:
    """Raise `SchemaError` for the name of a column that every typed table has."""
    taken = sorted(field.name for field in columns if field.name.lower() in RESERVED_COLUMNS)
    if taken:
        raise SchemaError(
            f"{taken[0]!r}: every typed table already has this column for the message itself; give the column another "
            "name, "
            f'and map the field to it: from = {{ body_{taken[0]} = "{taken[0]}" }}'
        )
