"""How the stores of these tests are laid out and what their brokers are given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.products.index.settings import Wanted
from tests.support.waiting import free_port

_BATCH_UNIT_SIZE: Final = 46
_QUEUE_UNIT_SIZE: Final = 20

PATIENCE: Final = {
    f"waitTimeMillsIn{queue}Queue": "60000"  # milliseconds, not 200 to 5,000: this machine may be busy
    for queue in ("Send", "Pull", "LitePull", "Transaction", "AdminBroker")
}
"""How long a broker lets requests wait before it refuses them."""

OPTIONAL_SETTINGS: Final = frozenset(
    {
        "mapedFileSizeCommitLog",
        "mapedFileSizeConsumeQueue",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mapperFileSizeBatchConsumeQueue",
        "timerWheelEnable",
        "transactionMetricFlushInterval",
        *PATIENCE,
    }
)
"""Settings that are sent to every release although some do not know them."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a store's files; small ones meet every boundary many times in a few kilobytes."""

    commit_log_file_size: int = 16_384
    consume_queue_units: int = 10
    hash_slots: int = 100
    index_entries: int = 20

    @property
    def consume_queue_file_size(self) -> int:
        return self.consume_queue_units * _QUEUE_UNIT_SIZE

    def wanted(self, release: str) -> Wanted:
        """Return the settings that verbs are given for index files of these sizes that *release* wrote."""
        return Wanted(self.hash_slots, self.index_entries, release)


SMALL_GEOMETRY: Final = Geometry()
"""What scenarios use unless they say otherwise."""

REAL_GEOMETRY: Final = Geometry(
    commit_log_file_size=1 << 30, consume_queue_units=300_000, hash_slots=5_000_000, index_entries=20_000_000
)
"""What a broker uses that is given nothing."""


def store_settings(store: Path, geometry: Geometry, more: dict[str, str] | None = None) -> dict[str, str]:
    log_size, queue_size = str(geometry.commit_log_file_size), str(geometry.consume_queue_file_size)
    return {
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        # The name was misspelled up to 4.5.1.
        "mapedFileSizeCommitLog": log_size,
        "mappedFileSizeCommitLog": log_size,
        "mapedFileSizeConsumeQueue": queue_size,
        "mappedFileSizeConsumeQueue": queue_size,
        "mapperFileSizeBatchConsumeQueue": str(geometry.consume_queue_units * _BATCH_UNIT_SIZE),
        "maxHashSlotNum": str(geometry.hash_slots),
        "maxIndexNum": str(geometry.index_entries),
        "haListenPort": str(free_port()),
        "diskMaxUsedSpaceRatio": "98",
        "osPageCacheBusyTimeOutMills": "60000",
        "timerWheelEnable": "false",
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    } | (more or {})


def group_of_one() -> dict[str, str]:
    """Return the settings of a broker that keeps a DLedger log and leads a group without others."""
    peers = f"n0-127.0.0.1:{free_port()}"
    return {"enableDLegerCommitLog": "true", "dLegerGroup": "b0", "dLegerPeers": peers, "dLegerSelfId": "n0"}
