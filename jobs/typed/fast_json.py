"""
The compiled reader of JSON bodies, for the spellings that nearly all values have.

The scalar reader reads all other values and bodies. Property tests check that both readers agree on every body.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jobs.lake.tables import JSON_TEXT
from jobs.typed.ddl import all_nullable
from jobs.typed.formats import (
    TypedRows,
    UnknownField,
    example_text,
    make_array,
    merge_unknown,
    parse_body,
    read_bodies_exactly,
)
from jobs.typed.values import MICROSECONDS_PER_UNIT, Number, RefusedBodyError, TimeDefaults, convert_value, member_path
from rmq_formats.json import columns as cells
from rmq_formats.json.scan import ARRAY, MISSING, NULL, OBJECT, REFUSED, Members, find_named_values, scan_members
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, as_bytes
from rmq_formats.properties import MAX_LONG

_QUOTE = ord('"')
_EXACT_INTEGERS = {32: 1 << 24, 64: 1 << 53}  # by the bits of a float, the limit below which it holds every integer
_FARTHEST = 62_135_596_800_000_000  # microseconds from 1970: up to here every time is valid
_HEADS = np.zeros(256, np.bool_)  # the first characters of numbers
_HEADS[list(b"-0123456789")] = True


def read_bodies(columns: Sequence[pa.Field], times: TimeDefaults, bodies: pa.Array) -> TypedRows:
    """Return the rows or refusals of bodies, none of which is NULL."""
    ends = np.frombuffer(bodies.buffers()[1], np.int32, len(bodies) + 1, bodies.offset * 4)
    stored = bodies.buffers()[2]
    used = stored.slice(int(ends[0]), int(ends[-1] - ends[0])) if stored is not None else b""
    data = as_bytes(used) if len(used) else np.zeros(1, np.uint8)
    ends = ends - ends[0]
    batch = _Batch(data, np.zeros(len(bodies), np.bool_), times)
    arrays, is_null = batch.struct(_Spans(ends[:-1].copy(), ends[1:].copy(), np.arange(len(bodies))), columns, "$")
    is_read_again = batch.is_odd | is_null
    again = np.flatnonzero(is_read_again)
    unknown = batch.unknown_fields(is_read_again)
    if not again.size:
        return TypedRows(arrays, {}, unknown)
    exact = read_bodies_exactly((bodies[number].as_py() for number in again.tolist()), columns, times)
    merge_unknown(unknown, {path: one._replace(at=int(again[one.at])) for path, one in exact.unknown_fields.items()})
    refusals = {int(again[number]): refusal for number, refusal in exact.refusals.items()}
    # The rows of the scalar reader follow those of the compiled one, which has a row for every body.
    typed_bodies, places = np.delete(again, list(exact.refusals)), np.arange(len(bodies))
    places[typed_bodies] = len(bodies) + np.arange(typed_bodies.size)
    fitting = pa.array(np.delete(places, list(refusals)))
    rows = [pa.concat_arrays(both).take(fitting) for both in zip(arrays, exact.columns, strict=True)]
    assert all(len(row) + len(refusals) == len(bodies) for row in rows)
    return TypedRows(rows, refusals, unknown)


class _Spans(NamedTuple):
    """The positions of the values of a column; a missing value has a negative start."""

    starts: Sizes
    ends: Sizes
    bodies: Integers  # the body of each value


@dataclass
class _Batch:
    data: Bytes
    is_odd: NDArray[np.bool_]  # bodies that the scalar reader must read
    times: TimeDefaults
    # Members without a field: the path of their objects, their names and their values.
    unknown: list[tuple[str, pa.Array, _Spans]] = field(default_factory=list)

    def unknown_fields(self, is_read_again: NDArray[np.bool_]) -> dict[str, UnknownField]:
        """Return the fields without a column, except those of bodies that the scalar reader reads."""
        found: dict[str, UnknownField] = {}
        for path, all_names, values in self.unknown:
            kept = np.flatnonzero(~is_read_again[values.bodies])
            names = all_names.take(pa.array(kept)).dictionary_encode()
            # A body with an array of objects may have the field more than once.
            pairs = np.asarray(names.indices, np.int64) * len(is_read_again) + values.bodies[kept]
            _, first = np.unique(pairs, return_index=True)
            codes, firsts, counts = np.unique(pairs[first] // len(is_read_again), return_index=True, return_counts=True)
            fields = {}
            for code, at, count in zip(codes.tolist(), first[firsts].tolist(), counts.tolist(), strict=True):
                row = kept[at]
                value = parse_body(bytes(self.data[values.starts[row] : values.ends[row]]))
                name = member_path(path, names.dictionary[code].as_py())
                fields[name] = UnknownField(count, int(values.bodies[row]), example_text(value))
            merge_unknown(found, fields)
        return found

    def _note_unknown(self, spans: _Spans, found: Members, taken: Sizes, path: str) -> None:
        if np.count_nonzero(taken >= 0) == len(found.bounds):
            return
        is_taken = np.zeros(self.data.size + 1, np.bool_)
        is_taken[taken] = True  # a missing one is at -1, where no value begins
        bodies = np.repeat(spans.bodies, np.diff(found.ends, prepend=0))
        unknown = ~is_taken[found.bounds[:, 2]]
        key_starts, key_ends, starts, ends = np.ascontiguousarray(found.bounds[unknown].T)
        names = self._texts(_Spans(key_starts, key_ends, bodies[unknown]))
        self.unknown.append((path, names, _Spans(starts, ends, bodies[unknown])))

    def struct(self, spans: _Spans, fields: Sequence[pa.Field], path: str) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """Return the fields of objects, and which objects are missing."""
        found, is_null = self._scan_members(spans, OBJECT)
        starts, ends = find_named_values(self.data, found, [field.name.encode() for field in fields])
        self._note_unknown(spans, found, starts, path)
        size = len(is_null)
        arrays = []
        # `find_named_values` has the places of the first field in all objects, then those of the second, and so on.
        for number, column in enumerate(fields):
            here = slice(number * size, (number + 1) * size)
            inner = _Spans(starts[here], ends[here], spans.bodies)
            array = self._array(inner, column.type, member_path(path, column.name))
            if not column.nullable and array.null_count:
                self.is_odd[spans.bodies[np.asarray(array.is_null()) & ~is_null]] = True
            arrays.append(array)
        return arrays, is_null

    def _scan_members(self, spans: _Spans, kind: int) -> tuple[Members, NDArray[np.bool_]]:
        """Return the members at *spans*, and which values are null; bodies with a refused value are noted as odd."""
        found = scan_members(self.data, spans.starts, spans.ends, kind)
        is_null = found.kinds == MISSING
        self.is_odd[spans.bodies[found.kinds == REFUSED]] = True
        return found, is_null

    def _array(self, spans: _Spans, type_: pa.DataType, path: str) -> pa.Array:
        if pa.types.is_struct(type_):
            fields = list(all_nullable(type_))
            arrays, is_null = self.struct(spans, list(type_), path)
            return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(is_null))
        if pa.types.is_list(type_) or pa.types.is_map(type_):
            return self._list_or_map_array(spans, type_, f"{path}[]")
        if type_ == JSON_TEXT:
            return self._value_texts(spans)
        array, states = self._scalars(spans, type_)
        odd = np.flatnonzero(states == cells.UNUSUAL)
        if not odd.size:
            return array
        # The scalar reader reads single values in other spellings; only a rejected value sends its whole body there.
        values = make_array([self._read_value_exactly(spans, row, type_) for row in odd.tolist()], type_)
        return pc.replace_with_mask(array, pa.array(states == cells.UNUSUAL), values)

    def _list_or_map_array(self, spans: _Spans, type_: pa.DataType, path: str) -> pa.Array:
        is_list = pa.types.is_list(type_)
        found, is_null = self._scan_members(spans, ARRAY if is_list else OBJECT)
        bodies = np.repeat(spans.bodies, np.diff(found.ends, prepend=0))
        key_starts, key_ends, starts, ends = np.ascontiguousarray(found.bounds.T)
        inner = _Spans(starts, ends, bodies)
        offsets, mask = pa.array(np.append(np.int32(0), found.ends)), pa.array(is_null)
        if is_list:
            values = self._array(inner, type_.value_type, path)
            return pa.ListArray.from_arrays(offsets, values, all_nullable(type_), mask=mask)
        values = self._array(inner, type_.item_type, path)
        keys = self._texts(_Spans(key_starts, key_ends, bodies))
        return pa.MapArray.from_arrays(offsets, keys, values, all_nullable(type_), mask=mask)

    def _read_value_exactly(self, spans: _Spans, row: int, type_: pa.DataType) -> object:
        """Read a value with the scalar reader; if it is rejected, return None and mark its body."""
        text = bytes(self.data[spans.starts[row] : spans.ends[row]])
        try:
            value = Number(text.decode()) if _HEADS[text[0]] else json.loads(text) if text[0] == _QUOTE else text
            return convert_value(value, type_, self.times, "")
        except RefusedBodyError:
            self.is_odd[spans.bodies[row]] = True
            return None

    def _scalars(self, spans: _Spans, type_: pa.DataType) -> tuple[pa.Array, Bytes]:
        """Return values, which are NULL unless their state is PRESENT."""
        heads = self._heads(spans)
        states = np.where(heads == NULL, np.uint8(cells.ABSENT), np.uint8(cells.UNUSUAL))
        if pa.types.is_binary(type_):
            return pa.nulls(len(states), type_), states
        if pa.types.is_string(type_) or pa.types.is_floating(type_):
            is_wanted = heads == _QUOTE if pa.types.is_string(type_) else _HEADS[heads]
            texts = self._texts(_Spans(np.where(is_wanted, spans.starts, -1), spans.ends, spans.bodies))
            states[is_wanted] = cells.PRESENT
            if pa.types.is_string(type_):
                return texts, states
            values: NDArray[Any] = self._reals(texts, type_, states)
        elif pa.types.is_boolean(type_):
            is_true = heads == ord("t")
            states[is_true | (heads == ord("f"))] = cells.PRESENT
            values = np.packbits(is_true, bitorder="little")
        else:
            values = self._integers(spans, type_, states)
        is_there = np.packbits(states == cells.PRESENT, bitorder="little")
        absent = int((states != cells.PRESENT).sum())
        buffers = [pa.py_buffer(is_there) if absent else None, pa.py_buffer(values)]
        return pa.Array.from_buffers(type_, len(states), buffers, absent), states

    def _heads(self, spans: _Spans) -> Bytes:
        """Return the first byte of each value; missing values count as null."""
        return np.where(spans.starts >= 0, self.data[np.maximum(spans.starts, 0)], np.uint8(NULL))

    def _texts(self, spans: _Spans) -> pa.Array:
        """Return values as texts, without quotes; NULL if missing."""
        is_null = spans.starts < 0
        quote = (self._heads(spans) == _QUOTE).astype(np.int32)
        starts, ends = np.where(is_null, 0, spans.starts + quote), np.where(is_null, 0, spans.ends - quote)
        offsets, found = cells.decode_texts(self.data, starts, ends)
        mask = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
        return pa.Array.from_buffers(pa.string(), len(starts), [mask, pa.py_buffer(offsets), pa.py_buffer(found)])

    def _value_texts(self, spans: _Spans) -> pa.Array:
        """Return the unchanged text of one value of each body, of any kind; NULL if it is null or missing."""
        is_there = self._heads(spans) != NULL
        starts, ends = spans.starts[is_there], spans.ends[is_there]
        sizes = np.zeros(len(is_there), np.int64)
        sizes[is_there] = ends - starts
        offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
        # One byte for each byte of the bodies: 1 within these values, which ascend and do not touch.
        steps = np.zeros(self.data.size + 1, np.int8)
        steps[starts], steps[ends] = 1, -1
        is_taken = np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)
        buffers = [np.packbits(is_there, bitorder="little"), offsets, self.data[is_taken]]
        absent = int((~is_there).sum())
        return pa.Array.from_buffers(pa.string(), len(is_there), list(map(pa.py_buffer, buffers)), absent)

    def _reals(self, texts: pa.Array, type_: pa.DataType, states: Bytes) -> NDArray[Any]:
        read: NDArray[np.float64] = texts.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        # A greater one may have been an integer that the type cannot represent.
        states[(states == cells.PRESENT) & ~(np.abs(read) < _EXACT_INTEGERS[type_.bit_width])] = cells.UNUSUAL
        with np.errstate(over="ignore"):
            return read.astype(type_.to_pandas_dtype())

    def _integers(self, spans: _Spans, type_: pa.DataType, states: Bytes) -> NDArray[Any]:
        """Return integers, or the number of units (days, microseconds, decimal places) of other values."""
        values = np.zeros(len(states), np.int64)
        where = (self.data, spans.starts, spans.ends)
        if pa.types.is_date(type_):
            cells.read_dates(*where, values, states)
            return values.astype(np.int32)
        if pa.types.is_timestamp(type_):
            cells.read_timestamps(*where, values, states)
            if self.times.unit is not None:
                # A topic with a unit may have times as strings and as numbers: use the number if it is not a string.
                factor, numbers = MICROSECONDS_PER_UNIT[self.times.unit], values.copy()
                found = np.where(states == cells.ABSENT, np.uint8(cells.ABSENT), np.uint8(cells.UNUSUAL))
                cells.read_decimals(*where, 0, _FARTHEST // factor, 0, numbers, found)
                values = np.where(found == cells.PRESENT, numbers * factor, values)
                states[found == cells.PRESENT] = cells.PRESENT
        elif pa.types.is_decimal(type_):
            cells.read_decimals(*where, type_.scale, min(10**type_.precision - 1, MAX_LONG), 1, values, states)
            return np.stack([values, values >> 63], axis=1)
        elif pa.types.is_integer(type_):
            cells.read_decimals(*where, 0, (1 << (type_.bit_width - 1)) - 1, 0, values, states)
            return values.astype(type_.to_pandas_dtype())
        return values
