"""What `inspect` and `verify` say of the next start of a broker, on stores of real brokers, damaged here."""

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.command import cli
from jobs.console.result import ExitCode
from jobs.diagnosis.log_check import FAR, StoreTimes, stray_times
from jobs.products.index.settings import Wanted
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import verdict_lines
from rmq_formats.commitlog.scan import RawRecords
from tests.golden import StoreOf, golden_stores
from tests.support.agreeing_verbs import placed_records, set_store_times
from tests.support.commands import Run, copy_of
from tests.support.stores import segments_of, stored_records

Change = Callable[[Path], object]


def _zeros(segment: int, at: int, size: int) -> Change:
    def change(store: Path) -> None:
        path = segments_of(store)[segment]
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes(size) + data[at + size :])

    return change


def _killed(store: Path) -> None:
    """Killed, and its checkpoint lost: the log is read from its first segment, every index file is deleted."""
    (store / "abort").write_bytes(b"1")
    (store / "checkpoint").unlink()


def _longer(store: Path) -> None:
    with segments_of(store)[1].open("ab") as file:
        file.write(bytes(10))


def _empty_last(store: Path) -> None:
    (store / "commitlog" / f"{4 * 16384:020d}").touch()


def _hole_in_a_queue(store: Path) -> None:
    path = store / "consumequeue/T1/0" / f"{200:020d}"  # of three files
    path.write_bytes(path.read_bytes()[:100] + bytes(20) + path.read_bytes()[120:])


@pytest.mark.parametrize(
    ("name", "release", "changes", "starts", "loses", "words"),
    [
        ("b533-base", "5.3.3", [], True, False, ""),
        ("b533-base", "5.3.3", [_zeros(-3, 5000, 50)], True, False, ""),  # a start reads the last segment alone
        ("b533-base", None, [_zeros(-3, 5000, 50)], True, True, "(one of 5.3.3 would not;"),  # but 5.2.0 would
        ("b498-clock", None, [], True, False, ""),  # only its index files are of no later release than 5.3.3
        ("b533-base", "5.3.3", [_killed], True, False, "deletes 13 index files, and makes all of the keys again"),
        ("b498-base", "4.9.8", [_zeros(-3, 5000, 50)], True, True, "do not start this broker (4.9.8): it would cut"),
        ("b533-base", "5.3.3", [_zeros(1, 5000, 50), _killed], True, True, "do not start this broker (5.3.3)"),
        ("b533-base", "5.3.3", [_longer], False, False, "this broker (5.3.3) does not start, which loses nothing"),
        ("b498-base", "4.9.8", [_empty_last], False, False, "this broker (4.9.8) does not start"),
        ("b533-base", "5.3.3", [_empty_last], True, False, ""),
        ("b533-base", "5.3.3", [_longer, _zeros(1, 5000, 50), _killed], False, False, "once that is mended, do not"),
        ("b533-base", "5.3.3", [_hole_in_a_queue], True, False, "a start of this broker (5.3.3) deletes 1 queue file"),
        ("b533-dledger", "5.3.3", [], None, False, ""),
        ("b551-rockscq", "5.5.1", [], None, False, ""),
    ],
)
def test_inspect_and_verify_say_the_same_of_a_start(  # noqa: PLR0913 - a table's columns
    golden: StoreOf, tmp_path: Path, name: str, release: str | None, changes: list[Change],
    *, starts: bool | None, loses: bool, words: str,
) -> None:  # fmt: skip
    store = Path(shutil.copytree(golden(name), tmp_path / "store"))
    for change in changes:
        change(store)
    out = StringIO()

    with redirect_stdout(out):
        code = cli.main(["inspect", str(store), "--json"])
    inspected = json.loads(out.getvalue())["broker"]
    verdict = verify(VerifyRequest(str(store), Wanted(release=release)), OneByOne())
    assert verdict.start is not None
    said = verdict.start.describe()

    assert starts is said["starts"] is inspected["starts"]
    assert words in "\n".join(verdict_lines(verdict, 3))
    assert release is not None or said["release"] == inspected["release"]
    if said["release"] == inspected["release"]:
        assert said == inspected
    if loses:
        log = [record.physical_offset for record, _ in stored_records(golden(name))]
        behind = [offset for offset in log if offset > (verdict.start.cuts_at or 0)]
        assert behind
        assert len(behind) == said["deletes_messages"]
    if starts is False or loses:
        assert ExitCode.CLEAN not in {code, verdict.exit_code}


_TIME = 1_795_160_458_000
_STEPS = st.sampled_from([0, 1, -1, 5000, -5000, FAR + 1, -FAR - 1, 40 * FAR, -40 * FAR, 1 << 45, -(1 << 45)])


def _group(first: int, count: int) -> RawRecords:
    positions = np.arange(count, dtype=np.int64) * 100
    return RawRecords(np.zeros(1, np.uint8), first * 100, positions, np.full(count, 100, np.int32))


def _found(times: list[int], cuts: list[int], groups: int) -> list[int]:
    """Return the numbers of stray times in a log that is cut into ranges, each read in groups."""
    ranges = []
    for start, end in pairwise(sorted({0, len(times), *(cut for cut in cuts if cut < len(times))})):
        one = StoreTimes()
        for at in range(start, end, groups):
            part = np.array(times[at : min(at + groups, end)], np.int64)
            one.add(_group(at, part.size), part)
        ranges.append(one)
    return sorted(stray.offset // 100 for each in stray_times(ranges) for stray in each)


@given(steps=st.lists(_STEPS, max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4), groups=st.integers(1, 5))
def test_stray_times_do_not_depend_on_how_the_log_is_cut(steps: list[int], cuts: list[int], groups: int) -> None:
    """A time is stray that is far from both neighbours, which are near each other."""
    times = [_TIME + sum(steps[:number]) for number in range(len(steps) + 1)]
    expected = [
        number
        for number in range(1, len(times) - 1)
        if min(abs(times[number] - times[number - 1]), abs(times[number] - times[number + 1])) > FAR
        and abs(times[number + 1] - times[number - 1]) <= FAR
    ]
    assert _found(times, cuts, groups) == expected


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    return copy_of(golden("b533-direct"), tmp_path)


def _unkeyed(store: Path) -> int:
    """Return the number of a record in the middle of the log that no index entry names."""
    records = [one.record for one in placed_records(store)]
    names = (b"KEYS\1", b"UNIQ_KEY\1")
    return next(
        number
        for number, record in enumerate(records[5:-5], 5)
        if not any(name in record.properties_raw for name in names)
    )


@pytest.mark.parametrize("bit", [31, 36, 45, 62])
def test_a_changed_bit_in_a_store_time_is_damage_also_where_no_key_repeats_it(store: Path, bit: int, run: Run) -> None:
    number = _unkeyed(store)
    place = placed_records(store)[number].record.physical_offset
    set_store_times(store, lambda at, one: one.store_timestamp ^ (1 << bit if at == number else 0))

    outcome = run("verify", "--engine", "here", "--json", store)

    found = [(one["kind"], one["field"], one["log_offset"]) for one in outcome.document["findings"]]
    assert ("wrong_store_time", "store_timestamp", place) in found
    assert outcome.code is ExitCode.DAMAGE


def test_a_time_that_no_bit_explains_is_undecided(store: Path, run: Run) -> None:
    """A clock may have been wrong for one message; that is not damage, and it is not healthy."""
    number = _unkeyed(store)
    set_store_times(store, lambda at, one: one.store_timestamp + (123_456_789_012 if at == number else 0))

    outcome = run("verify", "--engine", "here", "--json", store)

    assert [one["kind"] for one in outcome.document["findings"]] == []
    assert "undecided" in outcome.document["unverified"]["log"]
    assert outcome.document["severity"] == "not verified"


@pytest.mark.parametrize("name", golden_stores("clock"))
def test_a_clock_that_was_set_is_healthy(golden: StoreOf, name: str, run: Run) -> None:
    """Steps of years that stay, as real brokers stored them."""
    outcome = run("verify", "--engine", "here", "--json", golden(name))

    assert outcome.code is ExitCode.CLEAN
    assert "log" not in outcome.document["unverified"]
