"""Verbs agree on the messages of damaged stores and of their lakes, or say with their exit codes what they lack."""

import pytest

from tests.support.agreeing_verbs import of_agreement
from tests.support.fault_draws import Draw, drawn, failure, judged

# What went wrong once, each shrunk to its smallest.
PAST = (
    "b514-timer random-queue-page:94476",
    "b514-expired bit-queue-offset:598185",
    "b551-crash-later bit-body:271793",
    "b533-types-crc misdirected-log:689745",
)


@pytest.mark.parametrize("draw", PAST)
def test_what_went_wrong_once_goes_right(draw: str) -> None:
    assert judged(Draw.parsed(f"- {draw}"), of_agreement) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_no_verb_leaves_out_a_message_without_a_word(seed: int) -> None:
    """The line that is shown draws the smallest case again."""
    assert failure(drawn(seed, 3), of_agreement) is None
