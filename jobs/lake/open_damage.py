"""The damage found by runs that is not acknowledged yet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, cast

from jobs.console.amounts import count_text

# A range of a log that a lake will never have, as in manifests and summaries.
GapRow = TypedDict("GapRow", {"broker": str, "from": int, "to": int, "why": str})
OPEN_DAMAGE_KEY = "open"  # in a manifest's state
_GAPS_KEPT = 100  # open gaps that are kept; further ones are only counted


class OpenDamage(NamedTuple):
    """Damage found by runs since the last acknowledgement, or since the first run of a store."""

    since_run: int = 0  # the first run that found damage
    quarantined: int = 0  # damaged places
    superseded: int = 0  # times that the broker's log was truncated or rewritten
    contradictions: int = 0  # units of queues that do not agree with the log
    gap_count: int = 0
    gaps: tuple[GapRow, ...] = ()  # the first open gaps

    @classmethod
    def from_state(cls, state: Mapping[str, object], own: "OpenDamage") -> "OpenDamage":
        """Return the open damage of a manifest's state; *own* for manifests of earlier versions, which have none."""
        found = cast("dict[str, Any] | None", state.get(OPEN_DAMAGE_KEY))
        return own if found is None else cls(**{**found, "gaps": tuple(found["gaps"])})

    def after_run(
        self, run: int, gaps: Sequence[GapRow], quarantined: int, superseded: int, contradictions: int = 0
    ) -> "OpenDamage":
        """Return the open damage after one more run."""
        new = [gap for gap in gaps if gap not in self.gaps]
        if not (new or quarantined or superseded or contradictions):
            return self
        return OpenDamage(
            self.since_run or run,
            self.quarantined + quarantined,
            self.superseded + superseded,
            self.contradictions + contradictions,
            self.gap_count + len(new),
            (*self.gaps, *new)[:_GAPS_KEPT],
        )

    def __bool__(self) -> bool:
        """Return whether anything is open."""
        return self.since_run > 0

    def lines(self) -> Iterator[str]:
        """Yield the open damage as lines of text."""
        counts = (
            (self.quarantined, "damaged range", " of the log in the table quarantine"),
            (self.gap_count, "gap", ""),
            (self.superseded, "superseded part", " of the log"),
            (self.contradictions, "contradiction", " between log and queues"),
        )
        if self:
            text = ", ".join(count_text(count, noun) + where for count, noun, where in counts if count)
            yield f"  OPEN since run {self.since_run}: {text} (acknowledge with --acknowledge)"
