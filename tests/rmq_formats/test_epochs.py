"""The list of epochs of a broker in controller mode."""

import pytest

from rmq_formats.epochs import Epoch, decode_epochs
from rmq_formats.errors import CorruptData

# As RocketMQ 5.5.1 wrote it, before and after a failover.
FIRST = b"1\n1725254278\n1-0\n"
SECOND = b"2\n1005756896\n1-0\n2-20340\n"


def test_each_epoch_begins_where_its_master_began_to_write() -> None:
    assert decode_epochs(FIRST) == (Epoch(1, 0),)
    assert decode_epochs(SECOND) == (Epoch(1, 0), Epoch(2, 20340))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1\n",
        b"2\n1725254278\n1-0\n",
        SECOND.replace(b"20340", b"20341"),
        b"1\n1\none-0\n",
        b"1\n1\n1-0-0\n",
        b"\xff",
    ],
    ids=["empty", "no CRC", "other count", "other offset", "no number", "three numbers", "no text"],
)
def test_what_is_no_list_of_epochs_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_epochs(raw)
