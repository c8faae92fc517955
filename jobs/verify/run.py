"""
A verification: the log is read and checked, queues and index files are compared with it, findings get their causes.

Nothing is written. A part that cannot be verified is named and does not keep the others from being verified.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from tempfile import gettempdir

from jobs.console.amounts import counted
from jobs.console.result import Result
from jobs.console.severity import Judged, Severity, worst_of
from jobs.diagnosis.broker_start import WalkedLog, keeps_half_record, start_outcome
from jobs.diagnosis.log_check import LogCheck, walked_log
from jobs.lake.findings import AHEAD_OF_LOG, INDEX, LOG, QUEUES, WRONG_FILE_SIZE, Finding
from jobs.products.index.settings import NOTHING_WANTED, Wanted
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.storage.scratch import Scratch
from jobs.store.beside_broker import broker_process, check_room
from jobs.store.chain import begun_again
from jobs.store.epochs import promotion_of
from jobs.store.release import UndecidedError, Writers, given_rules
from jobs.store.store import IsTierError, Store, StoreRequest
from jobs.store.workers import Workers
from jobs.verify.causes import attribute, set_apart
from jobs.verify.compaction import add_compaction
from jobs.verify.findings import Group, PartReport, grouped
from jobs.verify.index import verify_index
from jobs.verify.log import doubted_by_broker, log_findings
from jobs.verify.queues import QueueFindings, compare_queues
from jobs.verify.rocksdb_queues import add_what_waits
from jobs.verify.tier import verify_tier
from rmq_formats.broker_start import StartOutcome
from rmq_formats.consumequeue.unit import QueueKind
from rmq_formats.release import Release

_SHARE_OF_LOG = 0.35  # of the log: units of its queues, then packed keys, where records are small


@dataclass(frozen=True, slots=True)
class VerifyRequest(StoreRequest):
    """The request of a user."""

    wanted: Wanted = NOTHING_WANTED
    scratch: str | Scratch | None = None


@dataclass(frozen=True, slots=True)
class Verdict(Judged):
    """The reports of all parts."""

    store: str
    parts: Mapping[str, PartReport]
    start: StartOutcome | None = None  # the outcome of a start of the broker; None while one runs, and of a tier
    walked: WalkedLog | None = None  # the places that a start may stop at
    options: Sequence[str] = ()  # of the store, as given: the commands that are printed repeat them

    @property
    def findings(self) -> list[Finding]:
        """Everything that was found, the log first."""
        return [finding for part in self.parts.values() for finding in part.findings]

    @property
    def groups(self) -> list[Group]:
        """The same under its causes."""
        return grouped(self.findings)

    @property
    def severity(self) -> Severity:
        """The worst of it."""
        return worst_of(part.severity for part in self.parts.values())

    def result(self, seconds: float) -> Result:
        """Return the verification's last line: severity, amounts, and time."""
        log, queues, index = (self.parts[name].numbers if name in self.parts else {} for name in (LOG, QUEUES, INDEX))
        records, keys = counted(log.get("records", 0), "record"), counted(index.get("keys", 0), "index key")
        compared = f"{records}, {counted(queues.get('expected', 0), 'queue unit')} and {keys}"
        causes = len(self.groups)
        what = f"{counted(causes, 'cause')} found in {compared}" if causes else f"{compared} compared"
        size = log.get("to_offset", 0) - log.get("from_offset", 0) - log.get("missing_bytes", 0)
        unverified = [name for name, part in self.parts.items() if part.unverified]
        verdict = f"nothing wrong seen; not verified: {', '.join(unverified)}" if unverified else ""
        verdict = verdict if self.severity is Severity.NOT_VERIFIED else ""
        return Result(self.severity, what, seconds, max(size, 0), verdict)

    def describe(self) -> dict[str, object]:
        """Return the form that scripts read."""
        return {
            "store": self.store,
            "severity": self.severity.value,
            "broker": None if self.start is None else self.start.describe(),
            "findings": [finding.describe() for finding in self.findings],
            "facts": [finding._asdict() for part in self.parts.values() for finding in part.facts],
            "parts": {name: part.severity.value for name, part in self.parts.items()},
            "unverified": {
                name: "; ".join(filter(None, (part.unverified, *part.doubts)))
                for name, part in self.parts.items()
                if part.unverified or part.doubts
            },
            "numbers": {name: dict(part.numbers) for name, part in self.parts.items()},
            "notes": {name: part.notes for name, part in self.parts.items()},
        }  # fmt: skip


def verify(request: VerifyRequest, workers: Workers) -> Verdict:
    """Return the findings on a store; raise `UndecidedError` for an unknown release."""
    if request.wanted.release is not None:
        given_rules(request.wanted.release)
    try:
        store = request.listed(workers.options, workers.width)
    except IsTierError:
        tier = request.tier(workers.options, workers.width)
        return Verdict(request.store, verify_tier(tier, workers, request.range_size), options=request.options)
    scratch = request.scratch.location if isinstance(request.scratch, Scratch) else request.scratch
    check_room(store.root, scratch or gettempdir(), int(store.log_size * _SHARE_OF_LOG))
    store, check, queues, releases = begun_again(store, partial(_log_and_queues, request, workers))
    index = begun_again(store, partial(_index, request, workers, check))
    known_ahead = [finding.log_offset for finding in index.findings if finding.kind == AHEAD_OF_LOG]
    ahead = max([offset for offset in (*known_ahead, queues.ahead) if offset is not None], default=None)
    promotion = promotion_of(store, queues.log_end)
    if promotion is not None and promotion.explains(ahead):
        ahead = None
    checks = check.checks
    log, lost = log_findings(store, checks, queues.log_end, ahead, request.wanted.conf)
    if promotion is not None:
        set_apart(promotion, log, [queues.report, index], store)
    attribute(log, [queues.report, index], lost, checks, store)
    parts: dict[str, PartReport] = {LOG: log, QUEUES: queues.report, INDEX: index}
    start = None
    walked = walked_log(checks, queues.log_end)._replace(queue_stops=queues.stops)
    if broker_process(store.root) is None:
        start = start_outcome(store, releases, walked, request.wanted.conf)
        _add_start(start, parts, store)
        if keeps_half_record(store, Release.of(start.release), walked.end):
            log.notes.append(
                f"the bytes at {walked.end:,} are a record whose properties end in zeros: this broker "
                f"({start.release}) takes it for the log's last message, without what the zeros cover"
            )
    return Verdict(store.root, parts, start, walked, request.options)


def _add_start(start: StartOutcome, parts: Mapping[str, PartReport], store: Store) -> None:
    """Add what keeps the broker from starting, or has it cut the log, where nothing else that was found says so."""
    refused = start.refuses or start.leaves_out
    if refused is not None and not any(one.file == refused.file for part in parts.values() for one in part.findings):
        part = QUEUES if refused.file.partition("/")[0] in map(str, QueueKind) else LOG
        what_it_does = "does not start" if start.refuses else "starts without this file and all files after it"
        cause = f"the file was lengthened, is of another configuration, or was never written; the broker {what_it_does}"
        size = (min(refused.length, refused.expected), "size", str(refused.length), str(refused.expected))
        parts[part].findings.append(Finding(part, WRONG_FILE_SIZE, refused.file, *size, cause))
    if start.cuts_at is not None and not any(one.severity.is_alarm for one in parts[LOG].findings):
        parts[LOG].findings.append(doubted_by_broker(start.cuts_at, store))


def _log_and_queues(
    request: VerifyRequest, workers: Workers, store: Store
) -> tuple[Store, LogCheck, QueueFindings, Writers]:
    check = LogCheck()
    releases = known_releases(store, request.wanted.release)
    rules = queue_rules(store, releases.value.rules, request.wanted.conf)
    queues = compare_queues(workers, store, rules, request.range_size, check, request.scratch)
    add_what_waits(queues.report, store)
    add_compaction(queues.report, store, workers, rules)
    queues.report.notes.append(f"queues of RocketMQ {releases.value} ({releases.how})")
    return store, check, queues, releases.value


def _index(request: VerifyRequest, workers: Workers, check: LogCheck, store: Store) -> PartReport:
    try:
        return verify_index(workers, store, request.wanted, request.range_size, request.scratch, check)
    except UndecidedError as error:
        return PartReport(unverified=str(error), numbers={"files": len(store.index_files)})
