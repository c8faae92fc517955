"""A JSON Schema gives the columns of bodies, or the place in it that does not."""

import json
from pathlib import Path

import pytest

from jobs.typed.ddl import SchemaError, columns_text
from jobs.typed.declaration import read_types
from jobs.typed.json_schema import columns_of

PARTS = {
    "an integer": ({"type": "integer"}, "bigint"),
    "an integer of 32 bits": ({"type": "integer", "format": "int32"}, "int"),
    "a format that no column knows": ({"type": "string", "format": "email"}, "string"),
    "a number": ({"type": "number"}, "double"),
    "a number of 32 bits": ({"type": "number", "format": "float"}, "float"),
    "an integer or a number": ({"type": ["integer", "number"]}, "double"),
    "a boolean": ({"type": "boolean"}, "boolean"),
    "a day": ({"type": "string", "format": "date"}, "date"),
    "a time": ({"type": "string", "format": "date-time"}, "timestamp"),
    "bytes": ({"type": "string", "contentEncoding": "base64"}, "binary"),
    "a list": ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
    "a list whose type is its items": ({"items": {"type": "integer"}}, "array<bigint>"),
    "a map": ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
    "an object": (
        {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]},
        "struct<a: bigint, b: string NOT NULL>",
    ),
    "some texts": ({"enum": ["new", "paid", None]}, "string"),
    "one number": ({"const": 1}, "bigint"),
    "a part defined elsewhere": ({"$ref": "#/$defs/money"}, "struct<cents: bigint NOT NULL>"),
    "a part with a slash in its name": ({"$ref": "#/$defs/a~1b"}, "boolean"),
    "one type or null": ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/money"}]}, "struct<cents: bigint NOT NULL>"),
}
DEFINITIONS = {
    "money": {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]},
    "a/b": {"type": "boolean"},
    "tree": {"properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
}


def schema_of(part: object, *required: str) -> str:
    return json.dumps({"type": "object", "properties": {"it": part}, "required": required, "$defs": DEFINITIONS})


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_schema_is_a_type(name: str) -> None:
    part, expected = PARTS[name]

    assert columns_text(columns_of(schema_of(part))) == f"it {expected}"


def test_a_value_must_be_there_where_the_schema_requires_it_and_takes_no_null() -> None:
    assert columns_text(columns_of(schema_of({"type": "integer"}, "it"))) == "it bigint NOT NULL"
    assert columns_text(columns_of(schema_of({"type": ["integer", "null"]}, "it"))) == "it bigint"
    assert columns_text(columns_of(schema_of({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "it"))) == "it bigint"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON Schema: Expecting property name"),
        ("[]", "#: must be a schema that names a type"),
        ('{"type": "array", "items": {"type": "string"}}', "#: a body must be an object with properties"),
        ('{"type": "object"}', "#/additionalProperties: must be a schema that names a type"),
        (schema_of({}), "#/properties/it: type: must be one of boolean, integer"),
        (schema_of({"type": ["string", "integer"]}), "not integer and string"),
        (schema_of({"type": "text"}), "not text"),
        (schema_of({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "#/properties/it/anyOf: must be one type"),
        (schema_of({"allOf": [{"type": "string"}]}), "#/properties/it/allOf: write one schema"),
        (schema_of({"$ref": "other.json"}), "#/properties/it: other.json is no part of this schema"),
        (schema_of({"$ref": "#/$defs/none"}), "#/$defs/none is no part of this schema"),
        (schema_of({"$ref": "#/$defs/tree"}), "#/$defs/tree has itself as a part"),
        (schema_of({"enum": ["a", 1]}), "not integer and string"),
        (schema_of(json.loads('{"items": ' * 20 + '{"type": "string"}' + "}" * 20)), "at most 16 types in each other"),
    ],
)
def test_what_is_no_column_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(SchemaError) as refused:
        columns_of(text)

    assert says in str(refused.value)


def test_a_topic_of_json_takes_its_columns_from_a_file(tmp_path: Path) -> None:
    """The file is beside types.toml; `from` renames its columns, as it does those of Avro."""
    (tmp_path / "order.json").write_text(schema_of({"type": "integer"}, "it"))
    types = tmp_path / "types.toml"
    types.write_text('[topic.Orders]\nformat = "json"\nschema_file = "order.json"\nfrom = { id = "it" }\n')

    [orders] = read_types(types)

    assert columns_text(orders.columns) == "id bigint NOT NULL"
    assert columns_text(orders.body_columns) == "it bigint NOT NULL"
