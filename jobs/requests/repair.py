"""The request of `repair`."""

from dataclasses import dataclass
from pathlib import Path

import click

from jobs.diagnosis.acceptance import names_finding
from jobs.lake.lake import Lake
from jobs.options.declaration import flag, option
from jobs.options.places import LAKE, OUTPUT_DIRECTORY, STORE
from jobs.options.values import label_option
from jobs.store.request import StoreSettingsRequest


@dataclass(frozen=True, slots=True)
class RepairRequest(StoreSettingsRequest):
    """The parameters of a repair."""

    out: Path = option(  # new files, and the journal
        "DIR",
        "The directory for new files and the journal: empty, new, or that of an earlier repair.",
        OUTPUT_DIRECTORY,
        required=True,
    )
    lake: Lake | None = option(
        "LAKE", "The lake from which lost and damaged segments and configuration files are restored.", LAKE, make=Lake
    )
    broker: str | None = label_option()
    apply: bool = flag(
        "Install the files in STORE, and keep the replaced files for --undo. The broker must be stopped."
    )
    bridge: bool = flag(
        "Fill lost ranges of the log with bridge records (placeholders), so that the broker keeps the messages after "
        "them."
    )
    deliver_empty: bool = flag(
        "With --bridge: also bridge ranges where consumers will receive an all-zero message instead of the lost one."
    )
    restore_older: bool = flag(
        "Also restore segments older than the first one of STORE. Use this only if they were lost, not deleted by "
        "retention."
    )
    accepted: frozenset[str] = option(
        "FILE|FINDING",
        "Trust the log, and rebuild a FILE that the plan lists as undecided; a pattern such as 'consumequeue/TOPIC/*' "
        "names several files. Or accept a FINDING, as `verify --accept` does. Repeatable.",
        names="--accept",
        multiple=True,
        make=frozenset,
    )
    replica: str | None = option(
        "REPLICA_STORE",
        "The store of a replica, from which missing and damaged files of config/ are copied, such as positions of "
        "consumer groups.",
        STORE,
        names="--positions-from",
    )
    positions: str | None = option(
        "SOURCE",
        "`lake`: advance positions of consumer groups to those in --lake, if these are higher. Without this "
        "option, they are only reported, because they may have been set back on purpose.",
        click.Choice(["lake"]),
    )

    @property
    def accepted_files(self) -> frozenset[str]:
        """Names or patterns of undecided files for which the user trusts the log."""
        return frozenset(name for name in self.accepted if not names_finding(name))

    @property
    def accepted_findings(self) -> frozenset[str]:
        """Names of accepted findings, also of those that the lake does not have."""
        return self.accepted - self.accepted_files
