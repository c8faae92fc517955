"""A body that changed on the disk of a running broker: the broker compares no CRC when it serves a message."""

from pathlib import Path

from rmq_formats.commitlog.record import has_right_body_crc
from tests.oracle.judge import read_log
from tests.oracle.releases import on_releases
from tests.oracle.sessions import ClientMessage, Consumption, real_broker
from tests.support.commands import overwrite
from tests.support.stores import list_segments

_TOPIC, _COUNT = "Orders", 5
_BODY = b"an unusual body "


@on_releases("4.9.8", "5.3.3", "5.5.1", in_every_run="5.3.3")
def test_consumers_receive_a_message_whose_body_does_not_match_its_crc(tmp_path: Path, release: str) -> None:
    store = tmp_path / "store"
    expected = [f"k{number}" for number in range(_COUNT)]
    with real_broker(release, store) as broker:
        broker.make_topic(_TOPIC, 1)
        broker.send_each(
            ClientMessage(_TOPIC, _BODY + str(number).encode(), keys=f"k{number}") for number in range(_COUNT)
        )
        broker.drain()
        segment = next(path for path in list_segments(store) if _BODY + b"2" in path.read_bytes())
        overwrite(segment, segment.read_bytes().index(_BODY + b"2"), b"A")  # the broker has mapped this file
        pulled = [message.keys for message in broker.pull(_TOPIC)]
        pushed = [message.keys for message in broker.consume(Consumption(_TOPIC, "billing", _COUNT))]
        wrong = [record.topic for record in read_log(store) if not has_right_body_crc(record)]

    assert [_TOPIC] == wrong
    assert expected == pulled
    assert expected == sorted(pushed)
