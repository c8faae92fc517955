"""Dump a CommitLog segment, plain or of DLedger: every piece, every field of every record."""

import base64
from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import islice

from jobs.console.amounts import counted
from jobs.console.lines import printable
from jobs.dump.file import DumpFile, Siblings, open_file, siblings_of
from jobs.dump.items import DumpRequest, Field, Item, counts_text, damage, layout_fields, time_text
from jobs.store.record_places import left_over_bytes, record_places, records_from
from rmq_formats.commitlog.framing import detect_framing, framing_of
from rmq_formats.commitlog.layout import (
    BLANK,
    COMPRESSED,
    DLEDGER_ENTRY,
    HEAD,
    HOST_BITS,
    INNER_BATCH,
    INNER_MESSAGE,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    RECORD,
    TOPIC_LENGTH,
    TransactionType,
    transaction_type,
)
from rmq_formats.commitlog.record import (
    InnerMessage,
    MessageRecord,
    decode_inner_batch,
    has_right_body_crc,
    has_right_property_crc,
)
from rmq_formats.commitlog.segment import ENDS, Piece, PieceKind, SegmentBytes, SegmentEnd, walk_segment
from rmq_formats.errors import CorruptData, FormatError, is_lost
from rmq_formats.message_id import encode_offset_id
from rmq_formats.properties import KEYS, TAGS, PropertyParser, java_text, parse_properties
from rmq_formats.store import FileKind, first_offset, name_of_offset

_UNIQ_KEY = "UNIQ_KEY"
_BODY_PREVIEW = 64
_OPEN_ENDED = frozenset({FileKind.COMPACTION_LOG, FileKind.TIERED_LOG})


def dump(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield the pieces of a segment; the last item says how it ends."""
    segment = _segment(file)
    # Of the other kinds files end with zeros, or with a record, wherever they are.
    siblings = None if kind in _OPEN_ENDED else siblings_of(file)
    is_final = kind not in _OPEN_ENDED and _is_followed(file, siblings)
    start, last, records, damaged = _start(segment, request.start), None, 0, 0
    position = start
    for piece in islice(_pieces(segment, position, is_final=is_final), request.limit):
        last = _explained(segment, piece) if siblings is None else _judged(segment, _explained(segment, piece))
        item = _item(segment, last, request)
        yield item
        records += last.kind is PieceKind.RECORD
        damaged += item.is_damage
        position = last.end - segment.base_offset
    # Only at the end of the file: a dump that --limit ends before it says nothing about how the file ends.
    cut = _cut(segment, siblings, last) if position >= segment.size else None
    if cut is not None:
        damaged += last is None or last.kind is not PieceKind.DAMAGE  # else it is counted already
        yield damage(segment.base_offset + position, 0, cut)
    end = SegmentEnd.DAMAGED if cut else SegmentEnd.OPEN if last is None else ENDS[last.kind]
    at, is_whole = segment.base_offset + position, position >= segment.size
    counts = counts_text(counted(records, "record"), damaged, start)
    text = f"{end} segment: {counts}" if is_whole else f"more follows from here on: {counts} so far"
    values = {"end": str(end) if is_whole else None, "records": records, "damaged_places": damaged}
    yield Item(at, 0, "end", text, values)


def _explained(segment: SegmentBytes, piece: Piece) -> Piece:
    """Return a waiting piece with the reason, if complete records follow in it that the walk does not believe."""
    if piece.kind is not PieceKind.WAITING:
        return piece
    size = left_over_bytes(segment, piece)
    reason = f"{size} bytes are left over from before the log was cut back: older records are in them"
    return piece._replace(reason=reason) if size else piece


def _judged(segment: SegmentBytes, piece: Piece) -> Piece:
    """Return the last piece as damage where the file has no room for the rest of it: the file was cut short."""
    position = piece.offset - segment.base_offset
    # The size and the magic that a record and a blank begin with: of both, the first 8 bytes mean the same.
    head = segment.read(position + segment.framing.header_size, BLANK.size)
    is_end = piece.kind in {PieceKind.WAITING, PieceKind.DAMAGE} and position + piece.size == segment.size
    if not is_end or len(head) < BLANK.size:
        return piece
    size, magic = map(int, BLANK.unpack(head))
    needed = size + segment.framing.header_size
    if magic not in TOPIC_LENGTH or needed <= piece.size:
        return piece
    reason = f"cut off: the record has {needed} bytes, the file {piece.size} of them"
    return piece._replace(kind=PieceKind.DAMAGE, reason=reason)


def _cut(segment: SegmentBytes, siblings: Siblings | None, last: Piece | None) -> str | None:
    """Return an item for the bytes missing after a file's last one; None if nothing shows that any are."""
    if siblings is None:  # not named like a segment: an excerpt of a log
        return None
    if siblings.missing is None and last is not None and last.kind is PieceKind.RECORD and segment.size:
        return "cut off: the file ends with a record, and a broker ends it with a blank or with zeros"
    return siblings.missing


def _segment(file: DumpFile) -> SegmentBytes:
    """Return the segment; if its name is not an offset, its first record gives the place."""
    base_offset = first_offset(file.name)
    if base_offset is None:
        base_offset = _offset_of_first_record(file, detect_framing(file.read(0, BLANK.size)).header_size)
    return SegmentBytes(
        file.read, file.size, base_offset, framing_of(file.read, file.size, base_offset), file.next_written
    )


def _offset_of_first_record(file: DumpFile, header_size: int) -> int:
    try:
        head = HEAD.unpack(file.read(header_size, HEAD.size))
    except FormatError:
        return 0
    offset = int(head[_PHYSICAL_OFFSET]) - header_size
    return offset if 0 <= offset < 1 << 62 else 0


_PHYSICAL_OFFSET = HEAD.index("physical_offset")


def _start(segment: SegmentBytes, offset: int) -> int:
    position = offset - segment.base_offset
    if position > segment.size:
        reason = f"the file ends at offset {segment.base_offset + segment.size}"
        raise CorruptData(reason, offset)
    return max(position, 0)


def _pieces(segment: SegmentBytes, start: int, *, is_final: bool) -> Iterator[Piece]:
    """Yield the pieces from *start* on; if none begins there, first damage up to the next record."""
    if start == segment.size:
        return
    if start == 0 or segment.stated_end(start) is not None or any(records_from(segment, start)):
        yield from walk_segment(segment, final=is_final, start=start)
        return
    offset = segment.base_offset + start
    for piece in walk_segment(segment, final=is_final, start=_boundary_before(segment, start)):
        if piece.end > offset and not (piece.kind in _WITHOUT_MIDDLE and piece.offset < offset):
            yield piece


_WITHOUT_MIDDLE = frozenset({PieceKind.RECORD, PieceKind.BLANK})  # an offset inside one means the piece after it


def _boundary_before(segment: SegmentBytes, position: int) -> int:
    """Return the last position before *position* that the sizes of records lead to."""
    boundary = 0
    for _, end in record_places(segment):
        if end - segment.base_offset > position:
            break
        boundary = end - segment.base_offset
    return boundary


def _is_followed(file: DumpFile, siblings: Siblings | None) -> bool:
    """Return whether the folder has a later segment that is not empty."""
    if siblings is None or siblings.next_offset is None:
        return False
    try:
        with open_file(f"{file.folder}/{name_of_offset(siblings.next_offset)}") as next_file:
            return any(next_file.read(0, BLANK.size))
    except OSError as error:
        if not is_lost(error):
            raise
        return False


def _item(segment: SegmentBytes, piece: Piece, request: DumpRequest) -> Item:
    if piece.kind is PieceKind.RECORD:
        return _record_item(segment, piece, request)
    is_damage = piece.kind is PieceKind.DAMAGE
    values = {"reason": piece.reason} if piece.reason else {}
    return Item(piece.offset, piece.size, str(piece.kind), piece.reason, values, is_damage=is_damage)


def _record_item(segment: SegmentBytes, piece: Piece, request: DumpRequest) -> Item:
    position = piece.offset - segment.base_offset
    record = segment.record_at(position)
    entry = DLEDGER_ENTRY.unpack(segment.read(position, DLEDGER_ENTRY.size)) if segment.framing.header_size else ()
    properties = parse_properties(record.properties_raw, PropertyParser.SCAN)
    problems = _problems(record)
    text = _line(record, properties, problems)
    values: dict[str, object] = {}
    fields: list[Field] = []
    if request.as_json:
        names = (field.name for field in DLEDGER_ENTRY.fields)
        values = {"entry": dict(zip(names, entry, strict=True))} if entry else {}
        values |= _values(record, properties) | ({"problems": problems} if problems else {})
    if request.with_fields:
        fields = layout_fields(DLEDGER_ENTRY, entry, piece.offset) if entry else []
        fields += record_fields(record)
    return Item(piece.offset, piece.size, "record", text, values, fields, is_damage=bool(problems))


def _problems(record: MessageRecord) -> list[str]:
    problems = [] if has_right_body_crc(record) else ["wrong body_crc"]
    return problems + (["wrong property CRC"] if has_right_property_crc(record) is False else [])


def _line(record: MessageRecord, properties: dict[str, str], problems: list[str]) -> str:
    transaction = transaction_type(record.sys_flag)
    parts = [
        printable(f"{record.topic}/{record.queue_id} #{record.queue_offset}"),
        time_text(record.store_timestamp),
        f"body {len(record.body)}{' compressed' if record.sys_flag & COMPRESSED else ''}",
        *(printable(f"{name}={properties[name]}") for name in (TAGS, KEYS, _UNIQ_KEY) if name in properties),
        *([transaction.name.lower()] if transaction is not TransactionType.NONE else ()),
        *(["V2"] if record.magic_code == MAGIC_V2 else ()),
        *(problem.upper() for problem in problems),
    ]
    return "  ".join(parts)


def _values(record: MessageRecord, properties: dict[str, str]) -> dict[str, object]:
    values = record._asdict()
    body = values.pop("body")
    inner = [
        {
            "flag": message.flag,
            "body": base64.b64encode(message.body).decode(),
            "properties": parse_properties(message.properties_raw, PropertyParser.SCAN),
        }
        for message in _inner_messages(record)
    ]
    return values | {
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "topic_raw": base64.b64encode(record.topic_raw).decode(),
        "properties_raw": base64.b64encode(record.properties_raw).decode(),
        "topic": record.topic,
        "properties": properties,
        "offset_msg_id": encode_offset_id(record.store_host, record.physical_offset),
        "body": base64.b64encode(body).decode(),
        **({"inner_messages": inner} if inner else {}),
    }


def record_fields(record: MessageRecord) -> list[Field]:
    """Name every byte of a record."""
    offset = record.physical_offset
    layout = RECORD[record.sys_flag & HOST_BITS]
    fixed = [
        *record[:_BORN_HOST],
        *record.born_host,
        record.store_timestamp,
        *record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body_length,
    ]
    fields = [_readable(field, record) for field in layout_fields(layout, fixed, offset)]  # type: ignore[arg-type]
    offset += layout.size
    fields.append(Field(offset, "body", _preview(record.body)))
    fields += _inner_fields(record, offset)
    offset += len(record.body)
    fields.append(Field(offset, "topic_length", str(record.topic_length)))
    offset += TOPIC_LENGTH[record.magic_code].size
    fields.append(Field(offset, "topic", printable(record.topic)))
    offset += len(record.topic_raw)
    fields.append(Field(offset, "properties_length", str(record.properties_length)))
    offset += PROPERTIES_LENGTH.size
    return [*fields, *_property_fields(record.properties_raw, offset)]


def _inner_messages(record: MessageRecord) -> list[InnerMessage]:
    """Return the messages that the record of an inner batch holds; none if its body is not such a batch."""
    try:
        return list(decode_inner_batch(record.body)) if record.sys_flag & INNER_BATCH else []
    except FormatError:
        return []


def _inner_fields(record: MessageRecord, offset: int) -> Iterator[Field]:
    for number, message in enumerate(_inner_messages(record)):
        yield Field(offset, f"inner message {number}", f"flag {message.flag}, body {_preview(message.body)}")
        offset += INNER_MESSAGE.size + len(message.body) + PROPERTIES_LENGTH.size
        yield from _property_fields(message.properties_raw, offset)
        offset += len(message.properties_raw)


_BORN_HOST = MessageRecord._fields.index("born_host")


def _readable(field: Field, record: MessageRecord) -> Field:
    """Write numbers that have a meaning as people write them."""
    if field.name == "magic_code":
        return field._replace(text=f"{record.magic_code & 0xFFFFFFFF:08X}")
    if field.name == "sys_flag":
        return field._replace(text=f"0x{record.sys_flag & 0xFFFFFFFF:X}")
    if field.name.endswith("_timestamp"):
        return field._replace(text=f"{field.text}  {time_text(int(field.text))}")
    if field.name.endswith("_address"):
        host = record.born_host if field.name.startswith("born") else record.store_host
        return field._replace(text=str(host).rpartition(":")[0])
    return field


def _property_fields(raw: bytes, offset: int) -> Iterator[Field]:
    for item in raw.split(b"\x02"):
        if item:
            yield Field(offset, "property", printable(java_text(item).replace("\x01", " = ", 1)))
        offset += len(item) + 1


def _preview(body: bytes) -> str:
    beginning = body[:_BODY_PREVIEW]
    more = f" … {len(body)} bytes" if len(body) > _BODY_PREVIEW else ""
    try:
        # The cut may go through a character.
        return printable(getincrementaldecoder("utf-8")().decode(beginning)) + more
    except UnicodeDecodeError:
        return beginning.hex(" ", 4) + more
