"""Verifications of a store, kept in the lake: the table `findings` is the history of its faults."""

from collections.abc import Sequence
from datetime import UTC, datetime

from jobs.lake.commit import TransactionTakenError, commit, committed_transaction
from jobs.lake.findings import Finding
from jobs.lake.integrity import refuse_foreign_files, refuse_unsupported
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.runs import KnownStore
from jobs.lake.table_file import FileNaming, TableFile
from jobs.lake.tables import FINDINGS

_ATTEMPTS = 5


def record_findings(lake: Lake, known: KnownStore | None, broker: str | None, findings: Sequence[Finding]) -> int:
    """Append *findings* as one more verification of the store, which the lake may know, and return its number."""
    refuse_foreign_files(lake)
    refuse_unsupported(lake, [FINDINGS])
    store_id = known.store_id if known else ""
    label = known.broker if known else broker or DEFAULT_BROKER
    app = f"{store_id or label}/verify"
    for _ in range(_ATTEMPTS):
        number = committed_transaction(lake, FINDINGS.name, app) + 1
        whose = {"broker": label, "store_id": store_id, "verification": number, "time": datetime.now(UTC)}
        name = FileNaming(store_id or "unknown", number).name("findings")
        with TableFile(lake, FINDINGS, name, whose) as file:
            if findings:
                file.write_rows([_row(finding) for finding in findings])
            action = file.close()
        try:
            commit(lake, FINDINGS, [action] if action else [], (app, number), {})
        except TransactionTakenError:
            file.discard()  # another verification had this number
            continue
        return number
    raise OSError(f"{lake.location}: {_ATTEMPTS} other verifications of this store came first")


def _row(finding: Finding) -> dict[str, object]:
    names = {column.name for column in FINDINGS.columns}
    return {name: value for name, value in finding._asdict().items() if name in names}
