"""
Predicts what a store's broker would do to it on start, from facts that it collects for `rmq_formats.broker_start`.

Lengths, heads and the ends of queues are always read. Bad records are only found by a walk over the log. `verify` has
made one; `inspect` makes one if the part to read is small. Without a walk, that part of the prediction is unknown.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import PurePosixPath
from typing import NamedTuple

from jobs.console.amounts import count_text
from jobs.store.epochs import tail_evidence
from jobs.store.log_ends import read_last_units
from jobs.store.queue_files import (
    LastUnits,
    find_first_unwritten_unit,
    queue_file_sizes,
    queues_in_files,
    undecided_queue_file_sizes,
)
from jobs.store.queue_storage import QueueStorage, detect_queue_storage
from jobs.store.ranges import find_newest_segment_offset, plan_ranges, usual_segment_size, written_sizes
from jobs.store.record_places import segment_bytes, walk_pieces
from jobs.store.release import Writers
from jobs.store.store import Segment, Store, StoredFile, lazy_reader, read_checkpoint, read_index_header
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import (
    LAST_FILES_READ,
    FirstRecord,
    StartOutcome,
    UnloadableFile,
    find_refused_file,
    find_start_segment,
    find_walk_end,
    read_message_size,
    read_recovery_record,
)
from rmq_formats.commitlog.segment import Framing, PieceKind
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import IndexHeader
from rmq_formats.release import SWITCHES, Release
from rmq_formats.store import (
    COMMITLOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    Checkpoint,
    FileKind,
    is_queue_id,
)

_START_SWITCHES = (*(name for name in SWITCHES if "start" in name), "two_byte_topic_length")
_WALKED = 32 << 20  # bytes that `inspect` walks by default
_FILE_WORDS = {"index": "index file", **dict.fromkeys(map(str, QueueKind), "queue file")}
_QUEUE_DIRECTORIES = 2  # below the directory of all queues: topic and queue id
_NOT_WALKED = "run `inspect --deep` or `verify` to find out whether the broker would truncate the log at startup"
_NO_CHECKPOINT = Checkpoint(0, 0, 0)
_NO_CONF = BrokerConf()


class DoubtfulBytes(NamedTuple):
    """Bytes that our own walk does not accept as a complete message or end of file, and that a broker may reject."""

    offset: int
    end: int
    messages_before: int  # complete messages before it in the walked log


# Consecutive units that a broker considers invalid: the queue, their first position, and their number. When the broker
# reads them, the queue ends there.
QueueStop = tuple[QueueName, int, int]


class WalkedLog(NamedTuple):
    """The result of a walk over the log, starting at or before the segment from which a broker starts to read."""

    end: int  # end of the last complete record
    message_count: int  # number of complete messages
    doubtful_bytes: Sequence[DoubtfulBytes]  # in the order of the log
    newest_timestamp: int = 0  # the latest store time
    queue_stops: Sequence[QueueStop] = ()  # known once all units are compared


class SegmentReads:
    """Reads of a log's segments for the starts of several releases: for all of them, a segment is opened once."""

    def __init__(self, store: Store, releases: Sequence[Release]) -> None:
        """Read nothing yet."""
        self._store, self._releases = store, releases
        self._segments = {one.base_offset: one for one in store.segments if one.size}
        self._first_records: dict[int, dict[Release, FirstRecord | None]] = {}
        self._walk_ends: dict[DoubtfulBytes, dict[Release, tuple[int | None, int]]] = {}

    @property
    def base_offsets(self) -> list[int]:
        """The base offsets of the segments that are not empty."""
        return list(self._segments)

    def read_first(self, base_offset: int, release: Release) -> FirstRecord | None:
        """Return what a start of a release reads as the first record of a segment."""
        if base_offset not in self._first_records:
            segment = self._segments[base_offset]
            with self._store.open(segment) as reader:
                self._first_records[base_offset] = {
                    one: read_recovery_record(reader.read, segment.size, one) for one in self._releases
                }
        return self._first_records[base_offset][release]

    def find_walk_ends(
        self, segment: Segment, release: Release, places: Iterable[DoubtfulBytes]
    ) -> Iterator[tuple[DoubtfulBytes, int | None, int]]:
        """Yield places in a segment, each with why and at which offset a start that reads from there would stop."""
        with ExitStack() as stack:
            open_file = cache(lambda _: stack.enter_context(self._store.open(segment)))
            read = lazy_reader(open_file, segment.location)
            for place in places:
                if place not in self._walk_ends:
                    position = place.offset - segment.base_offset
                    limit = max(place.end, place.offset + 1) - segment.base_offset
                    self._walk_ends[place] = {
                        one: find_walk_end(read, position, segment.size, one, limit) for one in self._releases
                    }
                advance, position = self._walk_ends[place][release]
                yield place, advance, segment.base_offset + position


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Facts about a store, as a broker of one release sees them before it reads the log."""

    store: Store
    release: Release
    unloadable_files: tuple[UnloadableFile, ...]
    checkpoint: Checkpoint
    walk_start_offset: int | None
    unknown_reason: str
    reads: SegmentReads


def predict_store_start(
    store: Store,
    writers: Writers,
    log: WalkedLog | None = None,
    conf: BrokerConf = _NO_CONF,
    last_units: LastUnits | None = None,
) -> StartOutcome:
    """
    Predict a start of the release that wrote the end of the log; queues whose *last_units* are known are not read.

    If several releases may have written it and start differently, the result is that of the release that deletes most.
    An error of a file that the start reads is raised.
    """
    try:
        releases = distinct_start_releases(writers)
        reads = SegmentReads(store, releases)
        outcomes = [
            predict_start(gather_start_facts(store, release, conf, last_units, reads), log) for release in releases
        ]
    except (FormatError, FileNotFoundError) as error:  # a damaged or deleted file: the outcome says that it is unknown
        return unknown_start(writers.last_release, error)
    worst = max(outcomes, key=lambda one: (one.after_repair or one).deletes_messages or 0)
    if worst is outcomes[0]:
        return worst
    doubt = f"RocketMQ {outcomes[0].release} would not do this; pass --release to specify the broker's release"
    if worst.after_repair is not None:
        return replace(worst, after_repair=replace(worst.after_repair, unknown_reason=doubt))
    return replace(worst, unknown_reason=doubt)


def predict_start_by_own_walk(store: Store, writers: Writers, conf: BrokerConf, *, deep: bool) -> StartOutcome:
    """Predict a start after walking the log here, if a start reads little of the log or *deep* is set."""
    try:
        log = _walk_for_start(store, writers, deep=deep)
    except (FormatError, FileNotFoundError) as error:  # as above
        return unknown_start(writers.last_release, error)
    return predict_store_start(store, writers, log, conf)


def unknown_start(release: Release, reason: str | FormatError | OSError) -> StartOutcome:
    """Return the outcome of a start that cannot be predicted."""
    if not isinstance(reason, str):
        reason = f"a file cannot be read: {str(reason).partition('] ')[2] or reason}"  # without Python's [Errno 13]
    return StartOutcome(str(release), starts=None, deletes_messages=None, unknown_reason=reason)


def distinct_start_releases(writers: Writers) -> list[Release]:
    """Return the releases that may have written the end of the log; of those that start alike, only the newest."""
    alike: dict[tuple[object, ...], Release] = {}
    for release in sorted(
        {writers.last_release, *writers.possible_releases}, key=lambda one: one.version, reverse=True
    ):
        alike.setdefault(tuple(getattr(release, switch) for switch in _START_SWITCHES), release)
    return list(alike.values())


def gather_start_facts(
    store: Store,
    release: Release,
    conf: BrokerConf = _NO_CONF,
    last_units: LastUnits | None = None,
    reads: SegmentReads | None = None,
) -> StartFacts:
    """Collect the facts; *conf* may have the length of the broker's files, *last_units* those of the queues."""
    reads = reads or SegmentReads(store, [release])
    checkpoint = read_checkpoint(store) or _NO_CHECKPOINT
    lengths = tuple(_other_lengths(store, conf))
    unknown = _reason_unknown(store, release, lengths, conf)
    if unknown:
        return StartFacts(store, release, lengths, checkpoint, None, unknown, reads)
    reach = -1  # the greatest end of a record that a queue's last unit points to; one in the last segment is enough
    if store.has_clean_shutdown and release.clean_start_asks_queues:
        for unit in read_last_units(queues_in_files(store), last_units):
            reach = max(reach, unit.physical_offset + unit.size)
            if store.segments and reach >= store.segments[-1].base_offset:
                break
    walks_from = find_start_segment(
        reads.base_offsets, reads.read_first, release, checkpoint, reach, has_abort=not store.has_clean_shutdown
    )
    return StartFacts(store, release, lengths, checkpoint, walks_from, "", reads)


def predict_start(facts: StartFacts, log: WalkedLog | None, repaired_files: Container[str] = ()) -> StartOutcome:
    """Predict the start after a repair that gives *repaired_files* the right length."""
    release = facts.release
    lengths = [one for one in facts.unloadable_files if one.file not in repaired_files]
    refused = find_refused_file(lengths, release)
    if refused is not None:
        after_repair = predict_start(facts, log, repaired_files=[one.file for one in facts.unloadable_files])
        return StartOutcome(str(release), starts=False, unloadable_file=refused, after_repair=after_repair)
    if facts.unknown_reason:
        left_out = None if release.start_refuses_other_length else next((one for one in lengths if one.size), None)
        may_cut = None if log is None else _cut(facts, log)
        return replace(unknown_start(release, facts.unknown_reason), may_cut=may_cut, ignores_from=left_out)
    empty = [one.file for one in lengths if not one.size and release.start_deletes_empty_last_file]
    index = [] if facts.store.has_clean_shutdown else _index_after_abort(facts.store, facts.checkpoint)
    walks_from = facts.walk_start_offset or 0
    begin = min((header.begin_physical_offset for _, header in index if header.entry_count > 0), default=walks_from)
    begin = max(begin, facts.store.start_offset)
    outcome = StartOutcome(
        str(release),
        starts=True,
        deletes_files=(*empty, *(file for file, _ in index)),
        loses_keys=(begin, walks_from) if begin < walks_from else None,
    )
    if log is None:
        return replace(outcome, deletes_messages=None, unknown_reason=_NOT_WALKED)
    outcome = replace(outcome, deletes_files=(*outcome.deletes_files, *_queue_files_after_stops(facts.store, log)))
    return _add_deletions(outcome, facts, log) if facts.store.segments else outcome


def _add_deletions(outcome: StartOutcome, facts: StartFacts, log: WalkedLog) -> StartOutcome:
    """Add to an outcome the offset at which the start truncates the log, and the messages and files that it deletes."""
    (offset, messages), store = _cut(facts, log), facts.store
    segments = [segment for segment in store.segments if segment.base_offset > offset]
    if not messages and not any(segment.base_offset < log.end for segment in segments):
        return outcome
    files = [store.path_below_root(one.location) for one in segments]
    for queue in queues_in_files(store):  # the last files of each queue, as long as their first unit is after the cut
        for file in reversed(queue.files):
            unit = queue.read_unit(file.base_offset // queue.unit_size)
            if unit is None or unit.physical_offset < offset:
                break
            files.append(file.path_facts.path)
    deleted = tuple(dict.fromkeys([*files, *outcome.deletes_files]))
    return replace(outcome, cuts_at=offset, deletes_messages=messages, deletes_files=deleted)


def start_warning_lines(outcome: StartOutcome | None) -> Iterator[str]:
    """Yield warnings to read before the broker is started; none if the start is not known to lose anything."""
    if outcome is None:
        return
    broker = f"RocketMQ {outcome.release}"
    if outcome.unloadable_file is not None:
        file, length, expected, _ = outcome.unloadable_file
        is_named = file.rpartition("/")[2].isdigit() and length != expected
        wrong = "has a name that brokers do not use"
        if is_named:
            wrong = f"is {count_text(length, 'byte')} long, but the broker's files are {expected:,} bytes long"
        yield f"{broker} refuses to start on this store, so nothing is lost: {file} {wrong}"
        yield from (f"even after this file is repaired, {line}" for line in start_warning_lines(outcome.after_repair))
    if outcome.cuts_at is not None:
        messages = [count_text(outcome.deletes_messages, "intact message")] if outcome.deletes_messages else []
        kinds = Counter(_FILE_WORDS.get(file.partition("/")[0], "segment") for file in outcome.deletes_files)
        files = (count_text(kinds[word], word) for word in ("segment", "queue file", "index file") if kinds[word])
        *others, last = (*messages, *files)
        deleted = f"{', '.join(others)} and {last}" if others else last
        doubt = f" ({outcome.unknown_reason})" * bool(outcome.unknown_reason)
        yield (
            f"do not start the broker on this store: {broker} would truncate the log at offset {outcome.cuts_at:,} "
            f"and delete {deleted}{doubt}"
        )
    queues = sum(_FILE_WORDS.get(file.partition("/")[0]) == "queue file" for file in outcome.deletes_files)
    if outcome.cuts_at is None and queues:
        yield (
            f"{broker} will delete {count_text(queues, 'queue file')} when it starts, because of an invalid unit: "
            "consumers will not receive the messages after that unit until `repair` has rebuilt the files"
        )
    if outcome.loses_keys is not None:
        index = count_text(sum(file.startswith(INDEX_DIRECTORY) for file in outcome.deletes_files), "index file")
        begin, end = outcome.loses_keys
        yield (
            f"{broker} will delete {index} when it starts: messages at offsets {begin:,} to {end:,} cannot be found by "
            "key until `rebuild-index` has rebuilt the files"
        )


def recreated_index_notes(outcome: StartOutcome | None) -> Iterator[str]:
    """Name the index files that a start deletes and fully recreates; `start_warning_lines` names the losses."""
    if outcome is not None and outcome.cuts_at is None and outcome.loses_keys is None:
        files = [file for file in outcome.deletes_files if file.startswith(INDEX_DIRECTORY)]
        if files:
            index = count_text(len(files), "index file")
            broker = f"RocketMQ {outcome.release}"
            yield f"{broker} will delete {index} when it starts, and then recreate the deleted entries"


def _walk_for_start(store: Store, writers: Writers, *, deep: bool) -> WalkedLog | None:
    """Walk over the part of the log that a start reads; None if that part is too large."""
    starts = (gather_start_facts(store, release).walk_start_offset for release in distinct_start_releases(writers))
    begin = min((start for start in starts if start is not None), default=None)
    if begin is None or not (deep or sum(written_sizes(plan_ranges(store, begin))) < _WALKED):
        return None
    newest = find_newest_segment_offset(store)
    places: list[DoubtfulBytes] = []
    messages, end = 0, begin
    for segment in store.segments:
        if newest is not None and begin <= segment.base_offset <= newest:
            is_final = segment.base_offset < newest
            with store.open(segment) as reader:
                log = segment_bytes(segment, reader)
                for walked in walk_pieces(log, 0, final=is_final, evidence=tail_evidence(store)):
                    piece = walked.piece
                    if piece.kind is PieceKind.RECORD:
                        for number, offset in enumerate(walked.wrong_crc_offsets):
                            until = replace(log, size=offset - log.base_offset)
                            before = sum(1 for _ in until.walk_record_bounds(piece.offset - log.base_offset)) - number
                            places.append(DoubtfulBytes(offset, offset + 1, messages + before))
                        messages += walked.record_count - len(walked.wrong_crc_offsets)
                        end = piece.end
                    elif piece.kind in {PieceKind.DAMAGE, PieceKind.BLANK}:
                        size = piece.size if piece.kind is PieceKind.DAMAGE else 0
                        places.append(DoubtfulBytes(piece.offset, piece.offset + size, messages))
    return WalkedLog(end, messages, places, queue_stops=list(_queue_stops(store)))


def _queue_stops(store: Store) -> Iterator[QueueStop]:
    """Yield the places in the last queue files at which a start ends the queue; large files are not checked."""
    queues = [(queue, queue.files[-LAST_FILES_READ:-1]) for queue in queues_in_files(store)]
    if sum(file.size for _, files in queues for file in files) > _WALKED:
        return
    for queue, files in queues:
        for file in files:
            first = file.base_offset // queue.unit_size
            data = queue.read(first, first + file.size // queue.unit_size)
            written = find_first_unwritten_unit(queue.name.kind, data)
            if written * queue.unit_size < len(data):
                yield queue.name, first + written, 1
                break


def _reason_unknown(store: Store, release: Release, lengths: Sequence[UnloadableFile], conf: BrokerConf) -> str:
    if lengths and not release.start_refuses_other_length:
        return (
            f"RocketMQ {release} ignores {lengths[0].file} and all files after it; startup in this state has not been "
            "tested"
        )
    if FileKind.CONSUME_QUEUE in undecided_queue_file_sizes(store) and not conf.consume_queue_size:
        return "the size of the queue files is unknown"
    if detect_queue_storage(store) in {QueueStorage.ROCKSDB, QueueStorage.BOTH}:
        return "startup of brokers with queues in RocksDB has not been tested"
    if odd := why_segment_size_is_doubtful(store, conf) or _why_overlap_is_unknown(store):
        return odd
    for segment in store.segments[-1:]:
        with store.open(segment) as reader:
            if segment_bytes(segment, reader).framing is Framing.DLEDGER:
                return "this is a DLedger log, and DLedger has its own recovery rules"
    return ""


def _why_overlap_is_unknown(store: Store) -> str:
    paths = [store.path_below_root(one.location) for one in store.overlapping_segments]
    return f"{paths[0]} is not part of the log; startup in this state has not been tested" if paths else ""


def why_segment_size_is_doubtful(store: Store, conf: BrokerConf) -> str:
    """Explain why the length of a segment may be wrong; empty if it is certain, for example from *conf*."""
    if not store.segments or conf.segment_size is not None or not usual_segment_size(store.segments)[1]:
        return ""
    odd = store.segments[-1]
    path = store.path_below_root(odd.location)
    return (
        f"{path} may have been truncated: there is no other file of its kind to compare its size ({odd.size:,} "
        "bytes) with"
    )


def _other_lengths(store: Store, conf: BrokerConf) -> Iterator[UnloadableFile]:
    """
    Yield the files whose length differs from most of their kind, or from *conf*; the log's files come first.

    Files with invalid names are included, regardless of their length, because a broker parses names as numbers.
    """
    size, is_doubtful = (conf.segment_size, False) if conf.segment_size else usual_segment_size(store.segments)
    every = sorted((*store.segments, *store.overlapping_segments), key=attrgetter("base_offset"))
    newest = every[-1].location if every else ""
    for segment in every:
        if not is_doubtful and segment.size != size:
            is_last = segment.location == newest
            yield UnloadableFile(store.path_below_root(segment.location), segment.size, size, is_last)
    yield from _find_foreign_files(store, COMMITLOG_DIRECTORY, 0, size)
    sizes = queue_file_sizes(store)
    if conf.consume_queue_size:
        sizes[FileKind.CONSUME_QUEUE] = -(-conf.consume_queue_size // UNIT.size) * UNIT.size
    last = {_queue_of(file): file for file in sorted(store.queue_files, key=attrgetter("base_offset"))}
    for file in store.queue_files:
        expected = sizes.get(file.path_facts.kind, file.size)
        if file.size != expected:
            yield UnloadableFile(file.path_facts.path, file.size, expected, file is last[_queue_of(file)])
    yield from _find_foreign_files(
        store, CONSUME_QUEUE_DIRECTORY, _QUEUE_DIRECTORIES, sizes.get(FileKind.CONSUME_QUEUE, 0)
    )


def _find_foreign_files(store: Store, directory: str, depth: int, expected: int) -> Iterator[UnloadableFile]:
    for file in store.other_files_of_kind(FileKind.UNKNOWN):
        root, *inner = PurePosixPath(file.path_facts.path).parts[:-1] or ("",)
        is_in_place = root == directory and len(inner) == depth and all(map(is_queue_id, inner[1:]))
        if is_in_place and file.path_facts.base_offset is None:  # else the name is valid, and only its directory is not
            yield UnloadableFile(file.path_facts.path, file.size, expected, is_last=True)  # letters sort after digits


def _queue_of(file: StoredFile) -> tuple[str, ...]:
    return PurePosixPath(file.path_facts.path).parts[:-1]


def _index_after_abort(store: Store, checkpoint: Checkpoint) -> list[tuple[str, IndexHeader]]:
    """Return the index files that a start after a kill deletes: those that end after the checkpoint's index time."""
    deleted = []
    for file in store.index_files:
        header = read_index_header(file, store)  # None: a broker extends a short file, and reads its bytes as a header
        if header is not None and header.end_timestamp > checkpoint.index_timestamp:
            deleted.append((file.path_facts.path, header))
    return deleted


def find_truncation_places(facts: StartFacts, log: WalkedLog) -> Iterator[tuple[DoubtfulBytes, int]]:
    """Yield every place at which a start would truncate the log if all earlier ones were repaired, with the offset."""
    store, passed = facts.store, facts.walk_start_offset or 0
    for segment, places in groupby(log.doubtful_bytes, key=lambda place: store.segment_before(place.offset)):
        if segment is None:
            continue
        for place, advance, stopped_at in facts.reads.find_walk_ends(
            segment, facts.release, (place for place in places if place.offset >= passed)
        ):
            passed = stopped_at
            is_end_of_log = segment is store.segments[-1] and place.messages_before < log.message_count
            if advance is None or (advance == 0 and is_end_of_log):
                yield place, passed
                passed = max(passed, place.end)
            elif advance == 0:
                passed = segment.base_offset + segment.size  # the broker continues with the next file


def _cut(facts: StartFacts, log: WalkedLog) -> tuple[int, int]:
    """
    Return where a start truncates the log, and the number of whole messages after it.

    If it is unknown how far back it reads, assume all of the log.
    """
    place, offset = next(find_truncation_places(facts, log), (None, log.end))
    return offset, 0 if place is None else log.message_count - place.messages_before


def keeps_incomplete_record(store: Store, release: Release, log_end: int) -> bool:
    """Return whether a broker keeps the incomplete record at *log_end* as its last message."""
    segment = store.segment_before(log_end)
    if segment is None:
        return False
    position = log_end - segment.base_offset
    with suppress(FileNotFoundError), store.open(segment) as reader:  # retention has deleted it since
        return bool(read_message_size(reader.read, position, segment.size - position, release))
    return False


def _queue_files_after_stops(store: Store, log: WalkedLog) -> Iterator[str]:
    """Yield the files after a place at which a start, which reads a queue's last files, ends the queue."""
    queues = {queue.name: queue for queue in queues_in_files(store)} if log.queue_stops else {}
    for name, position, length in log.queue_stops:
        queue = queues.get(name)
        files = queue.files[-LAST_FILES_READ:] if queue is not None else ()
        if queue is not None and files and files[0].base_offset < (position + length) * queue.unit_size:
            end = max(position * queue.unit_size, files[0].base_offset)
            yield from (file.path_facts.path for file in files if file.base_offset > end)
