"""Each answer over four unlike brokers equals a merge, in plain Python, of the answers of the single brokers."""

import heapq
import json
import shutil
import tarfile
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

from jobs.console.result import ExitCode
from jobs.query import ListConditions
from jobs.query.lake_source import open_lake_stores
from jobs.query.merging import list_newest
from jobs.store.selection import Selection
from tests.rmq_formats.builders import STORED
from tests.support.commands import ROOT, Run
from tests.support.lakes import ingest_store
from tests.support.merged_brokers import FORMS
from tests.support.query_stores import Sent, stored, write_store

BROKERS = ("a", "b", "c", "d")  # b has lost a segment, c was ingested without bodies, d does not have the topic
COUNT = 32
Line: TypeAlias = dict[str, Any]


def _send(broker: str, number: int) -> Sent:
    topic = "Alone" if broker == "d" else ("Orders", "Bills")[number % 5 == 0]
    keys = ("all", f"k{number % 4}")
    return Sent(topic, keys, f"u{number // 2 if broker == 'a' else number}", "tag", number % 3, b"body" * 30)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("merges")
    for place, broker in enumerate(BROKERS):
        random = Random(broker)
        times = sorted(random.randrange(30) * 1000 for _ in range(COUNT))  # many are equal
        records = stored([_send(broker, number) for number in range(COUNT)], start=4096 * place)
        aged = [one._replace(store_timestamp=STORED + time) for one, time in zip(records, times, strict=True)]
        store = write_store(directory / broker, aged)
        if broker == "b":
            sorted((store / "commitlog").iterdir())[1].unlink()
        bodies = Selection((), (), broker != "c")
        ingest_store(store, directory / "lake", broker, selection=bodies, **FORMS)
    return directory / "lake"


def _ask(run: Run, lake: Path, *words: str, broker: str | None = None) -> list[Line]:
    command, *options = words
    named = () if broker is None else ("--broker", broker)
    done = run("query", command, "--lake", lake, "--json", "--quiet", *named, *options)

    assert done.code in {ExitCode.CLEAN, ExitCode.DAMAGE, ExitCode.NOT_FOUND}, done.err
    return [line for line in done.lines if line["type"] != "empty"]


def _ask_each(run: Run, lake: Path, *words: str) -> list[list[Line]]:
    """Return the answer of each broker, whose lines have its name."""
    return [[{**line, "broker": broker} for line in _ask(run, lake, *words, broker=broker)] for broker in BROKERS]


def _merge(parts: list[list[Line]]) -> list[Line]:
    return list(heapq.merge(*parts, key=lambda line: str(line["store_time"])))


def _merge_newest_first(parts: list[list[Line]]) -> list[Line]:
    return _merge([part[::-1] for part in parts])[::-1]


def _sorted(lines: list[Line]) -> list[Line]:
    return [dict(sorted(line.items())) for line in lines]


@pytest.mark.parametrize("limit", [2, 1000])
@pytest.mark.parametrize("key", ["all", "k2"])
def test_messages_with_a_key_are_merged(limit: int, key: str, lake: Path, run: Run) -> None:
    asked = ("by-key", "-t", "Orders", "-k", key, "-m", str(limit))
    expected = _merge(_ask_each(run, lake, *asked))[-limit:]

    assert _sorted(expected) == _sorted(_ask(run, lake, *asked))


def test_messages_with_a_key_between_two_times_are_merged(lake: Path, run: Run) -> None:
    times = ("--since", str(STORED + 5000), "--until", str(STORED + 12_000))
    asked = ("by-key", "-t", "Orders", "-k", "all", *times, "-m", "0")
    expected = _merge(_ask_each(run, lake, *asked))

    assert _sorted(expected) == _sorted(_ask(run, lake, *asked))
    assert 3 == len({line["broker"] for line in expected})


@pytest.mark.parametrize("number", [3, 14])
def test_messages_with_an_id_are_merged(number: int, lake: Path, run: Run) -> None:
    asked = ("by-unique-key", "-t", "Orders", "-i", f"u{number}")
    expected = _merge(_ask_each(run, lake, *asked, "-a"))

    assert _sorted(expected) == _sorted(_ask(run, lake, *asked, "-a"))
    assert _sorted(expected[:1]) == _sorted(_ask(run, lake, *asked))


@pytest.mark.parametrize("offset", [0, 7])
def test_messages_at_a_queue_offset_are_those_of_each_broker(offset: int, lake: Path, run: Run) -> None:
    asked = ("by-offset", "-t", "Orders", "-i", "1", "-o", str(offset))
    expected = [line for part in _ask_each(run, lake, *asked) for line in part]

    assert _sorted(expected) == _sorted(_ask(run, lake, *asked))


@pytest.mark.parametrize("limit", [9, 50])
@pytest.mark.parametrize(
    "given", [(), ("-t", "Orders"), ("-t", "Orders", "-k", "k1"), ("-t", "Orders", "--queue", "2")]
)
def test_pages_are_parts_of_the_merged_list(given: tuple[str, ...], limit: int, lake: Path, run: Run) -> None:
    expected = _merge_newest_first(_ask_each(run, lake, "list", *given, "-m", "1000"))
    found: list[Line] = []
    before: tuple[str, ...] = ()
    while True:
        page = run("query", "list", "--lake", lake, "--json", *given, "-m", str(limit), *before)
        found += page.lines
        if "add --before " not in page.err:
            break
        before = ("--before", page.err.split("add --before ")[1].split()[0])

    assert _sorted(expected) == _sorted(found)


def test_pages_end_where_a_broker_has_more(lake: Path) -> None:
    """A message of another broker may come after those that were read: it belongs to a later page."""
    sources = open_lake_stores(str(lake))
    wanted = ListConditions("Orders")
    before = None
    ages: list[int] = []
    for _ in range(1000):
        merged = list_newest(sources, wanted, before, 9, 60).answer
        ages += [message.record.store_timestamp for message in merged.messages]
        note = next((one for one in merged.remarks.notes if "--before" in one), None)
        if note is None:
            break
        positions = (part.rpartition(":") for part in note.rpartition(" ")[2].split(","))
        before = {store: int(offset) for store, _, offset in positions}

    assert sorted(ages, reverse=True) == ages
    assert len(ages) > 60


@pytest.mark.parametrize(
    "line",
    [
        ("queryMsgByKey", "-t", "Orders", "-k", "k3"),
        ("printMsg", "-t", "Orders"),
        ("topicStatus", "-t", "Orders"),
        ("topicStatus", "-t", "Alone"),
        ("printMsg", "-t", "Bills", "-s", "tag"),
    ],
)
def test_rows_of_mqadmin_are_those_of_each_broker(line: tuple[str, ...], lake: Path, run: Run) -> None:
    def find(broker: str | None) -> list[str]:
        lines = _ask(run, lake, "mqadmin", *line, broker=broker)
        named = [{**one, "broker": broker} if broker else one for one in lines]
        kept = [{key: value for key, value in one.items() if key != "brokers"} for one in named]
        return sorted(json.dumps(one, sort_keys=True) for one in kept)

    expected = sorted(one for broker in BROKERS for one in find(broker))

    assert expected == find(None)
    assert expected


def test_warnings_of_each_broker_are_kept(lake: Path, run: Run) -> None:
    found = run("query", "by-key", "--lake", lake, "-t", "Orders", "-k", "all")

    assert ExitCode.DAMAGE == found.code
    assert "messages may be missing from this answer: b (" in found.err


def test_an_export_has_the_messages_of_all_brokers_in_the_order_of_their_logs(
    lake: Path, run: Run, tmp_path: Path
) -> None:
    def export(name: str, *given: str) -> list[Line]:
        run("export", "--lake", lake, "--quiet", "-t", "Orders", "--out", tmp_path / name, *given)
        path = tmp_path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    every = export("every")
    single = [line for broker in BROKERS for line in export(broker, "--broker", broker)]
    by_broker = defaultdict(list)
    for line in every:
        by_broker[line["broker"]].append(line["physical_offset"])

    assert sorted(map(str, single)) == sorted(map(str, every))
    assert {"a", "b", "c"} == set(by_broker)
    assert all(sorted(offsets) == offsets for offsets in by_broker.values())


def test_a_lake_of_an_earlier_version_is_merged_with_another_broker(lake: Path, run: Run, tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "lakes" / "da301fd.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    earlier = next(tmp_path.rglob("lake"))
    ingest_store(shutil.copytree(lake.parent / "a", tmp_path / "a"), earlier, "a", **FORMS)
    every = _ask(run, earlier, "list", "-m", "1000")
    single = [_ask(run, earlier, "list", "-m", "1000", "--broker", broker) for broker in ("a", "b")]
    parts = [[{**line, "broker": broker} for line in part] for broker, part in zip("ab", single, strict=True)]

    assert _sorted(_merge_newest_first(parts)) == _sorted(every)
    assert all(parts)
