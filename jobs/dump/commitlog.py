"""Dump a CommitLog segment, plain or of DLedger: every piece, every field of every record."""

import base64
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, takewhile

from jobs.console.amounts import count_text
from jobs.console.lines import printable_text
from jobs.dump import (
    MORE_FOLLOWS,
    DumpFile,
    DumpItem,
    DumpRequest,
    Field,
    compare_with_sibling_files,
    counts_text,
    damage_item,
    layout_fields,
    open_file,
    short_time_text,
)
from jobs.store.record_places import leftover_size
from rmq_formats.commitlog.framing import detect_framing, find_framing
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
from rmq_formats.commitlog.segment import (
    END_BY_LAST_PIECE,
    FOREIGN_BYTES_REASON,
    Piece,
    PieceKind,
    SegmentBytes,
    SegmentEnd,
    walk_segment,
)
from rmq_formats.errors import CorruptData, FormatError, is_lost_file_error
from rmq_formats.message_id import encode_offset_id
from rmq_formats.properties import KEYS, TAGS, UNIQ_KEY, PropertyParser, decode_java_text, parse_properties
from rmq_formats.store import FileKind, file_name_of_offset, parse_offset_name

_BODY_PREVIEW = 64
_OPEN_ENDED = frozenset({FileKind.COMPACTION_LOG})


def dump_log(kind: FileKind, file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield the pieces of a segment; the last item describes its end."""
    segment = _segment(file)
    # Files of the other kinds end with zeros or with a record, even if another file follows.
    is_segment = kind not in _OPEN_ENDED and parse_offset_name(file.name) is not None
    next_offset, cut_short = compare_with_sibling_files(file) if is_segment else (None, None)
    is_final = next_offset is not None and _is_written(f"{file.directory}/{file_name_of_offset(next_offset)}")
    position = start = max(request.start - segment.base_offset, 0)
    if start > segment.size:
        end_offset = segment.base_offset + segment.size
        raise CorruptData(f"--from {request.start} is past the end of the file ({end_offset:,})")
    last, records, damaged = None, 0, 0
    for piece in islice(_pieces(segment, start, is_final=is_final), request.limit):
        last = _add_reason(segment, piece, is_whole_segment=is_segment)
        item = _make_item(segment, last, request)
        yield item
        records += last.kind is PieceKind.RECORD
        damaged += item.is_damage
        position = last.end - segment.base_offset
    at, is_whole = segment.base_offset + position, position >= segment.size
    # A dump that --limit stops before the end of the file does not show how the file ends.
    cut = cut_short if is_whole else None
    if is_segment and not cut and is_whole and last is not None and last.kind is PieceKind.RECORD:
        cut = "truncated: the file ends with a record, but brokers end each file with an end-of-file blank or zeros"
    if cut is not None:
        damaged += last is None or last.kind is not PieceKind.DAMAGE  # else it is counted already
        yield damage_item(at, 0, cut)
    end = SegmentEnd.DAMAGED if cut else SegmentEnd.OPEN if last is None else END_BY_LAST_PIECE[last.kind]
    counts = counts_text(count_text(records, "record"), damaged, segment.base_offset + start if start else None)
    text = f"{end} segment: {counts}" if is_whole else f"{MORE_FOLLOWS}: so far {counts}"
    values = {"end": str(end) if is_whole else None, "records": records, "damaged_places": damaged}
    yield DumpItem(at, 0, "end", text, values)


def _segment(file: DumpFile) -> SegmentBytes:
    """Return the segment; if its name is not an offset, the first record gives its position."""
    base_offset = parse_offset_name(file.name)
    if base_offset is None:
        header_size, offset = detect_framing(file.read(0, BLANK.size)).header_size, 0
        with suppress(FormatError):  # too short for a record, as the walk reports
            offset = int(HEAD.unpack(file.read(header_size, HEAD.size))[HEAD.index("physical_offset")]) - header_size
        base_offset = offset if 0 <= offset < 1 << 62 else 0
    framing = find_framing(file.read, file.size, base_offset)
    return SegmentBytes(file.read, file.size, base_offset, framing, file.next_written)


def _is_written(location: str) -> bool:
    try:
        with open_file(location) as file:
            return any(file.read(0, BLANK.size))
    except OSError as error:
        if not is_lost_file_error(error):
            raise
        return False


def _pieces(segment: SegmentBytes, start: int, *, is_final: bool) -> Iterator[Piece]:
    """Yield the pieces, starting at *start*; if no piece begins there, the damage up to the next record comes first."""
    if start == segment.size:
        return
    if start == 0 or segment.stated_blank_size(start) is not None or segment.has_record_at(start):
        yield from walk_segment(segment, final=is_final, start=start)
        return
    offset, boundary = segment.base_offset + start, 0  # the last record boundary before *start*
    ends = (end - segment.base_offset for _, end in segment.walk_record_bounds())
    for boundary in takewhile(lambda end: end <= start, ends):  # noqa: B007 - the last one is kept
        pass
    for piece in walk_segment(segment, final=is_final, start=boundary):
        # An offset inside a record or a blank means the piece after it.
        if piece.end > offset and not (piece.kind in {PieceKind.RECORD, PieceKind.BLANK} and piece.offset < offset):
            yield piece


def _add_reason(segment: SegmentBytes, piece: Piece, *, is_whole_segment: bool) -> Piece:
    """
    Return a piece with the reason if it contains complete records that the walk does not accept.

    The last piece of a segment is damage if the file has no room for its rest: the file was truncated.
    """
    size = leftover_size(segment, piece) if piece.kind is PieceKind.WAITING else 0
    if size:
        reason = f"{size} bytes are left over from before the log was truncated; they contain older records"
        piece = piece._replace(reason=reason)
    if piece.reason == FOREIGN_BYTES_REASON:
        return piece._replace(kind=PieceKind.DAMAGE)
    position = piece.offset - segment.base_offset
    is_end = piece.kind in {PieceKind.WAITING, PieceKind.DAMAGE} and position + piece.size == segment.size
    # Records and blanks both begin with a size and a magic, in the same 8 bytes.
    head = segment.read(position + segment.framing.header_size, BLANK.size) if is_whole_segment and is_end else b""
    if len(head) == BLANK.size:
        size, magic = map(int, BLANK.unpack(head))
        needed = size + segment.framing.header_size
        if magic in TOPIC_LENGTH and needed > piece.size:
            reason = f"truncated: the record is {needed} bytes long, but the file has only {piece.size} of them"
            return piece._replace(kind=PieceKind.DAMAGE, reason=reason)
    return piece


def _make_item(segment: SegmentBytes, piece: Piece, request: DumpRequest) -> DumpItem:
    if piece.kind is not PieceKind.RECORD:
        values: dict[str, object] = {"reason": piece.reason} if piece.reason else {}
        is_damage = piece.kind is PieceKind.DAMAGE
        return DumpItem(piece.offset, piece.size, str(piece.kind), piece.reason, values, is_damage=is_damage)
    position = piece.offset - segment.base_offset
    record = segment.record_at(position)
    entry = DLEDGER_ENTRY.unpack(segment.read(position, DLEDGER_ENTRY.size)) if segment.framing.header_size else ()
    properties = parse_properties(record.properties_raw, PropertyParser.SCAN)
    problems = [] if has_right_body_crc(record) else ["wrong body_crc"]
    problems += ["wrong property CRC"] if has_right_property_crc(record) is False else []
    values, fields = {}, list[Field]()
    if request.as_json:
        names = (row.name for row in DLEDGER_ENTRY.describe_fields())
        values = {"entry": dict(zip(names, entry, strict=True))} if entry else {}
        values |= _record_values(record, properties) | ({"problems": problems} if problems else {})
    if request.with_fields:
        fields = layout_fields(DLEDGER_ENTRY, entry, piece.offset) if entry else []
        fields += record_fields(record)
    text = _record_line(record, properties, problems)
    return DumpItem(piece.offset, piece.size, "record", text, values, fields, is_damage=bool(problems))


def _record_line(record: MessageRecord, properties: dict[str, str], problems: list[str]) -> str:
    transaction = transaction_type(record.sys_flag)
    parts = [
        printable_text(f"{record.topic}/{record.queue_id} #{record.queue_offset}"),
        short_time_text(record.store_timestamp),
        f"body {len(record.body)}{' compressed' if record.sys_flag & COMPRESSED else ''}",
        *(printable_text(f"{name}={properties[name]}") for name in (TAGS, KEYS, UNIQ_KEY) if name in properties),
        *([transaction.name.lower()] if transaction is not TransactionType.NONE else ()),
        *(["V2"] if record.magic_code == MAGIC_V2 else ()),
        *(problem.upper() for problem in problems),
    ]
    return "  ".join(parts)


def _record_values(record: MessageRecord, properties: dict[str, str]) -> dict[str, object]:
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
    """Yield a field for every byte of a record."""
    offset = record.physical_offset
    layout = RECORD[record.sys_flag & HOST_BITS]
    fixed: list[int | bytes] = [
        *record[: MessageRecord._fields.index("born_host")],  # type: ignore[list-item]
        *record.born_host,
        record.store_timestamp,
        *record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body_length,
    ]
    written = {  # numbers that are usually not written as decimals
        "magic_code": f"{record.magic_code & 0xFFFFFFFF:08X}",
        "sys_flag": f"0x{record.sys_flag & 0xFFFFFFFF:X}",
        "born_timestamp": f"{record.born_timestamp}  {short_time_text(record.born_timestamp)}",
        "store_timestamp": f"{record.store_timestamp}  {short_time_text(record.store_timestamp)}",
        "born_host_address": str(record.born_host).rpartition(":")[0],
        "store_host_address": str(record.store_host).rpartition(":")[0],
    }
    named = layout_fields(layout, fixed, offset)
    fields = [field._replace(text=written.get(field.name, field.text)) for field in named]
    offset += layout.size
    for name, text, size in (
        ("body", _body_preview(record.body), len(record.body)),
        ("topic_length", str(record.topic_length), TOPIC_LENGTH[record.magic_code].size),
        ("topic", printable_text(record.topic), len(record.topic_raw)),
        ("properties_length", str(record.properties_length), PROPERTIES_LENGTH.size),
    ):
        fields.append(Field(offset, name, text))
        at = offset
        for number, inner in enumerate(_inner_messages(record) if name == "body" else ()):
            fields.append(Field(at, f"inner message {number}", f"flag {inner.flag}, body {_body_preview(inner.body)}"))
            at += INNER_MESSAGE.size + len(inner.body) + PROPERTIES_LENGTH.size
            fields += _property_fields(inner.properties_raw, at)
            at += len(inner.properties_raw)
        offset += size
    return [*fields, *_property_fields(record.properties_raw, offset)]


def _inner_messages(record: MessageRecord) -> list[InnerMessage]:
    """Return the messages in the record of an inner batch; none if its body is not such a batch."""
    try:
        return list(decode_inner_batch(record.body)) if record.sys_flag & INNER_BATCH else []
    except FormatError:
        return []


def _property_fields(raw: bytes, offset: int) -> Iterator[Field]:
    for item in raw.split(b"\x02"):
        if item:
            yield Field(offset, "property", printable_text(decode_java_text(item).replace("\x01", " = ", 1)))
        offset += len(item) + 1


def _body_preview(body: bytes) -> str:
    beginning = body[:_BODY_PREVIEW]
    more = f" … {len(body)} bytes" if len(body) > _BODY_PREVIEW else ""
    try:
        # The text may be cut inside a character.
        return printable_text(getincrementaldecoder("utf-8")().decode(beginning)) + more
    except UnicodeDecodeError:
        return beginning.hex(" ", 4) + more
