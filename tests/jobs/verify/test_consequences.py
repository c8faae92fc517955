"""Findings that are consequences of other findings."""

from pathlib import Path

from jobs.console.result import Severity
from jobs.requests.verify import VerifyRequest
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from rmq_formats.commitlog.layout import HEAD
from tests.support.commands import overwrite
from tests.support.query_stores import Sent, stored, write_store


def test_a_consequence_of_a_contradiction_is_not_rated_as_damage(tmp_path: Path) -> None:
    """
    No checksum covers the queue id of a record, so that a unit elsewhere contradicts a record that may be wrong.

    The missing queue follows from that contradiction, and nothing is known to be damaged.
    """
    records = stored([Sent("T1"), Sent("T1"), Sent("T1")])
    store = write_store(tmp_path / "store", records, with_index=False)
    log = next((store / "commitlog").iterdir())
    overwrite(log, records[2].physical_offset + HEAD.offset("queue_id"), (7).to_bytes(4, "big"))

    verdict = verify(VerifyRequest(str(store)), SerialWorkers())

    ((cause, (consequence,)),) = verdict.findings_by_cause

    assert cause.title == consequence.to_row()["follows"]
    assert Severity.CONTRADICTION == cause.severity
    assert Severity.CONTRADICTION == consequence.severity
    assert Severity.CONTRADICTION == verdict.severity
