"""
The release that wrote a store, as given by the user or as detected from its bytes; every command uses this detector.

It reads the names of files, checkpoint and abort, and the first records of some segments, without compiled code, so
that commands that answer in a fraction of a second can use it. A command that has read more adds its marks
(`add_marks`). Marks that only index files show need a comparison with the log (`jobs.products.index.settings`).

The bytes of most stores match a range of releases, which is reported. If these releases differ in a behavior that
matters, the newest one is assumed, and reported as an assumption.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from jobs.console.log import log_message
from jobs.console.result import RequestError
from jobs.storage.locations import is_local, local_path
from jobs.store.record_places import find_record
from jobs.store.running_broker import FileState
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.detection import (
    Era,
    Mark,
    abort_mark,
    checkpoint_mark,
    detect_eras,
    file_marks,
    index_entry_marks,
    record_marks,
    slot_count_mark,
)
from rmq_formats.errors import FormatError, is_disk_error, skip_lost_file
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import ENTRY, Geometry, IndexEntry, IndexHeader, decode_entry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.layout import make_block_reader
from rmq_formats.release import EVERY_RELEASE, NEWEST, OLDEST, PUBLISHED, Release, Rules, make_rules, release_at
from rmq_formats.store import CHECKPOINT, OFFSET_DIGITS, FileKind, decode_checkpoint, parse_offset_name

GIVEN, DETECTED, ASSUMED = "given", "detected", "assumed"
Value = TypeVar("Value")
RELEASE_SETTING = "release"  # key in `detail` of a row of `runs`: the release whose rules apply to the end of the log
RELEASES, RELEASES_ORIGIN = "releases", "releases_origin"  # keys in the saved state of the index: `Determined[Writers]`
_BLOCK = 1 << 18  # bytes of a segment that are read in one piece
_DAMAGE_SKIPPED = 4 << 20  # bytes of damage after which the search for the next record ends
_ABORT_READ = 64
_MESSAGES_LOOKED_UP = 3  # in index files
_ENTRIES_LOOKED_AT = 4096  # entries that are read at the beginning of an index file
_NEWEST_LOOKED_AT = 16  # entries of an index file
# The first release of each kind of index keys: the parsers differ, and so do indexed tags.
_RELEASES_OF_INDEX = tuple(Release.from_version(version) for version in ("4.0.0", "4.9.1", "5.4.0"))
_PREVIEWS = frozenset({"5.0.0-PREVIEW", "5.0.0-ALPHA", "5.0.0-BETA"})


_MOST_REMEMBERED = 1024  # segments
_Identity: TypeAlias = tuple[Segment, int, FileState]
_remembered: dict[_Identity | None, Sequence[Mark]] = {}  # the marks of sealed segments


class UndecidedError(RequestError):
    """
    Settings that change bytes are unknown and must be given.

    *defaults* are the options, each followed by its value, that select RocketMQ's defaults, if these may apply;
    *release* is an example of `--release`, if the release must be given; *asks_for_sizes*: sizes must be given.
    """

    def __init__(
        self, reason: str, defaults: tuple[str, ...] = (), *, release: str = "", asks_for_sizes: bool = False
    ) -> None:
        super().__init__(reason)
        self.defaults, self.release, self.asks_for_sizes = defaults, release, asks_for_sizes or bool(defaults)

    @classmethod
    def merge(cls, errors: "Sequence[UndecidedError]") -> "UndecidedError":
        """Return one error that asks for everything that is missing."""
        return cls(
            "; also, ".join(map(str, errors)),
            tuple(option for error in errors for option in error.defaults),
            release=next((error.release for error in errors if error.release), ""),
            asks_for_sizes=any(error.asks_for_sizes for error in errors),
        )


def unknown_setting_error(missing: str, defaults: tuple[str, ...]) -> UndecidedError:
    """Return the error that a broker's setting is unknown, and that its default must not be assumed for its files."""
    options, lake = " and ".join(defaults[::2]), "a lake into which this store was ingested"
    return UndecidedError(f"the store does not show {missing}: pass {options}, --broker-conf, or {lake}", defaults)


@dataclass(frozen=True, slots=True)
class Determined(Generic[Value]):
    """A value, whether it was given, detected or assumed, and the reason."""

    value: Value
    origin: str  # GIVEN, DETECTED or ASSUMED
    reason: str

    @property
    def origin_text(self) -> str:
        """How the value is known, as text for users."""
        return self.origin if self.reason == self.origin else f"{self.origin}: {self.reason}"


# How much of a log is read to detect its releases: the number of segments, spread over the log, in addition to the last
# two, and of records at the start of each.
ReadEffort = tuple[int, int]
QUICK: ReadEffort = (1, 200)
THOROUGH: ReadEffort = (16, 2000)


class Writers(NamedTuple):
    """The releases that wrote a store."""

    rules: Rules  # which release's rules apply, by their first offset
    text: str  # for users: a range if the marks do not determine one release
    eras: tuple[Era, ...] = ()  # of the store's marks; empty if the releases are known otherwise

    def __str__(self) -> str:
        return self.text

    @property
    def last_release(self) -> Release:
        """The release whose rules the end of the log follows."""
        return self.rules[-1][1]

    def possible_releases_at(self, offset: int) -> tuple[Release, ...]:
        """Return the releases that may have written the record at *offset*."""
        return list_possible_releases_at(self.eras, offset) if self.eras else (release_at(self.rules, offset),)

    @property
    def possible_releases(self) -> tuple[Release, ...]:
        """The candidates for the end of the log, if its release is not known."""
        return tuple(self.eras[-1].candidates) if self.eras else ()


def list_possible_releases_at(eras: Sequence[Era], offset: int) -> tuple[Release, ...]:
    """
    Return the releases that may have written the record at *offset*: no newer ones than those after it.

    Between two marks, a newer release may have continued the log at any record. A file shows only the last release.
    """
    oldest = PUBLISHED[0]
    for mark in (mark for era in eras for mark in era.marks):
        if mark.offset is not None and mark.offset <= offset:
            allowed = (one for one in PUBLISHED if one.version >= oldest.version and mark.allows(one))
            oldest = next(allowed, oldest)
    number = sum(era.first_offset <= offset for era in eras)
    newest = eras[min(number, len(eras) - 1)].newest_release
    return tuple(one for one in PUBLISHED if oldest.version <= one.version <= newest.version) or (newest,)


def add_marks(known: list[Mark], marks: Iterable[Mark]) -> None:
    """Add the *marks* that change the value of their switch to the *known* ones."""
    for mark in marks:
        if next((one.values for one in reversed(known) if one.switch == mark.switch), None) != mark.values:
            known.append(mark)


def recorded_origin(state: Mapping[str, object]) -> str:
    """
    Return how the releases in the saved state of the index were known.

    Earlier versions did not record it: several releases may then have been an assumption.
    """
    is_span = " to " in str(state.get(RELEASES) or "")
    return str(state.get(RELEASES_ORIGIN) or (ASSUMED if is_span else DETECTED))


def parse_release(text: str) -> Release:
    """Return the release that a user names; `UndecidedError` if RocketMQ never had it."""
    try:
        release = Release.from_version(text.strip())
    except FormatError as error:
        raise UndecidedError(f"{text.strip()!r} is not a RocketMQ release (example: {NEWEST})") from error
    if str(release) not in _PREVIEWS and release not in EVERY_RELEASE:
        raise UndecidedError(
            f"RocketMQ {release} is not supported ({OLDEST} to {NEWEST} are). "
            "For a custom build, pass the release that it is based on"
        )
    return release


def parse_rules(text: str) -> Rules:
    """Read `5.3.3`, or `5.3.3,5.4.0@11232` for a store that a newer release continued at an offset."""
    rules: list[tuple[int, Release]] = []
    for part in text.split(","):
        name, _, offset = part.partition("@")
        if offset and parse_offset_name(offset.strip().zfill(OFFSET_DIGITS)) is None:
            raise UndecidedError(f"{part.strip()!r} is not of the form RELEASE[@OFFSET]")
        rules.append((int(offset or 0), parse_release(name)))
    try:
        return make_rules(*rules)
    except FormatError as error:
        raise UndecidedError(f"--release {text}: offsets must be in ascending order") from error


def determine_writers(
    store: Store,
    given_release: str | None,
    relevant_switches: Sequence[str] = (),
    effort: ReadEffort = THOROUGH,
    index_readers: Iterable[IndexReader] = (),
) -> Determined[Writers]:
    """
    Return the releases that wrote a store: as given, else the newest ones that its marks allow.

    If the possible releases differ in one of the *relevant_switches*, the result is an assumption. There is none for
    queues: the differences between releases affect those of a healthy log only if properties are unusual.
    """
    if given_release is not None:
        rules = parse_rules(given_release)
        return Determined(
            Writers(rules, _describe_releases((str(release), since) for since, release in rules)), GIVEN, GIVEN
        )
    return writers_of_eras(detect_store_eras(store, effort, index_readers), relevant_switches)


def writers_of_eras(eras: Sequence[Era], relevant_switches: Sequence[str]) -> Determined[Writers]:
    """
    Return the rules for a store of these eras: those of the newest release of each.

    They are assumed if no mark was found, or if the possible releases differ in one of the *relevant_switches*.
    """
    # Records that contradict each other may begin two eras at one offset: the later one counts.
    starts = [0, *(era.first_offset for era in eras[1:])]  # the rules of the first era apply from the beginning
    rules = make_rules(*{start: era.newest_release for start, era in zip(starts, eras, strict=True)}.items())
    text = _describe_releases(zip(map(era_text, eras), starts, strict=True))
    reasons = "; ".join(dict.fromkeys(mark.reason for era in eras for mark in era.marks))
    undecided = any(era.undecided_switches(relevant_switches) for era in eras)
    writers = Writers(rules, text, tuple(eras))
    return Determined(
        writers,
        DETECTED if reasons and not undecided else ASSUMED,
        reasons or "nothing in the store shows the exact release",
    )


def era_text(era: Era) -> str:
    """Return the releases of an era as text."""
    return str(era.oldest_release) if len(era.candidates) == 1 else f"{era.oldest_release} to {era.newest_release}"


def _describe_releases(named: Iterable[tuple[str, int]]) -> str:
    return ", then ".join(f"{name} from offset {since}" if since else name for name, since in named)


def detect_store_eras(
    store: Store,
    effort: ReadEffort = THOROUGH,
    index_readers: Iterable[IndexReader] = (),
) -> tuple[Era, ...]:
    """Detect the eras of a store from its files, its records, and some entries of index files."""
    marks: list[Mark] = []
    add_marks(marks, find_file_marks(store))
    readers, tags_left, checked_left = list(index_readers), _MESSAGES_LOOKED_UP, _MESSAGES_LOOKED_UP
    for reader in (*readers[:1], *readers[1:][-1:]):  # the newest and the oldest file
        with skip_lost_file():
            add_marks(marks, _slot_count_marks(reader))
    segments, records = effort
    step = -(-len(store.segments) // segments) or 1
    sampled = {*store.segments[::step], *store.segments[-2:]}
    for segment in sorted(sampled, key=attrgetter("base_offset")):
        if not readers:
            add_marks(marks, _marks_of(store, segment, records))
            continue
        with skip_lost_file():  # a lost file has no marks
            for record in islice(_read_records(store, segment), records):
                add_marks(marks, record_marks(record))
                found = list(_index_entry_marks(readers, record, in_any_case=checked_left > 0)) if tags_left else []
                tags_left, checked_left = tags_left - bool(found), checked_left - 1
                add_marks(marks, found)
    return detect_eras(marks)


def find_index_marks(store: Store, location: str, header: IndexHeader, geometry: Geometry) -> Iterator[Mark]:
    """Yield the marks in an index file: in its header, and in the entries of some of its newest messages."""
    count = min(header.entry_count, geometry.capacity)
    with store.storage.open(location) as file:
        reader = IndexReader(file.read, geometry, location)
        yield from _slot_count_marks(reader)
        first = max(count - _NEWEST_LOOKED_AT, 1)
        groups = groupby(_read_entries(reader, first, count - first + 1), key=attrgetter("physical_offset"))
        # Some keys of the first and the last message may be outside the range that was read.
        hashes = [(offset, {entry.key_hash for entry in group}) for offset, group in groups][1:-1]
        for offset, keys in hashes:
            record = find_record(store, offset)
            if record is not None:
                yield from index_entry_marks(record, keys)


def _slot_count_marks(reader: IndexReader) -> Iterator[Mark]:
    header = reader.header
    count = min(header.entry_count, reader.geometry.capacity, _ENTRIES_LOOKED_AT)
    is_every_put = header.hash_slot_count >= header.entry_count
    shared = is_every_put and any(entry.prev_entry > 0 for entry in _read_entries(reader, 1, count))
    yield from filter(None, [slot_count_mark(header, has_shared_slot=shared)])


def _read_entries(reader: IndexReader, first: int, number: int) -> list[IndexEntry]:
    raw = reader.bytes_at(reader.geometry.entry_position(first), number * ENTRY.size)
    return [decode_entry(raw, position) for position in range(0, number * ENTRY.size, ENTRY.size)]


def find_file_marks(store: Store) -> Iterator[Mark]:
    """Yield the marks in names of files, in checkpoint and abort; files that cannot be read have none."""
    yield from file_marks(file.path_facts for file in (*store.other_files, *store.queue_files))
    for file in store.other_files:
        mark: Mark | None = None
        with skip_lost_file(), _warning_of_disk_error():
            if file.path_facts.kind is FileKind.CHECKPOINT and file.size >= CHECKPOINT.size:
                mark = checkpoint_mark(decode_checkpoint(store.read(file, 0, CHECKPOINT.size)))
            elif file.path_facts.kind is FileKind.ABORT:
                mark = abort_mark(store.read(file, 0, _ABORT_READ))
        if mark:
            yield mark


@contextmanager
def _warning_of_disk_error() -> Iterator[None]:
    """Report, once in this process, a file that would be evidence of the release and that its disk cannot read."""
    try:
        yield
    except OSError as error:
        if is_disk_error(error):
            _warn_once(f"{error.filename}: {error.strerror}; the release of the broker was detected without this file")
        raise


@cache
def _warn_once(text: str) -> None:
    log_message(text, "warning")


def _marks_of(store: Store, segment: Segment, records: int) -> Sequence[Mark]:
    """
    Return the marks in the first records of a segment.

    A process that follows a store calls this often, so the marks of complete files are cached.
    """
    identity = None if segment in store.segments[-2:] else _identify(segment, records)
    if identity in _remembered:
        return _remembered[identity]
    own: list[Mark] = []
    with skip_lost_file():  # use the part that was read, but do not cache it
        for record in islice(_read_records(store, segment), records):
            add_marks(own, record_marks(record))
        if identity and identity == _identify(segment, records):
            if len(_remembered) >= _MOST_REMEMBERED:
                _remembered.clear()
            _remembered[identity] = own
    return own


def _identify(segment: Segment, records: int) -> _Identity | None:
    """Return the identity of a local file's bytes; a replaced file has another one."""
    state = FileState.read(Path(local_path(segment.location))) if is_local(segment.location) else None
    return None if state is None else (segment, records, state)  # deleted: the read that follows reports it


def _read_records(store: Store, segment: Segment) -> Iterator[MessageRecord]:
    with store.open(segment) as reader:
        read = make_block_reader(reader.read, _BLOCK)
        framing = find_framing(read, segment.readable_bytes, segment.base_offset)
        log = SegmentBytes(read, segment.readable_bytes, segment.base_offset, framing)
        position: int | None = 0
        while position is not None and position < log.size:
            for record in log.decode_records(position):
                yield record
                position = record.end_offset - segment.base_offset
            if not any(read(position, BLANK.size)):
                return  # not written yet
            near = replace(log, size=min(log.size, position + _DAMAGE_SKIPPED))
            position = near.find_record(position + 1)


def _index_entry_marks(readers: Sequence[IndexReader], record: MessageRecord, *, in_any_case: bool) -> Iterator[Mark]:
    """
    Yield the marks of a record's entries; unless *in_any_case*, only if its keys depend on the Java broker's release.

    The entries are in the index file that covers the record.
    """
    offset = record.physical_offset
    if not in_any_case and len({tuple(index_keys(record, release)) for release in _RELEASES_OF_INDEX}) == 1:
        return
    with skip_lost_file():
        covering = (
            one for one in readers if one.header.begin_physical_offset < offset < one.header.end_physical_offset
        )
        file = next(covering, None)
        if file is not None:
            # The search is in log order, because a tag's chain may be very long.
            count = min(file.header.index_count, file.geometry.index_num)
            first = bisect_left(range(count), offset, 1, key=lambda number: file.entry(number).physical_offset)
            own = takewhile(lambda entry: entry.physical_offset == offset, map(file.entry, range(first, count)))
            yield from index_entry_marks(record, {entry.key_hash for entry in own})
