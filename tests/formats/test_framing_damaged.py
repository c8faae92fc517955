"""What the records of a segment stand behind is known though its first bytes are damaged."""

import errno

import pytest

from rmq_formats.commitlog.segment import Framing, framing_of
from tests.formats.builders import a_record, a_segment

RECORDS = [a_record(), a_record(b"more"), a_record(b"most")]


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("head", [b"", b"\xff" * 8, b"\0\0\0\1" * 2, b"\0" * 4 + b"\1" * 60, b"\0" * 64])
def test_damaged_first_bytes_do_not_hide_the_framing(framing: Framing, head: bytes) -> None:
    """The first entry or record that proves itself tells; zeros alone are no log at all."""
    segment = bytearray(a_segment(RECORDS, 2048, 1 << 20, framing))
    segment[: len(head)] = head
    expected = Framing.PLAIN if len(head) == 64 and not any(head) else framing

    assert expected is framing_of(lambda at, size: bytes(segment[at : at + size]), len(segment), 1 << 20)


def test_first_bytes_that_cannot_be_read_say_nothing() -> None:
    """A bad sector is no reason to give up the segment."""

    def read(at: int, size: int) -> bytes:
        raise OSError(errno.EIO, f"{size} bytes at {at}")

    assert framing_of(read, 1024, 0) is Framing.PLAIN


def test_a_file_that_is_gone_is_no_damage() -> None:
    """Retention deletes while we look: whoever reads must know."""

    def read(at: int, size: int) -> bytes:
        raise FileNotFoundError(errno.ENOENT, f"{size} bytes at {at}")

    with pytest.raises(FileNotFoundError):
        framing_of(read, 1024, 0)
