"""
The log: its segments, how each begins and ends, and where its newest record ends.

A segment that is not the newest one is sealed if a blank near its end states the number of remaining bytes. The end of
the newest segment is found by a walk from the newest record to which a queue or an index file points: all records
before it have been dispatched.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from jobs.console.amounts import count_text, is_or_are
from jobs.diagnosis import kinds
from jobs.diagnosis.acceptance import name_finding
from jobs.diagnosis.findings import LOG, Finding
from jobs.dump import DumpFile
from jobs.inspect.report import LogReport, Problems, SegmentReport
from jobs.store.epochs import tail_evidence
from jobs.store.log_ends import find_right_segment_name, wrong_name_text
from jobs.store.ranges import (
    find_holes,
    find_newest_segment_offset,
    find_truncated_segments,
    locate_hole,
    usual_segment_size,
)
from jobs.store.record_places import COMPILED_WALK_MIN_BYTES, WalkedPiece, leftover_size, walk_pieces
from jobs.store.store import Segment, Store
from rmq_formats.broker_conf import Epoch
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import (
    END_BY_LAST_PIECE,
    FOREIGN_BYTES_REASON,
    Piece,
    PieceKind,
    SegmentBytes,
    SegmentEnd,
)
from rmq_formats.errors import FormatError
from rmq_formats.properties import are_zeroed
from rmq_formats.store import file_name_of_offset

_PREALLOCATED = "preallocated"  # the end of a segment that the broker has not begun yet
_NEAR_END = 64 << 10
_WALKED_ANYWAY = COMPILED_WALK_MIN_BYTES  # bytes before the newest known record: a small log is walked whole
_SAMPLED = 64 << 10  # bytes at the beginning of a segment, whose records are examined
_FAR_FROM_END = 8 << 20  # a blank is shorter than the largest record that a broker takes by default


@dataclass
class LogInspector:
    """Inspects the segments of a store."""

    store: Store
    problems: Problems
    known_records: Iterable[int]  # physical offsets of records that queues and index files name
    on_record: Callable[[MessageRecord], None]  # called with every record that is read
    progress: Callable[[int, int], None]  # called with the number of walked bytes, and the total
    epochs: Sequence[Epoch]  # the epochs of a broker in controller mode
    accepted: Collection[str] = ()  # names of findings that the user accepts

    def __post_init__(self) -> None:
        self._topics: Counter[str] = Counter()
        self._walked = self._to_walk = 0
        self._report = LogReport(start_offset=self.store.start_offset)

    def inspect(self, *, deep: bool) -> LogReport:
        """Inspect every segment; *deep* walks all of them."""
        self._to_walk = self.store.log_size if deep else 0
        self._check_names()
        try:
            newest = find_newest_segment_offset(self.store)
        except OSError:  # reported with its file when that file is read
            newest = self.store.segments[-1].base_offset
        for segment in self.store.segments:
            report = SegmentReport(segment.location, segment.base_offset, segment.size)
            self._report.segments.append(report)
            if newest is None or segment.base_offset > newest:
                report.end = _PREALLOCATED
                continue
            with self.problems.noting_errors(segment.location):
                self._inspect_segment(segment, report, is_newest=segment.base_offset == newest, deep=deep)
        self._sum_up()
        return self._report

    def _inspect_segment(self, segment: Segment, report: SegmentReport, *, is_newest: bool, deep: bool) -> None:
        with self.store.open(segment) as reader:
            file = DumpFile(segment.location, reader)
            report.framing = find_framing(reader.read, segment.readable_bytes, segment.base_offset)
            log = SegmentBytes(
                file.read, segment.readable_bytes, segment.base_offset, report.framing, reader.next_written
            )
            is_walked = deep or is_newest
            wrong_name = self._look_at_head(segment, log, report, file, is_walked=is_walked)
            if wrong_name is not None:
                report.end = "misnamed"
                self.problems.add_damage(report.file, wrong_name_text(wrong_name))
            elif is_walked:
                start = 0 if deep else self._newest_known_record(log)
                start = 0 if start <= _WALKED_ANYWAY else start
                self._report_segment(log, report, start, final=not is_newest)
            else:
                ends = (log.find_end_of_file(max(log.size - distance, 0)) for distance in (_NEAR_END, _FAR_FROM_END))
                end = next((end for end in ends if end is not None), None)
                if end is None:
                    self.problems.add_note(
                        report.file, "no end-of-file blank was found near its end; --deep reads the whole segment"
                    )
                else:
                    report.end, report.end_offset = "sealed", log.base_offset + end
            for position, size, reason in file.unreadable:
                text = f"{count_text(size, 'byte')} cannot be read: {reason}"
                self.problems.add_damage(report.file, text, segment.base_offset + position)

    def _look_at_head(
        self, segment: Segment, log: SegmentBytes, report: SegmentReport, file: DumpFile, *, is_walked: bool
    ) -> int | None:
        """Read the first records of a segment; return its right name if they belong at another offset."""
        if log.size == 0:
            self.problems.add_note(report.file, "is empty")
        elif log.stated_blank_size(0) is None:
            try:
                record = log.record_at(0)
            except FormatError as error:
                wrong_name = find_right_segment_name(self.store, segment, log.read)
                # A walk, or the bytes that the disk cannot read, give more details.
                if wrong_name is not None or is_walked or file.unreadable:
                    return wrong_name
                length = min(log.size, _NEAR_END)
                if not any(log.read(0, length)) and not any(log.read(log.size - length, length)):
                    text = (
                        "the segment begins and ends with zeros, although a later segment has data: either its records "
                        "were lost, or the later segment has the wrong name"
                    )
                    self.problems.add_gap(report.file, text, log.base_offset)
                else:
                    text = f"the segment does not begin with a valid record: {error.reason}"
                    self.problems.add_damage(report.file, text, log.base_offset)
            else:
                report.first_store_timestamp = record.store_timestamp
                for sampled in replace(log, size=min(log.size, _SAMPLED)).decode_records():
                    self.on_record(sampled)
        return None

    def _newest_known_record(self, log: SegmentBytes) -> int:
        """Return the position of the newest record of this segment that a queue or index file names, else 0."""
        takeovers = [epoch.start_offset - log.base_offset for epoch in self.epochs[1:]]
        takeover = max((position for position in takeovers if 0 <= position < log.size), default=None)
        if takeover is not None:  # queues and index files may point to records that a promotion removed
            return takeover
        # Newest first: the last records to which queues and index files point may be lost, or not written yet.
        for offset in sorted(self.known_records, reverse=True):
            position = offset - log.base_offset - log.framing.header_size
            if 0 <= position < log.size and log.has_record_at(position):
                return position
        return 0

    def _report_segment(self, log: SegmentBytes, report: SegmentReport, start: int, *, final: bool) -> None:
        """Report the pieces of a segment from position *start*, and how the segment ends."""
        report.end, report.end_offset = "open", log.base_offset + start
        records = 0
        for walked in walk_pieces(log, start, final=final, evidence=tail_evidence(self.store)):
            records += walked.record_count
            self._report_piece(walked, report, log)
            report.end = str(END_BY_LAST_PIECE[walked.piece.kind])
            if walked.piece.reason == FOREIGN_BYTES_REASON:
                report.end = str(SegmentEnd.DAMAGED)
            self._walked += walked.piece.size
            self.progress(self._walked, self._to_walk)
        if start == 0:
            report.records = records

    def _report_piece(self, walked: WalkedPiece, report: SegmentReport, log: SegmentBytes) -> None:
        """Add what a piece shows to the report: records, topics, and damage."""
        piece = walked.piece
        if piece.kind is PieceKind.RECORD:
            report.end_offset = piece.end
            report.last_store_timestamp = walked.sample_records[-1].store_timestamp
            self._topics.update(walked.topic_counts)
            for record in walked.sample_records:
                self.on_record(record)
                if are_zeroed(record.properties_raw):
                    text = "the properties of a record end in zeros that overwrote them"
                    self.problems.add_damage(report.file, text, record.physical_offset)
            for offset in walked.wrong_crc_offsets:
                self.problems.add_damage(report.file, "the body of a record does not match its CRC", offset)
        elif piece.kind is PieceKind.DAMAGE or piece.reason == FOREIGN_BYTES_REASON:
            text = f"{count_text(piece.size, 'byte')} {is_or_are(piece.size)} not a valid record: {piece.reason}"
            if self._accepts(piece, report):
                self.problems.add_note(report.file, f"accepted: {text}", piece.offset)
            else:
                self.problems.add_damage(report.file, text, piece.offset)
        elif piece.may_lack_messages:
            self.problems.add_gap(report.file, piece.reason, piece.offset)
        elif piece.kind is PieceKind.WAITING:
            # Complete records that are not part of the log: it was truncated before them, and then continued.
            self._report.left_over_bytes = leftover_size(log, piece)
            self._report.waiting_bytes = 0 if self._report.left_over_bytes else piece.size

    def _accepts(self, piece: Piece, report: SegmentReport) -> bool:
        """Return whether the user accepts damaged bytes, by the name that `verify` gives them."""
        if not self.accepted:
            return False
        place = self.store.path_below_root(report.file), piece.offset - report.base_offset
        finding = Finding(
            LOG, kinds.DAMAGED_RANGE, *place, "offsets", "", "", "", log_offset=piece.offset, log_end=piece.end
        )
        return name_finding(finding, self.store) in self.accepted

    def _check_names(self) -> None:
        segments = self.store.segments
        usual, short = usual_segment_size(segments)[0], [segment for segment, _ in find_truncated_segments(segments)]
        for segment in segments:
            sizes = f"the segment is {count_text(segment.size, 'byte')} long, but the others are {usual:,} bytes long"
            if segment is segments[-1] and segment in short:
                self.problems.add_damage(segment.location, f"truncated: {sizes}")
            elif segment.size != usual:
                self.problems.add_note(segment.location, sizes)
        for file in self.store.overlapping_segments:
            text = (
                "the file's name is an offset inside another segment, but the file contains no records at or "
                "after this offset"
            )
            if any(segment.base_offset == file.base_offset for segment in segments):
                text = "another segment has the same name: one of the two files is a copy, or belongs to another log"
            if not file.has_valid_offsets:
                text = "the name of the file is wrong: its offsets would exceed 64 bits"
            self.problems.add_damage(file.location, text)
        for before, start, end in find_holes(segments):
            location, position = locate_hole(before, segments)
            why = f"there is no segment {file_name_of_offset(start)}" if position is None else "the file was truncated"
            size = end - start
            text = f"{count_text(size, 'byte')} of the log {is_or_are(size)} missing: {why}"
            self.problems.add_gap(location, text, start)

    def _sum_up(self) -> None:
        report = self._report
        firsts = (one.first_store_timestamp for one in report.segments)
        lasts = (one.last_store_timestamp for one in reversed(report.segments))
        report.end_offset = max((one.end_offset for one in report.segments if one.end_offset is not None), default=None)
        report.first_store_timestamp = next((time for time in firsts if time is not None), None)
        report.last_store_timestamp = next((time for time in lasts if time is not None), None)
        counts = [one.records for one in report.segments if one.end != _PREALLOCATED]
        if None not in counts:
            report.records = sum(filter(None, counts))
            report.topics = dict(self._topics.most_common())
