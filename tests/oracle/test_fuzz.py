"""Random messages, real store classes and ours: the files are equal every time."""

import os
import time
from collections.abc import Callable

import pytest

from tests.oracle.fuzzing import DOORS, rounds

_SECONDS = float(os.environ.get("ORACLE_FUZZ_SECONDS", "1"))
_SEED = int(os.environ.get("ORACLE_FUZZ_SEED", "1"))
_MESSAGES_A_ROUND = 2000


@pytest.mark.timeout(_SECONDS * 3 + 300)
def test_files_are_equal_whatever_is_sent(verdict: Callable[[str, str, str], None], release: str) -> None:
    """At least one round through each door, then until ORACLE_FUZZ_SECONDS are over; ORACLE_FUZZ_SEED is the first."""
    deadline = time.monotonic() + _SECONDS
    messages = 0
    for number, played in enumerate(rounds(release, list(DOORS), _SEED, _MESSAGES_A_ROUND), 1):
        assert played.found == [], f"seed {played.seed}, door {played.door}, {played.geometry}"
        messages += played.messages
        if number >= len(DOORS) and time.monotonic() >= deadline:
            break
    verdict(release, "random messages", f"{messages} messages, all files equal")
