"""What becomes of a value is the same in every format that has it: by hand, as docs/typed.md has it."""

import pytest

from jobs.typed.ddl import parse_columns
from jobs.typed.values import Refusal
from tests.jobs.typed import test_avro, test_protobuf, test_text
from tests.jobs.typed.cells import SPELLED, Dead, Spelled
from tests.jobs.typed.test_json import both


def _read(one: Spelled, format_: str) -> object:
    if format_ == "json":
        (row,) = both([b'{"v": %b}' % (one.json or b"")], parse_columns(f"v {one.column}"))
    elif format_ == "text":
        row = test_text.read(one.text or b"", "(?P<v>.*)", f"v {one.column}")
    elif one.avro is not None and format_ == "avro":
        row = test_avro.read(bytes.fromhex(one.avro[1]), v=one.avro[0])
    else:
        assert one.protobuf is not None
        name, body = one.protobuf
        found = test_protobuf.read(bytes.fromhex(body))
        row = found if isinstance(found, Refusal) else [found[name]]
    return Dead(row.reason) if isinstance(row, Refusal) else row[0]


@pytest.mark.parametrize("format_", ["json", "avro", "protobuf", "text"])
@pytest.mark.parametrize("one", SPELLED, ids=lambda one: one.value)
def test_a_value_is_the_same_in_every_format(one: Spelled, format_: str) -> None:
    if getattr(one, format_) is None:
        return
    expected = one.result[format_] if isinstance(one.result, dict) else one.result
    found = _read(one, format_)

    assert isinstance(expected, Dead) == isinstance(found, Dead)
    assert expected == found or (expected in {"nan", "inf"} and expected == str(found))
