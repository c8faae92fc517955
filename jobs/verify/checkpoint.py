"""The broker's checkpoint: how far it says that log and queues were flushed, beside what the log holds."""

from collections.abc import Iterator
from datetime import UTC, datetime

from jobs.diagnosis.checkpoint import checkpoint_file, checkpoint_of
from jobs.lake.findings import LOG, Finding
from jobs.store.store import Store
from rmq_formats.store import CHECKPOINT, CHECKPOINT_SIZE, Checkpoint

CHECKPOINT_AHEAD = "checkpoint_after_log"
SHORT_CHECKPOINT = "checkpoint_cut_short"
_FIELDS = ("physical_timestamp", "logic_timestamp")


def checkpoint_findings(store: Store, newest: int) -> tuple[list[Finding], list[str]]:
    """Return findings on the times of log and queues (*newest*: the log's latest), and notes on unknown times."""
    stored = checkpoint_file(store)
    if stored is None:
        return [], ["there is no checkpoint: how far the broker had flushed is not known; its next start makes one"]
    findings = []
    if stored.size != CHECKPOINT_SIZE:
        cause = "the file was cut or lengthened; after a crash the broker would read more of its log than it has to"
        found = str(stored.size), str(CHECKPOINT_SIZE)
        findings.append(Finding(LOG, SHORT_CHECKPOINT, "checkpoint", stored.size, "size", *found, cause))
    checkpoint = checkpoint_of(store)
    if checkpoint is not None and newest and store.is_closed:  # a running broker's may be newer than the log's copy
        findings += _ahead(checkpoint, newest)
    return findings, []


def _ahead(checkpoint: Checkpoint, newest: int) -> Iterator[Finding]:
    for name in _FIELDS:
        time = getattr(checkpoint, name)
        if time > newest:
            yield Finding(
                LOG, CHECKPOINT_AHEAD, "checkpoint", CHECKPOINT.offset(name), name, str(time), str(newest),
                f"{_text(time)} is after the log's latest store time, {_text(newest)}: "
                "the checkpoint was overwritten or is of another store, or the log has lost its end; after a crash the "
                "broker would begin to recover too late in its log", right_time=newest,
            )  # fmt: skip


def _text(time: int) -> str:
    try:
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # no time that a calendar has; no I/O
        return "no time"
