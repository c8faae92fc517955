"""
Rows about the broker's configuration: its files, and each setting and consumer offset that has changed.

Both are read before the log, so the log then contains every message that a consumer has confirmed.

`consumer_offsets` has a row for each offset that has changed. From time to time a run also writes the unchanged
offsets. A reader of the current offsets needs no rows before this *full state*, regardless of the number of runs.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from sys import intern
from typing import Any

from jobs.lake.lake import FULL_STATE_KEY, Lake
from jobs.lake.manifest import ALL_SETTINGS_KEY, BROKER_CONFIG_SHAPE
from jobs.lake.tables import BROKER_CONFIG, CONFIG_FILES, CONSUMER_OFFSETS
from jobs.products import state_file
from jobs.products.product import FinishedProduct, Run, RunOutput, StartedProduct, State
from jobs.products.state_file import read_state_file, write_state_file
from jobs.store.broker_config import (
    CONFIG_DIRECTORY,
    TOO_LARGE,
    BrokerConfig,
    read_broker_config,
    read_config_files,
    unpack_offsets,
)
from jobs.store.store import Store

FILES_KEY = "files"  # key in the state: file name → SHA-256 of the newest version in the lake
GROUP_KIND = "group"
_KINDS = ("topic", GROUP_KIND)
BrokerSettings = Mapping[tuple[str, str], str]  # (kind, name) → JSON, or its digest
ReaderKey = tuple[str, str | None, str]  # kind of reader, consumer group, topic
Offsets = Mapping[ReaderKey, Mapping[str, int]]  # offsets by queue, as in JSON; there may be a million
# In a manifest: `settings` of kind, name, digest; `offsets` of kind, group, topic, and of each queue the next offset.
# If there are many, a file has all of them, and the manifest the changes since: "" or null for what no longer exists.
StateJson = Mapping[str, Any]
_STATE_FILE_MARK = "consumer-offsets"
_ROWS_PER_OFFSET = 4  # maximum rows, on average, that a reader of the current offsets reads for each offset


def start_product(run: Run, state: StateJson | None) -> StartedProduct[Any]:
    """Prepare rows of settings and consumer offsets, one per change since the last run; none if they are unreadable."""
    config, known = read_broker_config(run.store), read_state(run.output.lake, state)

    def finish(_outcomes: object, to_offset: int) -> FinishedProduct:
        if config.unread_reason is not None:
            why = f"the broker's configuration was not compared with that of the previous run: {config.unread_reason}"
            return FinishedProduct(state=state or state_as_json(*known), notes=[why])
        found = find_new_state(config, known)
        full_state, is_full = _plan_full_state(state, run.output.naming.run, known[1], found[1])
        finished = FinishedProduct(state={**store_state(run.output, state, found), **full_state})
        for table, changes in (
            (BROKER_CONFIG, setting_changes(list_settings(config), known[0])),
            (CONSUMER_OFFSETS, offset_changes(found[1], known[1], with_unchanged=is_full)),
        ):
            finished.add(table, run.output.write_config(table, changes, to_offset))
        return finished

    return StartedProduct(run.from_offset, None, finish)


def _plan_full_state(state: StateJson | None, run: int, known: Offsets, current: Offsets) -> tuple[StateJson, bool]:
    """Return the newest full state for the manifest of *run*, and whether this run writes it."""
    changed = sum(1 for _ in offset_changes(current, known))
    since, rows = (state or {}).get(FULL_STATE_KEY) or (0, 0)
    if not changed:
        return {FULL_STATE_KEY: [since, rows]}, False
    if since and rows + changed <= _ROWS_PER_OFFSET * _count_offsets(current):
        return {FULL_STATE_KEY: [since, rows + changed]}, False
    return {FULL_STATE_KEY: [run, 0]}, True


def start_config_files(run: Run, state: State | None) -> StartedProduct[Any]:
    """Prepare rows of configuration files, one for each new, changed or deleted file."""
    known, files = dict(state[FILES_KEY]) if state else {}, tuple(read_config_files(run.store))

    def finish(_outcomes: object, to_offset: int) -> FinishedProduct:
        digests = {name: sha256(data).hexdigest() for name, _, data in files if data is not None}
        unread = sorted(name for name, _, data in files if data is None)
        rows = [
            {
                "name": name,
                "modified": _utc_time(modified_ms),
                "sha256": digests[name],
                "bytes": data,
            }
            for name, modified_ms, data in files
            if data is not None and known.get(name) != digests[name]
        ]
        deleted = sorted(known.keys() - digests.keys() - {*unread})
        rows += [{"name": name, "modified": None, "sha256": None, "bytes": None} for name in deleted]
        digests |= {name: known[name] for name in unread if name in known}
        notes = [f"{CONFIG_DIRECTORY}/{name} is not in the lake: {TOO_LARGE}" for name in unread]
        finished = FinishedProduct(state={FILES_KEY: digests}, notes=notes)
        finished.add(CONFIG_FILES, run.output.write_config(CONFIG_FILES, rows, to_offset))
        return finished

    return StartedProduct(run.from_offset, None, finish)


def _utc_time(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # outside the calendar; no I/O
        return None


# A broker's settings, as digests, and offsets as a run has found them, to be compared with those of the next run.
BrokerState = tuple[BrokerSettings, Offsets]


def state_as_json(digests: BrokerSettings, offsets: Offsets) -> StateJson:
    """Return the state as a manifest keeps it."""
    return {
        "settings": [[*key, digest] for key, digest in sorted(digests.items())],
        "offsets": [[*key, queues] for key, queues in offsets.items()],
    }


def store_state(output: RunOutput, earlier: StateJson | None, found: BrokerState) -> StateJson:
    """Return the state as a manifest keeps it; write a file if too much of it differs from that of *earlier*."""
    digests, offsets = found
    if len(digests) + _count_offsets(offsets) <= state_file.MAX_VALUES_IN_MANIFEST:
        return state_as_json(digests, offsets)
    path = (earlier or {}).get(ALL_SETTINGS_KEY)
    stored = _read_all(output.lake, path) if path else ({}, {})
    changed_digests = [
        [*key, digests.get(key, "")]
        for key in sorted(digests.keys() | stored[0].keys())
        if digests.get(key) != stored[0].get(key)
    ]
    changed_offsets: dict[ReaderKey, dict[str, int | None]] = {}
    changed = 0
    for reader, queue, offset in _changed_offsets(offsets, stored[1]):
        changed_offsets.setdefault(reader, {})[queue] = offset
        changed += 1
    if path is None or len(changed_digests) + changed > state_file.MAX_VALUES_IN_MANIFEST:
        path = write_state_file(output, _STATE_FILE_MARK, state_as_json(digests, offsets), found)
        return {"settings": [], "offsets": [], ALL_SETTINGS_KEY: path}
    listed = [[*key, queues] for key, queues in changed_offsets.items()]
    return {"settings": changed_digests, "offsets": listed, ALL_SETTINGS_KEY: path}


def read_state(lake: Lake, state: StateJson | None) -> BrokerState:
    """Return the state that a manifest describes; an empty one without a manifest."""
    path = (state or {}).get(ALL_SETTINGS_KEY)
    if state is None or path is None:
        return _parse_state(state)
    digests, offsets = _read_all(lake, path)
    changed_digests, changed_offsets = _parse_state(state)
    changed = {key: _without_deleted({**offsets.get(key, {}), **queues}) for key, queues in changed_offsets.items()}
    return (
        {key: digest for key, digest in {**digests, **changed_digests}.items() if digest},
        {key: queues for key, queues in {**offsets, **changed}.items() if queues},
    )


def _without_deleted(queues: Mapping[str, int | None]) -> Mapping[str, int]:
    return {queue: offset for queue, offset in queues.items() if offset is not None}


def _read_all(lake: Lake, path: str) -> BrokerState:
    return read_state_file(lake, path, "consumer offsets", BROKER_CONFIG_SHAPE, _parse_state)


def _parse_state(state: StateJson | None) -> BrokerState:
    kept = state or {"settings": (), "offsets": ()}
    offsets: dict[ReaderKey, Mapping[str, int]] = {}
    for kind, group, topic, queues in kept["offsets"]:
        _add(offsets, (kind, group, topic), queues)
    return {(kind, name): digest for kind, name, digest in kept["settings"]}, offsets


def find_new_state(config: BrokerConfig, known: BrokerState) -> BrokerState:
    """Return the state that a run has found; unchanged parts are the same objects as in *known*."""
    digests = {key: _digest(text) for key, text in list_settings(config).items()}
    offsets: dict[ReaderKey, Mapping[str, int]] = {}
    for kind, group, topic, queues, _ in config.consumer_offsets:
        if queues:
            key = (str(kind), group, topic)
            _add(offsets, key, {intern(str(queue)): offset for queue, offset in unpack_offsets(queues)})
            before = known[1].get(key)
            offsets[key] = before if before == offsets[key] else offsets[key]
    return digests, offsets


def has_only_older_offsets(store: Store, lake: Lake, state: StateJson | None) -> bool:
    """Return whether consumers were moved back since the last run, or are missing, and none has moved forward."""
    config, known = read_broker_config(store), read_state(lake, state)
    if config.unread_reason is not None:
        return False
    _, offsets = find_new_state(config, known)
    pairs = [(offsets.get(key, {}), known[1].get(key, {})) for key in offsets.keys() | known[1].keys()]
    changes = [(now.get(queue, -1), old.get(queue, -1)) for now, old in pairs for queue in now.keys() | old.keys()]
    return any(now < old for now, old in changes) and not any(now > old for now, old in changes)


def setting_changes(current: BrokerSettings, known_digests: BrokerSettings) -> Iterator[dict[str, object]]:
    """Yield rows of new, changed and deleted settings of topics and groups, by kind and name."""
    for key in sorted(current.keys() | known_digests.keys()):
        settings = current.get(key)
        if settings is None or known_digests.get(key) != _digest(settings):
            yield {"kind": key[0], "name": key[1], "settings": settings}


def offset_changes(current: Offsets, known: Offsets, *, with_unchanged: bool = False) -> Iterator[dict[str, object]]:
    """Yield rows of new, moved and deleted consumers, and of all others if *with_unchanged*."""
    for key, queue, offset in _changed_offsets(current, known, with_unchanged=with_unchanged):
        reader = dict(zip(("kind", "consumer_group", "topic"), key, strict=True))
        yield {**reader, "queue_id": int(queue), "next_offset": offset}


def _changed_offsets(
    current: Offsets, known: Offsets, *, with_unchanged: bool = False
) -> Iterator[tuple[ReaderKey, str, int | None]]:
    for key in sorted(current.keys() | known.keys(), key=str):
        now, before = current.get(key, {}), known.get(key, {})
        for queue in sorted(now.keys() | before.keys()) if with_unchanged or now is not before else ():
            if with_unchanged or now.get(queue) != before.get(queue):
                yield key, queue, now.get(queue)


def _count_offsets(offsets: Offsets) -> int:
    return sum(map(len, offsets.values()))


def list_settings(config: BrokerConfig) -> BrokerSettings:
    """Return the settings of topics and groups as the lake has them."""
    return {
        (kind, name): json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        for kind, table in zip(_KINDS, (config.topics, config.groups), strict=True)
        for name, settings in table.items()
    }


def _add(offsets: dict[ReaderKey, Mapping[str, int]], key: ReaderKey, queues: Mapping[str, int]) -> None:
    offsets[key] = {**offsets[key], **queues} if key in offsets else queues


def _digest(settings: str) -> str:
    return sha256(settings.encode("utf-8", "surrogatepass")).hexdigest()[:16]
