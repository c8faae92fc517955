"""The summary of a run of `ingest`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from jobs.console.amounts import count_text, size_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity_met

if TYPE_CHECKING:
    from jobs.lake.manifest import GapRow

_INDEX = "index"  # one of `PRODUCT_NAMES`
OPEN_DAMAGE_KEY = "open"  # key in a manifest's state
_GAPS_KEPT = 100  # open gaps that are kept; further ones are only counted
_NO_INDEX = "; the index tables were not written, because they require all topics"
Number = TypeVar("Number", int, float)


class OpenDamage(NamedTuple):
    """Damage found by runs since the last acknowledgement, or since the first run of a store."""

    since_run: int = 0  # the first run that found damage
    quarantined: int = 0  # damaged ranges
    superseded: int = 0  # times that the broker's log was truncated or rewritten
    contradictions: int = 0  # units of queues that do not agree with the log
    gap_count: int = 0
    gaps: tuple["GapRow", ...] = ()  # the first open gaps
    unreadable: int = 0  # files and databases

    @classmethod
    def from_state(cls, state: Mapping[str, object], default: "OpenDamage") -> "OpenDamage":
        """Return the open damage of a manifest's state; *default* if it has none, as in earlier versions."""
        found = cast("dict[str, Any] | None", state.get(OPEN_DAMAGE_KEY))
        return default if found is None else cls(**{**found, "gaps": tuple(found["gaps"])})

    def after_run(  # noqa: PLR0913, PLR0917 - the damage of a run, by kind
        self,
        run: int,
        gaps: Sequence["GapRow"],
        quarantined: int,
        superseded: int,
        contradictions: int = 0,
        unreadable: int = 0,
    ) -> "OpenDamage":
        """Return the open damage after one more run."""
        new = [gap for gap in gaps if gap not in self.gaps]
        if not (new or quarantined or superseded or contradictions or unreadable > self.unreadable):
            return self
        return OpenDamage(
            self.since_run or run,
            self.quarantined + quarantined,
            self.superseded + superseded,
            self.contradictions + contradictions,
            self.gap_count + len(new),
            (*self.gaps, *new)[:_GAPS_KEPT],
            max(self.unreadable, unreadable),  # each run finds the same damage
        )

    def after_filling(self, filled: Sequence[tuple[int, int]], repaired: int) -> "OpenDamage":
        """Return the open damage after a run has filled gaps, and has read *repaired* damaged ranges again."""
        left = tuple(
            gap for gap in self.gaps if not any(start <= gap["from"] and gap["to"] <= end for start, end in filled)
        )
        now = self._replace(
            quarantined=max(self.quarantined - repaired, 0),
            gap_count=self.gap_count - len(self.gaps) + len(left),
            gaps=left,
        )
        return now if any(now[1:]) else OpenDamage()

    def __bool__(self) -> bool:
        """Return whether anything is open."""
        return self.since_run > 0

    @property
    def text(self) -> str:
        """The number of each kind of damage."""
        counts = (
            (self.quarantined, "damaged range", " of the log in the table quarantine"),
            (self.gap_count, "gap", ""),
            (self.superseded, "superseded part", " of the log"),
            (self.contradictions, "contradiction", " between log and queues"),
            (self.unreadable, "unreadable part", " of the store"),
        )
        return ", ".join(count_text(count, noun) + where for count, noun, where in counts if count)


@dataclass(slots=True)
class Summary(RatedOutcome):
    """The summary of a run, as text and as JSON."""

    store: str
    lake: str
    broker: str
    store_id: str | None = None
    run: int | None = None
    from_offset: int = 0
    to_offset: int = 0
    segment_ends: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    quarantined: int = 0
    units: dict[str, int] = field(default_factory=dict)  # number of queue units, by the result of the join
    index_entries: int = 0
    contradictions: int = 0  # units of queues that do not agree with the log
    behind: int = 0  # bytes of the log that the broker has not dispatched yet
    gaps: list["GapRow"] = field(default_factory=list)
    filled: list[dict[str, object]] = field(default_factory=list)  # ranges that earlier runs lacked
    filled_messages: int = 0
    backfilled: list[dict[str, object]] = field(default_factory=list)  # topics that earlier runs left out
    backfilled_messages: int = 0
    unreadable: list[str] = field(default_factory=list)  # messages about unreadable files, and segments without records
    superseded: dict[str, int | str] | None = None
    left_out: "GapRow | None" = None  # messages of an older history of the store than that of the lake
    lost_end: "GapRow | None" = None  # records that the store's log has lost; later runs look for them again
    topics: str = ""  # the selected topics of this store, as options; empty: all
    # The first run with this selection of topics: 0 if unknown, None if the selection is new in this command.
    selected_since: int | None = None
    release: str = ""  # the releases that write such queues, and how they are known
    notes: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    recovered: int | None = None
    open: OpenDamage = field(default_factory=OpenDamage)  # damage since the last acknowledgement, including this run's
    plan: dict[str, int | None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 1  # runs that were committed one after the other
    bytes_left: int = 0  # bytes of the log that are left for the next step
    newest_ms: int | None = None  # store time of the store's newest message in the lake

    def plus_next_run(self, next_run: "Summary") -> "Summary":
        """Return the sum of this run and the next one."""
        new = next_run.without_findings_of(self)
        return replace(
            next_run,
            run=next_run.run or self.run,
            from_offset=self.from_offset,
            segment_ends=_add_numbers(self.segment_ends, next_run.segment_ends),
            messages=self.messages + next_run.messages,
            quarantined=self.quarantined + next_run.quarantined,
            units=_add_numbers(self.units, next_run.units),
            index_entries=self.index_entries + next_run.index_entries,
            contradictions=self.contradictions + next_run.contradictions,
            gaps=self.gaps + new.gaps,
            filled=self.filled + next_run.filled,
            filled_messages=self.filled_messages + next_run.filled_messages,
            backfilled=self.backfilled + next_run.backfilled,
            backfilled_messages=self.backfilled_messages + next_run.backfilled_messages,
            unreadable=self.unreadable + new.unreadable,
            superseded=next_run.superseded or self.superseded,
            notes=self.notes + new.notes,
            versions=self.versions | next_run.versions,
            recovered=self.recovered if next_run.recovered is None else next_run.recovered,
            seconds=_add_numbers(self.seconds, next_run.seconds),
            steps=self.steps + next_run.steps,
            newest_ms=next_run.newest_ms or self.newest_ms,
        )

    def of_next_run_without_news(self) -> "Summary":
        """Return the summary of the next run if neither store nor lake change."""
        if self.run is None:
            return self
        return replace(
            self,
            run=None,
            from_offset=self.to_offset,
            segment_ends={"open": 1} if "open" in self.segment_ends else {},
            messages=0,
            quarantined=0,
            units=dict.fromkeys(self.units, 0),
            index_entries=0,
            versions={},
            steps=1,
        )

    def without_findings_of(self, earlier: "Summary") -> "Summary":
        """Return the summary without gaps, notes and unreadable parts that *earlier* runs have also found."""
        return replace(
            self,
            gaps=[gap for gap in self.gaps if gap not in earlier.gaps],
            notes=[note for note in self.notes if note not in earlier.notes],
            unreadable=[text for text in self.unreadable if text not in earlier.unreadable],
            left_out=None if self.left_out == earlier.left_out else self.left_out,
            lost_end=None if self.lost_end == earlier.lost_end else self.lost_end,
        )

    def add_gap(self, start: int, end: int, why: str) -> None:
        """Note offsets that the lake will not have."""
        self.gaps.append({"broker": self.broker, "from": start, "to": end, "why": why})

    def set_left_out(self, start: int, end: int, why: str) -> None:
        """Note offsets at which the lake keeps a newer history than that of the store."""
        self.left_out = {"broker": self.broker, "from": start, "to": end, "why": why}

    def set_lost_end(self, start: int, end: int, why: str) -> None:
        """Note offsets that the store has lost at the end of its log."""
        self.lost_end = {"broker": self.broker, "from": start, "to": end, "why": why}

    @property
    def severity(self) -> Severity:
        """The worst severity met and not acknowledged; only `verify` can say that a store is healthy."""
        return worst_severity_met(
            behind=self.behind,
            gap=self.gaps or self.open.gap_count or self.lost_end or self.left_out,
            damage=any((self.quarantined, self.superseded, self.unreadable))
            or any((self.open.quarantined, self.open.superseded, self.open.unreadable)),
            contradiction=self.contradictions or self.open.contradictions,
        )

    @property
    def bytes(self) -> int:
        """The number of bytes of the log that the run has read."""
        start, end = self.from_offset, self.to_offset
        missing = sum(max(min(gap["to"], end) - max(gap["from"], start), 0) for gap in self.gaps)
        return max(end - start - missing, 0)

    def result(self, seconds: float) -> Result:
        """Return the result line of a command that took *seconds*."""
        verdict = "done, no problems found" if self.severity is Severity.NOT_VERIFIED else ""
        if self.plan is not None:
            ranges, segments, size = (self.plan[name] or 0 for name in ("ranges", "segments", "bytes"))
            read_from = f"{count_text(ranges, 'range')} of {count_text(segments, 'segment')}"
            what = f"would read {size_text(size)} in {read_from}"
            return Result(self.severity, what, seconds, verdict="dry run")
        if self.run is None and (self.filled or self.backfilled):
            earlier = (
                (self.filled, self.filled_messages, "gaps"),
                (self.backfilled, self.backfilled_messages, "topics"),
            )
            texts = [f"{count_text(count, 'message')} of {what}" for found, count, what in earlier if found]
            return Result(self.severity, ", ".join(texts), seconds, 0, verdict)
        if self.run is None:
            verdict = "done" if verdict else ""
            return Result(self.severity, f"nothing new after offset {self.to_offset:,}", seconds, verdict=verdict)
        what = count_text(self.messages, "message")
        if self.backfilled:
            what = f"{what}, and {count_text(self.backfilled_messages, 'earlier message')}"
        return Result(self.severity, what, seconds, self.bytes, verdict)

    def to_dict(self) -> dict[str, object]:
        """Return the form that scripts read."""
        return {**asdict(self), "open": self.open._asdict(), "bytes": self.bytes, "severity": self.severity.value}

    def lines(self) -> Iterator[str]:
        """Yield the summary as text, without the result line."""
        if self.run is not None:
            yield f"{self.store} → {self.lake}"
            steps = f", the last of {self.steps:,} steps" if self.steps > 1 else ""
            yield f"  run {self.run} of broker {self.broker} ({self.store_id}){steps}"
            offsets = f"offsets {self.from_offset:,} to {self.to_offset:,}"
            yield f"  {count_text(self.messages, 'message')}, {offsets}"
            yield from map("  {}".format, self._topic_lines())
            if self.release:
                yield f"  queue format: RocketMQ {self.release}"
            if any(self.units.values()):
                named = {**self.units}
                different = named.pop("differences", 0)
                counts = [*(f"{count:,} {name}" for name, count in named.items()), count_text(different, "difference")]
                yield f"  units: {', '.join(counts)}"
            yield from map("  {}".format, self._contradiction_lines())
            if self.index_entries:
                yield f"  {count_text(self.index_entries, 'index entry')}"
            if self.behind:
                yield f"  the broker has not dispatched the last {self.behind:,} bytes of its log yet"
            yield from map("  {}".format, self._damage_lines())
        elif self.selected_since is not None:
            yield from map("  {}".format, self._topic_lines())
        yield from map("  {}".format, self._filled_lines())
        yield from map("  {}".format, self._backfilled_lines())
        yield from map("  {}".format, self._unreadable_lines())
        yield from map("  {}".format, self._note_lines())
        if self.open:
            yield f"  OPEN since run {self.open.since_run}: {self.open.text} (acknowledge with --acknowledge)"
        yield from map("  {}".format, self._gap_lines())

    def finding_lines(self) -> Iterator[str]:
        """Yield the lines on contradictions, damage, notes and gaps, not indented."""
        if self.run is not None:
            yield from self._contradiction_lines()
            yield from self._damage_lines()
        yield from self._filled_lines()
        yield from self._unreadable_lines()
        yield from self._note_lines()
        yield from self._gap_lines()

    def _topic_lines(self) -> Iterator[str]:
        """Yield the selection of topics, and how to change one that earlier runs have stored."""
        if not self.topics:
            return
        stored = ""
        if self.selected_since is not None:
            runs = f"all runs since run {self.selected_since}" if self.selected_since else "earlier runs"
            stored = f", as in {runs} (to change the selection, pass --change-topics)"
        yield f"topics: {self.topics}{stored}" + (_NO_INDEX if self.run else "")

    def _contradiction_lines(self) -> Iterator[str]:
        if self.contradictions:
            places = count_text(self.contradictions, "place")
            yield f"CONTRADICTION between log and queues ({places}): `verify` shows details"

    def _damage_lines(self) -> Iterator[str]:
        if self.quarantined:
            yield f"DAMAGE {count_text(self.quarantined, 'damaged range')} of the log, stored in the table quarantine"
        if self.superseded:
            yield "SUPERSEDED {from_offset:,} to {to_offset:,}: {why}".format(**self.superseded)

    def _filled_lines(self) -> Iterator[str]:
        yield from (
            f"FILLED {one['from']:,} to {one['to']:,}: missing or damaged before, read from {one['source']}"
            for one in self.filled
        )

    def _backfilled_lines(self) -> Iterator[str]:
        yield from (
            f"BACKFILLED {one['topic']} from offset {one['from']:,} to {one['to']:,}" for one in self.backfilled
        )
        if self.backfilled:
            yield f"{count_text(self.backfilled_messages, 'message')} of topics that earlier runs left out"

    def _unreadable_lines(self) -> Iterator[str]:
        return (f"DAMAGE {text}" for text in self.unreadable)

    def _note_lines(self) -> Iterator[str]:
        return (f"NOTE {note}" for note in self.notes)

    def _gap_lines(self) -> Iterator[str]:
        yield from (f"GAP {gap['from']:,} to {gap['to']:,}: {gap['why']}" for gap in self.gaps)
        yield from (f"GAP {part['why']}" for part in (self.left_out, self.lost_end) if part is not None)


def _add_numbers(one: Mapping[str, Number], other: Mapping[str, Number]) -> dict[str, Number]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


class StepTimer:
    """Seconds by step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = monotonic()

    def end_step(self, step: str) -> None:
        """End a step."""
        now = monotonic()
        self.laps[step] = round(self.laps.get(step, 0) + now - self._last, 3)
        self._last = now
