"""Index files held against the log: what nothing explains is a finding, what something explains is a note."""

import os
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.console.result import Severity
from jobs.lake.findings import Finding
from jobs.products.index.file_builder import RealFile
from jobs.products.index.settings import Wanted
from jobs.products.index.survivors import Placing, Survivor
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from jobs.verify.findings import PartReport
from jobs.verify.index import verify_index
from rmq_formats.indexfile.file import index_keys
from rmq_formats.indexfile.layout import HEADER, Geometry, decode_header
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.release import Release, rules_of
from rmq_formats.store import decode_checkpoint, encode_checkpoint
from tests.golden import GOLDEN, SCENARIO, StoreOf
from tests.rmq_formats.reference import IndexWriter
from tests.support.commands import overwrite
from tests.support.stores import flip, log_folders, stored_records

TINY = Geometry(100, 20)


def checked(root: Path, release: str | None = None, *, filled_meanwhile: int = 0) -> PartReport:
    store = list_store(str(root), commitlog=log_folders(root))
    store = replace(store, index_files=store.index_files[: len(store.index_files) - filled_meanwhile])
    return verify_index(OneByOne(), store, Wanted(100, 20, release))


def index_file(store: Path, number: int) -> Path:
    return sorted((store / "index").iterdir())[number]


def the_finding(store: Path, release: str | None = "5.3.3") -> Finding:
    (finding,) = checked(store, release).findings
    return finding


EXPLAINED = {
    "crash-after": "indexed again after a start",
    "crash-later": "indexed again after a start",
    "expired": "history before the first segment",
}
# The independent model's own count of entries that the log has and the index has not, or the other way round.
LIVE = {"b498-live": ("behind", 3), "b533-live": ("ahead", 2)}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_every_golden_store_is_explained(golden: StoreOf, name: str) -> None:
    """Equal, or equal under the class that its history is known to have; the rules are found out, not given."""
    report = checked(golden(name))
    explained = {note.split(": ")[1] for note in report.notes if note.startswith("index/")}
    counted, number = LIVE.get(name, ("behind", 3 if name == "b533-crash-before" else 0))

    expected = ["checkpoint_index_time"] if name == "b533-live" else []  # its checkpoint was copied before
    assert [finding.kind for finding in report.findings] == expected
    assert report.numbers.get(counted, 0) == number
    assert explained == {EXPLAINED[SCENARIO[name]]} if SCENARIO[name] in EXPLAINED else len(explained) <= 1
    assert (
        sum(report.numbers.get(key, 0) for key in ("equal", "restarted", "history", "ahead")) == report.numbers["files"]
    )


def test_a_changed_bit_of_an_entry_is_named_by_its_field(store: Path) -> None:
    path, at = index_file(store, 4), TINY.entry_position(7) + 8
    before = int.from_bytes(path.read_bytes()[at - 4 : at + 4])
    flip(path, at + 3, 0x10)
    finding = the_finding(store)

    assert (finding.kind, finding.file, finding.field) == (
        "damaged",
        f"index/{path.name}",
        "entry 7 physical_offset",
    )
    assert (finding.offset, finding.expected, finding.found) == (at - 4, str(before), str(before ^ 0x10))
    assert finding.cause == "disk, memory or a copy damaged the file, or it was not written to its end (1 bit differs)"


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda data: data[:500], "damaged"),
        (lambda data: bytes(len(data)), "damaged"),
        (lambda data: data[:600] + bytes(240), "damaged"),
        (lambda data: data[:40] + bytes(400) + data[440:], "damaged"),
        (lambda data: data[:36] + bytes([0, 0, 0, 9]) + data[40:], "damaged"),
        (lambda data: data[:36] + bytes([0, 0, 9, 9]) + data[40:], "damaged"),
        (lambda data: data + bytes(20), "wrong_geometry"),
        (lambda data: data[:440] + random.Random(2).randbytes(400), "foreign"),
    ],
    ids=["cut", "all", "entries", "slots", "count", "count beyond", "longer", "random"],
)
def test_damage_has_a_class(store: Path, damage: Callable[[bytes], bytes], kind: str) -> None:
    path = index_file(store, 5)
    path.write_bytes(damage(path.read_bytes()))

    assert (the_finding(store).kind, the_finding(store).file) == (kind, f"index/{path.name}")


@pytest.mark.parametrize(("is_killed", "kinds"), [(True, []), (False, ["damaged"])])
def test_a_new_file_of_a_killed_broker_is_no_damage(store: Path, *, is_killed: bool, kinds: list[str]) -> None:
    """A broker creates a file before it puts the first entry."""
    newest = index_file(store, -1)
    newest.with_name(str(int(newest.name) + 1)).write_bytes(bytes(newest.stat().st_size))
    if is_killed:
        (store / "abort").touch()

    assert [finding.kind for finding in checked(store, "5.3.3").findings] == kinds


@pytest.mark.parametrize("slots", [101, 150, 1000])
def test_a_changed_number_of_slots_is_named(store: Path, slots: int) -> None:
    """A broker with a larger maxHashSlotNum makes old files longer, with zeros; their entries stay where they were."""
    for path in (store / "index").iterdir():
        os.truncate(path, Geometry(slots, 20).file_size)

    findings = verify_index(OneByOne(), list_store(str(store)), Wanted(slots, 20)).findings

    assert {finding.kind for finding in findings} == {"wrong_geometry"}
    assert all(f"hang in 100 slots, not in {slots}: maxHashSlotNum was changed" in str(finding) for finding in findings)
    assert len(findings) == len(list((store / "index").iterdir()))


def test_a_file_of_another_release_is_told_by_its_slot_count(golden: StoreOf) -> None:
    """Nothing but `hash_slot_count` differs between 4.7.0 and 4.7.1."""
    report = checked(golden("b470-clock"), "4.7.1")

    assert {finding.kind for finding in report.findings} == {"other_rule"}
    assert {finding.field for finding in report.findings} == {"header hash_slot_count"}


def test_missing_files_are_found_between_others_and_at_both_ends(store: Path) -> None:
    names = sorted(path.name for path in (store / "index").iterdir())
    for number in (0, 4, 5, 12):
        (store / "index" / names[number]).unlink()
    findings = checked(store, "5.3.3").findings

    assert [(finding.kind, finding.file, finding.times) for finding in findings if finding.field] == [
        ("missing_index_entries", f"index/{names[1]}", 19),
        ("missing_index_entries", f"index/{names[6]}", 38),
        ("missing_index_entries", f"index/{names[11]}", 1),
    ]


def test_what_a_crashed_broker_had_not_indexed_yet_is_a_number(store: Path) -> None:
    """It will at its next start; without `abort` it never will."""
    index_file(store, 12).unlink()
    (store / "abort").touch()
    report = checked(store, "5.3.3")

    assert report.findings == []
    assert report.numbers["behind"] == 1


def test_a_checkpoint_with_another_index_time_is_a_finding(store: Path) -> None:
    """After a crash it decides which files the broker deletes."""
    path = store / "checkpoint"
    checkpoint = decode_checkpoint(path.read_bytes())
    path.write_bytes(encode_checkpoint(checkpoint._replace(index_timestamp=checkpoint.index_timestamp + 5_000_000)))
    finding = the_finding(store)

    assert (finding.kind, finding.file, finding.offset) == ("checkpoint_index_time", "checkpoint", 16)
    assert finding.expected == str(checkpoint.index_timestamp)


def test_an_index_time_inside_the_newest_file_is_no_finding(store: Path) -> None:
    """A restored store's, after a broker has gone on: after a crash it deletes that file, as with any time before."""
    newest = max((store / "index").iterdir())
    begin, end = (int.from_bytes(newest.read_bytes()[at : at + 8], "big") for at in (0, 8))
    path = store / "checkpoint"
    for time in {begin, (begin + end) // 2, end}:
        path.write_bytes(encode_checkpoint(decode_checkpoint(path.read_bytes())._replace(index_timestamp=time)))
        assert checked(store, "5.3.3").findings == []


def test_killed_before_the_first_full_files_time_was_written_the_checkpoint_has_none(store: Path) -> None:
    """It is written a moment after the second file is made; without a kill, none is too little."""
    path = store / "checkpoint"
    path.write_bytes(encode_checkpoint(decode_checkpoint(path.read_bytes())._replace(index_timestamp=0)))
    clean = [finding.kind for finding in checked(store).findings]
    for path in sorted((store / "index").iterdir())[2:]:
        path.unlink()
    (store / "abort").touch()
    killed = [finding.kind for finding in checked(store).findings]

    assert "checkpoint_index_time" in clean
    assert "checkpoint_index_time" not in killed


@pytest.mark.parametrize(("later", "kinds"), [(0, []), (1, ["checkpoint_index_time"])])
def test_a_file_that_a_broker_fills_while_the_log_is_read_explains_the_checkpoints_time(
    store: Path, later: int, kinds: list[str]
) -> None:
    """The checkpoint is read after the files were listed: it may name the end of one that was not full then."""
    (store / "abort").touch()
    time = decode_header(index_file(store, -1).read_bytes()).end_timestamp + later
    path = store / "checkpoint"
    path.write_bytes(encode_checkpoint(decode_checkpoint(path.read_bytes())._replace(index_timestamp=time)))

    assert [finding.kind for finding in checked(store, filled_meanwhile=1).findings] == kinds


def without_index(store: Path, folder: Path) -> Path:
    """Copy a store, its folder of index files empty."""
    copy = Path(shutil.copytree(store, folder / "store", ignore=shutil.ignore_patterns("index")))
    (copy / "index").mkdir()
    return copy


def write_files(store: Path, files: Iterable[bytes]) -> None:
    for number, data in enumerate(files):
        (store / "index" / f"202311142213{number:05d}").write_bytes(data)


@pytest.mark.parametrize("restarts", [(7,), (7, 20), (7, 8, 9), (30, 31)])
@pytest.mark.parametrize("back", [1, 3])
def test_a_restart_inside_a_file_is_explained(
    golden: StoreOf, tmp_path: Path, restarts: tuple[int, ...], back: int
) -> None:
    """A killed broker may keep its unfinished file, and index its last messages into it once more."""
    store = without_index(golden("b533-clock"), tmp_path)
    log = [stored.record for stored in stored_records(store)]
    writer = IndexWriter(TINY, rules_of((0, Release.of("5.3.3"))))
    done = 0
    for restart in (*restarts, len(log)):
        for record in log[done:restart]:
            writer.dispatch(record)
        # What is before the file's end is skipped; the message at its end is not.
        done = max(restart - back, 0)
    write_files(store, [file.encode(1) for file in writer.files])
    report = checked(store, "5.3.3")

    assert [finding for finding in report.findings if finding.kind != "checkpoint_index_time"] == []
    assert report.numbers.get("restarted", 0) >= 1
    assert report.numbers["behind"] == 0


@pytest.mark.parametrize("back", [4, 50])
def test_files_that_a_start_made_again_beside_older_ones_are_not_misnamed(
    golden: StoreOf, tmp_path: Path, back: int
) -> None:
    """Where many messages have one store time, unfinished files survive a start that indexes from before them."""
    store = without_index(golden("b533-clock"), tmp_path)
    log = [stored.record for stored in stored_records(store)]
    lives = [log[:100], log[100 - back :]]
    encoded = []
    for life in lives:
        writer = IndexWriter(TINY, rules_of((0, Release.of("5.3.3"))))
        for record in life:
            writer.dispatch(record)
        encoded += [file.encode(1) for file in writer.files]
    write_files(store, encoded)

    assert [finding for finding in checked(store, "5.3.3").findings if finding.kind != "checkpoint_index_time"] == []

    for number, data in enumerate((encoded[1], encoded[0])):
        index_file(store, number).write_bytes(data)
    found = [finding.file for finding in checked(store, "5.3.3").findings if finding.kind == "out_of_order"]

    assert found == [f"index/{index_file(store, number).name}" for number in (0, 1)]


@pytest.mark.parametrize("until", [10, None])
def test_files_of_a_start_that_found_the_newest_one_empty_are_no_copies(
    golden: StoreOf, tmp_path: Path, until: int | None
) -> None:
    """A broker killed before a new file's first entry leaves zeros: its next start indexes all messages once more."""
    store = without_index(golden("b533-base"), tmp_path)
    (store / "abort").touch()
    log = [stored.record for stored in stored_records(store)]
    first, second = (IndexWriter(TINY, rules_of((0, Release.of("5.3.3")))) for _ in range(2))
    for record in log[:100]:
        first.dispatch(record)
    for record in log[:until]:  # of which the broker is killed again, or not
        second.dispatch(record)
    full = [file.encode(1) for file in first.files[:-1]]
    again = [file.encode(1) for file in second.files]

    write_files(store, full + again)
    assert [finding for finding in checked(store, "5.3.3").findings if finding.kind != "checkpoint_index_time"] == []

    write_files(store, [*full, again[0], *again[2:]])
    copies = [finding.file for finding in checked(store, "5.3.3").findings if finding.kind == "repeated"]
    assert copies[:1] == [f"index/{index_file(store, len(full)).name}"]


def test_copies_of_a_whole_index_again_and_again_are_placed_twice_each_at_most(golden: StoreOf, tmp_path: Path) -> None:
    """Each copy of the first file could begin what a start made: to follow the files from each one takes for ever."""
    store = without_index(golden("b533-base"), tmp_path)
    writer = IndexWriter(TINY, rules_of((0, Release.of("5.3.3"))))
    for stored in stored_records(store):
        writer.dispatch(stored.record)
    full = [file.encode(1) for file in writer.files[:-1]]
    write_files(store, full * 10)

    with patch("jobs.products.index.survivors.IndexReader", wraps=IndexReader) as read:  # once a file that is placed
        copies = [finding.file for finding in checked(store, "5.3.3").findings if finding.kind == "repeated"]

    assert copies == [f"index/{index_file(store, number).name}" for number in range(len(full), 10 * len(full))]
    assert read.call_count <= 2 * 10 * len(full)


def test_exchanged_files_are_told_from_a_renamed_one_by_their_times(store: Path) -> None:
    """No broker makes a file before its first message, so the name of one that was exchanged is too early for it."""
    first, second, after = (index_file(store, number) for number in (2, 3, 5))
    contents = first.read_bytes(), second.read_bytes()
    renamed = first.rename(after.with_name(f"{int(after.name) - 1}"))
    of_renamed = {(finding.kind, finding.file) for finding in checked(store).findings}
    renamed.rename(first)
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    of_exchanged = {(finding.kind, finding.file) for finding in checked(store).findings}

    names = [index_file(store, number).name for number in range(6)]
    assert {("out_of_order", f"index/{name}") for name in (*names[3:5], renamed.name)} == of_renamed
    assert {("misnamed", f"index/{path.name}") for path in (first, second)} == of_exchanged


def test_index_files_may_be_older_than_the_log(store: Path) -> None:
    """From 5.1.1 on log and index expire each on its own; entries older than the log are taken as they are."""
    segments = sorted((store / "commitlog").iterdir())
    for segment in segments[:2]:
        segment.unlink()
    report = checked(store, "5.3.3")

    assert report.findings == []
    assert report.numbers["history"] > 1
    assert report.numbers["equal"] > 1


def test_a_file_that_grows_while_it_is_read_is_judged_by_the_entries_it_had(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker runs, slots and header are newer than the entries read first."""
    path = index_file(store, 11)
    whole = path.read_bytes()
    index_file(store, 12).unlink()
    earlier = bytearray(whole)
    slot = int.from_bytes(whole[TINY.entry_position(19) : TINY.entry_position(19) + 4], "big") % 100
    earlier[40 + 4 * slot : 44 + 4 * slot] = whole[TINY.entry_position(19) + 16 : TINY.entry_position(20)]
    earlier[36:40] = (19).to_bytes(4, "big")
    earlier[TINY.entry_position(19) :] = bytes(20)
    path.write_bytes(earlier)
    look = Placing.place_all

    def grow(placing: Placing, files: Sequence[RealFile]) -> list[Survivor]:
        found = look(placing, files)
        path.write_bytes(whole)
        return found

    monkeypatch.setattr(Placing, "place_all", grow)
    (store / "abort").touch()
    report = checked(store, "5.3.3")

    assert [finding.text for finding in report.findings if finding.kind != "checkpoint_index_time"] == []
    assert report.numbers["growing"] == 1


def test_a_kill_between_slot_and_header_leaves_a_file_half_written(store: Path) -> None:
    path = index_file(store, 12)
    data = path.read_bytes()
    slot = next(slot for slot in range(100) if not any(data[40 + 4 * slot : 44 + 4 * slot]))
    overwrite(path, 40 + 4 * slot, data[36:40])  # the number of entries

    assert the_finding(store).kind == "damaged"


@pytest.mark.parametrize("count", [0, 2])
def test_a_kill_within_the_first_put_leaves_a_file_half_written(store: Path, count: int) -> None:
    """
    The header says where the file begins, and of its end what a new file takes over from the one before.

    A broker of 4.9.8 was killed there: `verify` reported an overwritten header.
    """
    files = [index_file(store, number) for number in range(13)]
    headers = [decode_header(path.read_bytes()) for path in files]
    starts = [header.begin_physical_offset for header in headers]
    ends = [header.end_physical_offset for header in headers]
    number = next(number for number in range(1, 13) if starts[number] > ends[number - 1])
    before, path = headers[number - 1], files[number]
    begun = headers[number]._replace(
        end_timestamp=before.end_timestamp, end_physical_offset=ends[number - 1], hash_slot_count=0, index_count=count
    )
    place = slice(TINY.entry_position(1), TINY.entry_position(2))
    blank = bytearray(TINY.file_size)
    blank[: HEADER.size] = HEADER.pack(*begun)
    blank[place] = path.read_bytes()[place]
    path.write_bytes(blank)
    for later in files[number + 1 :]:
        later.unlink()

    found = {one.kind for one in checked(store).findings if one.file == f"index/{path.name}"}
    assert found == {"damaged", "missing_index_entries"}  # of the messages that were in files after it


def test_a_store_that_never_had_index_files_has_nothing_to_verify(store: Path) -> None:
    """Some brokers keep none: their checkpoint has no time of an index file."""
    shutil.rmtree(store / "index")
    overwrite(store / "checkpoint", 16, bytes(8))

    assert checked(store).findings == []
    assert checked(store).numbers == {"files": 0}


def test_an_index_in_rocksdb_is_named_by_its_keys_not_by_its_folder(store: Path) -> None:
    (store / "rocksdbstore").mkdir()
    (store / "rocksdbstore" / "000004.log").write_bytes(b"nothing of interest")
    assert not [note for note in checked(store).notes if "RocksDB" in note]

    (store / "rocksdbstore" / "000005.log").write_bytes(b"\x00\x11495200000@Orders@K@k1@7F00@\x00\x00")
    assert [note for note in checked(store).notes if "000005.log: an index in RocksDB" in note]


@pytest.mark.parametrize("release", ["5.3.3", None])
def test_keys_before_the_first_index_file_are_missed_though_no_file_shows_its_geometry(
    store: Path, release: str | None
) -> None:
    """A broker that is started after its index was lost begins a file that is not full for long."""
    files = sorted((store / "index").iterdir())
    begin = decode_header(files[-1].read_bytes()).begin_physical_offset
    for path in files[:-1]:
        path.unlink()

    report = verify_index(OneByOne(), list_store(str(store)), Wanted(release=release))
    keys = [key for record, _ in stored_records(store) for key in index_keys(record, Release.of("5.3.3"))
            if record.physical_offset < begin]  # fmt: skip

    (finding,) = report.findings
    assert (finding.kind, finding.file, finding.times) == (
        "missing_index_entries", f"index/{files[-1].name}", len(keys)
    )  # fmt: skip
    assert report.severity is Severity.CONTRADICTION
    assert "--hash-slots" in report.unverified


def test_an_index_file_that_covers_the_log_needs_no_geometry_to_be_complete(store: Path) -> None:
    """All keys but those of the first message are in later files; the first file begins with the log."""
    for path in sorted((store / "index").iterdir())[1:]:
        path.unlink()
    first = index_file(store, 0)
    header = decode_header(first.read_bytes())
    overwrite(first, HEADER.offset("index_count"), (header.index_count - 1).to_bytes(4))

    report = verify_index(OneByOne(), list_store(str(store)), Wanted(release="5.3.3"))
    assert report.findings == []
    assert report.unverified
