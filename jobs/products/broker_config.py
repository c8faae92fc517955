"""
Settings of topics and groups, and positions of consumers: a row for each that has changed since the run before.

They are read before the log is: what a consumer has confirmed by then, the log has by the time it is read.
"""

from functools import partial

from jobs.lake.tables import BROKER_CONFIG, CONSUMER_OFFSETS
from jobs.products.broker_state import (
    TO_OFFSET,
    BrokerState,
    KeptState,
    kept_state,
    new_state,
    offset_changes,
    setting_changes,
    settings_of,
)
from jobs.products.product import Finished, Output, Run, Started, nothing_to_collect
from jobs.store.broker_config import BrokerConfig, broker_config


def start(run: Run, state: KeptState | None) -> Started[None]:
    """Read the configuration as it is now; nothing of the log is needed."""
    finish = partial(_finish, run.output, broker_config(run.store), kept_state(state))
    return Started(run.from_offset, nothing_to_collect, finish)


def _finish(output: Output, config: BrokerConfig, known: BrokerState, _outcomes: object, to_offset: int) -> Finished:
    """Add a row for each change since the state that is *known*; of what cannot be read in full, none."""
    if config.unread is not None:
        why = f"the broker's configuration is not compared with that of the run before: {config.unread}"
        return Finished(state={**known.as_json(), TO_OFFSET: to_offset}, notes=[why])
    there = new_state(config, known)
    finished = Finished(state={**there.as_json(), TO_OFFSET: to_offset})
    for table, changes in (
        (BROKER_CONFIG, setting_changes(settings_of(config), known)),
        (CONSUMER_OFFSETS, offset_changes(there, known)),
    ):
        finished.add(table, output.write_config(table, (change._asdict() for change in changes), to_offset))
    return finished
