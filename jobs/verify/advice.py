"""What to do about what was found: one step a cause, the log first, with commands to paste."""

from collections.abc import Container, Iterator, Mapping, Sequence
from shlex import quote
from typing import NamedTuple

from jobs.console.program import program
from jobs.console.result import Step
from jobs.lake.findings import (
    CUT_SEGMENT,
    DAMAGED_RANGE,
    GAP,
    INDEX,
    LOG,
    LOST_END,
    NOT_INDEXED,
    QUEUES,
    UNREADABLE_RANGE,
    WRONG_BODY,
)
from jobs.verify.findings import Group, PartReport

_QUEUE = "NEW-QUEUES"
_INDEX = "NEW-INDEX"


class Advice(NamedTuple):
    """One thing to do, and what was found that it is for."""

    step: Step
    groups: tuple[Group, ...] = ()


def advice(store: str, parts: Mapping[str, PartReport], groups: Sequence[Group]) -> list[Advice]:
    """Return the steps, in the order in which they are to be done, each with the findings that it is for."""
    advised = [Advice(step, found) for step, found in _steps(quote(store), groups) if found]
    advised += [
        Advice(Step(f"The {name} could not be verified: {part.unverified}"))
        for name, part in parts.items()
        if part.unverified and name == INDEX
    ]
    return advised


def _steps(store: str, groups: Sequence[Group]) -> Iterator[tuple[Step, tuple[Group, ...]]]:
    """Yield every step that there is, with the groups that ask for it, if any do."""

    def of(part: str, kinds: Container[str] | None = None, *, besides: Container[str] = ()) -> tuple[Group, ...]:
        return tuple(
            group
            for group in groups
            if group.cause.part == part
            and (kinds is None or group.cause.kind in kinds)
            and group.cause.kind not in besides
        )

    start = min((group.cause.log_offset or 0 for group in groups if group.cause.part == LOG), default=0)
    yield (
        Step(
            "Part of the log is missing. Put the segment back from a slave, a backup or another copy, with the "
            "broker stopped, and verify again. A lake may hold its messages:",
            (f"{program()} export --lake LAKE --where 'physical_offset >= {start}' --out MESSAGES.ndjson",),
        ),
        of(LOG, {GAP, CUT_SEGMENT, LOST_END}),
    )
    yield (
        Step("The disk cannot read parts of the log: copy the store to another disk before anything else."),
        of(LOG, {UNREADABLE_RANGE}),
    )
    yield (
        Step(
            "Records of the log are damaged. See what is there, and take the messages from a slave or a lake:",
            (f"{program()} inspect {store} --deep",),
        ),
        of(LOG, {DAMAGED_RANGE, WRONG_BODY}),
    )
    yield (
        Step(
            "Queues contradict the log. With the broker stopped, make what is lost again, rehearse, then install:",
            (
                f"{program()} rebuild-consumequeue {store} --out {_QUEUE} --lost-only --install --dry-run",
                f"{program()} rebuild-consumequeue {store} --out {_QUEUE}-2 --lost-only --install",
            ),
        ),
        of(QUEUES),
    )
    yield (
        Step(
            "Keys were never indexed, inside a file that is otherwise right: only a full rebuild brings them back "
            "(--lost-only keeps that file):",
            (f"{program()} rebuild-index {store} --out {_INDEX}-ALL",),
        ),
        of(INDEX, {NOT_INDEXED}),
    )
    yield (
        Step(
            "Index files are missing or wrong. With the broker stopped, make them again, rehearse, then install:",
            (
                f"{program()} rebuild-index {store} --out {_INDEX} --lost-only --install --dry-run",
                f"{program()} rebuild-index {store} --out {_INDEX}-2 --lost-only --install",
            ),
        ),
        of(INDEX, besides={NOT_INDEXED}),
    )
