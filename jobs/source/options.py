"""The options of the Spark data source."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Self

from jobs.storage.settings import FILE_SYSTEM_PREFIX
from jobs.store.selection import Selection
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import MAX_LONG

FORMAT_NAME = "rocketmq-store"
NO_READ_BOUNDS = (0, MAX_LONG, -MAX_LONG, MAX_LONG)  # from and to offset, from and to time
_BATCH_SIZE = 4 << 30  # bytes of the log in a micro-batch: otherwise the first one would be the whole log
_DIGITS = re.compile(r"[0-9]{1,19}")
_MILLISECONDS = re.compile(r"-?[0-9]{1,60}")


def _parse_list(text: str) -> tuple[str, ...]:
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


def _parse_number(text: str) -> int:
    if not (_DIGITS.fullmatch(text.strip()) and int(text) <= MAX_LONG):
        raise ValueError(f"not a whole number from 0 to {MAX_LONG}")
    return int(text)


def _parse_milliseconds(text: str) -> int:
    if _MILLISECONDS.fullmatch(text):
        return min(max(int(text), -MAX_LONG), MAX_LONG)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("neither milliseconds nor a time such as 2026-11-20T07:00:00+00:00") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _option(name: str, parse: Callable[[str], Any], default: Any = MISSING) -> Any:  # noqa: ANN401 - of any type
    """Declare a field that an option sets; *parse* raises `ValueError` for an invalid text."""
    return field(default=default, metadata={"option": name, "parse": parse})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The values of the options."""

    path: str = _option("path", str)
    commitlog: tuple[str, ...] = _option("commitlog", _parse_list, ())
    selection: Selection = field(default_factory=Selection)  # of the options `topics` and `body`
    from_offset: int = _option("fromOffset", _parse_number, NO_READ_BOUNDS[0])
    to_offset: int = _option("toOffset", _parse_number, NO_READ_BOUNDS[1])  # exclusive
    from_time: int = _option("fromTime", _parse_milliseconds, NO_READ_BOUNDS[2])  # ms, store time
    to_time: int = _option("toTime", _parse_milliseconds, NO_READ_BOUNDS[3])  # exclusive
    partition_size: int = _option("partitionSize", _parse_number, 0)  # 0: the default of a batch or of a stream
    release: str | None = _option("release", str, None)
    broker: str | None = _option("broker", str, None)
    fails_on_damage: bool = _option("mode", _mode, default=False)  # whether damaged bytes stop the read
    after_lake: str | None = _option("after", _lake, None)  # reading starts where the lake's messages of this store end
    after_version: int | None = _option(
        "afterVersion", _parse_number, None
    )  # a version of the lake's table of messages
    fails_on_data_loss: bool = _option("failOnDataLoss", _flag, default=True)
    starts_at_end: bool = _option("startingOffset", _start, default=False)  # whether reading starts at the log's end
    batch_size: int = _option("maxBytesPerTrigger", lambda text: _parse_number(text) or _BATCH_SIZE, _BATCH_SIZE)
    poll_ms: int = _option("pollMilliseconds", _parse_number, 500)
    file_system: Mapping[str, str] | None = None
    columns: tuple[str, ...] | None = None  # the columns of a schema that the user gave: Spark passes no other columns

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options; their names are not case-sensitive."""
        declared = {one.metadata["option"]: (one.name, one.metadata["parse"]) for one in fields(cls) if one.metadata}
        declared |= {"topics": ("topics", _parse_list), "body": ("with_body", _flag)}
        given = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in declared}
        for name in given.keys() - names.keys() - {"paths"}:  # Spark also passes options that are not of this source
            near = get_close_matches(name, names, n=1, cutoff=0.8)
            if near:
                raise UnsupportedFormat(f"unknown option {name}: did you mean {names[near[0]]}?")
        if not given.get("path", "").strip():
            raise UnsupportedFormat(f"format {FORMAT_NAME} requires exactly one path: load(STORE)")
        values: dict[str, Any] = {}
        for name, (attribute, parse) in declared.items():
            if name.lower() in given:
                text = given[name.lower()]
                try:
                    values[attribute] = parse(text)
                except ValueError as error:
                    raise UnsupportedFormat(f"option {name}: {text[:60]!r} is {error}") from error
        selection = Selection(topics=values.pop("topics", ()), with_body=values.pop("with_body", True))
        file_system = {name: value for name, value in given.items() if name.startswith(FILE_SYSTEM_PREFIX)}
        return cls(**values, selection=selection, file_system=file_system)

    @property
    def fails_on_any_loss(self) -> bool:
        """Whether anything that is lost stops the read."""
        return self.fails_on_data_loss or self.fails_on_damage
