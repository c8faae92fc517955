"""
A broker's own configuration: the settings for the directories and file sizes of its store.

The file is Java properties text. Names are spelled `maped…` until 4.5.1 and `mapped…` since.

`config/*.json` files are JSON, except that numeric names are not quoted.

The epochs of a broker in controller mode (5.0.0+) state which master wrote which part of the log.
`epochFileCheckpoint` is text: the number of entries, the CRC-32 of the following lines, then `epoch-start offset` on
each line. A replica that returns truncates its log where the next master's epoch begins, and copies that master's
records.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from io import BytesIO
from typing import Any, NamedTuple
from zlib import crc32

from rmq_formats.errors import CorruptData
from rmq_formats.properties import MAX_INT

PATH_SEPARATOR = ","  # the separator in storePathCommitLog; a broker's system property can change it

_COMMENT = ("#", "!")
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?P<separator>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|$)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _parse_paths(text: str) -> tuple[str, ...]:
    return tuple(path for path in map(str.strip, text.split(PATH_SEPARATOR)) if path)


def _parse_size(text: str) -> int:
    size = int(text)
    if not 0 < size <= MAX_INT:  # a Java int
        raise ValueError
    return size


def _parse_boolean(text: str) -> bool:
    return text.lower() == "true"  # Boolean.parseBoolean


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """
    The settings of a broker that affect its store; None if the configuration does not have the setting.

    The metadata of a field has each of the broker's names for it, with the parser of the value.
    """

    broker_name: str | None = field(default=None, metadata={"brokerName": str})
    root: str | None = field(default=None, metadata={"storePathRootDir": str})
    commitlog: tuple[str, ...] = field(default=(), metadata={"storePathCommitLog": _parse_paths})
    read_only_commitlog: tuple[str, ...] = field(default=(), metadata={"readOnlyCommitLogStorePaths": _parse_paths})
    segment_size: int | None = field(
        default=None, metadata={"mapedFileSizeCommitLog": _parse_size, "mappedFileSizeCommitLog": _parse_size}
    )
    consume_queue_size: int | None = field(
        default=None, metadata={"mapedFileSizeConsumeQueue": _parse_size, "mappedFileSizeConsumeQueue": _parse_size}
    )
    hash_slots: int | None = field(default=None, metadata={"maxHashSlotNum": _parse_size})
    index_num: int | None = field(default=None, metadata={"maxIndexNum": _parse_size})
    message_index_enable: bool = field(default=True, metadata={"messageIndexEnable": _parse_boolean})
    index_file_write_enable: bool = field(default=True, metadata={"indexFileWriteEnable": _parse_boolean})
    timer_log_size: int | None = field(default=None, metadata={"mappedFileSizeTimerLog": _parse_size})
    timer_precision_ms: int | None = field(default=None, metadata={"timerPrecisionMs": _parse_size})
    delay_level: str | None = field(default=None, metadata={"messageDelayLevel": str})
    enable_consume_queue_ext: bool = field(default=False, metadata={"enableConsumeQueueExt": _parse_boolean})
    is_given: bool = False  # a file was read: settings it leaves out have the broker's default

    @property
    def makes_index_files(self) -> bool:
        """Whether the broker writes index files."""
        return self.message_index_enable and self.index_file_write_enable


_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    name: (one.name, convert) for one in fields(BrokerConf) for name, convert in one.metadata.items()
}


def parse_broker_conf(raw: bytes) -> BrokerConf:
    """Return the settings of a configuration file; `CorruptData` if a number in it is invalid."""
    values: dict[str, Any] = {}
    for name, value in parse_java_properties(raw).items():
        if name not in _FIELDS:
            continue
        setting, convert = _FIELDS[name]
        try:
            values[setting] = convert(value.strip())
        except ValueError as error:
            raise CorruptData(f"{name}={value!r} is not an integer from 1 to {MAX_INT}") from error
    return BrokerConf(**values)


def parse_java_properties(raw: bytes) -> dict[str, str]:
    """Return the names and values of Java properties text; the last value counts if a name occurs twice."""
    values = {}
    for line in _logical_lines(raw.decode("latin-1")):
        match = _SEPARATOR.search(line)
        name, value = (line[: match.start("separator")], line[match.end() :]) if match else (line, "")
        values[_ESCAPE.sub(_unescape, name)] = _ESCAPE.sub(_unescape, value)
    return values


def _logical_lines(text: str) -> Iterator[str]:
    line = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        part = natural.lstrip(" \t\f")
        if not line and (not part or part.startswith(_COMMENT)):
            continue
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
        else:
            yield line
            line = ""
    if line:
        yield line


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _CONTROLS.get(code, code)


# A string, or a number in place of a name. Strings are matched first, so that nothing inside them is matched. Repeats
# are possessive (`*+`): `re` stores 130 bytes per backtracking position, which are gigabytes for a text of some
# megabytes. Bytes are matched, not text: a text with one emoji takes four bytes for each character.
_NUMBER_AS_NAME = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{,]\s*+(-?[0-9]++)(?=\s*+:)', re.DOTALL)
_MAX_VALUES = 3_000_000  # 250,000 topics have 2.5 million; each takes up to 150 bytes, even if it is `[]` in the file
# An odd number of backslashes, and the escapes of a surrogate pair, or of a lone surrogate.
_SURROGATES = re.compile(
    rb"(?<!\\)(?:\\\\)*+(\\)u[dD](?:[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?P<alone>[89a-fA-F]))[0-9a-fA-F]{2}"
)


def decode_json_config(raw: bytes) -> dict[str, object]:
    """Return the object in a configuration file; `CorruptData` for anything else."""
    if sum(map(raw.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise CorruptData(f"more than {_MAX_VALUES:,} values")
    quoted = _replace_some(raw, _NUMBER_AS_NAME, lambda found: found[1] and b'"' + found[1] + b'"')
    if b"\\u" in quoted:  # rare, and the pattern is tried at every byte
        # As a broker does with a lone surrogate: UTF-8 cannot encode it.
        quoted = _replace_some(quoted, _SURROGATES, lambda found: b"?" if found["alone"] else None)
    try:
        values = json.loads(quoted.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is also a ValueError
        raise CorruptData(f"not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise CorruptData(f"valid JSON, but not an object: {type(values).__name__}")
    return values


def _replace_some(raw: bytes, pattern: re.Pattern[bytes], new: Callable[[re.Match[bytes]], bytes | None]) -> bytes:
    """
    Replace each match, starting at its first group, by *new* bytes; None leaves a match unchanged.

    The result is written piece by piece: a list of a million positions takes ten times the memory.
    """
    written, end = BytesIO(), 0
    for found in pattern.finditer(raw):
        if replacement := new(found):
            written.write(raw[end : found.start(1)] + replacement)
            end = found.end()
    return written.getvalue() + raw[end:] if end else raw


def change_counter(config: Mapping[str, object]) -> int:
    """Return the number of changes that a file states in `dataVersion`; 0 if it states none, as up to 4.9.3."""
    return _read_data_version(config, "counter") or 0


def change_time(config: Mapping[str, object]) -> int | None:
    """Return when a file's table was last changed, in ms; None if the file does not state it."""
    return _read_data_version(config, "timestamp")


def _read_data_version(config: Mapping[str, object], name: str) -> int | None:
    version = config.get("dataVersion")
    value = version.get(name) if isinstance(version, dict) else None
    return value if isinstance(value, int) else None


EPOCH_FILE = "epochFileCheckpoint"
_CRC_MASK = 0x7FFFFFFF


class Epoch(NamedTuple):
    """The period of one master, which wrote the records from *start_offset* up to the start of the next epoch."""

    number: int
    start_offset: int


def decode_epochs(raw: bytes) -> tuple[Epoch, ...]:
    """Return the epochs of `epochFileCheckpoint`, oldest first; raise `CorruptData` if no broker writes such a file."""
    try:
        count, crc, *lines = raw.decode("ascii").splitlines()
        pairs = [tuple(map(int, line.split("-"))) for line in lines]
        epochs = tuple(Epoch(number, start) for number, start in pairs)
        is_right = (int(count), int(crc)) == (
            len(epochs),
            crc32("".join(f"{line}\n" for line in lines).encode()) & _CRC_MASK,
        )
    except ValueError as error:
        raise CorruptData(f"not a list of epochs: {error}") from error
    if not is_right:
        raise CorruptData("the length or CRC of the list of epochs differs from its header")
    return epochs
