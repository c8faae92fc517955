"""What the records of a segment follow is known though its first bytes are damaged."""

import errno

import pytest

from rmq_formats.commitlog.framing import BLOCK, framing_of
from rmq_formats.commitlog.segment import Framing
from tests.rmq_formats.builders import a_record, a_segment

RECORDS = [a_record(), a_record(b"more"), a_record(b"most")]


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("head", [b"", b"\xff" * 8, b"\0\0\0\1" * 2, b"\0" * 4 + b"\1" * 60, b"\0" * 64])
def test_damaged_first_bytes_do_not_hide_the_framing(framing: Framing, head: bytes) -> None:
    segment = bytearray(a_segment(RECORDS, 2048, 1 << 20, framing))
    segment[: len(head)] = head

    assert framing is framing_of(lambda at, size: bytes(segment[at : at + size]), len(segment), 1 << 20)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("bad_blocks", [1, 2])
def test_a_first_block_that_cannot_be_read_does_not_hide_the_framing(framing: Framing, bad_blocks: int) -> None:
    """A bad sector is no reason to give up the segment; where more is lost, nothing is known of its framing."""
    segment = a_segment([a_record(b"x" * 3000)] * 4, 4 * BLOCK, 1 << 20, framing)

    def read(at: int, size: int) -> bytes:
        if at < bad_blocks * BLOCK:
            raise OSError(errno.EIO, f"{size} bytes at {at}")
        return segment[at : at + size]

    assert framing_of(read, len(segment), 1 << 20) is (framing if bad_blocks == 1 else Framing.PLAIN)


def test_a_file_of_zeros_is_not_searched_for_a_framing() -> None:
    """It was made ahead of need: two blocks tell."""
    looked = []

    def read(at: int, size: int) -> bytes:
        looked.append(at + size)
        return bytes(size)

    assert framing_of(read, 1 << 30, 0) is Framing.PLAIN
    assert max(looked) <= 2 * BLOCK


def test_a_file_that_is_gone_is_no_damage() -> None:
    """Retention deletes while we look: whoever reads must know."""

    def read(at: int, size: int) -> bytes:
        raise FileNotFoundError(errno.ENOENT, f"{size} bytes at {at}")

    with pytest.raises(FileNotFoundError):
        framing_of(read, 1024, 0)
