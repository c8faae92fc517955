"""
`type --infer`: proposes types that hold for the whole history of a topic.

The first pass collects the shape of every body. The second pass reads all bodies with the proposed types, so that
bodies that do not fit are counted, not estimated.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from jobs.console.amounts import count_text
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import open_complete_table
from jobs.lake.snapshot_files import SnapshotFile, list_snapshot_files
from jobs.lake.tables import MESSAGES, sql_columns
from jobs.store.workers import Workers
from jobs.typed.ddl import MAX_DECIMAL_DIGITS, RESERVED_COLUMNS, SchemaError, parse_columns
from jobs.typed.declaration import JSON_FORMAT, TopicType
from jobs.typed.formats import Row, parse_body, read_typed_rows
from jobs.typed.run import explain_absent_topics
from jobs.typed.task import read_refusals
from jobs.typed.values import Number, Refusal, RefusedBodyError, TimeDefaults, Value, convert_day, convert_instant

_MOST_MEMBERS = 64  # members of a struct; an object with more names becomes a map
_MOST_COLUMNS = 500
_MOST_NAMES = 5_000  # per shape
_EXACT = 1 << 53
_SHOWN = 10
_INDEX = re.compile(r"\[\d+\]")
_KINDS = {bool: "boolean", list: "array", dict: "object", type(None): "null"}
_TEXT_TYPES = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "string": pa.string()}
_FAMILIES = {"integer": "number", "fraction": "number", **dict.fromkeys(_TEXT_TYPES, "text")}


@dataclass
class ValueShape:
    """The kinds of values at one path in many bodies."""

    kinds: Counter[str] = field(default_factory=Counter)
    digits: int = 0  # digits before the decimal point
    scale: int = 0  # digits after it
    is_inexact: bool = False  # has an integer that a double cannot represent
    items: "ValueShape | None" = None
    members: dict[str, "ValueShape"] = field(default_factory=dict)

    def add(self, value: Value) -> None:
        """Add a value."""
        if isinstance(value, Number):
            kind = self._number(value)
        else:
            kind = _text_kind(value) if isinstance(value, str) else _KINDS[type(value)]
        self.kinds[kind] += 1
        if isinstance(value, list):
            self.items = self.items or ValueShape()
            for one in value:
                self.items.add(one)
        elif isinstance(value, dict):
            for name, one in value.items():
                if name in self.members or len(self.members) < _MOST_NAMES:
                    self.members.setdefault(name, ValueShape()).add(one)

    def _number(self, value: Number) -> str:
        whole, _, fraction = value.lstrip("-").partition(".")
        if not whole.isdigit() or (fraction and not fraction.isdigit()):  # it has an exponent
            return "fraction"
        self.digits, self.scale = max(self.digits, len(whole)), max(self.scale, len(fraction))
        if fraction:
            return "fraction"
        self.is_inexact |= len(whole) > MAX_DECIMAL_DIGITS or int(whole) > _EXACT
        return "integer"

    def merge(self, other: "ValueShape") -> None:
        """Add the values of another shape."""
        self.kinds.update(other.kinds)
        self.digits, self.scale = max(self.digits, other.digits), max(self.scale, other.scale)
        self.is_inexact |= other.is_inexact
        if other.items is not None:
            self.items = self.items or ValueShape()
            self.items.merge(other.items)
        for name, member in other.members.items():
            if name in self.members or len(self.members) < _MOST_NAMES:
                self.members.setdefault(name, ValueShape()).merge(member)

    def type(self) -> pa.DataType | None:
        """Return the type that most values have; None if all are null."""
        families: Counter[str] = Counter()
        for kind, count in self.kinds.items():
            if kind != "null":
                families[_FAMILIES.get(kind, kind)] += count
        if not families:
            return None
        family = families.most_common(1)[0][0]
        if family == "array":
            return pa.list_((self.items.type() if self.items else None) or pa.string())
        if family == "text":
            found = [type_ for kind, type_ in _TEXT_TYPES.items() if self.kinds[kind]]
            return found[0] if len(found) == 1 else pa.string()
        return {"boolean": pa.bool_, "number": self._number_type, "object": self._object_type}[family]()

    @property
    def kinds_text(self) -> str:
        """The kinds of values and the count of each, if a single type cannot hold them; empty otherwise."""
        families: Counter[str] = Counter()
        for kind, count in self.kinds.items():
            families[_FAMILIES.get(kind, kind)] += count
        del families["null"]
        return ", ".join(f"{name}: {count:,}" for name, count in families.most_common()) if len(families) > 1 else ""

    def _number_type(self) -> pa.DataType:
        if not self.kinds["fraction"] and self.digits < len(str(1 << 63)):
            return pa.int64()
        if self.is_inexact and self.digits + self.scale <= MAX_DECIMAL_DIGITS:
            return pa.decimal128(MAX_DECIMAL_DIGITS, self.scale)
        return pa.float64()

    def _object_type(self) -> pa.DataType:
        if len(self.members) > _MOST_MEMBERS:
            together = ValueShape()
            for member in self.members.values():
                together.merge(member)
            return pa.map_(pa.string(), together.type() or pa.string())
        fields = [
            pa.field(name, type_)
            for name, member in self.members.items()
            if (type_ := member.type()) is not None and _is_declared(name)
        ]
        distinct = {one.name.lower(): one for one in reversed(fields)}
        return pa.struct(list(reversed(distinct.values()))) if fields else pa.map_(pa.string(), pa.string())


def _text_kind(value: str) -> str:
    for kind, read in (("date", convert_day), ("timestamp", lambda text: convert_instant(text, TimeDefaults()))):
        try:
            read(value)
        except RefusedBodyError:
            continue
        return kind
    return "string"


def _is_declared(name: str, type_: pa.DataType = pa.string()) -> bool:  # noqa: B008 - frozen
    """Return whether a column can be declared: a type that is nested too deeply cannot."""
    try:
        parse_columns(sql_columns([pa.field(name, type_)]))
    except SchemaError:
        return False
    return True


def _shape_of(lake: Lake, topic: str, file: SnapshotFile) -> ValueShape:
    shape = ValueShape()

    def take(body: bytes, _: object) -> Row:
        value = parse_body(body)
        if isinstance(value, dict):
            shape.add(value)
        return ()

    for _ in read_refusals(lake, file, topic, lambda bodies: read_typed_rows(bodies.to_pylist(), take, ())):
        pass
    return shape


def _refusals(lake: Lake, type_: TopicType, file: SnapshotFile) -> Counter[Refusal | None]:
    return Counter(
        None if refusal is None else refusal._replace(place=_INDEX.sub("[]", refusal.place or ""))
        for refusal in read_refusals(lake, file, type_.topic, type_.reader())
    )


def _text(
    topic: str, type_: TopicType | None, fitting: int, refused: Mapping[Refusal, int], notes: Sequence[str]
) -> str:
    """Return a proposal in the form of types.toml, with the fields that do not become columns."""
    fit = "are JSON objects whose fields can become columns" if type_ is None else "fit the proposed types"
    lines = [f"# {_make_printable(topic)}: {fitting:,} of {fitting + sum(refused.values()):,} bodies {fit}"]
    shown = list(refused.items())[:_SHOWN]
    lines += [
        f"#   {count_text(count, 'message')} at {_make_printable(one.place or '-')}: {_make_printable(one.reason)}"
        for one, count in shown
    ]
    if len(refused) > _SHOWN:
        lines.append(f"#   {len(refused) - _SHOWN} more reasons and places")
    lines += [f"#   {_make_printable(note)}" for note in notes]
    if type_ is None:
        return "\n".join(
            [*lines, "#   no body is a JSON object with at least one non-null value, so no types are proposed", ""]
        )
    lines += [f"[topic.{_quote_text(topic)}]", 'format = "json"', f"schema = {_quote_text(sql_columns(type_.columns))}"]
    if type_.sources:
        pairs = (f"{name} = {_quote_text(source)}" for name, source in type_.sources.items())
        lines.append(f"from = {{ {', '.join(pairs)} }}")
    return "\n".join([*lines, ""])


def _quote_text(text: str) -> str:
    """Quote a text for TOML, which has the rules of JSON; what a terminal does not print is escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08X}" for one in quoted)


def _make_printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def infer_types(lake: Lake, topic: str, workers: Workers) -> tuple[str, bool]:
    """Return proposed types for a topic in the form of types.toml, and whether there are any."""
    snapshot = open_complete_table(lake, MESSAGES.name)
    work = (
        [file for file in list_snapshot_files(lake, snapshot) if file.may_have("topic", topic)]
        if snapshot is not None
        else []
    )
    shape = ValueShape()
    for one in workers.map(work, partial(_shape_of, lake, topic), "inferring types from bodies"):
        shape.merge(one)
    type_, left_out = _propose_type(topic, shape)
    notes = [f"not proposed: {name}" for name in left_out[:_SHOWN]] + _suggest_json(type_, shape)[:_SHOWN]
    # Without a proposal, try a column that no body has, so that all bodies are counted with their reasons.
    tried = type_ or TopicType(topic, JSON_FORMAT, (pa.field("nothing", pa.string(), nullable=False),))
    found: Counter[Refusal | None] = Counter()
    for part in workers.map(work, partial(_refusals, lake, tried), "checking bodies against the proposed types"):
        found.update(part)
    if snapshot is not None and not found:
        return f"# {_make_printable(topic)}: {explain_absent_topics(lake, snapshot, [topic])[topic][1]}\n", False
    refused = {refusal: count for refusal, count in found.most_common() if refusal is not None}
    return _text(topic, type_, found[None], refused, notes), type_ is not None


def _suggest_json(type_: TopicType | None, shape: ValueShape) -> list[str]:
    """Return a line for each column whose field has values that its type cannot hold."""
    fields = {one.name: type_.sources.get(one.name, one.name) for one in type_.columns} if type_ is not None else {}
    kinds = {name: shape.members[source].kinds_text for name, source in fields.items()}
    return [f"{name}: {text}; declared as json, the column takes all of them" for name, text in kinds.items() if text]


def _propose_type(topic: str, shape: ValueShape) -> tuple[TopicType | None, tuple[str, ...]]:
    columns: list[pa.Field] = []
    sources: dict[str, str] = {}
    left_out = []
    for name, member in sorted(shape.members.items(), key=lambda item: -item[1].kinds.total()):
        type_ = member.type()
        taken = {*RESERVED_COLUMNS, *(one.name.lower() for one in columns)}
        candidates = (name, "body_" + re.sub(r"\W", "_", name, flags=re.ASCII))
        column = next((one for one in candidates if _is_declared(one) and one.lower() not in taken), None)
        if type_ is None or column is None or len(columns) == _MOST_COLUMNS or not _is_declared(column, type_):
            left_out.append(f"{name} (always null)" if type_ is None else name)
            continue
        columns.append(pa.field(column, type_))
        if column != name:
            sources[column] = name
    return (TopicType(topic, JSON_FORMAT, tuple(columns), sources) if columns else None), tuple(left_out)
