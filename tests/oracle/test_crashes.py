"""Brokers killed at random moments, started again and killed again: every file they leave has an explanation."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from rmq_formats.consumequeue.layout import UNIT
from tests.oracle.conftest import Kills
from tests.oracle.judge import Writer, by_scalar, explain_index, on_disk, records, unfaithful
from tests.oracle.sessions import DirectMessage
from tests.oracle.settings import SMALL_GEOMETRY

Verdict = Callable[[str, str, str], None]

_LIVES = 3


def test_a_broker_killed_at_any_moment_leaves_nothing_unexplained(
    kills: Kills, tmp_path: Path, verdict: Verdict, release: str
) -> None:
    """
    The log has no damage; queues lack at most the newest units; index files follow one from another.

    Killed in the middle of hundreds of appends, three times in a row on one store.
    """
    random = Random(release)
    store = tmp_path / "store"
    writer = Writer(((0, release),), SMALL_GEOMETRY)
    seen: set[str] = set()
    for life in range(_LIVES):
        kills(release, store, islice(_messages(life), 400), after=random.randrange(20, 300))
        log = records(store)
        explained = explain_index(store, log, writer)
        seen |= set(explained)

        assert unfaithful(store) == []
        assert "unexplained" not in explained
        assert _missing_units(by_scalar(log, writer).queues, on_disk(store).queues) <= {"behind"}
    verdict(release, "killed at random moments", f"explained: {', '.join(sorted(seen))}")


def _messages(life: int) -> Iterator[DirectMessage]:
    for number in range(10**6):
        properties = f"UNIQ_KEY\1life{life}-{number}\2KEYS\1k{number} all\2TAGS\1Tag{number % 3}\2"
        yield DirectMessage(f"K{number % 3}", number % 2, bytes(300 + number % 7), properties)


def _missing_units(made: dict[str, bytes], real: dict[str, bytes]) -> set[str]:
    """Say how real queues differ from ours: `behind` if a queue's last units are not written yet."""
    kinds = set()
    for name in made.keys() | real.keys():
        ours, theirs = made.get(name, b""), real.get(name, b"")
        if ours != theirs:
            written = len(theirs.rstrip(b"\0"))
            whole = -(-written // UNIT.size) * UNIT.size
            kinds.add("behind" if theirs[:whole] == ours[:whole] else f"different: {name}")
    return kinds
