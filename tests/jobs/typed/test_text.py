"""Bodies of text: rows by the named groups of a pattern, and no pattern that a body can make slow."""

import re
import resource

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.typed.ddl import SchemaError, parse_columns
from jobs.typed.formats import Text
from jobs.typed.values import Refusal, Times
from tests.jobs.typed.test_json import results_of

_PATTERN = r"(?P<level>[A-Z]+) (?P<took>[^ ]*)(?: (?P<message>.*))?"
_COLUMNS = parse_columns("message string, level string, took double NOT NULL")


def read(body: bytes, pattern: str = _PATTERN, columns: str | None = None) -> list[object] | Refusal:
    declared = _COLUMNS if columns is None else parse_columns(columns)
    Text(pattern).check(declared)
    return results_of(Text(pattern).reader(declared, Times())(pa.array([body])), 1)[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"INFO 1.5 up and running", ["up and running", "INFO", 1.5]),
        ("INFO 2 ü".encode(), ["ü", "INFO", 2.0]),
        (b"INFO 2", ["", "INFO", 2.0]),
        (b"INFO " + b"0" * 5000 + b"7", ["", "INFO", 7.0]),
        (b"INFO NaN", ("no double", "$.took")),
        (b"INFO 9007199254740993", ("an integer that double does not hold exactly", "$.took")),
        (b"INFO ", ("a value that must be there is missing", "$.took")),
        (b"info 1", ("does not match the pattern", "$")),
        (b"INFO 1 a\n", ("does not match the pattern", "$")),
        (b"", ("does not match the pattern", "$")),
        (b"INFO 1 \xff", ("invalid UTF-8", "byte 7")),
    ],
)
def test_a_body_is_a_row_by_its_groups_or_refused(body: bytes, expected: object) -> None:
    assert (Refusal(*expected) if isinstance(expected, tuple) else expected) == read(body)


@pytest.mark.parametrize(
    ("pattern", "columns", "says"),
    [
        ("(?P<a>", "a int", "missing"),
        ("(?P<a>.)(.)", "a int", "unnamed groups"),
        (r"(?P<a>.)\1", "a int", "invalid escape"),
        ("(?P<a>(?:b{1000}){1000})", "a int", "repetition"),
        ("(?P<a>\ud800)", "a int", "surrogates"),
        ("(?P<a>.)", "b int", "b int: of no group"),
        ("(?P<a>.)", "a array<int>", "a array<int>: of no group, or no type of a single value"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, columns: str, says: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(says)):
        read(b"", pattern, columns)


def test_no_body_makes_a_pattern_slow() -> None:
    """A pattern that takes Python's `re` longer than the universe has been there."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert isinstance(read(b"a" * 4_000_000 + b"!", "(?P<a>(?:a+)+)", "a string"), Refusal)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@given(st.text("AZ 1.\n", max_size=12))
def test_a_body_matches_as_in_python(text: str) -> None:
    expected = re.fullmatch(_PATTERN, text)
    found = read(text.encode(), columns="level string, took string, message string")

    if expected is None:
        assert isinstance(found, Refusal)
    else:
        assert [group or "" for group in expected.groups()] == found
