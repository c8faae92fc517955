"""
Checks whether a store can be restored, without restoring it.

Every byte of the log is built from the lake's rows by the code that restores it, and compared with the checksums of the
rows; the versions of the configuration files are read and compared with theirs. Nothing is written. Queues and index
files are not built: a restore derives them from the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.console.amounts import count_text, utc_time_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity
from jobs.lake.lake_stores import LakeStore, list_broker_stores
from jobs.lake.snapshot_files import DamagedFileError
from jobs.requests.restore import RestoreRequest
from jobs.restore import NothingToRestoreError, read_first_store_timestamp, read_last_store_timestamp
from jobs.restore.config import RebuiltFileSettings, restore_config_files
from jobs.restore.run import RestoreSummary, find_offset, find_range, find_store, plan_range, summarize_segments
from jobs.restore.segment import check_segment
from jobs.store.release import UndecidedError
from jobs.store.workers import Workers

_ONLY_OF_A_RESTORE = frozenset({"lake", "out", "resumed", "forms", "log_folders"})


@dataclass(slots=True)
class StoreCheck:
    """The part of a store that can be restored, and the part that cannot."""

    broker: str
    store_id: str
    restored: RestoreSummary | None = None  # as a restore would return it; None: nothing can be restored
    oldest_store_timestamp: int = 0
    why_nothing: str = ""
    severity: Severity = Severity.NOT_VERIFIED

    @property
    def missing_bytes(self) -> int:
        """The number of bytes of the log that the lake lacks."""
        return sum(end - start for start, end in self.restored.missing) if self.restored else 0

    @property
    def text(self) -> str:
        """The part that can be restored, and what is missing or wrong, in one line."""
        done = self.restored
        if done is None:
            return f"nothing is restorable: {self.why_nothing}"
        first, last = self.oldest_store_timestamp, done.newest_store_timestamp
        bounds = (
            f"{utc_time_text(time) if time else 'an unknown time'} (offset {offset:,})"
            for time, offset in ((first, done.from_offset), (last, done.to_offset))
        )
        gaps = f"{count_text(self.missing_bytes, 'byte')} in {count_text(len(done.missing), 'range')}"
        wrong = (
            (len(done.changed), "changed row"),
            (len(done.incomplete), "incomplete row"),
            (len(done.twice), "duplicate range"),
            (len(done.lost), "unusable lake file"),
        )
        expired = sum(end - start for start, end in done.expired)
        parts = [f"expired: {count_text(expired, 'byte')}"] if expired else []
        parts += [count_text(count, noun) for count, noun in wrong if count]
        return "; ".join(
            [f"restorable from {' to '.join(bounds)}", f"missing: {gaps if done.missing else 'nothing'}", *parts]
        )

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        found: dict[str, object] = {"broker": self.broker, "store_id": self.store_id}
        if self.restored is None:
            return {**found, "severity": self.severity.value, "why_nothing": self.why_nothing}
        described = {name: value for name, value in self.restored.to_dict().items() if name not in _ONLY_OF_A_RESTORE}
        bounds = {"oldest_store_timestamp": self.oldest_store_timestamp, "missing_bytes": self.missing_bytes}
        return {**described, **bounds}

    def lines(self) -> Iterator[str]:
        """Yield the findings as text."""
        yield f"  broker {self.broker} ({self.store_id})"
        done = self.restored
        if done is not None:
            yield f"  {count_text(done.messages, 'message')} in {count_text(done.segments, 'segment')}"
            yield from done.finding_lines()


@dataclass(slots=True)
class CheckSummary(RatedOutcome):
    """The result of a check, by store."""

    lake: str
    stores: list[StoreCheck] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        """The worst severity; only `verify` can report a store as healthy."""
        return worst_severity([Severity.NOT_VERIFIED, *(store.severity for store in self.stores)])

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        stores = [store.to_dict() for store in self.stores]
        return {"lake": self.lake, "severity": self.severity.value, "stores": stores}

    def result(self, seconds: float) -> Result:
        """Return the result line of the check."""
        done = [store.restored for store in self.stores if store.restored is not None]
        verdict = "nothing missing" if self.severity is Severity.NOT_VERIFIED else ""
        size = sum(one.result(0).size for one in done)
        messages = count_text(sum(one.messages for one in done), "message")
        return Result(self.severity, f"{messages} checked, nothing written", seconds, size, verdict)

    def lines(self) -> Iterator[str]:
        """Yield the summary as text; the part that can be restored comes last."""
        yield self.lake
        for store in self.stores:
            yield from store.lines()
        for store in self.stores:
            broker = f"{store.broker}: " if self.stores[1:] else ""
            yield f"{broker}{store.text}"


def check_restore(request: RestoreRequest, workers: Workers) -> CheckSummary:
    """Check whether the stores of a lake can be restored; `NothingToRestoreError` if none has anything to restore."""
    if request.broker is None and (every := list_broker_stores(request.lake)):
        stores: Sequence[LakeStore] = every
    else:
        stores = [find_store(request.lake, request.broker)]
    checks, failure = [], None
    for lake_store in stores:
        try:
            checks.append(_check_store(request, lake_store, workers))
        except NothingToRestoreError as error:
            failure = error
            is_loss = (
                find_offset(request.lake, lake_store.store_id, request.until) is None
                and lake_store.newest_manifest is not None
                and lake_store.newest_manifest.to_offset > 0
            )
            severity = Severity.GAP if is_loss else Severity.NOT_VERIFIED
            checks.append(StoreCheck(lake_store.broker, lake_store.store_id, why_nothing=str(error), severity=severity))
    if failure is not None and all(check.restored is None for check in checks):
        raise failure
    return CheckSummary(request.lake.location, checks)


def _check_store(request: RestoreRequest, lake_store: LakeStore, workers: Workers) -> StoreCheck:
    lake, store_id = request.lake, lake_store.store_id
    start, end = find_range(request, lake_store)
    plan = plan_range(request, lake_store, start, end)
    results = workers.map(plan.segments, check_segment, "checking segments")
    summary = summarize_segments(request, lake_store, plan, sorted(results))
    state: dict[str, Any] = dict(lake_store.newest_manifest.state) if lake_store.newest_manifest else {}
    recorded = (state.get("config_files") or {}).get("files", {})
    try:
        files, notes, lost = restore_config_files(lake, store_id, None, end, recorded)
        summary.config, summary.notes = [Path(path).name for path in files], [*summary.notes, *notes]
    except DamagedFileError as error:
        lost = {"config_files:": str(error)}
    summary.lost += [f"{name} {reason}" for name, reason in lost.items()]
    try:
        forms = RebuiltFileSettings.determine(lake_store, request.given_settings, lake, with_index=request.with_index)
        forms.refuse_assumed(lake, store_id, with_index=request.with_index)
    except UndecidedError as error:
        summary.notes.append(f"a restore needs more options: {error}")
    summary.newest_store_timestamp = read_last_store_timestamp(lake, lake_store, plan.end)
    oldest = read_first_store_timestamp(lake, lake_store, plan.segments[0])
    return StoreCheck(lake_store.broker, store_id, summary, oldest, severity=summary.severity)
