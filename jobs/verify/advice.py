"""What to do about what was found: one step a cause, the log first, with commands to paste."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobs.console.program import program
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


class Step(NamedTuple):
    """One thing to do."""

    words: str
    commands: tuple[str, ...] = ()


def advice(store: str, parts: Mapping[str, PartReport], groups: Sequence[Group]) -> list[Step]:
    """Return the steps, in the order in which they are to be done."""
    kinds = {(group.cause.part, group.cause.kind) for group in groups}
    of_log = {kind for part, kind in kinds if part == LOG}
    steps: list[Step] = []
    if of_log & {GAP, CUT_SEGMENT, LOST_END}:
        starts = [group.cause.log_offset or 0 for group in groups if group.cause.part == LOG]
        condition = f"physical_offset >= {min(starts)}"
        steps.append(
            Step(
                "Part of the log is missing. Put the segment back from a slave, a backup or another copy, with the "
                "broker stopped, and verify again. A lake may hold its messages:",
                (f"{program()} export --lake LAKE --where '{condition}' --out MESSAGES.ndjson",),
            )
        )
    if UNREADABLE_RANGE in of_log:
        steps.append(
            Step("The disk cannot read parts of the log: copy the store to another disk before anything else.")
        )
    if of_log & {DAMAGED_RANGE, WRONG_BODY}:
        steps.append(
            Step(
                "Records of the log are damaged. See what is there, and take the messages from a slave or a lake:",
                (f"{program()} inspect {store} --deep",),
            )
        )
    if any(part == QUEUES for part, _ in kinds):
        steps.append(
            Step(
                "Queues contradict the log. With the broker stopped, make what is lost again, rehearse, then install:",
                (
                    f"{program()} rebuild-consumequeue {store} --out {_QUEUE} --lost-only --install --dry-run",
                    f"{program()} rebuild-consumequeue {store} --out {_QUEUE}-2 --lost-only --install",
                ),
            )
        )
    of_index = {kind for part, kind in kinds if part == INDEX}
    if NOT_INDEXED in of_index:
        steps.append(
            Step(
                "Keys were never indexed, inside a file that is otherwise right: only a full rebuild brings them back "
                "(--lost-only keeps that file):",
                (f"{program()} rebuild-index {store} --out {_INDEX}-ALL",),
            )
        )
    if of_index - {NOT_INDEXED}:
        steps.append(
            Step(
                "Index files are missing or wrong. With the broker stopped, make them again, rehearse, then install:",
                (
                    f"{program()} rebuild-index {store} --out {_INDEX} --lost-only --install --dry-run",
                    f"{program()} rebuild-index {store} --out {_INDEX}-2 --lost-only --install",
                ),
            )
        )
    steps += [
        Step(f"The {name} could not be verified: {part.unverified}")
        for name, part in parts.items()
        if part.unverified and name == INDEX
    ]
    return steps
