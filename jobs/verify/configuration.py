"""Checks the positions and the configuration of a broker: the fourth part of a store, next to log, queues and index."""

from collections.abc import Iterator

from jobs.diagnosis import kinds
from jobs.diagnosis.broker_state import ReadSpan, check_broker_state
from jobs.diagnosis.findings import CONFIGURATION, Finding
from jobs.store.broker_config import CONFIG_DIRECTORY, BrokerConfig
from jobs.store.store import Store
from jobs.verify.report import PartReport, unreadable_database_finding
from jobs.verify.rocksdb_queues import verify_timer_files
from rmq_formats.errors import SizeLimitExceeded, UnsupportedFormat


def verify_configuration(store: Store, config: BrokerConfig, read_span: ReadSpan) -> PartReport:
    """Return the report on topics, consumer groups, positions and timers, as *config* and the timer files have them."""
    state = check_broker_state(store, config, read_span)
    report = PartReport(
        [*_find_damaged_databases(store, config), *state.findings],
        {"topics": len(config.topics), "groups": len(config.groups), "positions": config.position_count},
        state.notes,
        doubts=[
            *state.doubts,
            *(str(error) for error in config.errors if isinstance(error, SizeLimitExceeded | UnsupportedFormat)),
        ],
    )
    verify_timer_files(report, store)
    return report


def _find_damaged_databases(store: Store, config: BrokerConfig) -> Iterator[Finding]:
    """Yield findings on databases of the configuration that cannot be read."""
    databases = {
        error.file: error
        for error in config.errors
        if error.file and not isinstance(error, SizeLimitExceeded | UnsupportedFormat)
    }
    for location, error in databases.items():
        if not location.startswith(f"{CONFIG_DIRECTORY}/"):  # `check_broker_state` reports a file
            finding = unreadable_database_finding(CONFIGURATION, error, store)
            yield finding._replace(kind=kinds.DAMAGED_CONFIGURATION)
