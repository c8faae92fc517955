"""The text that `verify` prints: the verdict, a table of the parts, findings under their causes, next steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from jobs.console.amounts import counted
from jobs.console.severity import Severity
from jobs.diagnosis.broker_start import start_lines
from jobs.lake.findings import INDEX, LOG, QUEUES
from jobs.verify.advice import advice
from jobs.verify.findings import Group, PartReport
from jobs.verify.run import Verdict

PartRow = tuple[str, Severity, str, str]
HEAD = ("part", "verdict", "not right", "compared")


def verdict_lines(verdict: Verdict, limit: int, *, places: bool = False) -> Iterator[str]:
    """Yield the lines; at most *limit* causes are shown, a line each, and with *places* all that follows from them."""
    yield f"{verdict.store}: {verdict.severity.styled(_headline(verdict))}"
    yield ""
    yield from _table([part_row(name, part) for name, part in verdict.parts.items()])
    groups = verdict.groups
    if groups:
        yield ""
    for number, group in enumerate(groups[:limit], 1):
        yield from _group(number, group, places=places)
    if len(groups) > limit:
        yield f"  … {len(groups) - limit} more (--limit, --json)"
    facts = [fact for part in verdict.parts.values() for fact in part.facts]
    notes = [note for part in verdict.parts.values() for note in part.notes]
    if facts or notes:
        yield ""
    for fact in facts[:limit]:
        yield f"  {fact.kind}: {fact.file}: {fact.expected} - {fact.cause}"
    if len(facts) > limit:
        yield f"  … {len(facts) - limit} more (--limit, --json)"
    yield from (f"  {note}" for note in notes)
    steps = advice(verdict.store, verdict.parts, groups, verdict.options)
    if steps:
        yield ""
        yield "WHAT TO DO"
    for step, _ in steps:
        yield f"  {step.words}"
        yield from (f"    {command}" for command in step.commands)
    yield from _last_lines(start_lines(verdict.start))


def _last_lines(warnings: Iterable[str]) -> Iterator[str]:
    """Yield *warnings* about the broker's next start after an empty line; the result follows them."""
    found = list(warnings)
    yield from ["", *found] if found else ()


def _headline(verdict: Verdict) -> str:
    word = str(verdict.severity)
    causes, findings = len(verdict.groups), len(verdict.findings)
    if not findings:
        return word
    more = findings - causes
    return f"{word}: {counted(causes, 'cause')}" + f", {counted(more, 'consequence')}" * bool(more)


def _group(number: int, group: Group, *, places: bool) -> Iterator[str]:
    cause = group.cause
    word = "" if cause.severity.value == cause.kind else f"{cause.severity.styled()} "
    following = counted(sum(one.times for one in group.consequences), "place")
    more = f" (with {following} that {'follows' if following.startswith('1 ') else 'follow'}: --places)"
    yield f"  {number}. {word}{cause.text}{more if group.consequences and not places else ''}"
    for finding in group.consequences if places else ():
        place = finding.file if finding.offset is None else f"{finding.file} @{finding.offset}"
        often = f" ({finding.times:,} times)" if finding.times > 1 else ""
        yield f"       → {finding.kind}: {place}{often}"


def part_row(name: str, part: PartReport) -> PartRow:
    """Return the row of a part in the table whose head is `HEAD`."""
    wrong = sum(not finding.follows for finding in part.findings)
    consequences = len(part.findings) - wrong
    texts = [counted(wrong, "finding")] * bool(wrong)
    texts += [f"{consequences:,} that follow from the log"] * bool(consequences)
    texts += [part.unverified] * bool(part.unverified)
    texts += part.doubts
    if behind := part.numbers.get("behind"):
        texts.append(f"{behind:,} {'keys' if name == INDEX else 'bytes'} after the log")
    return name, part.severity, ", ".join(texts) or "-", _compared(name, part.numbers)


def _compared(name: str, numbers: Mapping[str, int]) -> str:
    if name == LOG:
        return (
            f"{numbers['records']:,} records, {numbers['segments']:,} segments, "
            f"offsets {numbers['from_offset']:,} to {numbers['to_offset']:,}"
        )
    if name == QUEUES and "expected" in numbers:
        expected = numbers["expected"] - numbers["of_deleted_topics"]
        return f"{numbers['matched']:,} of {expected:,} units in {numbers['queues']:,} queues"
    if name == INDEX and "rows" in numbers:
        return f"{numbers['keys']:,} keys in {numbers['rows']:,} rows of RocksDB"
    if name == INDEX and "keys" in numbers:
        return f"{counted(numbers['keys'], 'key')} in {counted(numbers['files'], 'file')}"
    return "nothing"


def _table(rows: Sequence[PartRow]) -> Iterator[str]:
    """Yield the rows under their heads, as wide as they need to be; colours take no room."""
    plain = [HEAD, *((name, severity.value, *rest) for name, severity, *rest in rows)]
    widths = [max(len(row[column]) for row in plain) for column in range(len(HEAD))]
    for number, row in enumerate(plain):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if number:
            cells[1] = rows[number - 1][1].styled(cells[1])
        yield f"  {'  '.join(cells)}".rstrip()
