"""
The columns that a JSON Schema declares for bodies: its `properties`, each with the type that a table has for it.

Only types are taken from a schema. Its other demands (`minimum`, `pattern`, `enum` and the like) are not checked.
"""

import json
from collections.abc import Mapping

import pyarrow as pa

from jobs.typed.ddl import SchemaError

_DEEPEST = 16
_TOO_DEEP = f"at most {_DEEPEST} types in each other"
_BY_FORMAT: Mapping[str, Mapping[str, pa.DataType]] = {
    "boolean": {"": pa.bool_()},
    "integer": {"": pa.int64(), "int32": pa.int32()},
    "number": {"": pa.float64(), "float": pa.float32()},
    "string": {
        "": pa.string(),
        "date": pa.date32(),
        "date-time": pa.timestamp("us", "UTC"),
        "byte": pa.binary(),  # OpenAPI's name for base64
    },
}
_BY_VALUE = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_BY_KEY = {"properties": "object", "additionalProperties": "object", "items": "array"}
_NULL = "null"


def columns_of(text: str) -> tuple[pa.Field, ...]:
    """Return the columns that a JSON Schema declares; `SchemaError` says at which place of it a column has no type."""
    try:
        root = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"no JSON Schema: {error}") from error
    field = _Schema(root).field("", root, "#", ())
    if not pa.types.is_struct(field.type):
        raise SchemaError("#: a body must be an object with properties, which become the columns")
    return tuple(field.type)


class _Schema:
    """A whole schema, which its parts refer to."""

    def __init__(self, root: object) -> None:
        self._root = root

    def field(self, name: str, schema: object, place: str, above: tuple[str, ...]) -> pa.Field:
        """Return the field that a part declares; *above* are the references and parts that lead to it."""
        if not isinstance(schema, dict) or len(above) > _DEEPEST:
            deep = isinstance(schema, dict)
            raise SchemaError(f"{place}: {_TOO_DEEP if deep else 'must be a schema that names a type'}")
        if "allOf" in schema:
            raise SchemaError(f"{place}/allOf: write one schema in its place")
        if "$ref" in schema:
            reference = str(schema["$ref"])
            if reference in above:
                raise SchemaError(f"{place}: {reference} has itself as a part: no column can hold it")
            return self.field(name, self._resolved(reference, place), reference, (*above, reference))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._choice(name, schema[key], f"{place}/{key}", above)
        type_name, is_nullable = _type_name(schema, place)
        type_ = self._type(type_name, schema, place, (*above, place))
        return pa.field(name, type_, is_nullable)

    def _choice(self, name: str, choices: object, place: str, above: tuple[str, ...]) -> pa.Field:
        """Return the one type of a choice; the only other choice that a column has is NULL."""
        given = choices if isinstance(choices, list) else []
        typed = [(number, one) for number, one in enumerate(given) if one != {"type": _NULL}]
        if len(typed) != 1:
            raise SchemaError(f"{place}: must be one type, or one type and null: a column has one type")
        [(number, schema)] = typed
        field = self.field(name, schema, f"{place}/{number}", above)
        return field.with_nullable(field.nullable or len(given) > 1)

    def _type(self, name: str, schema: Mapping[str, object], place: str, above: tuple[str, ...]) -> pa.DataType:
        if name == "array":
            return pa.list_(self.field("item", schema.get("items"), f"{place}/items", above).type)
        if name != "object":
            by_format = _BY_FORMAT[name]
            is_base64 = name == "string" and schema.get("contentEncoding") == "base64"
            return by_format.get("byte" if is_base64 else str(schema.get("format")), by_format[""])
        properties, required = schema.get("properties"), schema.get("required", ())
        if isinstance(properties, dict) and properties:
            fields = [self.field(key, one, f"{place}/properties/{key}", above) for key, one in properties.items()]
            demanded = set(map(str, required)) if isinstance(required, list) else set()
            return pa.struct([one.with_nullable(one.nullable or one.name not in demanded) for one in fields])
        values = schema.get("additionalProperties")
        return pa.map_(pa.string(), self.field("value", values, f"{place}/additionalProperties", above).type)

    def _resolved(self, reference: str, place: str) -> object:
        found = self._root
        first, *keys = reference.split("/")
        for key in keys:
            key_of_object = key.replace("~1", "/").replace("~0", "~")
            found = found.get(key_of_object) if isinstance(found, dict) else None
        if first != "#" or found is None:
            raise SchemaError(f"{place}: {reference} is no part of this schema, as #/$defs/NAME would be")
        return found


def _type_name(schema: Mapping[str, object], place: str) -> tuple[str, bool]:
    """Return the name of the type of a part, and whether its value may be null."""
    given = schema.get("type")
    if given is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        by_value = [_BY_VALUE.get(type(one), "object") for one in values] if isinstance(values, list) else []
        given = by_value or [name for key, name in _BY_KEY.items() if key in schema]
    names = set(map(str, given)) if isinstance(given, list) else {str(given)}
    if names >= {"integer", "number"}:
        names.remove("integer")  # every integer is a number
    typed = names - {_NULL}
    if len(typed) != 1 or not typed <= {*_BY_FORMAT, "object", "array"}:
        found = f", not {' and '.join(sorted(typed))}" if typed else ""
        raise SchemaError(f"{place}: type: must be one of {', '.join(_BY_FORMAT)}, object and array{found}")
    return typed.pop(), _NULL in names
