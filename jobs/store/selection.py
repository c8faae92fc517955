"""Which messages a lake takes. A selection is recorded with every run: rows that are not there were not wanted."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

CHOSEN = "chosen_until"  # in a manifest's state: up to here, runs took some topics and left others


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by glob patterns, and whether bodies, inflated ones beside compressed ones, and damaged bytes are kept."""

    topics: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()
    with_body: bool = True
    with_inflated: bool = False
    with_damage: bool = True

    def takes(self, topic: str) -> bool:
        """Return whether messages of *topic* are wanted."""
        wanted = not self.topics or any(fnmatchcase(topic, pattern) for pattern in self.topics)
        return wanted and not any(fnmatchcase(topic, pattern) for pattern in self.exclude_topics)

    @property
    def takes_or_all(self) -> Callable[[str], bool] | None:
        """The test, or None where every topic is wanted: then nobody needs to ask."""
        return self.takes if self.topics or self.exclude_topics else None

    def describe(self) -> dict[str, object]:
        """Return the form that a manifest keeps."""
        return asdict(self)
