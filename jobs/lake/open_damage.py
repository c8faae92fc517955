"""The damage of a store that its lake has met and that is not acknowledged yet: every run's result states it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, cast

# Offsets of a log that a lake will not have, as manifests and summaries name them.
GapRow = TypedDict("GapRow", {"broker": str, "from": int, "to": int, "why": str})
OPEN = "open"  # in a manifest's state
_GAPS_KEPT = 100  # of those that are open; more are counted


class OpenDamage(NamedTuple):
    """What runs have met since the last acknowledgement, or since the first run of a store."""

    since_run: int = 0  # the first run that met something
    quarantined: int = 0  # damaged places
    superseded: int = 0  # times that the broker's log was truncated or rewritten
    contradictions: int = 0  # units of queues that do not agree with the log
    gap_count: int = 0
    gaps: tuple[GapRow, ...] = ()  # the first of them

    @classmethod
    def of(cls, state: Mapping[str, object], own: "OpenDamage") -> "OpenDamage":
        """Read the state of a store's newest manifest; one of an earlier version knows what its *own* run met."""
        found = cast("dict[str, Any] | None", state.get(OPEN))
        return own if found is None else cls(**{**found, "gaps": tuple(found["gaps"])})

    def and_met(
        self, run: int, gaps: Sequence[GapRow], quarantined: int, superseded: int, contradictions: int = 0
    ) -> "OpenDamage":
        """Return the same after one more run."""
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
        counts = {
            "damaged places in quarantine": self.quarantined,
            "gaps": self.gap_count,
            "parts of the log superseded": self.superseded,
            "contradictions of log and queues": self.contradictions,
        }
        if self:
            text = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
            yield f"  OPEN since run {self.since_run}: {text} (`--acknowledge` ends this)"
