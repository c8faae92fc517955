"""
Compares the files that we derive from a store's log with those that the broker left.

Everything is made twice, by the scalar modules and by the commands that rebuild, from the log alone; the broker's files
are read as they are. Where a rebuild from the log cannot be equal (`explain_index`), a file must still follow from the
real file before it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from jobs.rebuild.index import RebuildIndexRequest, rebuild_index
from jobs.rebuild.queue_run import MANIFEST_FILE, RebuildQueuesRequest, rebuild_queues
from jobs.store.workers import SerialWorkers
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.commitlog.segment import PieceKind
from rmq_formats.consumequeue.dispatch import (
    DEFAULT_DELAY_LEVELS,
    QueueKind,
    QueueName,
    QueueRules,
    decode_unit,
    expected_units,
)
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, IndexEntry, IndexHeader, decode_entry, decode_header
from rmq_formats.indexfile.layout import Geometry as IndexGeometry
from rmq_formats.properties import index_key_hash
from rmq_formats.release import Release, make_rules, release_at
from rmq_formats.store import file_name_of_offset, is_index_name
from tests.oracle.releases import SMALL_GEOMETRY, Geometry
from tests.rmq_formats.reference import BatchConsumeQueue, ConsumeQueue, IndexFile, IndexWriter
from tests.support.stores import stored_records, walked_segments

_BATCH_UNIT_SIZE = 46
_MODELS: dict[QueueKind, type[ConsumeQueue | BatchConsumeQueue]] = {
    QueueKind.PLAIN: ConsumeQueue,
    QueueKind.BATCH: BatchConsumeQueue,
}


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a store, and what decided about its queues and index files."""

    releases: tuple[tuple[int, str], ...]
    geometry: Geometry = SMALL_GEOMETRY
    settings: dict[str, str] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()

    @property
    def rules(self) -> list[tuple[int, Release]]:
        return [(since, Release.from_version(release)) for since, release in self.releases]

    @property
    def index_geometry(self) -> IndexGeometry:
        return IndexGeometry(self.geometry.hash_slots, self.geometry.index_entries)

    @property
    def queue_rules(self) -> QueueRules:
        return QueueRules(
            releases=self.rules,
            batch_topics=self.batch_topics,
            multi_dispatch=self.settings.get("enableMultiDispatch") == "true",
            lmq=self.settings.get("enableLmq") == "true",
            delay_levels=self.settings.get("messageDelayLevel", DEFAULT_DELAY_LEVELS),
        )

    def queue_file_size(self, kind: QueueKind) -> int:
        return self.geometry.consume_queue_units * (UNIT.size if kind is QueueKind.PLAIN else _BATCH_UNIT_SIZE)


class Derived(NamedTuple):
    """Queue files by path below the store, index files in the order of their names."""

    queues: dict[str, bytes]
    index_files: list[bytes]


class Difference(NamedTuple):
    """The first position at which a file differs from the expected one."""

    file: str
    position: int
    expected: bytes
    actual: bytes


def on_disk(store: Path) -> Derived:
    folders = [store / kind for kind in QueueKind]
    queues = {
        path.relative_to(store).as_posix(): path.read_bytes()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return Derived(queues, [path.read_bytes() for path in list_index_files(store)])


def list_index_files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "index").glob("*") if is_index_name(path.name))


def differences(expected: Derived, actual: Derived) -> list[Difference]:
    named = {f"index {number}": data for number, data in enumerate(expected.index_files)} | expected.queues
    found = {f"index {number}": data for number, data in enumerate(actual.index_files)} | actual.queues
    return [
        difference
        for name in sorted(named.keys() | found.keys())
        if (difference := _difference(name, named.get(name, b""), found.get(name, b"")))
    ]


def _difference(name: str, expected: bytes, actual: bytes) -> Difference | None:
    if expected == actual:
        return None
    equal = next((at for at, (ours, theirs) in enumerate(zip(expected, actual, strict=False)) if ours != theirs), -1)
    position = equal if equal >= 0 else min(len(expected), len(actual))
    around = slice(max(position - 8, 0), position + 24)
    return Difference(name, position, expected[around], actual[around])


# --- the log ---------------------------------------------------------------------------------------------------------


def records(store: Path) -> list[MessageRecord]:
    return [stored.record for stored in stored_records(store)]


def unfaithful(store: Path) -> list[int]:
    """List the offsets of pieces of the log that are damaged, or that do not encode to their own bytes."""
    damaged = [
        piece.offset for _, pieces in walked_segments(store) for piece in pieces if piece.kind is PieceKind.DAMAGE
    ]
    return damaged + [record.physical_offset for record, raw in stored_records(store) if encode_record(record) != raw]


# --- rebuilt ---------------------------------------------------------------------------------------------------------


def by_scalar(log: list[MessageRecord], writer: Writer) -> Derived:
    queue_rules = writer.queue_rules
    queues: dict[QueueName, ConsumeQueue | BatchConsumeQueue] = {}
    for record in log:
        for unit in expected_units(record, queue_rules):
            kind = unit.queue.kind
            queue = queues.setdefault(unit.queue, _MODELS[kind](writer.queue_file_size(kind)))
            queue.append(unit, queue_rules.release_at(record.physical_offset))
    index = IndexWriter(writer.index_geometry, make_rules(*writer.rules))
    index.dispatch_all(log)
    return Derived(
        {
            f"{name.path}/{file_name_of_offset(base)}": data
            for name, queue in queues.items()
            for base, data in queue.files()
        },
        [file.encode(writer.rules[-1][1].empty_index_count) for file in index.files],
    )


def by_commands(store: Path, writer: Writer) -> Derived:
    """Return what `rebuild-consumequeue` and `rebuild-index` make of a store; of several, they detect the releases."""
    release = writer.releases[0][1] if len(writer.releases) == 1 else None
    delays = writer.settings.get("messageDelayLevel")
    conf = BrokerConf(consume_queue_size=writer.queue_file_size(QueueKind.PLAIN), delay_level=delays)
    with TemporaryDirectory() as folder:
        queues, index = Path(folder, QueueKind.PLAIN), Path(folder, "index")
        rebuild_queues(RebuildQueuesRequest(str(store), queues, conf, release=release), SerialWorkers())
        rebuild_index(RebuildIndexRequest(str(store), str(index), writer.geometry.wanted(release)), SerialWorkers())
        (queues / MANIFEST_FILE).unlink()
        for kind in QueueKind:  # a store has the folders of the other kinds next to that of plain queues
            if (queues / kind).exists():
                (queues / kind).rename(Path(folder, kind))
        return on_disk(Path(folder))


# --- not from the log alone ------------------------------------------------------------------------------------------


def explain_index(store: Path, log: list[MessageRecord], writer: Writer) -> list[str]:
    """
    Say for each index file of a store how it follows from the one before.

    `whole`: the first file, as the log alone gives it. `continued`: the message that straddles both goes on where it
    stopped. `repeated`: after a crash the broker puts all keys of that message, or of the last one in a file that
    survived, again. `again`: a file that a killed broker had just made, of zeros, survives recovery; as it names no
    message that it ends with, all messages that recovery dispatches, from a log file's first on, are indexed once more.
    `lost`: recovery threw a file away and began to dispatch after its messages, as in a DLedger log it does.
    `behind`: the last file of a killed broker lacks keys that were not dispatched yet; `torn`: it ends within an entry.
    `partial`: the first file of a log whose oldest messages are deleted still names those, and agrees about all others.
    All else is `unexplained`.
    """
    # Killed between making a file and giving it its size, a broker leaves an empty one.
    size = writer.index_geometry.file_size
    files = [path.read_bytes().ljust(size, b"\0") for path in list_index_files(store)]
    verdicts = []
    for number, file in enumerate(files):
        is_last = number == len(files) - 1
        previous = files[number - 1] if number else None
        verdicts.append(_explain(previous, file, log, writer, is_last=is_last))
    return verdicts


def _explain(previous: bytes | None, file: bytes, log: list[MessageRecord], writer: Writer, *, is_last: bool) -> str:
    ways = list(_ways(previous, file, log, writer))
    for way in ways:
        if _made(way, writer).encode(writer.rules[-1][1].empty_index_count) == file:
            return way.word
    for way in ways if is_last else ():
        shorter = _made(way, writer, decode_header(file).index_count).encode()
        if shorter == file:
            return "behind"
        if _differs_in_one_entry(shorter, file, writer):
            return "torn"
    if not previous and _agrees_about_the_log(file, log, writer):
        return "partial"
    return "unexplained"


class _Part(NamedTuple):
    """Some of a message's keys: from one on, up to another."""

    record: MessageRecord
    first: int = 0
    end: int | None = None


class _Way(NamedTuple):
    """One possible history of an index file: the file before it, and the keys that were added."""

    word: str
    previous: IndexHeader | None
    parts: list[_Part]


def _ways(previous: bytes | None, file: bytes, log: list[MessageRecord], writer: Writer) -> Iterator[_Way]:
    if previous is None:
        whole = list(map(_Part, log))
        yield _Way("whole", None, whole)
        yield _Way("repeated", None, _with_repetition(whole, file, writer))
        yield from (_Way("repeated", None, parts) for parts in _with_cut_repetition(whole, file, writer))
        return
    header = decode_header(previous)
    rest = [_Part(record) for record in log if record.physical_offset >= header.end_physical_offset]
    continued = rest.copy()
    if rest and rest[0].record.physical_offset == header.end_physical_offset:
        known = sum(entry.physical_offset == header.end_physical_offset for entry in _entries(previous, writer))
        continued[0] = rest[0]._replace(first=known)
        for put in range(1, min(_key_count(rest[0].record, writer), known - 1) + 1):
            # A kill let *put* of its keys be put; the file before was full in the middle of their repetition.
            yield _Way("repeated", header, [rest[0]._replace(first=known - put), *rest[1:]])
    yield _Way("continued", header, continued)
    yield _Way("repeated", header, rest)
    yield _Way("repeated", header, _with_repetition(rest, file, writer))
    yield _Way("repeated", header, _with_repetition(continued, file, writer))
    yield from (_Way("repeated", header, parts) for parts in _with_cut_repetition(continued, file, writer))
    begin = decode_header(file).begin_physical_offset
    if begin > header.end_physical_offset:
        yield _Way("lost", header, [_Part(record) for record in log if record.physical_offset >= begin])
    if begin <= header.end_physical_offset and begin % writer.geometry.commit_log_file_size == 0:
        yield _Way("again", None, [_Part(record) for record in log if record.physical_offset >= begin])


def _with_repetition(parts: list[_Part], file: bytes, writer: Writer) -> list[_Part]:
    """Repeat all keys of a message for which *file* has more entries than the message has keys."""
    entries = Counter(entry.physical_offset for entry in _entries(file, writer))
    repeated = []
    for part in parts:
        surplus = max(entries[part.record.physical_offset] - _key_count(part.record, writer), 0)
        repeated += [part._replace(end=part.first + surplus), _Part(part.record)] if surplus else [part]
    return repeated


def _with_cut_repetition(parts: list[_Part], file: bytes, writer: Writer) -> Iterator[list[_Part]]:
    """
    Put the keys of the message that a full *file* ends with once more: it had room for some of them.

    All of its keys had been put when the broker was killed, or only the first ones.
    """
    last = decode_header(file).end_physical_offset
    at = next((at for at, part in enumerate(parts) if part.record.physical_offset == last), None)
    if at is None:
        return
    part = parts[at]
    for put in range(1, _key_count(part.record, writer) + 1):
        yield [*parts[:at], part._replace(end=part.first + put), _Part(part.record), *parts[at + 1 :]]


def _key_count(record: MessageRecord, writer: Writer) -> int:
    return len(index_keys(record, release_at(make_rules(*writer.rules), record.physical_offset)))


def _made(way: _Way, writer: Writer, count: int = 1 << 31) -> IndexFile:
    """Make the index file that begins in a *way*, until it is full or its next entry would be number *count*."""
    file = IndexFile.created(writer.index_geometry, way.previous)
    rules = make_rules(*writer.rules)
    for record, first, end in way.parts:
        release = release_at(rules, record.physical_offset)
        for key in index_keys(record, release)[first:end]:
            if file.header.index_count >= count or not file.put(
                index_key_hash(key), record.physical_offset, record.store_timestamp, release.hash_slot_count
            ):
                return file
    return file


def _agrees_about_the_log(file: bytes, log: list[MessageRecord], writer: Writer) -> bool:
    rules = make_rules(*writer.rules)
    wanted = [
        (index_key_hash(key), record.physical_offset)
        for record in log
        for key in index_keys(record, release_at(rules, record.physical_offset))
    ]
    kept = [entry for entry in _entries(file, writer) if entry.physical_offset >= log[0].physical_offset]
    return [(entry.key_hash, entry.physical_offset) for entry in kept] == wanted[: len(kept)]


def _differs_in_one_entry(ours: bytes, file: bytes, writer: Writer) -> bool:
    """Return whether the files differ in the header, in the entry after the last one, and in one slot at most."""
    geometry = writer.index_geometry
    entry = geometry.entry_position(max(decode_header(file).index_count, 1))  # 0 until the first one is whole
    differing = {at for at, (mine, theirs) in enumerate(zip(ours, file, strict=True)) if mine != theirs}
    slots = {(at - HEADER.size) // SLOT.size for at in differing if HEADER.size <= at < geometry.entries_position}
    outside = {at for at in differing if at >= geometry.entries_position and not entry <= at < entry + ENTRY.size}
    return len(slots) <= 1 and not outside


def _entries(file: bytes, writer: Writer) -> list[IndexEntry]:
    geometry = writer.index_geometry
    return [decode_entry(file, geometry.entry_position(at)) for at in range(1, decode_header(file).index_count)]


def units_into_log(files: dict[str, bytes], log_start: int) -> list[tuple[str, int, bytes]]:
    """List the written units of plain queues that point at *log_start* or after it, with their places."""
    return [
        (path, at, data[at : at + UNIT.size])
        for path, data in sorted(files.items())
        for at in range(0, len(data), UNIT.size)
        if (unit := decode_unit(data, at)).is_written and unit.physical_offset >= log_start and not unit.is_pre_blank
    ]
