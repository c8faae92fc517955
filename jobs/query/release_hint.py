"""With whose eyes to print: the release that a store seems to be of, by a few looks and without the compiled scan."""

from collections.abc import Iterator
from itertools import islice

from jobs.query.store_reader import StoreReader
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.detection import Mark, checkpoint_mark, detect_eras, file_marks, record_marks, tag_entry_mark
from rmq_formats.errors import FormatError
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import tag_text
from rmq_formats.properties import TAGS, PropertyParser, parse_properties
from rmq_formats.release import Release
from rmq_formats.store import CHECKPOINT, FileKind, decode_checkpoint

_RECORDS_LOOKED_AT = 200  # at the beginning of each segment that is looked at
_TAGS_LOOKED_UP = 3

# What a release prints, and how its index is read.
_MATTER = (
    "property_parser",
    "indexes_tags",
    "by_unique_key_keeps_all",
    "by_id_takes_unique_key",
    "prints_index_key",
    "prints_offset_id_twice",
    "prints_compressed_flag",
    "property_map_buckets",
)


def guess_release(reader: StoreReader) -> tuple[Release, str | None]:
    """Return the newest release that could have written the end of the log; and what to say when others could, too."""
    era = detect_eras(_marks(reader))[-1]
    if not era.undecided(_MATTER):
        return era.highest, None
    return era.highest, (
        f"the store does not tell its release (one of {era.lowest} to {era.highest}); "
        f"answered as {era.highest} does, --release says otherwise"
    )


def _marks(reader: StoreReader) -> Iterator[Mark]:
    store = reader.store
    yield from file_marks(file.about for file in (*store.other_files, *store.queue_files))
    for file in store.other_files:
        if file.about.kind is FileKind.CHECKPOINT and file.size >= CHECKPOINT.size:
            mark = checkpoint_mark(decode_checkpoint(bytes(reader.file(file.location).read(0, CHECKPOINT.size))))
            if mark:
                yield mark
    tags_left = _TAGS_LOOKED_UP
    for record in _sampled(reader):
        yield from record_marks(record)
        if tags_left and TAGS in parse_properties(record.properties_raw, PropertyParser.SCAN):
            mark = _tag_mark(reader, record)
            tags_left -= mark is not None
            if mark:
                yield mark


def _sampled(reader: StoreReader) -> Iterator[MessageRecord]:
    """Yield the first records of the first and of the last two segments."""
    segments = reader.store.segments
    for segment in dict.fromkeys((*segments[:1], *segments[-2:])):
        yield from islice(reader.records(segment), _RECORDS_LOOKED_AT)


def _tag_mark(reader: StoreReader, record: MessageRecord) -> Mark | None:
    """Look a record's tags up in the index file that covers it."""
    tags = parse_properties(record.properties_raw, PropertyParser.SCAN)[TAGS]
    text = tag_text(record.topic, tags)
    try:
        for file in reader.index_readers():
            header = file.header
            if header.begin_physical_offset < record.physical_offset < header.end_physical_offset:
                hits = file.hits(text, -(1 << 63), (1 << 63) - 1)
                found = any(hop.entry.physical_offset == record.physical_offset for hop in hits)
                return tag_entry_mark(record, {index_key_hash(text)} if found else set())
    except FormatError:
        return None
    return None
