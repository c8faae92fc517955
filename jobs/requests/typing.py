"""The request of `type`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.lake.lake import Lake
from jobs.options.declaration import argument, flag, option
from jobs.options.places import CHANGED_LAKE
from jobs.options.values import FILE, ParsedType

if TYPE_CHECKING:
    from jobs.typed.declaration import TopicType


def _parse_limit(text: str) -> int | float:
    """Parse the limit on dead letters per topic and run: a number, a ratio (`0.01`) or a percentage (`1%`)."""
    found = re.fullmatch(r"(\d+)|(\d*\.\d+|\d+(?:\.\d+)?(?=%))(%?)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a number of dead letters (100), a ratio (0.01) or a percentage (1%)")
    if found[1] is not None:
        return int(found[1])
    ratio = float(found[2]) / (100 if found[3] else 1)
    if ratio > 1:
        raise ValueError(f"{text!r}: a ratio must be at most 1 (100%)")
    return ratio


@dataclass(frozen=True)
class TypeRequest:
    """The parameters of a typing run: the topics and their types."""

    lake: Lake = argument("LAKE", CHANGED_LAKE, make=Lake)
    types: "tuple[TopicType, ...]" = ()  # the contents of `source`
    source: Path | None = option(
        "FILE",
        "The file that declares topics and their columns; see docs/guides/typed-tables.md.",
        FILE,
        names="--types",
    )
    retype: tuple[str, ...] = option(
        "TOPIC",
        "Rebuild the topic's table from all of its messages, as FILE declares it now. Repeatable.",
        multiple=True,
    )
    retry: bool = flag("Retry dead letters: those that now match FILE become rows of the typed tables.")
    accept_dead_letters: bool = flag("With --retype: proceed even if typed rows become dead letters.")
    limit: float | None = option(
        "RATIO|COUNT",
        "Exit with code 3 if more than this number, ratio or percentage (such as 100, 0.01 or 1%) of a topic's "
        "messages became dead letters in this run. By default: if all of a topic's messages did.",
        ParsedType("ratio|count", _parse_limit),
        names="--max-dead-letters",
    )
    acknowledge: bool = flag(
        "Acknowledge the dead letters of earlier runs. Until they are acknowledged or typed, every run ends with exit "
        "code 3."
    )
