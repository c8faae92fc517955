"""
Bodies typed a second: our readers beside Spark's `from_json` and `from_avro` on the same bodies, in one run.

    python -m benchmarks.typed [--messages N] [--runs N] [--from-avro]

The same values, of eight columns, as JSON and as Avro; one body in a hundred is broken. A task of `type` types a lake's
file of messages, Parquet to Parquet, in one thread; Spark reads the same file with one core and writes what its
function makes of it. Peers take turns after a first run that compiles. `--from-avro` fetches the JAR of `from_avro`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import Column, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, from_json

from benchmarks.measuring import answer, asked, in_turns
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import files
from jobs.lake.tables import MESSAGES, PROVENANCE
from jobs.launch.jars import fetched
from jobs.launch.java import find_java_home
from jobs.typed.avro import Avro
from jobs.typed.ddl import parse_columns
from jobs.typed.declaration import Json, TopicType
from jobs.typed.task import FromOffset, TypingTask
from tests.support.typing_campaign import write_messages

_COLUMNS = (
    "id bigint, name string, amount decimal(12,2), price double, at timestamp, ok boolean, labels array<string>, "
    "who struct<name: string, age: int>"
)
_WHO = {"type": "record", "name": "Who", "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}
_FIELDS: Mapping[str, object] = {
    "id": "long", "name": "string", "amount": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "price": "double", "at": {"type": "long", "logicalType": "timestamp-millis"}, "ok": "boolean",
    "labels": {"type": "array", "items": "string"}, "who": _WHO,
}  # fmt: skip
_SCHEMA = {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in _FIELDS.items()]}
_KEPT = ("broker", "store_id", *(field.name for field in PROVENANCE))  # in every typed table, and so in Spark's rows
_PARSED = parse_schema(_SCHEMA)
_FIRST = datetime(2026, 11, 23, 10, tzinfo=UTC)
_BROKEN_JSON = (b"", b'{"id": 1.7}', b'{"id": 1, "id": 2}', b"{} {}", b'{"id": "1"}', b'{"name": "\xff"}')
_BROKEN_AVRO = (b"", b"\x02", b"\xff" * 10)


def _value(number: int) -> dict[str, object]:
    return {
        "id": number, "name": f"name {number}", "amount": Decimal(number) / 4, "price": number * 1.5,
        "at": _FIRST + timedelta(milliseconds=number), "ok": True, "labels": ["a", "b"], "who": {"name": "x", "age": 7},
    }  # fmt: skip


def _json(number: int) -> bytes:
    value = _value(number)
    time = _FIRST + timedelta(milliseconds=number)
    return json.dumps({**value, "amount": number / 4, "at": f"{time:%FT%T}.{number % 1000:03}Z"}).encode()


def _avro(number: int) -> bytes:
    buffer = BytesIO()
    schemaless_writer(buffer, _PARSED, _value(number))
    return buffer.getvalue()


def bodies(make: Callable[[int], bytes], broken: Sequence[bytes], count: int) -> list[bytes]:
    """Return bodies, one in a hundred of them broken."""
    return [make(number) if number % 100 else broken[number // 100 % len(broken)] for number in range(count)]


def _ours(lake: Lake, type_: TopicType) -> Callable[[], object]:
    (file,) = files(lake, DeltaTable(lake.locate(MESSAGES.name)))
    task = TypingTask(lake, 1, (FromOffset(type_, {}),))
    return lambda: task(file)


def _spark(session: SparkSession, folder: Path, row: Column) -> Callable[[], object]:
    def work() -> None:
        rows = session.read.parquet(str(folder / "messages" / "*.parquet")).select(*_KEPT, row.alias("row"))
        rows.select(*_KEPT, "row.*").write.mode("overwrite").parquet(str(folder / "spark"))

    return work


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, messages=100_000, runs=3, from_avro=False)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    if given.from_avro:
        builder = builder.config("spark.jars", ",".join(map(str, fetched("benchmarks", find_java_home()))))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    avro = Avro({None: json.dumps(_SCHEMA)})
    with TemporaryDirectory() as scratch:
        formats = {
            "json": (TopicType("Orders", Json(), parse_columns(_COLUMNS)), bodies(_json, _BROKEN_JSON, given.messages),
                     from_json(col("body").cast("string"), _COLUMNS)),
            "avro": (TopicType("Orders", avro, avro.columns()), bodies(_avro, _BROKEN_AVRO, given.messages),
                     from_avro(col("body"), json.dumps(_SCHEMA), {"mode": "PERMISSIVE"}) if given.from_avro else None),
        }  # fmt: skip
        peers: dict[str, Callable[[], object]] = {}
        for name, (type_, some, row) in formats.items():
            lake = Lake(str(Path(scratch) / name))
            write_messages(lake, some, 0)
            peers[f"type {name}"] = _ours(lake, type_)
            if row is not None:
                peers[f"from_{name}"] = _spark(session, Path(scratch) / name, row)
        found = in_turns(peers, given.runs)
    for figures_of in found.values():
        figures_of["messages_per_core_second"] = round(given.messages / (figures_of["cpu_s"] or 1))
    ratios = {
        name: round(found[f"from_{name}"]["cpu_s"] / (found[f"type {name}"]["cpu_s"] or 1), 2)
        for name in formats
        if f"from_{name}" in found
    }
    answer({"messages": given.messages, "runs": given.runs, "peers": found, "times_as_fast": ratios})


if __name__ == "__main__":
    main()
