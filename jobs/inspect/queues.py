"""
The queues and index files: the messages that each one covers, and records of the log without units or entries.

A queue's newest file ends in zeros, so a binary search finds its last unit. Some records of each segment suffice to
detect a missing directory, or missing first and last files of a queue; `verify` compares the content of files. The
offsets at which index files begin and end show which messages no file has.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

from jobs.console.amounts import count_text
from jobs.inspect.report import IndexReport, Problems, QueueReport, QueuesReport
from jobs.query.store_reader import StoreReader
from jobs.store.queue_files import QUEUE_KIND_OF_FILE, StoredQueue, queue_file_sizes
from jobs.store.queue_storage import rocksdb_queue_directory
from jobs.store.record_places import segment_bytes
from jobs.store.release import add_marks, find_index_marks
from jobs.store.store import Store, geometry_stated_by_index_files
from jobs.store.topics import TopicEvidence, TopicFate, find_newest_time_by_topic
from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.dispatch import QueueKind, Unit
from rmq_formats.detection import Mark
from rmq_formats.errors import skip_lost_file
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, HEADER, decode_header
from rmq_formats.release import OLDEST

_RECORDS_LOOKED_AT = 500  # records that are read after an index file's end, until one has a key
_WITHOUT_UNIT = frozenset({TransactionType.PREPARED, TransactionType.ROLLBACK})


def inspect_queues(reader: StoreReader, problems: Problems) -> QueuesReport:
    """Inspect the ends of every queue."""
    store = reader.store
    database = rocksdb_queue_directory(store)
    queues, error = reader.stored_queues
    with problems.noting_errors(f"{store.root}/{database}"):
        if error is not None:
            raise error
    in_files = sum(len(queue.files) for queue in queues if not queue.in_rocksdb)
    sizes = {
        QUEUE_KIND_OF_FILE[kind]: size for kind, size in queue_file_sizes(store).items() if kind in QUEUE_KIND_OF_FILE
    }
    report = QueuesReport(
        ext_files=len(store.queue_files) - in_files,
        in_rocksdb=database is not None,
        units_in_rocksdb=sum(queue.capacity_end - queue.first_unit_number for queue in queues if queue.in_rocksdb),
    )
    for queue in queues:
        files = () if queue.in_rocksdb else queue.files
        name, size = queue.name, sum(file.size for file in files)
        found = QueueReport(name.kind, name.topic, name.queue_id, len(files), size)
        report.queues.append(found)
        if not queue.in_rocksdb:
            _check_files(queue, problems, sizes.get(queue.name.kind))
        with problems.noting_errors(queue.files[0].location):
            _find_ends(found, queue, reader)
    return report


def _check_files(queue: StoredQueue, problems: Problems, size: int | None) -> None:
    for file in queue.files:
        if file.size % queue.unit_size:
            problems.add_note(
                file.location,
                f"{count_text(file.size, 'byte')} long, not a multiple of the unit size ({queue.unit_size} bytes)",
            )
        if file.base_offset % queue.unit_size:
            problems.add_note(file.location, f"its name is not a multiple of the unit size ({queue.unit_size} bytes)")
    for before, after in pairwise(queue.files):
        if before.end != after.base_offset and before.size == size:
            problems.add_gap(
                after.location, f"units are missing before this file: the previous file ends at position {before.end:,}"
            )
    for file in queue.files:
        if size is not None and file.size and file.size != size:
            how = "truncated" if file.size < size else "too long"
            sizes = f"the file is {count_text(file.size, 'byte')} long, but the others are {size:,} bytes long"
            problems.add_damage(file.location, f"{how}: {sizes}")


def _find_ends(report: QueueReport, queue: StoredQueue, reader: StoreReader) -> None:
    live = reader.find_live_units(queue)
    report.first_unit, report.next_unit, report.left_over = queue.first_unit_number, live.end, live.left_over
    report.min_offset, report.max_offset = reader.offsets_in_files(queue)
    first, last = (
        queue.read_unit(number) if report.unit_count else None
        for number in (queue.first_unit_number, report.next_unit - 1)
    )
    if first is not None and not (isinstance(first, Unit) and first.is_pre_blank):  # units that fill up a first file
        report.first_physical_offset = first.physical_offset
    report.last_physical_offset = last.physical_offset if last else None


# records that were examined


# The physical offset, the queue offset and the store time of a record.
_Sample = tuple[int, int, int]
SampledRecords = dict[tuple[str, int], tuple[_Sample, _Sample]]
"""The first and the last examined record of each queue, by topic and queue id."""


def add_to_sampled_ranges(record: MessageRecord, sampled: SampledRecords) -> None:
    """Take note of a record."""
    if transaction_type(record.sys_flag) not in _WITHOUT_UNIT:
        place = record.physical_offset, record.queue_offset, record.store_timestamp
        first, last = sampled.get((record.topic, record.queue_id), (place, place))
        sampled[record.topic, record.queue_id] = (min(first, place), max(last, place))


def compare_with_sampled_records(sampled: SampledRecords, queues: QueuesReport, topics: TopicEvidence) -> Problems:
    """Return which queues lack a directory or their first or last units; *topics* says which were deleted."""
    found = Problems()
    if queues.in_rocksdb and not queues.queues:
        return found  # the broker was killed while the units were only in memory
    known = {(queue.topic, queue.queue_id): queue for queue in queues.queues}
    restarts = _find_restart_offsets(queues)
    # Newer records may wait for their units; where no queue is left, none of them does.
    newest = max((queue.last_physical_offset or 0 for queue in queues.queues), default=None)
    sampled_ms = find_newest_time_by_topic((topic, time) for (topic, _), (_, (_, _, time)) in sampled.items())
    for (topic, queue_id), sampled_ends in sorted(sampled.items()):
        begin = restarts.get((topic, queue_id), restarts.get((topic, None), 0))
        if (topic, queue_id) not in known and sampled_ends[-1][0] >= begin:
            begin = 0  # a queue of the topic that exists now
        ends = _drop_records_before(sampled_ends, begin, f"consumequeue/{topic}/{queue_id}", topics, found)
        fate = TopicFate.ALIVE if topic in queues.topics else topics.fate(topic, sampled_ms[topic])
        if fate is TopicFate.DELETED:
            queues.deleted_topics.add(topic)
            continue
        name = f"consumequeue/{topic}/{queue_id}"
        places = [(offset, number) for offset, number, _ in ends if newest is None or offset <= newest]
        if places and fate is TopicFate.UNDECIDED and queues.queues:
            text = "the log has messages of this queue; either its topic was deleted, or the queue was lost"
            add = found.add_note if topics.unsupported_reason else found.add_gap
            add(name, f"{text} (undecided, because {topics.explain_undecided(topic)})", places[0][0])
        elif places:
            queue = known.get((topic, queue_id))
            if queue is None:
                found.add_gap(
                    name, "the queue's directory is missing, although the log has messages of the queue", places[0][0]
                )
            elif queue.kind is QueueKind.PLAIN:
                missing = (place for place in places if not queue.first_unit <= place[1] < queue.next_unit)
                for offset, number in islice(missing, 1):
                    has = f"units {queue.first_unit:,} to {queue.next_unit - 1:,}" if queue.unit_count else "no units"
                    text = f"unit {number:,} is missing, although the log has its message"
                    found.add_gap(name, f"{text}; the files have {has}", offset)
    return found


def _find_restart_offsets(queues: QueuesReport) -> Mapping[tuple[str, int | None], int]:
    """
    Return the log offsets at which queues begin, by topic and queue id; 0 if unknown.

    With None as queue id: the offset at which all queues of the topic begin, for a queue that has no files.
    """
    begins: dict[tuple[str, int | None], list[int]] = {}
    for one in queues.queues:
        begin = (one.first_physical_offset or 0) if one.first_unit == 0 and one.unit_count else 0
        begins.setdefault((one.topic, one.queue_id), []).append(begin)
        begins.setdefault((one.topic, None), []).append(begin)
    return {queue: min(offsets) for queue, offsets in begins.items()}


def _drop_records_before(
    sampled_records: Sequence[_Sample], queue_begin: int, name: str, topics: TopicEvidence, found: Problems
) -> list[_Sample]:
    """Return the records that a queue should have; of those before its beginning, report the ones that may be lost."""
    earlier = [one for one in sampled_records if one[0] < queue_begin]
    topic = name.split("/")[1]
    fate = topics.fate_of_earlier(topic, max(time for _, _, time in earlier)) if earlier else TopicFate.ALIVE
    if fate is TopicFate.ALIVE:
        return [*sampled_records]
    if fate is TopicFate.UNDECIDED:
        text = "the log has messages from before this queue began; either its topic was deleted, or the queue was lost"
        reason = topics.explain_undecided(topic)
        found.add_gap(name, f"{text} (undecided, because {reason})", earlier[0][0])
    return [one for one in sampled_records if one[0] >= queue_begin]


# index files


def inspect_index(store: Store, marks: list[Mark], problems: Problems) -> IndexReport:
    """Inspect every header, and some entries if the geometry is known."""
    report = IndexReport()
    # A running broker creates a file, and sets its length a moment later.
    is_new = bool(store.index_files) and not store.index_files[-1].size and not store.has_clean_shutdown
    for file in store.index_files[: -1 if is_new else None]:
        with problems.noting_errors(file.location):
            header = decode_header(store.read(file, 0, HEADER.size))
            report.files.append((file, header))
    stated = geometry_stated_by_index_files(store)
    if stated is not None:
        report.geometry = stated.geometry
        shown = f"detected from {count_text(stated.file_count, 'full file')}"
        is_default = stated.geometry == DEFAULT_GEOMETRY
        report.geometry_origin = "the default, which matches the file size" if is_default else shown
    _check_sizes(report, problems)
    if report.geometry is not None:
        for file, header in report.files:
            with problems.noting_errors(file.location):
                add_marks(marks, find_index_marks(store, file.location, header, report.geometry))
    return report


def _check_sizes(report: IndexReport, problems: Problems) -> None:
    geometry, sizes = report.geometry, Counter(file.size for file, _ in report.files)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for file, header in report.files:
        text = f"{count_text(file.size, 'byte')} long, but the others are {usual:,} bytes long"
        if file.size < usual:
            problems.add_damage(file.location, f"truncated: {text}")
        elif file.size > usual:
            problems.add_note(file.location, text)
        if geometry is not None and header.index_count > geometry.index_num:
            room = count_text(geometry.index_num, "entry")
            text = f"index_count is {header.index_count:,}, but the file has room for only {room}"
            problems.add_damage(file.location, text, 36)


def note_index_gaps(store: Store, index: IndexReport, problems: Problems, end: int | None) -> None:
    """Note the messages between and before the index files, and after them up to *end* if it is given."""
    filled = (file for file in index.files if file[1].entry_count)
    files = sorted(filled, key=lambda file: file[1].begin_physical_offset)
    for before, after in pairwise([None, *files, None] if files else []):
        start = store.start_offset if before is None else before[1].end_physical_offset
        limit = end if after is None else after[1].begin_physical_offset
        found = (
            None if limit is None else find_first_message_with_key(store, start, limit, is_indexed=before is not None)
        )
        nearest = after or before
        if found is not None and nearest is not None:
            which = "the first file" if before is None else "this file"
            until = "to the end of the log" if after is None else f"up to offset {limit:,}, where {which} begins"
            text = f"no index file contains the keys of messages from offset {found:,} {until}"
            problems.add_gap(nearest[0].location, f"{text}: either a file is missing, or the index was disabled", found)


def find_first_message_with_key(store: Store, start: int, limit: int, *, is_indexed: bool = False) -> int | None:
    """Return the first message with a key between two offsets; *is_indexed*: after the one at *start*."""
    if limit <= start:
        return None
    records = _read_records(store, start)
    if is_indexed and next(records, None) is None:  # the last message of an index file is not in the log any more
        return None
    for record in islice(records, _RECORDS_LOOKED_AT):
        if record.physical_offset >= limit:
            return None
        if index_keys(record, OLDEST):
            return record.physical_offset
    return None


def _read_records(store: Store, start: int) -> Iterator[MessageRecord]:
    for segment in store.segments:
        position = start - segment.base_offset
        if position >= segment.readable_bytes:
            continue
        with skip_lost_file(), store.open(segment) as reader:
            log = segment_bytes(segment, reader)
            # An offset is that of the record, a position that of its entry header.
            yield from log.decode_records(position - log.framing.header_size if position > 0 else 0)
