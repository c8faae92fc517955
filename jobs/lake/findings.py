"""A finding: one row of the table `findings`, as `verify` makes it."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that is not as the log says."""

    part: str  # queues, index, log
    kind: str  # the class: what scripts branch on
    file: str  # below the store's root
    offset: int | None  # in the file, of the first byte that is wrong
    field: str
    found: str  # what stands there
    expected: str  # what should
    cause: str  # the likely one, in words
    times: int = 1  # how often, from this place on

    @property
    def text(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} @{self.offset}"
        often = f" ({self.times} times)" if self.times > 1 else ""
        wanted = f", expected {self.expected}" if self.expected else ""
        return f"{self.kind}: {place} {self.field}: {self.found}{wanted}{often} - {self.cause}"
