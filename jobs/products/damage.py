"""Damaged bytes of the log: rows of `quarantine`, each with its first bytes where they can be read."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Self

from jobs.storage.model import Reader
from jobs.store.ranges import Range
from rmq_formats.commitlog.scan import Records
from rmq_formats.errors import is_unreadable

SAMPLE_SIZE = 256
_WRONG_CRC = "body_crc is not that of the body"


class Damage(NamedTuple):
    """Bytes that are no message; their first ones, where they are at hand."""

    offset: int
    size: int
    reason: str
    sample: bytes | None = None

    @classmethod
    def of_body(cls, group: Records, offset: int, size: int) -> Self:
        """Return a record whose body is not what was written."""
        at = offset - group.base_offset
        return cls(offset, size, _WRONG_CRC, group.buffer[at : at + min(size, SAMPLE_SIZE)].tobytes())


def damage_rows(range_: Range, damaged: list[Damage]) -> list[dict[str, Any]]:
    """Return the damaged places of a range in their order; the list is emptied."""
    return [
        {"physical_offset": one.offset, "length": one.size, "reason": one.reason, "sample": one.sample}
        for one in sorted(_sampled(range_, damaged))
    ]


def _sampled(range_: Range, damaged: list[Damage]) -> Iterator[Damage]:
    """Yield each damaged place with its first bytes, where they can be read."""
    with suppress(FileNotFoundError), range_.open() as file:
        while damaged:
            one = damaged.pop()
            yield one if one.sample is not None else one._replace(sample=_read(file, one, range_.base_offset))
    yield from damaged


def _read(file: Reader, damage: Damage, base_offset: int) -> bytes | None:
    try:
        return bytes(file.read(damage.offset - base_offset, min(damage.size, SAMPLE_SIZE)))
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None
