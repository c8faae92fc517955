"""
Findings that a user has accepted: later commands note them, and rate a store by its other findings.

Some damage stays in a store for good, for example the place of a lost record over which a repair has written a bridge.
A user accepts such a finding by its name. The name contains a checksum of the finding and of the bytes at its place, so
that it never covers other damage there. Names come from an option of the command, or from the table
`accepted_findings` of a lake.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from jobs.diagnosis import kinds
from jobs.diagnosis.findings import LOG, Finding
from jobs.storage.model import Reader
from jobs.store.store import Store
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import is_disk_error, skip_lost_file

CHECKSUM_MARK = "#"  # between the place of a finding and its checksum
_DIGITS = 16
_MOST_BYTES = 1 << 30  # of a file: a damaged file may have a hole of any size at its end
_BLOCK = 4 << 20
# Their bytes cannot be read, or do not exist.
_WITHOUT_BYTES = frozenset({kinds.UNREADABLE_RANGE, *kinds.GAP_KINDS})


class AcceptedFinding(NamedTuple):
    """A finding that a user has accepted."""

    finding: Finding
    accept_as: str
    accepted_at: datetime | None  # None: by an option of this command

    @property
    def text(self) -> str:
        """The finding in one line."""
        when = "" if self.accepted_at is None else f" on {self.accepted_at:%Y-%m-%d}"
        return f"accepted{when}: {self.finding.text}"

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        at = None if self.accepted_at is None else self.accepted_at.isoformat(timespec="seconds")
        return {**self.finding.to_dict(), "accept_as": self.accept_as, "accepted_at": at}


@dataclass(frozen=True, slots=True)
class Acceptances:
    """The names of findings that a user accepts."""

    names: Collection[str] = ()  # of this command: names or patterns
    recorded: Mapping[str, datetime] = field(default_factory=dict)  # names in a lake, and when they were accepted

    def __bool__(self) -> bool:
        """Return whether anything is accepted."""
        return bool(self.names or self.recorded)

    def includes(self, name: str) -> bool:
        """Return whether a finding is accepted."""
        return name in self.recorded or is_accepted(name, self.names)


NOTHING_ACCEPTED = Acceptances()


def is_accepted(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a user accepts a finding, or trusts the log for a file: *patterns* are names, or match them."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def names_finding(text: str) -> bool:
    """Return whether the value of an option names one finding exactly."""
    return CHECKSUM_MARK in text and ":" in text.partition(CHECKSUM_MARK)[0]


def name_finding(finding: Finding, store: Store) -> str:
    """Return the name by which a user accepts a finding: kind, place, and a checksum of the finding and its bytes."""
    from hashlib import sha256  # lazy import: it loads OpenSSL

    place = finding.file if finding.offset is None else f"{finding.file}@{finding.offset}"
    stated: tuple[object, ...] = (finding.kind, finding.file, finding.offset, finding.log_offset, finding.log_end)
    if finding.kind == kinds.DELETED_OR_LOST_QUEUE:  # retention deletes the oldest of these messages
        stated = (finding.kind, finding.file, finding.log_end)
    elif finding.part != LOG:
        stated = (*stated, finding.field, finding.found, finding.expected, finding.times)
    digest = sha256(repr(stated).encode("utf-8", "surrogateescape"))
    if finding.kind not in _WITHOUT_BYTES:
        with skip_lost_file():
            for block in _read_blocks(finding, store):
                digest.update(block)
    return f"{finding.kind}:{place}{CHECKSUM_MARK}{digest.hexdigest()[:_DIGITS]}"


def _read_blocks(finding: Finding, store: Store) -> Iterator[bytes]:
    """Yield the bytes at the place of a finding."""
    if finding.part == LOG and finding.log_offset is not None:
        end = finding.log_offset + 1 if finding.log_end is None else finding.log_end
        for segment in store.segments:
            first, last = max(finding.log_offset, segment.base_offset), min(end, segment.limit_offset)
            if first < last:
                with store.open(segment) as file:
                    yield from _read_range(file, first - segment.base_offset, last - segment.base_offset)
        return
    every = (*store.queue_files, *store.index_files, *store.other_files)
    stored = next((one for one in every if one.path_facts.path == finding.file), None)
    if stored is None or finding.kind in kinds.LOST_STATE_KINDS:  # these state which entries are missing from a file
        return
    first = finding.offset or 0
    size = finding.times * UNIT.size if finding.offset is not None else stored.size
    with store.open(stored) as file:
        yield from _read_range(file, first, first + min(size, stored.size - first, _MOST_BYTES))


def _read_range(reader: Reader, first: int, end: int) -> Iterator[bytes]:
    for position in range(first, end, _BLOCK):
        try:
            yield bytes(reader.read(position, min(_BLOCK, end - position)))
        except OSError as error:  # of the disk: a finding that covers bad sectors is named without them
            if not is_disk_error(error):
                raise
            yield b"unreadable"
