"""The verdict of `verify`: its findings under their causes, as text and for scripts, and the steps that follow."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from jobs.console.amounts import count_text
from jobs.console.lines import quote_name
from jobs.console.process import tool_command
from jobs.console.result import RatedOutcome, RecommendedStep, Result, Severity, worst_severity
from jobs.diagnosis import WalkedLog, kinds, recreated_index_notes, start_warning_lines
from jobs.diagnosis.acceptance import Acceptances, AcceptedFinding, is_accepted, name_finding
from jobs.diagnosis.findings import CONFIGURATION, INDEX, LOG, QUEUES, Finding
from jobs.products.queues.join_result import DifferenceKind
from jobs.store.broker_config import BACKUP_SUFFIX
from jobs.store.store import Store
from jobs.verify.report import PartReport
from rmq_formats.broker_start import StartOutcome

PartRow = tuple[str, Severity, str, str]
PART_COLUMNS = ("part", "verdict", "problems", "compared")
_PARTS = (LOG, QUEUES, INDEX, CONFIGURATION)
_TITLES = {CONFIGURATION: "positions and configuration"}


CauseWithConsequences = tuple[Finding, tuple[Finding, ...]]  # one cause, and the findings that follow from it


@dataclass(frozen=True, slots=True)
class Verdict(RatedOutcome):
    """The reports of all parts."""

    store: str
    parts: Mapping[str, PartReport]
    start: StartOutcome | None = None  # the outcome of a start of the broker; None while one runs
    walked_log: WalkedLog | None = None  # a walk over the log, which shows where startup recovery may stop
    store_options: Sequence[str] = ()  # the store's options as the user gave them; printed commands repeat them
    findings_options: Sequence[str] = ()  # of `verify`: the lake that records accepted findings, and the broker's label
    names: Mapping[tuple[object, ...], str] = field(default_factory=dict)  # of problems, by their places

    @property
    def findings(self) -> list[Finding]:
        """All findings, those of the log first."""
        return [finding for part in self.parts.values() for finding in part.findings]

    @property
    def facts(self) -> list[Finding]:
        """Facts worth knowing that need no action."""
        return [fact for part in self.parts.values() for fact in part.facts]

    @property
    def accepted(self) -> list[AcceptedFinding]:
        """The findings that a user has accepted."""
        return [one for part in self.parts.values() for one in part.accepted]

    def find_name(self, finding: Finding) -> str:
        """Return the name by which a user accepts a finding; empty for a consequence of another one."""
        return self.names.get(finding.identity, "") if finding.follows is None else ""

    def findings_as_json(self) -> list[dict[str, object]]:
        """Return the JSON form of the findings."""
        return [{**finding.to_dict(), "accept_as": self.find_name(finding)} for finding in self.findings]

    @property
    def findings_by_cause(self) -> list[CauseWithConsequences]:
        """The findings under their causes: the log first, then queues, index files and configuration."""
        following: dict[tuple[object, ...], list[Finding]] = {}
        for finding in self.findings:
            if finding.follows is not None:
                following.setdefault(finding.follows.identity, []).append(finding)
        causes = [one for one in self.findings if one.follows is None]
        causes.sort(key=lambda finding: _PARTS.index(finding.part))
        return [(cause, tuple(following.get(cause.identity, ()))) for cause in causes]

    @property
    def severity(self) -> Severity:
        """The worst severity of the parts."""
        return worst_severity(part.severity for part in self.parts.values())

    def result(self, seconds: float) -> Result:
        """Return the result line: severity, amounts, and time."""
        log, queues, index = (self.parts[name].numbers if name in self.parts else {} for name in (LOG, QUEUES, INDEX))
        records, keys = count_text(log.get("records", 0), "record"), count_text(index.get("keys", 0), "index key")
        compared = f"{records}, {count_text(queues.get('expected', 0), 'queue unit')} and {keys}"
        causes = len(self.findings_by_cause)
        what = f"{count_text(causes, 'problem')} found in {compared}" if causes else f"{compared} compared"
        what += f", {count_text(len(self.accepted), 'finding')} accepted" if self.accepted else ""
        size = log.get("to_offset", 0) - log.get("from_offset", 0) - log.get("missing_bytes", 0)
        unverified = [name for name, part in self.parts.items() if part.unverified]
        verdict = f"no problems found ({', '.join(unverified)} not verified)" if unverified else ""
        verdict = verdict if self.severity is Severity.NOT_VERIFIED else ""
        return Result(self.severity, what, seconds, max(size, 0), verdict)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "store": self.store,
            "severity": self.severity.value,
            "broker": None if self.start is None else self.start.to_dict(),
            "findings": self.findings_as_json(),
            "accepted": [one.to_dict() for one in self.accepted],
            "facts": [fact.to_row() for fact in self.facts],
            "parts": {name: part.severity.value for name, part in self.parts.items()},
            "unverified": {
                name: "; ".join(part.open_reasons) for name, part in self.parts.items() if part.open_reasons
            },
            "numbers": {name: dict(part.numbers) for name, part in self.parts.items()},
            "notes": {name: part.notes for name, part in self.parts.items()},
        }  # fmt: skip


def set_accepted_apart(verdict: Verdict, store: Store, acceptances: Acceptances) -> Verdict:
    """Name the problems of a verdict, and move those that the user accepts, with their consequences, to a list."""
    causes = [cause for cause, _ in verdict.findings_by_cause if cause.severity.is_alarm]
    names: dict[tuple[object, ...], str] = {cause.identity: name_finding(cause, store) for cause in causes}
    for part in verdict.parts.values():
        own = [(one, names.get(one.identity, "")) for one in part.findings if one.follows is None]
        part.accepted += [
            AcceptedFinding(one, name, acceptances.recorded.get(name))
            for one, name in own
            if name and acceptances.includes(name)
        ]
    accepted = {one.finding.identity for one in verdict.accepted}
    for part in verdict.parts.values():
        part.findings = [one for one in part.findings if (one.follows or one).identity not in accepted]
    unknown = [name for name in acceptances.names if not any(is_accepted(one, [name]) for one in names.values())]
    verdict.parts[LOG].notes += [
        f"--accept: no finding is called {name}: it was repaired, or its bytes have changed" for name in unknown
    ]
    return replace(verdict, names=names)


def verdict_lines(verdict: Verdict, limit: int, *, all_locations: bool = False) -> Iterator[str]:
    """Yield the lines of text: one line for each of *limit* causes, and with *all_locations* for each consequence."""
    groups, facts = verdict.findings_by_cause, verdict.facts
    notes = [note for part in verdict.parts.values() for note in part.notes]
    word, more = str(verdict.severity), len(verdict.findings) - len(groups)
    if verdict.findings:
        word += f": {count_text(len(groups), 'problem')}" + f", {count_text(more, 'consequence')}" * bool(more)
    yield f"{verdict.store}: {verdict.severity.style(word)}"
    yield ""
    # The reasons are long, and are printed below the table.
    rows = [part_row(name, part, ["see NOTE"] * bool(part.open_reasons)) for name, part in verdict.parts.items()]
    yield from _table(rows)
    yield from (f"  NOTE {name}: {reason}" for name, part in verdict.parts.items() for reason in part.open_reasons)
    causes = [
        line
        for number, group in enumerate(groups[:limit], 1)
        for line in _format_group(number, group, all_locations=all_locations)
    ]
    known = [f"  {fact.kind}: {fact.file}: {fact.expected} - {fact.cause_text}" for fact in facts[:limit]]
    accepted = [f"  {one.text}" for one in verdict.accepted[:limit]]
    for shown, count in ((causes, len(groups)), (accepted, len(verdict.accepted)), (known, len(facts))):
        shown.extend([f"  … {count - limit} more (--limit, --json)"] * (count > limit))
    known = [*accepted, *known]
    known += [f"  {note}" for note in [*notes, *recreated_index_notes(verdict.start)]]
    steps = [
        line
        for step, _ in recommend_steps(verdict)
        for line in (step.description, *(f"  {one}" for one in step.commands))
    ]
    to_do = ["RECOMMENDED ACTIONS", *(f"  {line}" for line in steps)] if steps else []
    blocks: list[list[str]] = [causes, known, to_do, list(start_warning_lines(verdict.start))]
    for lines in filter(None, blocks):
        yield from ["", *lines]


def _format_group(number: int, group: CauseWithConsequences, *, all_locations: bool) -> Iterator[str]:
    """Yield the lines of a cause and, with *all_locations*, of its consequences."""
    cause, consequences = group
    following = sum(one.times for one in consequences)
    locations, them = count_text(following, "more location"), "it" if following == 1 else "them"
    more = f" ({locations} affected; --all-locations shows {them})"
    yield f"  {number}. {cause.severity.style()} {cause.text}{more if consequences and not all_locations else ''}"
    for finding in consequences if all_locations else ():
        place = finding.file if finding.offset is None else f"{finding.file} @{finding.offset}"
        often = f" ({finding.times:,} times)" if finding.times > 1 else ""
        yield f"       → {finding.kind}: {place}{often}"


def part_row(name: str, part: PartReport, reasons: Sequence[str]) -> PartRow:
    """Return the row of a part in the table with the columns `PART_COLUMNS`; *reasons*: why it is not verified."""
    wrong = sum(not finding.follows for finding in part.findings)
    consequences = len(part.findings) - wrong
    texts = [count_text(wrong, "problem")] * bool(wrong)
    texts += [count_text(consequences, "consequence")] * bool(consequences)
    texts += reasons
    if behind := part.numbers.get("behind"):
        texts.append(f"{count_text(behind, 'key' if name == INDEX else 'byte')} behind the log")
    return _TITLES.get(name, name), part.severity, ", ".join(texts) or "-", _describe_comparison(name, part.numbers)


def _describe_comparison(name: str, numbers: Mapping[str, int]) -> str:
    if name == LOG:
        return (
            f"{count_text(numbers['records'], 'record')}, {count_text(numbers['segments'], 'segment')}, "
            f"offsets {numbers['from_offset']:,} to {numbers['to_offset']:,}"
        )
    if name == QUEUES and "expected" in numbers:
        expected = numbers["expected"] - numbers["of_deleted_topics"]
        return f"{numbers['matched']:,} of {count_text(expected, 'unit')} in {count_text(numbers['queues'], 'queue')}"
    if name == INDEX and "rows" in numbers:
        return f"{count_text(numbers['keys'], 'key')} in {count_text(numbers['rows'], 'RocksDB row')}"
    if name == INDEX and "keys" in numbers:
        return f"{count_text(numbers['keys'], 'key')} in {count_text(numbers['files'], 'file')}"
    if name == CONFIGURATION and any(numbers.values()):
        topics, groups = count_text(numbers["topics"], "topic"), count_text(numbers["groups"], "consumer group")
        return f"{topics}, {groups}, {count_text(numbers['positions'], 'position')}"
    return "nothing compared"


def _table(rows: Sequence[PartRow]) -> Iterator[str]:
    """Yield the rows under their headings, aligned; colors have no width."""
    plain = [PART_COLUMNS, *((name, severity.value, *rest) for name, severity, *rest in rows)]
    widths = [max(len(row[column]) for row in plain) for column in range(len(PART_COLUMNS))]
    for number, row in enumerate(plain):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if number:
            cells[1] = rows[number - 1][1].style(cells[1])
        yield f"  {'  '.join(cells)}".rstrip()


AdvisedStep = tuple[RecommendedStep, tuple[CauseWithConsequences, ...]]
"""An action, and the findings that it resolves."""

_IN_ROCKSDB = frozenset(
    {kinds.MISSING_INDEX_ROWS, kinds.ORPHANED_INDEX_ROWS, kinds.DAMAGED_INDEX_ROWS, kinds.UNREADABLE_DATABASE}
)
# Kinds of queue findings that no repair can fix.
_OF_TIMER_FILES = frozenset({kinds.DAMAGED_TIMER, kinds.MISSING_TIMER, kinds.ORPHANED_TIMER_UNIT})
_OF_PROGRESS = frozenset({kinds.CONSUMER_PAST_QUEUE_END, kinds.DELAY_PAST_QUEUE_END})
_NOT_MADE = frozenset({kinds.UNREADABLE_RANGE, kinds.UNREADABLE_DATABASE})
_COPY = "from a replica, a backup or another copy, and verify again. If a lake has the messages, repair or export:"
REPAIR_COMMAND = "{repair}"
REPAIR_FROM_LAKE_COMMAND = f"{REPAIR_COMMAND} --lake LAKE"
REPAIR_POSITIONS_COMMAND = f"{REPAIR_FROM_LAKE_COMMAND} --positions lake"
_EXPORT = "{program} export --lake LAKE --where 'physical_offset {offsets}' --out MESSAGES.ndjson"
_UNREADABLE = "The disk cannot read parts of the store. Copy the store to another disk before you do anything else."
# The remedies for kinds of findings, by part, in the order of the steps; commands with {move} are one for each finding.
_REMEDIES: Sequence[tuple[str, Container[str], str, tuple[str, ...]]] = (
    (
        LOG, {kinds.MISNAMED_SEGMENT},
        "A segment has the wrong name. With the broker stopped, rename it, and verify again:", ("{move}",),
    ),
    (
        LOG, {kinds.OVERLAPPING_FILE, kinds.UNEXPECTED_FILE},
        "A file in the log's directory is not part of the log. With the broker stopped, move it out of the directory:",
        ("{move}",),
    ),
    (
        LOG, kinds.GAP_OR_LOST_END,
        f"Part of the log is missing. With the broker stopped, copy the segment {_COPY}",
        (REPAIR_FROM_LAKE_COMMAND, _EXPORT),
    ),
    (
        LOG, {kinds.LOST_START},
        f"The first segments are missing. With the broker stopped, copy them {_COPY}",
        (REPAIR_FROM_LAKE_COMMAND, _EXPORT),
    ),
    (
        LOG, {kinds.UNREADABLE_RANGE},
        _UNREADABLE, (),
    ),
    (
        LOG, kinds.DAMAGED_RECORD_KINDS,
        ("Records of the log are damaged. Restore them from a lake that was loaded before the damage, or from a new "
        "lake into which you have ingested a replica's store:"), (REPAIR_FROM_LAKE_COMMAND,),
    ),
    (
        LOG, {kinds.CHECKPOINT_AFTER_LOG},
        ("The checkpoint does not match the log. It is used only after a crash. To rewrite it, start the broker and "
        "stop it cleanly."), (),
    ),
    (
        QUEUES, {kinds.UNREADABLE_RANGE}, _UNREADABLE, (),
    ),
    (
        QUEUES, {kinds.UNREADABLE_DATABASE},
        ("A RocksDB database cannot be read. With the broker stopped, move its files aside (but not the directories of "
        "topics, if there are any). RocketMQ 5.3.3 or later then rebuilds the rows from the log; from 5.4.0 on, it "
        "reads only the newest segments (commitLogRecoverMaxNum; the default is 10)."), (),
    ),
    (
        CONFIGURATION, {kinds.UNREADABLE_RANGE}, _UNREADABLE, (),
    ),
    (
        CONFIGURATION, {kinds.DAMAGED_CONFIGURATION},
        ("A configuration file is damaged. With the broker stopped, restore the newest version from a lake, or copy it "
        "from a replica or from its backup:"), (REPAIR_FROM_LAKE_COMMAND, "{copy}"),
    ),
    (
        CONFIGURATION, {kinds.MISSING_CONFIGURATION},
        ("Part of the configuration is missing. A broker that starts now runs without it, and writes new files. "
        "With the broker stopped, restore the newest versions from a lake, or copy the files from a replica or a "
        "backup:"),
        (REPAIR_FROM_LAKE_COMMAND,),
    ),
    (
        CONFIGURATION, {kinds.POSITIONS_BEHIND_LAKE, kinds.POSITIONS_BEHIND_BACKUP},
        ("Positions are behind earlier ones. Unless they were set back on purpose, set them to those in a lake, with "
        "the broker stopped:"), (REPAIR_POSITIONS_COMMAND,),
    ),
    (
        CONFIGURATION, {kinds.MISSING_TOPICS},
        ("The table of topics lacks topics that have queues. Create them again with `mqadmin updateTopic`, or, with "
        "the broker stopped, copy `config/topics.json` from a replica or a backup."), (),
    ),
    (
        CONFIGURATION, {kinds.MISSING_GROUPS},
        ("The table of consumer groups lacks groups that the lake has. Unless they were deleted on purpose, create "
        "them again with `mqadmin updateSubGroup`, or, with the broker stopped, copy `config/subscriptionGroup.json` "
        "from a replica or a backup."), (),
    ),
    (
        CONFIGURATION, _OF_TIMER_FILES,
        ("This tool does not modify timer files. With the broker stopped, restore `timerwheel`, `timerlog` and "
        "`config/timercheck` together from a backup."), (),
    ),
    (
        CONFIGURATION, _OF_PROGRESS,
        ("This tool does not modify offsets of consumers and delay levels. Once the queues have no findings, reset "
        "those of a group with `mqadmin resetOffsetByTime`; with the broker stopped, correct those of delay levels in "
        "`config/delayOffset.json`."), (),
    ),
    (
        INDEX, {kinds.UNREADABLE_RANGE}, _UNREADABLE, (),
    ),
    (
        INDEX, {kinds.NOT_INDEXED},
        ("An index file lacks some keys, but is otherwise correct. Only a full rebuild adds the keys, because "
        "--lost-only keeps this file:"), ("{program} rebuild-index {again} --out NEW-INDEX-ALL",),
    ),
    (
        INDEX, {kinds.STALE_INDEX_FILE},
        "An index file is a copy of an earlier one. With the broker stopped, move it out of the directory:",
        ("{move}",),
    ),
    (
        INDEX, _IN_ROCKSDB,
        ("The index in RocksDB contradicts the log, and this tool does not modify it. Until a broker has rebuilt "
        "the index, search the log instead:"),
        ("{program} query by-key --store {place} -t TOPIC -k KEY --scan-log",),
    ),
)  # fmt: skip
_MADE = "Files have the wrong size, are missing, or contradict the log. Show the planned repairs (read-only):"
_OPEN = (
    "If a finding is undecided, `repair` changes a file only if it can prove the correct contents. For the other "
    "files, compare a replica's copy, or pass a lake that was loaded before the damage (repair --lake); for file "
    "sizes, pass --broker-conf. If several releases wrote the store, pass --release with the offset at which each "
    "began to write it."
)


_ACCEPT = "If nothing can restore these bytes, accept their loss. It is then noted, but is not a problem."
_RECORD = "To record this in a lake, add --findings-lake LAKE:"
_RECORDED = "The lake records this:"
_MOST_ACCEPTED = 10  # findings that one printed command accepts
_OF_RESTARTED = frozenset({kinds.DELETED_OR_LOST_QUEUE, DifferenceKind.QUEUE_LOST})
_IF_DELETED = (
    "The store does not show whether a topic was deleted, or its queues were lost. If it was deleted (and perhaps "
    "created again), accept this."
)
_IF_LOST = (
    "If a queue that begins again was lost, consumers never receive its earlier messages, and its new ones have their "
    "queue offsets. Export the earlier messages, and send them again (this sends text bodies without white space "
    "around them, which mqadmin would remove, with keys and tags; set NAMESRV):"
)
# SendMessageCommand removes characters up to U+0020 around a body (String#trim); a shell removes NUL.
_SEND_AGAIN = (
    'select(.decoded_body_text // "" | test("\\\\A([\\\\x00- ]|\\\\z)|[\\\\x00- ]\\\\z|\\\\x00") | not) | '
    '@sh "mqadmin sendMessage -n NAMESRV -t \\(.topic) -k \\(.properties.KEYS // "") '
    '-c \\(.tags // "") -p \\(.decoded_body_text)"'
)


def recommend_steps(
    verdict: Verdict, omitted_commands: Container[str] = (), repair_command: str | None = None
) -> list[AdvisedStep]:
    """
    Return the steps in the order of execution, each with the findings that it resolves.

    *omitted_commands* are constants of this module, such as `REPAIR_COMMAND`: the steps do not contain these commands.
    *repair_command* is the command line of the running repair, if there is one.
    """
    groups, parts, store = verdict.findings_by_cause, verdict.parts, quote(verdict.store)
    again = " ".join(map(quote, (verdict.store, *verdict.store_options)))
    options = zip(verdict.store_options[::2], verdict.store_options[1::2], strict=True)
    of_place = [word for pair in options if pair[0] in {"--commitlog", "--broker-conf"} for word in pair]
    placeholders = {
        "program": tool_command(),
        "store": store,
        "place": " ".join(map(quote, (verdict.store, *of_place))),
        "again": again,
        "repair": repair_command or f"{tool_command()} repair {again} --out REPAIR",
    }
    databases = {name: part.database_step for name, part in parts.items() if part.database_step is not None}
    found: list[AdvisedStep] = []
    for part in _PARTS:
        remedies = () if part != QUEUES and part in databases else (row[1:] for row in _REMEDIES if row[0] == part)
        for of_kinds, text, commands in remedies:
            those = _select_groups(groups, part, of_kinds)
            wanted = tuple(one for one in commands if one not in omitted_commands)
            found.append((RecommendedStep(text, _commands(wanted, those, placeholders)), those))
        if part in databases:
            found.append((databases[part], _select_groups(groups, part, besides=_NOT_MADE if part == QUEUES else ())))
    made = (
        *(() if LOG in databases else _select_groups(groups, LOG, {kinds.WRONG_FILE_SIZE, kinds.TRUNCATED_CHECKPOINT})),
        *(() if QUEUES in databases else _select_groups(groups, QUEUES, besides=_NOT_MADE)),
        *(
            ()
            if INDEX in databases
            else _select_groups(
                groups,
                INDEX,
                besides={kinds.UNREADABLE_RANGE, kinds.NOT_INDEXED, kinds.STALE_INDEX_FILE, *_IN_ROCKSDB},
            )
        ),
    )
    open_ones = tuple(one for one in made if one[0].is_undecided)
    others = tuple(one for one in made if one not in open_ones or one[0].kind != kinds.WRONG_FILE_SIZE)
    repair = () if REPAIR_COMMAND in omitted_commands else (REPAIR_COMMAND.format(**placeholders),)
    found += [(RecommendedStep(_MADE, repair), others), (RecommendedStep(_OPEN), open_ones)]
    advised = [one for one in found if one[1]]
    advised += [(step, ()) for step in (*find_step_to_accept(verdict), *_steps_for_earlier_messages(verdict))]
    advised += [(step, ()) for step in _steps_before_start(verdict, placeholders, is_repair=repair_command is not None)]
    if INDEX in parts and parts[INDEX].unverified:
        advised.append((RecommendedStep(f"The {INDEX} could not be verified: {parts[INDEX].unverified}"), ()))
    return advised


def find_step_to_accept(verdict: Verdict) -> Iterator[RecommendedStep]:
    """
    Yield the step that accepts damaged records, if there are any: without a copy, nothing restores them.

    If the broker's next start would delete messages after them, a repair must write bridges first.
    """
    start = verdict.start.after_repair or verdict.start if verdict.start is not None else None
    if start is not None and start.cuts_at is not None:
        return
    damaged = [cause for cause, _ in verdict.findings_by_cause if cause.kind in kinds.DAMAGED_RECORD_KINDS]
    if damaged:
        yield _make_step_to_accept(_ACCEPT, verdict, damaged)


def _make_step_to_accept(text: str, verdict: Verdict, findings: Sequence[Finding]) -> RecommendedStep:
    """Return the step that accepts these findings, and those that this command accepts."""
    earlier = [one.accept_as for one in verdict.accepted if one.accepted_at is None]
    names = [*earlier, *(verdict.find_name(one) for one in findings[:_MOST_ACCEPTED])]
    again = " ".join(map(quote, (verdict.store, *verdict.store_options, *verdict.findings_options)))
    command = " ".join((f"{tool_command()} verify {again}", *(f"--accept {quote(name)}" for name in names)))
    return RecommendedStep(f"{text} {_RECORDED if verdict.findings_options else _RECORD}", (command,))


def _steps_for_earlier_messages(verdict: Verdict) -> Iterator[RecommendedStep]:
    """Yield the steps for messages of queues that began again at queue offset 0, which no rebuild restores."""
    restarted = [cause for cause, _ in verdict.findings_by_cause if cause.kind in _OF_RESTARTED and cause.log_end]
    undecided = [one for one in restarted if one.is_undecided]
    if undecided:
        yield _make_step_to_accept(_IF_DELETED, verdict, undecided)
    by_topic: dict[str, list[Finding]] = {}
    for one in restarted:
        _, topic, *queue = one.file.split("/")
        if one.field == "units" and queue:
            by_topic.setdefault(topic, []).append(one)
    if not by_topic:
        return
    options = zip(verdict.store_options[::2], verdict.store_options[1::2], strict=True)
    log = " ".join(f"{name} {quote(value)}" for name, value in options if name in {"--commitlog", "--release"})
    place = " ".join(filter(None, (quote(verdict.store), log)))
    commands = []
    for topic, findings in by_topic.items():
        parts = (f"queue_id = {one.file.rpartition('/')[2]} AND physical_offset < {one.log_end}" for one in findings)
        where = " OR ".join(parts)
        out = f"{quote(topic)}.ndjson"
        commands += [
            f"{tool_command()} export --store {place} -t {quote(topic)} --where '{where}' --out {out}",
            f"jq -r '{_SEND_AGAIN}' {out} | sh",
        ]
    yield RecommendedStep(_IF_LOST, tuple(commands))


def _steps_before_start(
    verdict: Verdict, placeholders: Mapping[str, str], *, is_repair: bool
) -> Iterator[RecommendedStep]:
    """Yield the steps that keep the broker's next start from deleting messages or keys."""
    start = verdict.start.after_repair or verdict.start if verdict.start is not None else None
    if start is None:
        return
    if start.cuts_at is not None and start.deletes_messages and not is_repair:
        messages = count_text(start.deletes_messages, "intact message")
        text = (
            f"If no lake has the lost bytes, write bridge records over them. The broker then keeps the {messages} that "
            "it would delete at its next start:"
        )
        yield RecommendedStep(text, (f"{placeholders['repair']} --bridge",))
    if start.cuts_at is None and start.loses_keys is not None:
        text = (
            "The broker deletes index files when it starts after a crash. To keep their keys, run this before the "
            "start, with the broker stopped:"
        )
        command = "{program} rebuild-index {again} --out NEW-INDEX --lost-only --install --advance-checkpoint"
        yield RecommendedStep(text, (command.format(**placeholders),))


def _select_groups(
    groups: Sequence[CauseWithConsequences],
    part: str,
    of_kinds: Container[str] | None = None,
    *,
    besides: Container[str] = (),
) -> tuple[CauseWithConsequences, ...]:
    return tuple(
        (cause, consequences)
        for cause, consequences in groups
        if cause.part == part and (of_kinds is None or cause.kind in of_kinds) and cause.kind not in besides
    )


def _commands(
    commands: Sequence[str], groups: Sequence[CauseWithConsequences], placeholders: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the commands of a remedy; those that move a file only if it is on this machine."""
    causes = [cause for cause, _ in groups]
    if commands == ("{move}",):
        return tuple(
            _move_command(placeholders["store"], one) for one in causes if "://" not in placeholders["store"] + one.file
        )
    if "{copy}" in commands:
        copies = [_copy_backup(placeholders["store"], one) for one in causes]
        return (*_commands(commands[:-1], groups, placeholders), *filter(None, copies))
    ends = [one.log_end for one in causes if one.log_end is not None]
    offsets = f"< {max(ends, default=0)}"
    if any(one.kind in kinds.GAP_OR_LOST_END for one in causes):
        start = min(one.log_offset or 0 for one in causes)
        offsets = f">= {start} AND physical_offset {offsets}" if len(ends) == len(causes) else f">= {start}"
    return tuple(command.format(**placeholders, offsets=offsets) for command in commands)


def _copy_backup(store: str, one: Finding) -> str:
    """Return the command that replaces a damaged file by its backup; empty if the broker would not load that either."""
    if "://" in store:
        return ""
    backup = f"{one.file}{BACKUP_SUFFIX}"
    return f"cp -p {store}/{backup} {store}/{one.file}" if one.expected.endswith(backup) else ""


def _move_command(store: str, one: Finding) -> str:
    if one.kind == kinds.STALE_INDEX_FILE:
        return f"mv -n {store}/{one.file} {store}/{Path(one.file).name}.copy"
    directory, _, name = one.file.rpartition("/")
    place = quote(directory) if directory.startswith("/") else f"{store}/{quote(directory)}"  # absolute: a separate log
    if one.kind in {kinds.OVERLAPPING_FILE, kinds.UNEXPECTED_FILE}:
        return f"mv -n {place}/{quote_name(name)} {store}/{quote_name(name)}.copy"
    return f"mv -n {place}/{name} {place}/{one.expected}"
