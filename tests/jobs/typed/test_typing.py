"""`type`: each message of a topic becomes one typed row or one dead letter, after any interruption."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode, RequestError
from jobs.lake.lake import Lake
from jobs.store.workers import SerialWorkers
from jobs.typed import run, typings
from jobs.typed.ddl import table_name
from jobs.typed.declaration import read_types
from jobs.typed.run import TypeRequest, TypingSummary, type_lake
from rmq_formats.errors import UnsupportedFormat
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker
from tests.support.commands import Run, start_campaigns
from tests.support.lakes import delta_extension, ingest_store, rows_of, table_of

ORDERS = '[topic."Orders"]\nformat = "json"\nschema = "id bigint, name string"\n'


def write(broker: Broker, *bodies: bytes, topic: str = "Orders") -> None:
    broker.append(make_record(body, topic=topic, properties={"region": "eu"}) for body in bodies)


def ingested(folder: Path, *bodies: bytes, topic: str = "Orders") -> None:
    """Ingest a store: one of these messages, or that which is there."""
    if bodies:
        write(Broker(folder / "store"), *bodies, topic=topic)
    ingest_store(folder / "store", folder / "lake", "b", range_size=4096)


def typed(
    folder: Path, declared: str = ORDERS, retype: Sequence[str] = (), *, retries: bool = False, accepts: bool = False
) -> TypingSummary:
    path = folder / "types.toml"
    path.write_text(declared)
    request = TypeRequest(Lake(str(folder / "lake")), read_types(path), tuple(retype), "types.toml", retries, accepts)
    return type_lake(request, SerialWorkers())


def count_rows_and_dead_letters(lake: Path, table: str = "typed/Orders", topic: str = "Orders") -> tuple[int, int]:
    """Return the numbers of typed rows and dead letters, which must contain each message once."""
    messages = [row["physical_offset"] for row in rows_of(lake) if row["topic"] == topic]
    good = [row["physical_offset"] for row in rows_of(lake, table)]
    dead = [row["physical_offset"] for row in rows_of(lake, "dead_letters") if row["topic"] == topic]
    assert messages == sorted(good + dead)
    return len(good), len(dead)


@pytest.mark.parametrize(
    "change",
    [
        *({"number": "1"}, {"topics": []}, {"changes": [7]}, {"detail": None}),
        {"topics": {"Orders": {"declared": {"columns": 7}, "stores": {}, "tables": {}}}},
        {"topics": {"Orders": {"declared": {}, "stores": {"s": {"run": 1, "to_offset": "9"}}, "tables": {}}}},
    ],
    ids=str,
)
def test_an_invalid_manifest_is_reported(change: dict[str, object], tmp_path: Path) -> None:
    ingested(tmp_path, b'{"id": 1}')
    typed(tmp_path)
    (path,) = (tmp_path / "lake" / "_manifests").glob("typing-*")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(OSError, match=f"^{path}: not a valid manifest of a typing: "):
        typed(tmp_path)


def test_each_body_is_a_row_or_a_dead_letter_once(broker: Broker, tmp_path: Path) -> None:
    write(broker, b'{"id": 1, "name": "a"}', b'{"id": 1.7}', b'{"id": 3}', b"")
    write(broker, b'{"id": 9}', topic="Payments")
    ingested(tmp_path)

    first = typed(tmp_path)
    again = typed(tmp_path)
    write(broker, b'{"id": 4}', b"x")
    ingested(tmp_path)
    later = typed(tmp_path)

    assert [(2, 2), (0, 0), (1, 1)] == [
        (one.topics[0].rows, one.topics[0].dead_letters) for one in (first, again, later)
    ]
    assert again.number is None
    assert (3, 3) == count_rows_and_dead_letters(tmp_path / "lake")
    rows = rows_of(tmp_path / "lake", "typed/Orders")
    assert [(1, "a"), (3, None), (4, None)] == [(row["id"], row["name"]) for row in rows]
    assert {"b"} == {row["broker"] for row in rows}
    letters = rows_of(tmp_path / "lake", "dead_letters")
    assert [
        ("a number with a fraction or an exponent is not a valid bigint", "$.id", b'{"id": 1.7}'),
        ("an empty body", "byte 0", b""),
        ("invalid JSON", "byte 0", b"x"),
    ] == [(row["reason"], row["place"], row["body"]) for row in letters]


@pytest.mark.parametrize(
    "declared", ['format = "avro"\nschema_file = "a.avsc"', 'format = "protobuf"\ndescriptors = "a"\nmessage = "A"']
)
def test_only_avro_and_protobuf_need_the_libraries_of_the_extra_types(
    declared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.typed.declaration.find_spec", lambda _: None)
    ingested(tmp_path, b'{"id": 1}')

    assert typed(tmp_path).topics[0].rows == 1
    with pytest.raises(UnsupportedFormat, match="requires additional libraries"):
        typed(tmp_path, f'[topic."Orders"]\n{declared}\n')


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("committed", "lost"),
    [(0, "typed/Orders"), (0, "typed/Payments"), (0, "dead_letters"), (1, "typed/Payments"), (2, "dead_letters")],
)
def test_files_of_a_prepared_typing_that_a_vacuum_deleted_are_typed_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: int, lost: str
) -> None:
    both = ORDERS + ORDERS.replace("Orders", "Payments")
    for id_ in (1, 2):
        for topic in ("Orders", "Payments"):
            write(broker, b'{"id": %d}' % id_, b"x", topic=topic)
        ingested(tmp_path)
        with monkeypatch.context() as patch:
            if id_ == 2:
                patch.setattr(run, "commit_typing", lambda lake, typing: _some_of(lake, typing, committed))
            with suppress(KeyboardInterrupt):
                typed(tmp_path, both)
    lake = Lake(str(tmp_path / "lake"))
    left = typings.without_committed_changes(lake, typings.read_newest_typing(lake))
    change = next(change for change in left.changes if change.table == lost)
    (tmp_path / "lake" / lost / change.added[0].path).unlink()

    with pytest.raises(RequestError, match="must also declare Payments"):
        typed(tmp_path)
    again = typed(tmp_path, both)

    assert (3, None) == (again.number, again.recovered)
    for topic in ("Orders", "Payments"):
        assert (2, 2) == count_rows_and_dead_letters(tmp_path / "lake", f"typed/{topic}", topic)
    assert typed(tmp_path, both).number is None


def _some_of(lake: Lake, typing: typings.Typing, some: int) -> None:
    typings.commit_typing(lake, replace(typing, changes=typing.changes[:some]))
    if typing.changes:
        raise KeyboardInterrupt


def test_columns_are_added_types_are_widened_and_what_would_lose_data_is_refused(
    broker: Broker, tmp_path: Path
) -> None:
    write(broker, b'{"id": 1, "name": "a", "n": 5}', b'{"id": 3000000000}')
    ingested(tmp_path)
    declared = '[topic.Orders]\nformat = "json"\nschema = "{}"\nproperties = ["region"]\n'
    typed(tmp_path, declared.format("id int, name string"))
    write(broker, b'{"id": 2, "n": 6}')
    ingested(tmp_path)

    typed(tmp_path, declared.format("id int, name string, n int"))
    rows = rows_of(tmp_path / "lake", "typed/Orders")
    assert [(1, None, "eu"), (2, 6, "eu")] == [(row["id"], row["n"], row["region"]) for row in rows]

    typed(tmp_path, declared.format("id bigint, name string, n int"))
    assert (3, 0) == count_rows_and_dead_letters(tmp_path / "lake")
    assert [1, 3000000000, 2] == [row["id"] for row in rows_of(tmp_path / "lake", "typed/Orders")]

    narrow = declared.format("id tinyint")
    typed(tmp_path, narrow, retype=["Orders"], accepts=True)
    assert (2, 1) == count_rows_and_dead_letters(tmp_path / "lake")
    assert "name" not in rows_of(tmp_path / "lake", "typed/Orders")[0]
    assert typed(tmp_path, narrow).number is None


def test_dead_letters_that_the_declaration_accepts_now_become_rows(broker: Broker, tmp_path: Path) -> None:
    """Dead letters of other topics remain, as do those that still do not fit, and superseded messages."""
    write(broker, b"no", topic="Payments")
    write(broker, b'{"id": 1, "at": 1795428000}', b'{"id": 2}', b'{"at": "2026-11-23 10:00:00"}', b"x")
    at = broker.offset
    write(broker, b'{"id": 9, "at": 9}')
    ingested(tmp_path)
    declared = '[topic.{}]\nformat = "json"\nschema = "id int{}, at timestamp"\n'
    typed(tmp_path, declared.format("Orders", " NOT NULL") + declared.format("Payments", ""))
    broker.truncate(at)
    write(broker, b'{"id": 31, "at": 1}', *[b'{"id": 4}'] * 40)
    ingested(tmp_path)
    loose = declared.format("Orders", "") + 'epoch = "s"\ntime_zone = "UTC"\n'

    kept = typed(tmp_path, loose)
    tried = typed(tmp_path, loose, retries=True)
    again = typed(tmp_path, loose, retries=True)

    assert [(41, 0), (0, 2)] == [(one.topics[0].rows, one.topics[0].accepted) for one in (kept, tried)]
    assert again.number is None
    assert (44, 1) == count_rows_and_dead_letters(tmp_path / "lake")
    assert {None, 1, 2, 31, 4} == {row["id"] for row in rows_of(tmp_path / "lake", "typed/Orders")}
    assert [b"no", b"x"] == sorted(row["body"] for row in rows_of(tmp_path / "lake", "dead_letters"))


@pytest.mark.sample(4)
@pytest.mark.parametrize("topic", ["../x", "/etc", "%2F..", "a.b", "%RETRY%group", "Ü", "messages", "."])
def test_the_name_of_a_topic_cannot_lead_outside_its_table(topic: str, tmp_path: Path) -> None:
    ingested(tmp_path, b'{"id": 1}', b"x", topic=topic)
    before = {path.name for path in tmp_path.iterdir()} | {path.name for path in (tmp_path / "lake").iterdir()}

    summary = typed(tmp_path, f"[topic.{json.dumps(topic)}]\nformat = 'json'\nschema = 'id bigint'\n")

    after = {path.name for path in tmp_path.iterdir()} | {path.name for path in (tmp_path / "lake").iterdir()}
    assert {"typed", "dead_letters", "typings", "types.toml", "_locks"} >= after - before
    assert summary.topics[0].table == table_name(topic, None)
    count_rows_and_dead_letters(tmp_path / "lake", summary.topics[0].table, topic)


def test_the_first_message_of_a_topic_creates_its_table_even_as_a_dead_letter(broker: Broker, tmp_path: Path) -> None:
    write(broker, b'{"id": 1}', topic="Other")
    ingested(tmp_path)
    assert ["Orders"] == list(typed(tmp_path, '[topic.Orders]\nformat = "json"\nschema = "id bigint"\n').absent_topics)
    write(broker, b"broken", topic="Orders")
    ingested(tmp_path)

    done = typed(tmp_path, '[topic.Orders]\nformat = "json"\nschema = "id int"\n')  # the new type loses no values

    assert not done.absent_topics
    assert done.topics[0].dead_letters == 1
    assert (tmp_path / "lake" / "typed" / "Orders" / "_delta_log").is_dir()


def test_each_type_of_a_topic_has_its_own_table(broker: Broker, tmp_path: Path) -> None:
    """The type is a tag, property or field; a message of an undeclared type is a dead letter until it is declared."""
    bodies = b'{"kind": "new", "id": 1}|{"kind": "old", "at": 2}|{"kind": "x"}|{"kind": "old"}||{}'.split(b"|")
    broker.append(make_record(body, topic="Orders", properties={"kind": "new", "TAGS": "new"}) for body in bodies)
    ingested(tmp_path)
    new = '[topic.Orders.types.new]\nformat = "json"\nschema = "id bigint"\n'
    old = '[topic.Orders.types.old]\nformat = "json"\nschema = "at int NOT NULL"\n'
    by = '[topic.Orders]\nby = "{}"\n'

    typed(tmp_path, by.format("field kind") + new)
    assert (1, 5) == count_rows_and_dead_letters(tmp_path / "lake", "typed/Orders.new")
    typed(tmp_path, by.format("field kind") + new + old)  # its messages were dead letters

    lake = tmp_path / "lake"
    assert [1] == [row["id"] for row in rows_of(lake, "typed/Orders.new")]
    assert [2] == [row["at"] for row in rows_of(lake, "typed/Orders.old")]
    assert [
        (None, "its type is not declared", "field kind: 'x'"),
        ("old", "a required value is missing", "$.at"),
        (None, "an empty body", "byte 0"),
        (None, "its type is not declared", "field kind: 'none'"),
    ] == [(row["type"], row["reason"], row["place"]) for row in rows_of(lake, "dead_letters")]
    assert typed(tmp_path, by.format("field kind") + old + new).number is None
    for declared in (by.format("tag") + new + old, by.format("field kind") + new, ORDERS):
        with pytest.raises(RequestError, match=r"changes the key `by`|drops these types: old"):
            typed(tmp_path, declared)
    for source in ("tag", "property kind"):
        typed(tmp_path, by.format(source) + new, retype=["Orders"], accepts=True)
        assert (5, 1) == count_rows_and_dead_letters(lake, "typed/Orders.new")
    assert [] == rows_of(lake, "typed/Orders.old")
    assert 5 == typed(tmp_path, ORDERS, retype=["Orders"]).topics[0].rows
    assert [] == rows_of(lake, "typed/Orders.new")


def test_fields_without_a_column_are_reported_and_filled_by_retype(broker: Broker, tmp_path: Path, run: Run) -> None:
    """After the column is declared, earlier rows keep NULL in it, which the run reports."""
    write(broker, b'{"id": 1, "total": 1.50, "who": {"x": 1}}', b'{"id": 2, "total": 2}', b'{"id": "x", "dead": 1}')
    ingested(tmp_path)
    (tmp_path / "types.toml").write_text(ORDERS)
    command = ("type", tmp_path / "lake", "--types", tmp_path / "types.toml", "--engine", "here")

    lines = run(*command).out.splitlines()
    (tmp_path / "types.toml").write_text(ORDERS.replace("name string", "name string, total decimal(9,2)"))
    added = run(*command).out.splitlines()
    old = [row["total"] for row in rows_of(tmp_path / "lake", "typed/Orders")]
    again = run(*command, "--retype", "Orders", "--json").document["topics"][0]

    assert [
        "    fields without a column (declare columns for them, then --retype fills all rows):",
        "      $.total: in 2 messages, for example 1.50 at offset 0",
        "      $.who: in 1 message, for example {1 fields} at offset 0",
    ] == lines[3:6]
    assert "    new columns: total; rows of earlier runs have NULL there. To fill them:" in added
    assert added[added.index(next(line for line in added if "new columns" in line)) + 1].endswith("--retype Orders")
    assert [None, None] == old
    assert {"$.who": {"messages": 1, "at": 0, "example": "{1 fields}"}} == again["unknown"]
    assert [1.5, 2] == [float(row["total"]) for row in rows_of(tmp_path / "lake", "typed/Orders")]


@pytest.fixture(scope="module")
def campaign() -> Iterator[Callable[..., dict[str, Any]]]:
    with start_campaigns("tests.support.killed_verbs") as campaign:
        yield campaign


@pytest.mark.parametrize(
    ("scenario", "number", "more_than"),
    [
        ("typings", 47, 0),  # after each *stride*-th effect, the next run completes the work without leftovers
        ("typings-beside-ingests", 1, 0),
        pytest.param("typings", 1, 30, marks=pytest.mark.campaign),
        pytest.param("typings-beside-ingests", int(os.environ.get("KILLS", "100")), 30, marks=pytest.mark.campaign),
    ],
)
def test_after_killed_runs_each_message_is_in_one_table(
    scenario: str, number: int, more_than: int, tmp_path: Path, campaign: Callable[..., dict[str, Any]]
) -> None:
    result = campaign(scenario, tmp_path, number)

    assert result["reached"] > more_than
    assert [] == result["bad"]


_BODIES = (
    b'{"id": 1, "price": 1.5, "day": "2026-11-23", "at": "2026-11-23T10:00:00Z", "note": null, "tags": ["a"]}',
    b'{"id": 2, "price": 2, "day": "2026-11-24", "at": "2026-11-23T10:00:00.5+08:00", "who": {"n": 1, "ok": true}}',
    b'{"id": 3, "price": 3e10, "day": "2026-11-24", "a b": "x", "big": 12345678901234567890}',
    b'{"id": "four", "tags": [null, "b"], "what \\"is\\" it": 1}',
    b"not JSON",
    b"",
)
_SCHEMA = (
    'schema = "id bigint, price double, day date, at timestamp, body_tags array<string>, '
    'who struct<n: bigint, ok: boolean>, body_a_b string, big decimal(38,0), body_what__is__it bigint"'
)


def test_a_proposal_types_as_many_bodies_as_it_states(tmp_path: Path, run: Run) -> None:
    ingested(tmp_path, *_BODIES)

    outcome = run("type", tmp_path / "lake", "--infer", "-t", "Orders", "--engine", "here")

    assert ExitCode.CLEAN is outcome.code
    assert outcome.out.splitlines() == [
        "# Orders: 3 of 6 bodies fit the proposed types",
        "#   1 message at $.id: not a valid bigint",
        "#   1 message at byte 0: invalid JSON",
        "#   1 message at byte 0: an empty body",
        "#   not proposed: note (always null)",
        '[topic."Orders"]',
        'format = "json"',
        _SCHEMA,
        'from = { body_tags = "tags", body_a_b = "a b", body_what__is__it = "what \\"is\\" it" }',
    ]
    typed(tmp_path, outcome.out)
    assert (3, 3) == count_rows_and_dead_letters(tmp_path / "lake")
    asked = "select reason, count(*) as bodies from typed_dead_letters group by reason"
    dead = run("query", "sql", "--lake", tmp_path / "lake", asked, "--output", "json").out
    assert 3 == sum(row["bodies"] for row in json.loads(dead))


@pytest.mark.parametrize(
    "bodies", [[], [b"x"], [b"[1]"], [b"{}"], [b'{"a": null}'], [b'{"": ' + b"[" * 99 + b"]" * 99 + b"}"]]
)
def test_a_topic_without_objects_has_no_proposal(bodies: list[bytes], broker: Broker, tmp_path: Path, run: Run) -> None:
    write(broker, b"other", topic="Payments")
    write(broker, *bodies)
    ingested(tmp_path)

    outcome = run("type", tmp_path / "lake", "--infer", "-t", "Orders", "--engine", "here")

    assert ExitCode.NOT_FOUND is outcome.code
    assert ("no types are proposed" if bodies else "the lake has no such topic") in outcome.out


@pytest.mark.slow  # Spark needs seconds to compile
def test_spark_types_the_same_rows(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    import polars as pl  # slow to load, and each test process collects this module

    (tmp_path / "types.toml").write_text(
        '[topic.Orders]\nformat = "json"\nschema = "id int, d decimal(5,2), at timestamp, who struct<n: array<int>>"'
    )
    found = []
    for engine in ("here", "spark"):
        folder = tmp_path / engine
        fitting = b'{"id": 1, "d": 1.5, "at": "2026-11-23T10:00:00Z", "who": {"n": [1, null]}}'
        ingested(folder, *[body for body in (fitting, b'{"id": 1.5}', b"") for _ in range(20)])
        command = ("type", folder / "lake", "--types", tmp_path / "types.toml", "--engine", engine)
        assert ExitCode.CLEAN is run(*command, "--max-dead-letters", "100%").code
        assert len(DeltaTable(folder / "lake" / "messages").file_uris()) > 1  # one task for each
        assert (20, 40) == count_rows_and_dead_letters(folder / "lake")
        rows = [rows_of(folder / "lake", table) for table in ("typed/Orders", "dead_letters")]
        found.append([[{**row, "store_id": ""} for row in some] for some in rows])
    assert found[0] == found[1]

    path = str(tmp_path / "spark" / "lake" / "typed" / "Orders")
    columns = ["physical_offset", "id", "d", "at", "who"]
    ours = table_of(Path(path), columns).sort_by("physical_offset").to_pylist()
    of_polars = pl.read_delta(path).select(columns).sort("physical_offset").to_dicts()
    of_spark = spark.sql(
        f"SELECT physical_offset, id, d, unix_micros(at) AS at, to_json(who) AS who FROM delta.`{path}`"
    )
    connection = duckdb.connect()
    connection.execute(f"LOAD '{delta_extension()}'")
    names = ", ".join(f'"{name}"' for name in columns)
    of_duckdb = connection.sql(f"SELECT {names} FROM delta_scan('{path}') ORDER BY physical_offset")
    assert ours == of_polars == of_duckdb.to_arrow_table().to_pylist()
    assert {(1, "1.50", 1795428000000000, '{"n":[1,null]}')} == {
        (row.id, str(row.d), row.at, row.who) for row in of_spark.collect()
    }
