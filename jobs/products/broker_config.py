"""
Settings of topics and groups, and positions of consumers: a row for each that has changed since the run before.

They are read before the log is: what a consumer has confirmed by then, the log has by the time it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.lake.tables import BROKER_CONFIG, CONSUMER_OFFSETS, Table
from jobs.products.broker_state import (
    TO_OFFSET,
    BrokerState,
    KeptState,
    OffsetChange,
    SettingChange,
    Settings,
    kept_state,
    new_state,
    offset_changes,
    setting_changes,
    settings_of,
)
from jobs.products.product import Finished, Made, Run, Started, nothing_to_collect
from jobs.store.broker_config import broker_config
from jobs.store.chain import Outcome


def start(run: Run, state: KeptState | None) -> "StartedBrokerConfig":
    """Read the configuration as it is now; nothing of the log is needed."""
    config, known = broker_config(run.store), kept_state(state)
    there, settings = new_state(config, known), settings_of(config)
    return StartedBrokerConfig(run, run.from_offset, nothing_to_collect, known, there, settings, config.unread)


@dataclass(frozen=True, slots=True)
class StartedBrokerConfig(Started[None]):
    """A broker's configuration in a run."""

    known: BrokerState  # as the lake has it
    there: BrokerState
    settings: Settings
    unread: str | None  # why something of it is missing

    def finish(self, outcomes: Sequence[Outcome[Made[None]]], to_offset: int) -> Finished:
        """Add a row for each change; of a configuration that cannot be read in full, none."""
        del outcomes
        if self.unread is not None:
            why = f"the broker's configuration is not compared with that of the run before: {self.unread}"
            return Finished(state={**self.known.as_json(), TO_OFFSET: to_offset}, notes=[why])
        finished = Finished(state={**self.there.as_json(), TO_OFFSET: to_offset})
        changes: dict[Table, Iterator[SettingChange | OffsetChange]] = {
            BROKER_CONFIG: setting_changes(self.settings, self.known),
            CONSUMER_OFFSETS: offset_changes(self.there, self.known),
        }
        for table, rows in changes.items():
            written = self.run.output.write_config(table, (change._asdict() for change in rows), to_offset)
            finished.add(table, written)
        return finished
