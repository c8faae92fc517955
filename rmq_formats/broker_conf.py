"""
A broker's own configuration: the settings of its store's places and file sizes.

The file is Java properties text. Every name has been spelled `maped…` until 4.5.1 and `mapped…` since.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_formats.errors import CorruptData

PATH_SEPARATOR = ","  # of storePathCommitLog; a broker's system property can change it

_COMMENT = ("#", "!")
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?P<separator>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|$)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """The settings of a broker that concern its store; None where the configuration leaves the default."""

    broker_name: str | None = None
    broker_cluster_name: str | None = None
    root: str | None = None
    commitlog: tuple[str, ...] = ()
    read_only_commitlog: tuple[str, ...] = ()
    dledger_commitlog: str | None = None
    dledger_self_id: str | None = None
    segment_size: int | None = None
    consume_queue_size: int | None = None
    hash_slots: int | None = None
    index_num: int | None = None
    delay_level: str | None = None
    store_type: str | None = None
    enable_dledger: bool = False
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    enable_consume_queue_ext: bool = False

    @property
    def commitlog_paths(self) -> tuple[str, ...]:
        """Every folder that holds a part of the log, those for writing first."""
        return self.commitlog + self.read_only_commitlog


def _paths(text: str) -> tuple[str, ...]:
    return tuple(path for path in map(str.strip, text.split(PATH_SEPARATOR)) if path)


def _boolean(text: str) -> bool:
    return text.lower() == "true"  # Boolean.parseBoolean


_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "brokerName": ("broker_name", str),
    "brokerClusterName": ("broker_cluster_name", str),
    "storePathRootDir": ("root", str),
    "storePathCommitLog": ("commitlog", _paths),
    "readOnlyCommitLogStorePaths": ("read_only_commitlog", _paths),
    "storePathDLedgerCommitLog": ("dledger_commitlog", str),
    "dLegerSelfId": ("dledger_self_id", str),  # RocketMQ's own spelling
    "mapedFileSizeCommitLog": ("segment_size", int),
    "mappedFileSizeCommitLog": ("segment_size", int),
    "mapedFileSizeConsumeQueue": ("consume_queue_size", int),
    "mappedFileSizeConsumeQueue": ("consume_queue_size", int),
    "maxHashSlotNum": ("hash_slots", int),
    "maxIndexNum": ("index_num", int),
    "messageDelayLevel": ("delay_level", str),
    "storeType": ("store_type", str),
    "enableDLegerCommitLog": ("enable_dledger", _boolean),
    "enableLmq": ("enable_lmq", _boolean),
    "enableMultiDispatch": ("enable_multi_dispatch", _boolean),
    "enableConsumeQueueExt": ("enable_consume_queue_ext", _boolean),
}


def parse_broker_conf(raw: bytes) -> BrokerConf:
    """Return the settings of a configuration file; `CorruptData` when a number in it is none."""
    values: dict[str, Any] = {}
    for name, value in java_properties(raw).items():
        if name not in _FIELDS:
            continue
        field, convert = _FIELDS[name]
        try:
            values[field] = convert(value.strip())
        except ValueError as error:
            reason = f"{name}={value!r} is no integer"
            raise CorruptData(reason) from error
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
