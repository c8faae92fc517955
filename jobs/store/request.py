"""The request for a store: where it is, how it is read, and the settings of its files, as the user states them."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import Self

from jobs.options.declaration import argument, bundle, option
from jobs.options.places import STORE
from jobs.options.values import (
    POSITIVE_INTEGER,
    ZONE,
    ParsedType,
    broker_conf_option,
    commitlog_option,
    integer_between,
)
from jobs.storage.local import ReadLimits
from jobs.store.release import parse_release, parse_rules
from jobs.store.running_broker import limit_load_beside_broker
from jobs.store.store import (
    DEFAULT_RANGE_SIZE,
    Store,
    format_place_options,
    list_store,
    log_directories,
    read_broker_conf,
)
from rmq_formats.broker_conf import BrokerConf

_MOST = (1 << 31) - 1  # the largest value of a broker's setting, a Java int
_RELEASE_HELP = "The broker's release; overrides detection."


def _check_release(text: str) -> str:
    parse_rules(text)
    return text


one_release_option = partial(option, "X.Y.Z", _RELEASE_HELP, ParsedType("release", parse_release), is_shared=True)
releases_option = partial(
    option, "X.Y.Z[,X.Y.Z@OFFSET…]", _RELEASE_HELP, ParsedType("release", _check_release), is_shared=True
)
hash_slots_option = partial(
    option, "N", "Slots per index file (maxHashSlotNum).", integer_between(1, _MOST), is_shared=True
)
index_num_option = partial(
    option, "N", "Entries per index file (maxIndexNum).", integer_between(2, _MOST), is_shared=True
)


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """User settings on the sizes and the release of a store's files, and the broker's own configuration."""

    hash_slots: int | None = hash_slots_option()
    index_num: int | None = index_num_option()
    release: str | None = releases_option()
    zone: tzinfo | None = option(
        "ZONE",
        "The broker's time zone; index files are named after their local creation time.",
        ZONE,
        names="--time-zone",
        is_shared=True,
    )
    consume_queue_size: int | None = option(
        "BYTES",
        "Size of one ConsumeQueue file (mappedFileSizeConsumeQueue).",
        integer_between(20, _MOST),
        is_shared=True,
    )
    conf: BrokerConf = field(default_factory=BrokerConf, kw_only=True)

    def with_conf(self, conf: BrokerConf) -> Self:
        """Return the settings with the broker's configuration, which they override."""
        return replace(self, conf=replace(conf, consume_queue_size=self.consume_queue_size or conf.consume_queue_size))

    def option_words(self) -> tuple[str, ...]:
        """Return the options of these settings as words, to be repeated in another command."""
        given = {
            "--hash-slots": self.hash_slots,
            "--index-num": self.index_num,
            "--consume-queue-size": self.consume_queue_size,
            "--release": self.release,
            "--time-zone": self.zone,
        }
        return tuple(word for name, value in given.items() if value is not None for word in (name, str(value)))


NO_GIVEN_SETTINGS = GivenSettings()


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A store that a user named."""

    store: str = argument("STORE", STORE)
    _: KW_ONLY
    commitlog: Sequence[str] = commitlog_option()  # after `resolve`, also those of the broker's configuration
    broker_conf: Path | None = broker_conf_option()
    max_rate: int | None = option(
        "BYTES",
        "Read at most BYTES per second across all tasks, without filling the page cache.",
        POSITIVE_INTEGER,
        is_shared=True,
    )
    range_size: int = DEFAULT_RANGE_SIZE
    # Set by `resolve`:
    conf: BrokerConf = field(default_factory=BrokerConf)
    read_limits: ReadLimits | None = None  # how to read the store
    options: Sequence[str] = ()  # the store's options as the user gave them; printed commands repeat them

    def resolve(self) -> Self:
        """
        Return the request with the broker's configuration, and with the limits for reading next to a running broker.

        If a broker runs, this process lowers its priority.
        """
        return replace(
            self.with_conf(read_broker_conf(self.broker_conf)),
            read_limits=limit_load_beside_broker(self.store, self.max_rate),
            options=self.option_words(),
        )

    def with_conf(self, conf: BrokerConf) -> Self:
        """Return the request with the broker's configuration; the user's settings override it."""
        return replace(self, conf=conf, commitlog=tuple(log_directories(self.commitlog, conf)))

    def option_words(self) -> tuple[str, ...]:
        """Return the options for the store as words, to be repeated in another command."""
        return format_place_options(self.commitlog, self.broker_conf)

    def list_store(self, options: Mapping[str, str] | None = None, processes: int = 1) -> Store:
        """List the store; this number of processes share the rate of reading."""
        limits = self.read_limits.share_among(processes) if self.read_limits else None
        return list_store(self.store, commitlog=self.commitlog, options=options, read_limits=limits)


@dataclass(frozen=True, slots=True)
class StoreSettingsRequest(StoreRequest):
    """A store, and the user's settings on its files."""

    _: KW_ONLY
    given_settings: GivenSettings = bundle(GivenSettings)

    def with_conf(self, conf: BrokerConf) -> Self:
        """Return the request with the broker's configuration; the user's settings override it."""
        return replace(StoreRequest.with_conf(self, conf), given_settings=self.given_settings.with_conf(conf))

    def option_words(self) -> tuple[str, ...]:
        """Return the options for the store as words, to be repeated in another command."""
        return *StoreRequest.option_words(self), *self.given_settings.option_words()
