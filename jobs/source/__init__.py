"""
A store as a data source of Spark: all of it in a batch, or new messages in micro-batches.

This module has the options of the source.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Self

from jobs.storage.settings import FILE_SYSTEM_PREFIXES
from jobs.store.selection import Selection
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import MAX_LONG

FORMAT_NAME = "rocketmq-store"
NO_READ_BOUNDS = (0, MAX_LONG, -MAX_LONG, MAX_LONG)  # from and to offset, from and to time
_BATCH_SIZE = 4 << 30  # bytes of the log in a micro-batch: otherwise the first one would be the whole log
_DIGITS = re.compile(r"[0-9]{1,19}")
_MILLISECONDS = re.compile(r"-?[0-9]{1,60}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The values of the options."""

    path: str
    commitlog: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    from_offset: int = NO_READ_BOUNDS[0]
    to_offset: int = NO_READ_BOUNDS[1]  # exclusive
    from_time: int = NO_READ_BOUNDS[2]  # ms, store time
    to_time: int = NO_READ_BOUNDS[3]  # exclusive
    partition_size: int = 0  # 0: the default of a batch or of a stream
    release: str | None = None
    broker: str | None = None
    fails_on_damage: bool = False  # whether damaged bytes stop the read
    after_lake: str | None = None  # a lake: reading starts where its messages of this store end
    after_version: int | None = None  # a version of the lake's table of messages
    fails_on_data_loss: bool = True
    starts_at_end: bool = False  # whether reading starts at the end of the log
    batch_size: int = _BATCH_SIZE
    poll_ms: int = 500
    file_system: Mapping[str, str] | None = None
    columns: tuple[str, ...] | None = None  # the columns of a schema that the user gave: Spark passes no other columns

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options; their names are not case-sensitive."""
        given = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in _OPTIONS}
        for name in given.keys() - names.keys() - {"paths"}:  # Spark also passes options that are not of this source
            near = get_close_matches(name, names, n=1, cutoff=0.8)
            if near:
                raise UnsupportedFormat(f"unknown option {name}: did you mean {names[near[0]]}?")
        if not given.get("path", "").strip():
            raise UnsupportedFormat(f"format {FORMAT_NAME} requires exactly one path: load(STORE)")
        values: dict[str, Any] = {}
        for name, (attribute, parse) in _OPTIONS.items():
            if name.lower() in given:
                text = given[name.lower()]
                try:
                    values[attribute] = parse(text)
                except ValueError as error:
                    raise UnsupportedFormat(f"option {name}: {text[:60]!r} is {error}") from error
        selection = Selection(topics=values.pop("topics", ()), with_body=values.pop("with_body", True))
        file_system = {name: value for name, value in given.items() if name.startswith(FILE_SYSTEM_PREFIXES)}
        return cls(**values, selection=selection, file_system=file_system)

    @property
    def fails_on_any_loss(self) -> bool:
        """Whether anything that is lost stops the read."""
        return self.fails_on_data_loss or self.fails_on_damage


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _lake(text: str) -> str:
    if not text.strip():
        raise ValueError("empty: it must name the lake whose messages are skipped")
    return text


def _choice(wrong: str, values: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a parser that accepts only the given words: guessing at a misspelled one could silently leave out rows."""

    def read(text: str) -> Any:  # noqa: ANN401 - a flag, or the word itself
        if text.lower() not in values:
            raise ValueError(wrong)
        return values[text.lower()]

    return read


_flag = _choice("neither true nor false", {"true": True, "false": False})
_mode = _choice("neither PERMISSIVE (skips damaged bytes) nor FAILFAST", {"failfast": True, "permissive": False})
_start = _choice("neither earliest nor latest", {"earliest": False, "latest": True})


def _number(text: str) -> int:
    if not (_DIGITS.fullmatch(text.strip()) and int(text) <= MAX_LONG):
        raise ValueError(f"not a whole number from 0 to {MAX_LONG}")
    return int(text)


def _milliseconds(text: str) -> int:
    if _MILLISECONDS.fullmatch(text):
        return min(max(int(text), -MAX_LONG), MAX_LONG)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("neither milliseconds nor a time such as 2026-11-20T07:00:00+00:00") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


# The attribute of `ReadOptions` that each option sets, and the parser of its text, which raises `ValueError`.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "path": ("path", str),
    "commitlog": ("commitlog", _list),
    "topics": ("topics", _list),
    "body": ("with_body", _flag),
    "fromOffset": ("from_offset", _number),
    "toOffset": ("to_offset", _number),
    "fromTime": ("from_time", _milliseconds),
    "toTime": ("to_time", _milliseconds),
    "partitionSize": ("partition_size", _number),
    "release": ("release", str),
    "broker": ("broker", str),
    "mode": ("fails_on_damage", _mode),
    "after": ("after_lake", _lake),
    "afterVersion": ("after_version", _number),
    "failOnDataLoss": ("fails_on_data_loss", _flag),
    "startingOffset": ("starts_at_end", _start),
    "maxBytesPerTrigger": ("batch_size", lambda text: _number(text) or _BATCH_SIZE),
    "pollMilliseconds": ("poll_ms", _number),
}
