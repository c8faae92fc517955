"""Lists and pulls hold every message that the log has, or the command ends with 3 and says what they lack."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.rmq_formats.builders import STORED
from tests.support.commands import Outcome, Run
from tests.support.lakes import ingest_store
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store

COUNT = 90
STEP_MS = 120_000


def _numbers(outcome: Outcome) -> set[int]:
    """Return the numbers of the messages of an answer, from their ids."""
    return {int(row["unique_key"].removeprefix("id")) for row in outcome.lines if row["type"] == "message"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of two queues, of a topic that is not alone in its log."""
    topics = ("Orders", "Orders", "Other")
    sent = [Sent(topics[n % 3], ("all",), f"id{n}", queue_id=n % 2, tags="t") for n in range(COUNT)]
    return write_store(tmp_path / "store", stored(sent))


ORDERS = {n for n in range(COUNT) if n % 3 != 2}
GIVEN = "--release 5.5.1 --hash-slots 7 --index-num 9 --json --quiet"
QUESTIONS = (
    (f"query list -m 500 {GIVEN}", {*range(COUNT)}),
    (f"query list -m 500 -t Orders {GIVEN}", ORDERS),
    (f"query list -m 500 -k all {GIVEN}", {*range(COUNT)}),
    (f"query list -m 500 --tag t {GIVEN}", {*range(COUNT)}),
    (f"query list -m 500 -t Orders -k all {GIVEN}", ORDERS),
    (f"query mqadmin {GIVEN} printMsg -t Orders", ORDERS),
)


def _lose_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "Orders" / "1")


def _lose_queue_file(store: Path) -> None:
    sorted((store / "consumequeue" / "Orders" / "0").iterdir())[1].unlink()


def _zero_units(store: Path) -> None:
    file = max((store / "consumequeue" / "Orders" / "0").iterdir())
    data = file.read_bytes()
    file.write_bytes(data[:20] + bytes(len(data) - 20))


def _misdirect_unit(store: Path) -> None:
    file = min((store / "consumequeue" / "Orders" / "0").iterdir())
    data = bytearray(file.read_bytes())
    data[20:28] = data[0:8]
    file.write_bytes(data)


@pytest.mark.parametrize("lose", [_lose_queue, _lose_queue_file, _zero_units, _misdirect_unit])
def test_a_list_needs_no_queue_files(run: Run, store: Path, lose: Callable[[Path], None]) -> None:
    lose(store)
    for line, expected in QUESTIONS:
        words = shlex.split(line)
        answer = run(*words[:2], "--store", store, *words[2:])
        found = _numbers(answer)
        assert found == expected or (answer.code is ExitCode.DAMAGE and found < expected), line
        assert found == expected or "printMsg" in line


def _lose_segment(store: Path) -> None:
    sorted((store / "commitlog").iterdir())[1].unlink()


def _damage_record(store: Path) -> None:
    file = sorted((store / "commitlog").iterdir())[1]
    data = file.read_bytes()
    file.write_bytes(data[:300] + bytes(500) + data[800:])


@pytest.mark.parametrize("lose", [_lose_segment, _damage_record])
@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_list_says_which_part_of_the_log_it_lacks(
    run: Run, store: Path, tmp_path: Path, lose: Callable[[Path], None], place: str
) -> None:
    lose(store)
    where = store
    if place == "lake":
        where = tmp_path / "lake"
        ingest_store(store, where, "b0", release="5.5.1", hash_slots=7, index_num=9)
    for line, expected in QUESTIONS:
        words = shlex.split(line)
        answer = run(*words[:2], f"--{place}", where, *words[2:])
        assert _numbers(answer) < expected, line
        assert answer.code is ExitCode.DAMAGE, line
        assert "messages may be missing in this answer" in answer.err


def test_the_newest_page_of_a_lake_is_whole_though_older_messages_are_damaged(
    run: Run, store: Path, tmp_path: Path
) -> None:
    _damage_record(store)
    ingest_store(store, tmp_path / "lake", "b0", release="5.5.1")
    newest, all_ = (run("query", "list", "-m", limit, "--lake", tmp_path / "lake") for limit in ("5", "500"))

    assert (newest.code, all_.code) == (ExitCode.CLEAN, ExitCode.DAMAGE)


def test_a_list_of_some_times_survives_a_clock_that_was_set_back(run: Run, tmp_path: Path) -> None:
    """The broker's clock went back by two minutes in the middle of the log: store times do not ascend."""
    records = stored([Sent(keys=("k",), unique_key=f"id{n}", queue_id=n % 2) for n in range(120)])
    assert records[-1].physical_offset > 3 * SEGMENT_SIZE
    times = [STORED + n * 2000 - (STEP_MS if n >= 70 else 0) for n in range(120)]
    moved = [record._replace(store_timestamp=time) for record, time in zip(records, times, strict=True)]
    store = write_store(tmp_path / "store", moved)
    ingest_store(store, tmp_path / "lake", "b0", release="5.5.1")
    begin, end = STORED + 30_000, STORED + 110_000
    expected = {n for n, time in enumerate(times) if begin <= time <= end}
    assert expected != set(range(min(expected), max(expected) + 1))
    for place in ("store", "lake"):
        for asked in ((), ("-t", "Orders"), ("-t", "Orders", "-k", "k")):
            times_asked = ("--since", str(begin), "--until", str(end), "-m", "500", "--json")
            answer = run("query", "list", f"--{place}", tmp_path / place, *asked, *times_asked)
            assert (answer.code, _numbers(answer)) == (ExitCode.CLEAN, expected)
