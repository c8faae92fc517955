r"""
RocketMQ's on-disk formats: bytes in, values out. No Spark, no storage, no network.

Only the names in `__all__` are public. They need only the standard library, except `scan` and `message_batch`, which
are compiled, for large logs: importing these two loads numba and pyarrow.

A segment is read record by record; a record determines the keys and the queue by which a broker finds it:

>>> from rmq_formats import UnitRules, Release, expected_units, index_keys
>>> from rmq_formats import decode_record, encode_record, new_record, walk
>>> message = new_record(topic=b"Orders", magic_code=-626843481, body=b"hello", properties=b"KEYS\x01order-1\x02")
>>> segment = encode_record(message).ljust(1024, b"\0")
>>> pieces = list(walk(segment, base_offset=0))
>>> [(str(piece.kind), piece.size) for piece in pieces]
[('record', 115), ('unwritten', 909)]
>>> message = decode_record(segment, pieces[0].offset)
>>> message.topic, message.body
('Orders', b'hello')
>>> index_keys(message, Release.from_version("5.3.3"))
['Orders#order-1']
>>> [(unit.queue.path, unit.physical_offset, unit.size) for unit in expected_units(message, UnitRules())]
[('consumequeue/Orders/0', 0, 115)]
"""

from typing import TYPE_CHECKING, Any

from rmq_formats.commitlog.record import MessageRecord, decode_record, encode_record, new_record
from rmq_formats.commitlog.segment import Framing, Piece, PieceKind, walk
from rmq_formats.consumequeue.dispatch import UnitRules, expected_units, walk_units
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.indexfile.lookup import IndexReader, detect_geometry
from rmq_formats.properties import PropertyParser, index_key_hash, parse_properties
from rmq_formats.release import Release
from rmq_formats.store import classify, decode_checkpoint

if TYPE_CHECKING:
    from rmq_formats.commitlog.columns import message_batch
    from rmq_formats.commitlog.scan import scan

__all__ = [
    "FormatError",
    "Framing",
    "Geometry",
    "IndexReader",
    "MessageRecord",
    "Piece",
    "PieceKind",
    "PropertyParser",
    "Release",
    "UnitRules",
    "classify",
    "decode_checkpoint",
    "decode_record",
    "detect_geometry",
    "encode_record",
    "expected_units",
    "index_key_hash",
    "index_keys",
    "message_batch",
    "new_record",
    "parse_properties",
    "scan",
    "walk",
    "walk_units",
]

_COMPILED = {"message_batch": "rmq_formats.commitlog.columns", "scan": "rmq_formats.commitlog.scan"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name has a different type
    """Import compiled code at its first use."""
    if name not in _COMPILED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_COMPILED[name]), name)
