"""The steps that follow from the findings: one step a cause, the log first, with commands to paste."""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from jobs.console.program import program
from jobs.console.result import Step
from jobs.lake.findings import (
    DAMAGED_CONFIGURATION,
    DAMAGED_RECORDS,
    INDEX,
    LOG,
    LOST_START,
    MISNAMED_SEGMENT,
    MISSING_RECORDS,
    NOT_INDEXED,
    QUEUES,
    UNREADABLE_DATABASE,
    UNREADABLE_RANGE,
    WRONG_FILE_SIZE,
    Finding,
)
from jobs.verify.compaction import KINDS as COMPACTED
from jobs.verify.findings import Group, PartReport
from jobs.verify.index import REPEATED
from jobs.verify.log import CHECKPOINT_AHEAD, SHORT_CHECKPOINT
from jobs.verify.rocksdb_index import MISSING_ROWS, ODD_ROWS, ROWS_OF_NOTHING

_IN_ROCKSDB = frozenset({MISSING_ROWS, ROWS_OF_NOTHING, ODD_ROWS, UNREADABLE_DATABASE})
_NOT_MADE = frozenset({UNREADABLE_DATABASE, DAMAGED_CONFIGURATION, *COMPACTED})  # of queues, by no repair
_REPAIR = "REPAIR"


Advice = tuple[Step, tuple[Group, ...]]
"""One thing to do, and the findings that it is for."""


def advice(
    store: str, parts: Mapping[str, PartReport], groups: Sequence[Group], options: Sequence[str] = ()
) -> list[Advice]:
    """
    Return the steps, in the order in which they are to be done, each with the findings that it is for.

    *options* are those of the store: commands that read it repeat them.
    """
    again = " ".join(map(quote, (store, *options)))
    steps = (*_of_log(quote(store), again, groups), *_of_made_files(quote(store), again, parts, groups))
    advised = [one for one in steps if one[1]]
    index = parts.get(INDEX)
    if index is not None and index.unverified:
        advised.append(_step((), f"The {INDEX} could not be verified: {index.unverified}"))
    return advised


def _step(groups: tuple[Group, ...], words: str, *commands: str) -> Advice:
    return Step(words, commands), groups


def _of(
    groups: Sequence[Group], part: str, kinds: Container[str] | None = None, *, besides: Container[str] = ()
) -> tuple[Group, ...]:
    return tuple(
        group
        for group in groups
        if group.cause.part == part and (kinds is None or group.cause.kind in kinds) and group.cause.kind not in besides
    )


def _of_log(store: str, again: str, groups: Sequence[Group]) -> Iterator[Advice]:
    copy = "from a slave, a backup or another copy, with the broker stopped, and verify again. A lake may hold"
    export = f"{program()} export --lake LAKE --where 'physical_offset {{}}' --out MESSAGES.ndjson"
    misnamed = _of(groups, LOG, {MISNAMED_SEGMENT})
    renamings = [_renaming(store, one.cause) for one in misnamed if "://" not in store + one.cause.file]
    words = "A segment has a wrong name. With the broker stopped, give it its own, and verify again:"
    yield _step(misnamed, words, *renamings)
    missing, before = _of(groups, LOG, MISSING_RECORDS), _of(groups, LOG, {LOST_START})
    start = min((group.cause.log_offset or 0 for group in missing), default=0)
    ends = [group.cause.log_end for group in missing if group.cause.log_end is not None]
    wanted = f">= {start}"
    if len(ends) == len(missing):
        wanted += f" AND physical_offset < {max(ends, default=0)}"
    words = f"Part of the log is missing. Put the segment back {copy} its messages, for repair or export:"
    yield _step(missing, words, f"{program()} repair {again} --out {_REPAIR} --lake LAKE", export.format(wanted))
    words = f"The first segments are missing. Put them back {copy} their messages, for repair or export:"
    end = max((group.cause.log_end or 0 for group in before), default=0)
    yield _step(before, words, f"{program()} repair {again} --out {_REPAIR} --lake LAKE", export.format(f"< {end}"))
    yield _step(
        _of(groups, LOG, {UNREADABLE_RANGE}),
        "The disk cannot read parts of the log: copy the store to another disk before anything else.",
    )
    yield _step(
        _of(groups, LOG, DAMAGED_RECORDS),
        "Records of the log are damaged. repair --lake takes them from a lake that was filled before, or that a "
        "slave's store is ingested into now.",
    )
    yield _step(
        _of(groups, LOG, {CHECKPOINT_AHEAD}),
        "A checkpoint matters after a crash only. A broker that is started and stopped writes it again.",
    )


def _renaming(store: str, misnamed: Finding) -> str:
    folder, _, name = misnamed.file.rpartition("/")
    place = quote(folder) if folder.startswith("/") else f"{store}/{quote(folder)}"  # the log may lie elsewhere
    return f"mv -n {place}/{name} {place}/{misnamed.expected}"


def _of_made_files(
    store: str, again: str, parts: Mapping[str, PartReport], groups: Sequence[Group]
) -> Iterator[Advice]:
    """Yield the steps for what a broker, or a repair, makes from the log."""
    rows, keys = (parts[name].database if name in parts else None for name in (QUEUES, INDEX))
    yield from _of_queues(groups, rows)
    yield from _of_index(store, again, groups, keys)
    made = (
        *_of(groups, LOG, {WRONG_FILE_SIZE, SHORT_CHECKPOINT}),
        *(() if rows else _of(groups, QUEUES, besides=_NOT_MADE)),
        *(() if keys else _of(groups, INDEX, besides={NOT_INDEXED, REPEATED, *_IN_ROCKSDB})),
    )
    open_ones = tuple(one for one in made if "undecided" in one.cause.cause)
    of_sizes = tuple(one for one in open_ones if one.cause.kind == WRONG_FILE_SIZE)
    words = "Files have a wrong length, are lost, or contradict the log. See the planned repairs (reads only):"
    others = tuple(one for one in made if one not in of_sizes)
    yield _step(others, words, f"{program()} repair {again} --out {_REPAIR}")
    yield _step(
        open_ones,
        "If a finding is undecided, repair changes only files that it can prove. For the rest, compare a slave's copy, "
        "or a lake that was filled before (repair --lake); of lengths, the broker's configuration "
        "(repair --broker-conf).",
    )


def _of_queues(groups: Sequence[Group], database: Step | None) -> Iterator[Advice]:
    yield _step(
        _of(groups, QUEUES, {UNREADABLE_DATABASE}),
        "A database in RocksDB cannot be read. With the broker stopped, move its files aside (not the folders of "
        "topics, if the folder has any): a broker of 5.3.3 or later rebuilds its rows from the log; "
        "from 5.4.0 on, from the newest segments, as many as commitLogRecoverMaxNum says (10).",
    )
    yield _step(
        _of(groups, QUEUES, {DAMAGED_CONFIGURATION}),
        "A table of the broker is damaged: restore the file in `config` from its .bak or from a slave.",
    )
    yield _step(
        _of(groups, QUEUES, COMPACTED),
        "A broker does not rebuild a compacted log. With the broker stopped, restore the folder `compaction` from a "
        "slave or a backup; a lake tells the newest message of each key (docs/tables.md).",
    )
    if database is not None:
        yield database, _of(groups, QUEUES, besides=_NOT_MADE)


def _of_index(store: str, again: str, groups: Sequence[Group], database: Step | None) -> Iterator[Advice]:
    if database is not None:
        yield database, _of(groups, INDEX)
        return
    yield _step(
        _of(groups, INDEX, {NOT_INDEXED}),
        "Keys were never indexed, inside a file that is otherwise right: only a full rebuild brings them back "
        "(--lost-only keeps that file):",
        f"{program()} rebuild-index {again} --out NEW-INDEX-ALL",
    )
    copies = _of(groups, INDEX, {REPEATED})
    local = [one.cause.file for one in copies if "://" not in store]
    words = "An index file is a copy of one before it. With the broker stopped, take it out of the folder:"
    yield _step(copies, words, *(f"mv -n {store}/{file} {store}/{Path(file).name}.copy" for file in local))
    yield _step(
        _of(groups, INDEX, _IN_ROCKSDB),
        "The index in RocksDB is not what the log says, and only a broker makes its rows. Until then, keys are in "
        "the log:",
        f"{program()} query by-key --store {store} -t TOPIC -k KEY --through-log",
    )
