"""
A broker's own configuration: the settings of its store's places and file sizes.

The file is Java properties text. Every name has been spelled `maped…` until 4.5.1 and `mapped…` since.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rmq_formats.errors import CorruptData

PATH_SEPARATOR = ","  # of storePathCommitLog; a broker's system property can change it

_COMMENT = ("#", "!")
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?P<separator>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|$)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _paths(text: str) -> tuple[str, ...]:
    return tuple(path for path in map(str.strip, text.split(PATH_SEPARATOR)) if path)


def _boolean(text: str) -> bool:
    return text.lower() == "true"  # Boolean.parseBoolean


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """
    The settings of a broker that concern its store; None where the configuration leaves the default.

    A field's metadata: the broker's own names of it, each with the reader of its value.
    """

    broker_name: str | None = field(default=None, metadata={"brokerName": str})
    root: str | None = field(default=None, metadata={"storePathRootDir": str})
    commitlog: tuple[str, ...] = field(default=(), metadata={"storePathCommitLog": _paths})
    read_only_commitlog: tuple[str, ...] = field(default=(), metadata={"readOnlyCommitLogStorePaths": _paths})
    segment_size: int | None = field(
        default=None, metadata={"mapedFileSizeCommitLog": int, "mappedFileSizeCommitLog": int}
    )
    consume_queue_size: int | None = field(
        default=None, metadata={"mapedFileSizeConsumeQueue": int, "mappedFileSizeConsumeQueue": int}
    )
    hash_slots: int | None = field(default=None, metadata={"maxHashSlotNum": int})
    index_num: int | None = field(default=None, metadata={"maxIndexNum": int})
    message_index_enable: bool = field(default=True, metadata={"messageIndexEnable": _boolean})
    index_file_write_enable: bool = field(default=True, metadata={"indexFileWriteEnable": _boolean})
    delay_level: str | None = field(default=None, metadata={"messageDelayLevel": str})
    enable_consume_queue_ext: bool = field(default=False, metadata={"enableConsumeQueueExt": _boolean})
    is_given: bool = False  # a file was read: settings it leaves out have the broker's default

    @property
    def makes_index_files(self) -> bool:
        """Whether the broker writes index files."""
        return self.message_index_enable and self.index_file_write_enable


_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    name: (one.name, convert) for one in fields(BrokerConf) for name, convert in one.metadata.items()
}


def parse_broker_conf(raw: bytes) -> BrokerConf:
    """Return the settings of a configuration file; `CorruptData` when a number in it is none."""
    values: dict[str, Any] = {}
    for name, value in java_properties(raw).items():
        if name not in _FIELDS:
            continue
        setting, convert = _FIELDS[name]
        try:
            values[setting] = convert(value.strip())
        except ValueError as error:
            raise CorruptData(f"{name}={value!r} is no integer") from error
    return BrokerConf(**values)


def java_properties(raw: bytes) -> dict[str, str]:
    """Return the names and values of Java properties text; of a name that is there twice, the last value."""
    return dict(map(_name_and_value, _logical_lines(raw.decode("latin-1"))))


def _logical_lines(text: str) -> Iterator[str]:
    line = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        part = natural.lstrip(" \t\f")
        if not line and (not part or part.startswith(_COMMENT)):
            continue
        line += part
        if _continues(line):
            line = line[:-1]
        else:
            yield line
            line = ""
    if line:
        yield line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _name_and_value(line: str) -> tuple[str, str]:
    match = _SEPARATOR.search(line)
    if match is None:
        return _unescape(line), ""
    return _unescape(line[: match.start("separator")]), _unescape(line[match.end() :])


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _CONTROLS.get(code, code)
