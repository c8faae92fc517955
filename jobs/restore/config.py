"""The broker's configuration, as the lake keeps it: topics, groups, offsets of consumers."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from jobs.console.exit_codes import RequestError
from jobs.lake.lake import Lake
from jobs.lake.tables import CONFIG_FILES
from jobs.restore.plan import DELETED, source_of
from jobs.storage.local import LocalStorage, read_file
from jobs.store.beside_broker import FileState
from jobs.store.broker_config import CONFIG_FOLDER

_run = attrgetter("run")
_PROGRESS = ("Offset.json", "OrderInfo.json")  # ends of the names of files of consumers' positions
_NONE = (
    "the lake has no configuration files of this broker: topics and groups must be made before clients are served, and "
    "consumers begin where their own rules say"
)
_FROM_LATER = (
    "the lake has them as they were after the log's new end, and consumers would be ahead of it; delayed messages are "
    "delivered again, consumers begin where their own rules say"
)


class NotResumableError(RequestError):
    """The directory holds files of another restore, or files that no restore wrote."""


def changed(place: Path) -> NotResumableError:
    """Return the error for a file that this restore did not write, or that another process has changed since."""
    return NotResumableError(
        f"{place}: not the file that this restore wrote; it was left as it is. Another process writes into the "
        "directory: restore into a new one"
    )


def create_or_compare(path: Path, data: bytes) -> FileState:
    """Create a file, or find one with the same bytes that a killed run has written; return its state."""
    with suppress(FileExistsError):  # written by the attempt that was interrupted
        LocalStorage().create(str(path), data)
    state = FileState.of(path)
    if state is None or read_file(path) != data:
        raise changed(path)
    return state


class _Version(NamedTuple):
    name: str
    bytes: bytes | None
    to_offset: int
    run: int


class RestoredConfig(NamedTuple):
    """The files that were written, and notes on the others."""

    files: Mapping[str, FileState]  # by path
    notes: tuple[str, ...]
    lost: Mapping[str, str]  # files of the lake, and their faults


def write_config(lake: Lake, store_id: str, out: Path, until: int | None, seen: Mapping[str, str]) -> RestoredConfig:
    """
    Write each file as the newest run found it.

    Of a log that ends at *until*: as the newest run found it whose log ended no later. Where there is none, as the
    first run found it, without the files of consumers' positions: consumers must not be ahead of the log. The
    newest run has *seen* files with these hashes: a lake that lacks one has lost a row.
    """
    versions: dict[str, list[_Version]] = {}
    source = source_of(lake, CONFIG_FILES, store_id)
    for version in source.rows(store_id, _Version, ("name", "to_offset", "run")):
        if _is_name(version.name):
            versions.setdefault(version.name, []).append(version)
    left_out, written = [], dict[str, FileState]()
    lost = {f"config_files, {name}:": DELETED for name in sorted(seen.keys() - versions.keys()) if not source.lost}
    for name, of_file in sorted(versions.items()):
        data = _version(of_file, until)
        if data is None:
            newest = max(of_file, key=_run)
            left_out += [name] if newest.bytes is not None else []
            continue
        if until is None and name in seen and sha256(data).hexdigest() != seen[name]:
            lost[f"config_files, {name}:"] = f"{DELETED}, and an older version is written"
        path = out / CONFIG_FOLDER / name
        written[str(path)] = create_or_compare(path, data)
    return RestoredConfig(written, tuple(_notes(written, left_out)), {**source.lost, **lost})


def _version(of_file: Sequence[_Version], until: int | None) -> bytes | None:
    """Return the version of a file that belongs to a log that ends at *until*; None where there is none."""
    in_time = [version for version in of_file if until is None or version.to_offset <= until]
    if in_time:
        return max(in_time, key=_run).bytes
    oldest = min(of_file, key=_run)
    return None if oldest.name.endswith(_PROGRESS) else oldest.bytes


def _notes(written: Collection[str], left_out: Sequence[str]) -> list[str]:
    if not written and not left_out:
        return [_NONE]
    return [f"{', '.join(left_out)} left out: {_FROM_LATER}"] if left_out else []


def _is_name(name: str) -> bool:
    return bool(name) and "/" not in name and "\0" not in name and name not in {".", ".."}
