"""The forms of an answer: the same rows as a table, CSV, one JSON array, or an object a line."""

import csv
import json
from io import StringIO

from jobs.console.exit_codes import ExitCode
from jobs.console.rows import csv_line
from tests.golden import StoreOf
from tests.support.commands import Run


def _query(golden: StoreOf, *more: str) -> tuple[str, ...]:
    return ("query", "by-key", "-t", "T1", "-k", "k1", "--store", str(golden("b551-base")), *more)


def test_all_forms_have_the_same_rows(golden: StoreOf, run: Run) -> None:
    lines = run(*_query(golden, "--json")).out
    array = json.loads(run(*_query(golden, "--output", "json")).out)
    table = list(csv.DictReader(StringIO(run(*_query(golden, "--output", "csv")).out)))
    shown = run(*_query(golden, "--output", "table")).out.splitlines()

    assert lines == run(*_query(golden, "--output", "ndjson")).out
    assert [json.loads(line) for line in lines.splitlines()] == array
    assert [row["message_id"] for row in table] == [message["message_id"] for message in array]
    assert json.loads(table[0]["properties"]) == array[0]["properties"]
    assert len(array) + 1 == len(shown)
    assert "store_time" in shown[0]


def test_offsets_are_numbers_and_times_are_iso(golden: StoreOf, run: Run) -> None:
    message = json.loads(run(*_query(golden, "--json")).out.splitlines()[0])

    assert 2 == message["version"]
    assert isinstance(message["physical_offset"], int)
    assert message["store_time"].endswith("Z")
    assert "T" in message["store_time"]


def test_an_empty_answer_is_an_empty_array(golden: StoreOf, run: Run) -> None:
    empty = ("query", "by-key", "-t", "T1", "-k", "nobody", "--store", str(golden("b551-base")))
    as_json, as_csv = run(*empty, "--output", "json"), run(*empty, "--output", "csv")

    assert ["empty"] == [one["type"] for one in json.loads(as_json.out)]
    assert ("", ExitCode.NOT_FOUND) == (as_csv.out, as_csv.code)
    assert as_csv.err


def test_csv_keeps_what_is_nested() -> None:
    assert 'a,"{""k"": ""v""}",,true,"x\ny"\n' == csv_line(["a", {"k": "v"}, None, True, "x\ny"])


def test_an_id_with_a_port_that_there_is_none_of_says_so(run: Run) -> None:
    shown = run("query", "decode-id", "7F000001FFFF51AF00000000000000F2").out

    assert "127.0.0.1:-44625 (no port: this is no broker's id)" in shown
    assert "no port" not in run("query", "decode-id", "7F000001000051AF00000000000000F2").out
