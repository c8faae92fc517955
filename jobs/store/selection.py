"""Which messages a lake takes. A selection is recorded with every run: rows that are not there were not wanted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple, Self, cast

CHOSEN = "chosen"  # in `detail` of a row of `runs`: the state of the choices, so that a query reads no manifest
_UNTIL = "chosen_until"  # in a manifest's state: up to here, runs took some topics and left others
_CHOICES = "choices"  # in a manifest's state: the patterns of all these runs, each pair once


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


class TopicChoices(NamedTuple):
    """The part of a log of which runs took some topics only, and their choices: none where they are not known."""

    until: int = 0
    choices: tuple[Selection, ...] = ()

    @classmethod
    def of(cls, state: Mapping[str, object], selection: Mapping[str, object]) -> Self:
        """Read the newest manifest of a store; one of an earlier version knows its own choice alone."""
        own = [selection.get("topics") or (), selection.get("exclude_topics") or ()]
        pairs = cast("list[list[list[str]]]", state.get(_CHOICES, [own] if any(own) else []))
        choices = tuple(Selection(tuple(topics), tuple(excluded)) for topics, excluded in pairs)
        return cls(cast("int", state.get(_UNTIL, 0)), choices)

    def and_then(self, selection: Selection, until: int) -> "TopicChoices":
        """Return the same after one more run, up to *until*."""
        if selection.takes_or_all is None:
            return self
        own = Selection(selection.topics, selection.exclude_topics)
        is_known = self.choices or not self.until
        return TopicChoices(until, tuple(dict.fromkeys((*self.choices, own))) if is_known else ())

    @property
    def state(self) -> dict[str, object]:
        """The form that a manifest's state keeps."""
        pairs = [(one.topics, one.exclude_topics) for one in self.choices]
        return {_UNTIL: self.until, _CHOICES: pairs} if self.until else {}

    def left_out(self, topics: Iterable[str] = ()) -> str | None:
        """Say that messages of *topics*, or of some topic where none is named, may have been left out."""
        asked = list(topics)
        is_whole = asked and self.choices and all(one.takes(topic) for one in self.choices for topic in asked)
        if not self.until or is_whole:
            return None
        names = (("--topics", "topics"), ("--exclude-topics", "exclude_topics"))
        given = [
            " ".join(f"{option} {','.join(getattr(one, name))}" for option, name in names if getattr(one, name))
            for one in self.choices
        ]
        patterns = "; ".join(given) or "--topics, --exclude-topics"
        return (
            f"up to offset {self.until} earlier runs took some topics only ({patterns}): "
            "messages of the others before it are not in this lake; a new lake gets them"
        )
