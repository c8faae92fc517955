"""The request of `restore`."""

from dataclasses import dataclass
from pathlib import Path

from jobs.console.amounts import TimeArgument
from jobs.console.result import RequestError
from jobs.lake.lake import Lake
from jobs.options.declaration import argument, bundle, flag, option
from jobs.options.places import LAKE, NEW_STORE
from jobs.options.values import OFFSET_OR_TIME, POSITIVE_INTEGER, broker_conf_option
from jobs.store.request import GivenSettings


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The parameters of a restore, or of a check of one."""

    lake: Lake = argument("LAKE", LAKE, make=Lake)
    out: Path | None = option(
        "DIR", "An empty or new directory; with --resume, that of the interrupted restore.", NEW_STORE
    )
    broker: str | None = option("NAME", "The broker's label in the lake, or the id of its store.")
    start: int | TimeArgument | None = option(
        "OFFSET|TIME", "Skip segments that end before this offset or time.", OFFSET_OR_TIME, names="--from"
    )
    until: int | TimeArgument | None = option(
        "OFFSET|TIME", "End the log before the first record at or after this offset or time.", OFFSET_OR_TIME
    )
    segment_size: int | None = option(
        "BYTES",
        "Segment size (mappedFileSizeCommitLog); by default derived from the segments' offsets in the lake.",
        POSITIVE_INTEGER,
    )
    with_queues: bool = flag(
        "Write no ConsumeQueue files; the broker rebuilds them at its first start, which then takes longer.",
        names="--no-queues",
        is_negative=True,
    )
    with_index: bool = flag("Write no index files.", names="--no-index", is_negative=True)
    broker_conf: Path | None = broker_conf_option()
    resume: bool = flag("Continue a restore that was interrupted.")
    given_settings: GivenSettings = bundle(GivenSettings)

    @property
    def target(self) -> Path:
        """The directory to write."""
        if self.out is None:
            raise RequestError("a restore requires a directory")
        return self.out
