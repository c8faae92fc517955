"""
Settings of topics and groups, and how far consumers are: what has changed since the run before is a row each.

They are read before the log is: what a consumer has confirmed by then, the log has by the time it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.lake.tables import BROKER_CONFIG, CONSUMER_OFFSETS
from jobs.products.broker_state import TO_OFFSET, BrokerState, kept_state, new_state, offset_changes, setting_changes
from jobs.products.product import Finished, Made, NothingToCollect, Run, Started, State
from jobs.store.broker_config import BrokerConfig, broker_config
from jobs.store.chain import Outcome


def start(run: Run, state: State | None) -> "StartedBrokerConfig":
    """Read the configuration as it is now; nothing of the log is needed."""
    return StartedBrokerConfig(run, run.from_offset, NothingToCollect, kept_state(state), broker_config(run.store))


@dataclass(frozen=True, slots=True)
class StartedBrokerConfig(Started[None]):
    """A broker's configuration in a run."""

    known: BrokerState  # as the lake has it
    config: BrokerConfig

    def finish(self, outcomes: Sequence[Outcome[Made[None]]], to_offset: int) -> Finished:
        """Add a row for each change; of a configuration that cannot be read in full, none."""
        del outcomes
        if self.config.unread is not None:
            why = f"the broker's configuration is not compared with that of the run before: {self.config.unread}"
            return Finished(state=self.known.as_json() | {TO_OFFSET: to_offset}, notes=[why])
        finished = Finished(state=new_state(self.config).as_json() | {TO_OFFSET: to_offset})
        output = self.run.output
        for table, changes in (
            (BROKER_CONFIG, [change._asdict() for change in setting_changes(self.config, self.known)]),
            (CONSUMER_OFFSETS, [change._asdict() for change in offset_changes(self.config, self.known)]),
        ):
            if changes:
                with output.file(table, "config", to_offset=to_offset, run=output.naming.run) as file:
                    file.write_rows(changes)
                    finished.add(table, file.close())
        return finished
