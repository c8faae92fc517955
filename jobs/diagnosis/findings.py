"""Findings of `verify`."""

from typing import NamedTuple, Self

from jobs.console.result import Severity
from jobs.diagnosis import kinds

LOG, QUEUES, INDEX, CONFIGURATION = "log", "queues", "index", "configuration"


class Finding(NamedTuple):
    """One problem: something that contradicts the log, or damage of the log itself."""

    part: str  # log, queues, index, configuration
    kind: str  # scripts branch on this value
    file: str  # below the store's root
    offset: int | None  # position in the file of the first wrong byte
    field: str
    found: str  # the stored value
    expected: str  # the expected value
    cause: str  # the likely cause, in words
    times: int = 1  # number of occurrences, from this position on
    log_offset: int | None = None  # the affected offset in the log
    log_end: int | None = None  # end of the affected part of the log, if known
    right_time: int | None = None  # the time that the file should state, ms
    follows: "Finding | None" = None  # the finding that it is a consequence of
    is_undecided: bool = False  # nothing shows which of two files is wrong

    @property
    def title(self) -> str:
        """A short name, for messages."""
        return f"{self.kind} {self.found}" if self.part == LOG else f"{self.kind} {self.file}"

    @property
    def identity(self) -> tuple[str, str, str, int | None, int | None]:
        """The fields that identify it among a store's findings; they stay the same if its cause is refined."""
        return self.part, self.kind, self.file, self.offset, self.log_offset

    @property
    def severity(self) -> Severity:
        """Its own severity; a consequence has the severity of its cause."""
        if self.kind in kinds.LEGAL_KINDS:
            return Severity.HEALTHY
        if self.kind in kinds.DAMAGED_FILE_KINDS:
            return Severity.DAMAGE
        if self.kind == kinds.DELETED_OR_LOST_QUEUE or self.kind in kinds.LOST_STATE_KINDS:
            return Severity.GAP
        if self.follows is not None:
            return self.follows.severity
        if self.part != LOG:
            return Severity.CONTRADICTION
        return Severity.GAP if self.kind in kinds.GAP_KINDS else Severity.DAMAGE

    @property
    def cause_text(self) -> str:
        """The cause, with a note if it is undecided."""
        return f"undecided: {self.cause}" if self.is_undecided else self.cause

    @property
    def follows_text(self) -> str:
        """The title of the finding that it is a consequence of; empty if there is none."""
        return "" if self.follows is None else self.follows.title

    def as_consequence_of(self, finding: "Finding") -> Self:
        """Return this finding as a consequence of a *finding* on the log."""
        cause = f"caused by the log finding: {finding.title}"
        return self._replace(follows=finding, cause=cause, is_undecided=False)

    def to_row(self) -> dict[str, object]:
        """Return the fields that JSON and tables have."""
        row = {**self._asdict(), "cause": self.cause_text, "follows": self.follows_text}
        del row["is_undecided"]
        return row

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**self.to_row(), "severity": self.severity.value}

    @property
    def text(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} @{self.offset}"
        wanted = f", expected {self.expected}" if self.expected else ""
        subject = f"{place} {self.field}" if self.field else place
        states_number = self.field in {"files", "units"} or self.kind in {
            kinds.MISSING_INDEX_ENTRIES,
            kinds.NOT_INDEXED,
        }
        noun = "units" if self.field == "unit" else "times"
        times = f" ({self.times:,} {noun})" if self.times > 1 and not states_number else ""
        return f"{self.kind}: {subject}: {self.found}{wanted}{times} - {self.cause_text}"
