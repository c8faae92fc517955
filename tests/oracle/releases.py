"""
The RocketMQ releases of the oracle tests, the layout of their stores, and their brokers' settings.

A release is a set of published modules. Some modules of some releases were never published; the nearest published
version replaces those, and only for modules that do not affect the content of a store (see docs/internals/formats.md).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from jobs.store.request import GivenSettings
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.dispatch import QueueKind
from tests.support.published import Module, class_path
from tests.support.waiting import free_port

MATRIX: Final = (
    "4.0.0-incubating", "4.2.0", "4.3.2", "4.5.2", "4.7.0", "4.7.1", "4.9.3", "4.9.8",
    "5.0.0", "5.1.0", "5.1.4", "5.2.0", "5.3.3", "5.4.0", "5.5.0", "5.5.1",
)  # fmt: skip
"""All releases that `make test-matrix` runs, oldest first."""

IN_EVERY_RUN: Final = ("4.9.8", "5.5.0", "5.3.3")
"""
The releases that every run of brokers starts.

They are the newest of 4.x, the newest of 5.x published with all modules, and the one that wrote the store of faults.
"""

_MODULES: Final = ("store", "common", "remoting", "client", "tools", "srvutil", "broker", "namesrv")

_OTHER_VERSIONS: Final[dict[str, dict[str, str]]] = {
    "4.9.8": {"broker": "4.9.7", "namesrv": "4.9.7"},
    "5.5.1": dict.fromkeys(("client", "tools", "srvutil", "namesrv", "tiered-store", "filter", "auth"), "5.5.0"),
}
"""
For each release the modules that were never published under its number, and the nearest version that was.

The last three of 5.5.1 are modules that its broker asks for by the number of the release.
"""


def artifacts_of(release: str) -> tuple[Module, ...]:
    versions = dict.fromkeys(_MODULES, release) | _OTHER_VERSIONS.get(release, {})
    if (4, 4, 0) <= version_of(release) < (5, 3, 0):  # mqadmin needs it, but does not always declare it
        versions |= {"acl": release}
    return tuple(Module("org.apache.rocketmq", f"rocketmq-{name}", version) for name, version in versions.items())


def class_path_of(release: str) -> list[Path]:
    """Return the JARs that run *release*; download them if they are not cached."""
    return class_path(release, artifacts_of(release), transitive=True)


def version_of(release: str) -> tuple[int, int, int]:
    major, minor, patch = release.partition("-")[0].split(".")
    return int(major), int(minor), int(patch)


def marks(*, in_every_run: bool) -> list[pytest.MarkDecorator]:
    """Return the markers of a test with brokers: if it is not in every run, only `make test-matrix` runs it."""
    return [pytest.mark.oracle, *([] if in_every_run else [pytest.mark.campaign])]


def on_releases(*releases: str, since: str = MATRIX[0], in_every_run: str | None) -> pytest.MarkDecorator:
    """Run a test on each `release`, by default on all; all but one of them only in `make test-matrix`."""
    chosen = [one for one in releases or MATRIX if version_of(one) >= version_of(since)]
    return pytest.mark.parametrize(
        "release", [pytest.param(one, marks=marks(in_every_run=one == in_every_run)) for one in chosen]
    )


_UNIT_SIZES: Final = {QueueKind.PLAIN: 20, QueueKind.BATCH: 46}

PATIENCE: Final = {
    f"waitTimeMillsIn{queue}Queue": "60000"  # milliseconds, instead of 200 to 5,000, for a busy machine
    for queue in ("Send", "Pull", "LitePull", "Transaction", "AdminBroker")
}
"""How long a broker lets requests wait before it refuses them."""

OPTIONAL_SETTINGS: Final = frozenset({
    "mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue", "timerWheelEnable", "transactionMetricFlushInterval", *PATIENCE,
})  # fmt: skip
"""Settings that are sent to every release although some do not know them."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a store's files; with small files, a few kilobytes cross every boundary many times."""

    commit_log_file_size: int = 16_384
    consume_queue_units: int = 10
    hash_slots: int = 100
    index_entries: int = 20

    def queue_file_size(self, kind: QueueKind = QueueKind.PLAIN) -> int:
        return self.consume_queue_units * _UNIT_SIZES[kind]

    def wanted(self, release: str | None) -> GivenSettings:
        """Return the settings of commands for index files of these sizes and of *release*."""
        return GivenSettings(self.hash_slots, self.index_entries, release)

    def wanted_with_conf(self, release: str) -> GivenSettings:
        """Return these settings with a broker.conf that contains the size of queue files."""
        return replace(self.wanted(release), conf=BrokerConf(consume_queue_size=self.queue_file_size()))


SMALL_GEOMETRY: Final = Geometry()
"""What scenarios use unless they say otherwise."""

REAL_GEOMETRY: Final = Geometry(
    commit_log_file_size=1 << 30, consume_queue_units=300_000, hash_slots=5_000_000, index_entries=20_000_000
)
"""What a broker uses that is given nothing."""


def store_settings(store: Path, geometry: Geometry, more: dict[str, str] | None = None) -> dict[str, str]:
    log_size, queue_size = str(geometry.commit_log_file_size), str(geometry.queue_file_size())
    return {
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        # The name was misspelled up to 4.5.1.
        "mapedFileSizeCommitLog": log_size,
        "mappedFileSizeCommitLog": log_size,
        "mapedFileSizeConsumeQueue": queue_size,
        "mappedFileSizeConsumeQueue": queue_size,
        "mapperFileSizeBatchConsumeQueue": str(geometry.queue_file_size(QueueKind.BATCH)),
        "maxHashSlotNum": str(geometry.hash_slots),
        "maxIndexNum": str(geometry.index_entries),
        "haListenPort": str(free_port()),
        "diskMaxUsedSpaceRatio": "98",
        "osPageCacheBusyTimeOutMills": "60000",
        "timerWheelEnable": "false",
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    } | (more or {})


def group_of_one_settings() -> dict[str, str]:
    """Return the settings of a broker with a DLedger log that is the only member of its group."""
    peers = f"n0-127.0.0.1:{free_port()}"
    return {"enableDLegerCommitLog": "true", "dLegerGroup": "b0", "dLegerPeers": peers, "dLegerSelfId": "n0"}
