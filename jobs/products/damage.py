"""Damaged bytes of the log: rows of `quarantine`, each with its first bytes where they can be read."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Self

from jobs.storage.model import Reader
from jobs.store.ranges import Range
from rmq_formats.commitlog.scan import Records
from rmq_formats.errors import is_unreadable

SAMPLE_SIZE = 256
_WRONG_CRC = "body_crc is not that of the body"


class Damage(NamedTuple):
    """Bytes that are no message; their first ones, where they are at hand."""

    physical_offset: int
    length: int
    reason: str
    sample: bytes | None = None

    @classmethod
    def of_body(cls, group: Records, offset: int, size: int) -> Self:
        """Return a record whose body is not what was written."""
        at = offset - group.base_offset
        return cls(offset, size, _WRONG_CRC, group.buffer[at : at + min(size, SAMPLE_SIZE)].tobytes())


def with_samples(range_: Range, damaged: list[Damage]) -> Iterator[Damage]:
    """Yield each damaged place of a range with its first bytes, where they can be read; the list is emptied."""
    with suppress(FileNotFoundError), range_.open() as file:
        while damaged:
            one = damaged.pop()
            yield one if one.sample is not None else one._replace(sample=_read(file, one, range_.base_offset))
    yield from damaged


def _read(file: Reader, damage: Damage, base_offset: int) -> bytes | None:
    try:
        return bytes(file.read(damage.physical_offset - base_offset, min(damage.length, SAMPLE_SIZE)))
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None
