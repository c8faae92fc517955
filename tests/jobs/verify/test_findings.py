"""Findings as data and as text."""

from jobs.diagnosis.findings import QUEUES, Finding


def test_only_the_field_says_that_a_cause_is_undecided() -> None:
    finding = Finding(QUEUES, "dangling", "consumequeue/T/0/0", 0, "unit", "1", "2", "a or b", is_undecided=True)
    decided = finding._replace(cause="undecided topics were deleted", is_undecided=False)

    assert "undecided: a or b" == finding.cause_text == finding.to_dict()["cause"]
    assert "dangling: consumequeue/T/0/0 @0 unit: 1, expected 2 - undecided: a or b" == finding.text
    assert "undecided topics were deleted" == decided.to_row()["cause"]
    assert "is_undecided" not in finding.to_row()
    assert not finding.as_consequence_of("gap 1 to 2").is_undecided
