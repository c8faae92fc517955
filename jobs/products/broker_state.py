"""Which settings and offsets of a broker have changed since a run: what its next run must know of them, as JSON."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from jobs.store.broker_config import BrokerConfig, Progress, broker_config
from jobs.store.store import Store

TO_OFFSET = "to_offset"
_SETTINGS, _OFFSETS = "settings", "offsets"
_KINDS = ("topic", "group")


class SettingChange(NamedTuple):
    """A topic or a group that is new, has other settings, or was deleted."""

    kind: str
    name: str
    settings: str | None


class OffsetChange(NamedTuple):
    """A reader of a queue that is new, is elsewhere, or was deleted."""

    kind: str
    consumer_group: str | None
    topic: str
    queue_id: int
    next_offset: int | None


class ReaderKey(NamedTuple):
    """Whose offset in which queue."""

    kind: str
    consumer_group: str | None
    topic: str
    queue_id: int


class BrokerState(NamedTuple):
    """A broker's settings as a run has found them, to be compared with those of the next run."""

    digests: Mapping[tuple[str, str], str]  # (kind, name) → of the settings
    offsets: Mapping[ReaderKey, int]  # the next one of each reader

    def as_json(self) -> dict[str, object]:
        """Return the state as a manifest keeps it."""
        return {
            _SETTINGS: [[*key, digest] for key, digest in sorted(self.digests.items())],
            _OFFSETS: [[*key, offset] for key, offset in self.offsets.items()],
        }


def kept_state(state: Mapping[str, Any] | None) -> BrokerState:
    """Return the state that a manifest has kept; an empty one where it has none."""
    kept = state or {_SETTINGS: [], _OFFSETS: []}
    return BrokerState(
        {(kind, name): digest for kind, name, digest in kept[_SETTINGS]},
        {ReaderKey(*key): offset for *key, offset in kept[_OFFSETS]},
    )


def has_changed(store: Store, state: Mapping[str, Any]) -> bool:
    """Return whether a run would find a change; what cannot be read has not changed."""
    config, known = broker_config(store), kept_state(state)
    return config.unread is None and any((*setting_changes(config, known), *offset_changes(config, known)))


def new_state(config: BrokerConfig) -> BrokerState:
    """Return the state that a run has found."""
    return BrokerState(
        {key: _digest(settings) for key, settings in _settings(config)},
        {_key(reader): reader.next_offset for reader in config.progress},
    )


def setting_changes(config: BrokerConfig, known: BrokerState) -> Iterator[SettingChange]:
    """Yield new, changed and deleted settings, by kind and name."""
    there = dict(_settings(config))
    for key in sorted(there.keys() | known.digests.keys()):
        settings = there.get(key)
        if settings is None or known.digests.get(key) != _digest(settings):
            yield SettingChange(*key, settings)


def offset_changes(config: BrokerConfig, known: BrokerState) -> Iterator[OffsetChange]:
    """Yield new, moved and deleted consumers."""
    there = {_key(reader): reader.next_offset for reader in config.progress}
    for key in sorted(there.keys() | known.offsets.keys(), key=str):
        if there.get(key) != known.offsets.get(key):
            yield OffsetChange(*key, there.get(key))


def _settings(config: BrokerConfig) -> Iterator[tuple[tuple[str, str], str]]:
    for kind, table in zip(_KINDS, (config.topics, config.groups), strict=True):
        for name, settings in table.items():
            yield (kind, name), json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _key(reader: Progress) -> ReaderKey:
    return ReaderKey(str(reader.kind), reader.consumer_group, reader.topic, reader.queue_id)


def _digest(settings: str) -> str:
    return sha256(settings.encode("utf-8", "surrogatepass")).hexdigest()[:16]
