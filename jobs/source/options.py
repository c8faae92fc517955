"""The options of the source."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Self

from jobs.storage.settings import OF_FILE_SYSTEMS
from jobs.store.ranges import WHOLE_SEGMENTS
from jobs.store.selection import Selection
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import MAX_LONG

NAME = "rocketmq-store"
FAILFAST, PERMISSIVE = "FAILFAST", "PERMISSIVE"
EARLIEST, LATEST = "earliest", "latest"
_BATCH_SIZE = 4 << 30  # bytes of the log in a micro-batch: its first one would else read, and hold up, everything
_STREAM_PART = 256 << 20
_POLL_S = 0.5
_NAMES = {
    name.lower(): name
    for name in (
        "path", "commitlog", "topics", "body", "fromOffset", "toOffset", "fromTime", "toTime", "partitionSize",
        "release", "broker", "mode", "after", "afterVersion", "failOnDataLoss", "startingOffset", "maxBytesPerTrigger",
        "pollMilliseconds",
    )
}  # fmt: skip
_DIGITS = re.compile(r"[0-9]{1,19}")
_MILLISECONDS = re.compile(r"-?[0-9]{1,60}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values of the options."""

    path: str
    commitlog: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    from_offset: int = 0
    to_offset: int = MAX_LONG  # not included
    from_time: int = -MAX_LONG  # ms, store time
    to_time: int = MAX_LONG  # not included
    partition_size: int | None = None
    release: str | None = None
    broker: str | None = None
    mode: str = PERMISSIVE
    after: str | None = None  # a lake, whose messages are left out
    after_version: int | None = None  # of its table of messages
    fails_on_data_loss: bool = True
    starting: str = EARLIEST
    batch_size: int = _BATCH_SIZE
    poll_s: float = _POLL_S
    file_system: Mapping[str, str] | None = None
    columns: tuple[str, ...] | None = None  # Spark tells a source of Python no others than those of a given schema

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options; their names are not case-sensitive."""
        given = {name.lower(): value for name, value in options.items()}
        _refuse_misspelled(given)
        if not given.get("path", "").strip():
            raise UnsupportedFormat(f"format {NAME} reads one store: load(STORE)")
        mode = given.get("mode", PERMISSIVE).upper()
        if mode not in {FAILFAST, PERMISSIVE}:
            reason = f"mode {mode!r} is neither {PERMISSIVE} (damaged bytes are left out) nor {FAILFAST}"
            raise UnsupportedFormat(reason)
        starting = given.get("startingoffset", EARLIEST).lower()
        if starting not in {EARLIEST, LATEST}:
            raise UnsupportedFormat(f"startingOffset {starting!r} is neither {EARLIEST} nor {LATEST}")
        return cls(
            given["path"],
            _list(given.get("commitlog")),
            Selection(topics=_list(given.get("topics")), with_body=_flag(given, "body")),
            _number(given, "fromoffset", 0),
            _number(given, "tooffset", MAX_LONG),
            _milliseconds(given.get("fromtime"), -MAX_LONG),
            _milliseconds(given.get("totime"), MAX_LONG),
            _number(given, "partitionsize", 0) or None,
            given.get("release"),
            given.get("broker"),
            mode,
            _after(given.get("after")),
            _number(given, "afterversion", -1) if "afterversion" in given else None,
            _flag(given, "failondataloss"),
            starting,
            _number(given, "maxbytespertrigger", _BATCH_SIZE) or _BATCH_SIZE,
            _number(given, "pollmilliseconds", round(_POLL_S * 1000)) / 1000,
            {name: value for name, value in given.items() if name.startswith(OF_FILE_SYSTEMS)},
        )

    @property
    def batch_part(self) -> int:
        """How many bytes one task of a batch reads."""
        return self.partition_size or WHOLE_SEGMENTS

    @property
    def stream_part(self) -> int:
        """How many bytes one task of a micro-batch reads, about."""
        return self.partition_size or _STREAM_PART

    @property
    def with_body(self) -> bool:
        """Whether bodies are wanted."""
        return self.selection.with_body and (self.columns is None or "body" in self.columns)

    @property
    def has_bounds(self) -> bool:
        """Whether rows of a segment may have to be left out."""
        everything = (0, MAX_LONG, -MAX_LONG, MAX_LONG)
        return (self.from_offset, self.to_offset, self.from_time, self.to_time) != everything


def _refuse_misspelled(given: Mapping[str, str]) -> None:
    """Raise `UnsupportedFormat` of a name that is nearly one of ours; Spark hands others on, which are not for us."""
    for name in given.keys() - _NAMES.keys() - {"paths"}:
        near = get_close_matches(name, _NAMES, n=1, cutoff=0.8)
        if near:
            raise UnsupportedFormat(f"option {name} is not known: did you mean {_NAMES[near[0]]}?")


def _after(lake: str | None) -> str | None:
    if lake is not None and not lake.strip():
        raise UnsupportedFormat("option after is empty: it names the lake whose messages are left out")
    return lake


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _flag(given: Mapping[str, str], name: str) -> bool:
    """Read `true` or `false`: reading a typing error as `false` would silently leave out rows."""
    text = given.get(name, "true").lower()
    if text not in {"true", "false"}:
        raise UnsupportedFormat(f"option {name}: {given[name]!r} is neither true nor false")
    return text == "true"


def _number(given: Mapping[str, str], name: str, otherwise: int) -> int:
    if name not in given:
        return otherwise
    text = given[name].strip()
    if not (_DIGITS.fullmatch(text) and int(text) <= MAX_LONG):
        raise UnsupportedFormat(f"option {name}: {given[name][:60]!r} is not a whole number from 0 to {MAX_LONG}")
    return int(text)


def _milliseconds(text: str | None, otherwise: int) -> int:
    """Read milliseconds, or a time such as 2026-11-20T07:00 (UTC where no zone is)."""
    if text is None:
        return otherwise
    if _MILLISECONDS.fullmatch(text):
        return min(max(int(text), -MAX_LONG), MAX_LONG)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        reason = f"{text[:60]!r} is neither milliseconds nor a time such as 2026-11-20T07:00:00+00:00"
        raise UnsupportedFormat(reason) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
