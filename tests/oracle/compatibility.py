"""
Write docs/compatibility.md from the verdicts of test runs.

    ORACLE_VERDICTS=verdicts.jsonl python -m pytest -m matrix tests/oracle
    python -m tests.oracle.compatibility verdicts.jsonl

A run may be of some tests alone: what earlier runs said of the others is in `recorded_verdicts.jsonl`, and stays.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.oracle.releases import MATRIX, artifacts_of
from tests.oracle.scenarios import SCENARIOS, UPGRADES
from tests.oracle.store_kinds import KINDS, rows
from tests.oracle.store_kinds import RELEASES as OF_STORE_KINDS

_DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
_UPGRADED: Final = "upgraded"
_SHIFTED: Final = ("killed", "expired", "killed at random moments")
_CONVERTED: Final = (
    "queues converted to rocksdb",
    "queues converted to files",
    "lost messages converted to rocksdb",
    "expired queues converted to rocksdb",
)
_RECORDED_FUZZ: Final = Path(__file__).with_name("recorded_fuzz.jsonl")
"""What `python -m tests.oracle.fuzzing` printed in a long run: each round, with its seed."""

_RECORDED: Final = Path(__file__).with_name("recorded_verdicts.jsonl")
"""What the newest run of each test said."""

_STORE_KINDS: Final = rows()

_HEAD: Final = """\
# Compatibility

This file is generated: `make test-matrix` plays every scenario below on every release of Apache RocketMQ named here
(published artifacts, Java 17), compares what the brokers leave with what this project makes, and writes down what it
found. *Equal* means byte for byte, every file, made from the log alone, by the scalar modules and by the compiled ones.
An empty cell: the release has no such thing, or it was not run there.
"""

_CLASSES: Final = """\
## Where a rebuild from the log cannot be equal

Each inequality has one of these names; nothing else was seen, and a test fails on anything else.

* `whole`: the first index file; it is what the log alone gives.
* `continued`: an index file that follows byte for byte from the real header before it; a message whose keys straddle
  both goes on where it stopped.
* `repeated`: as `continued`, but the straddling message has all its keys once more: after a crash the broker deletes
  the unfinished file and dispatches that message again. An unfinished file survives if its end time is not behind the
  checkpoint's, which is the end time of the last full file; then its last message is in it twice.
* `partly`: the first index file of a shortened log; it still names deleted messages, and agrees about all others.
* `behind`: the newest index file of a killed broker; it lacks the keys that were not dispatched yet.
* `torn`: as `behind`, with one entry half put.
* `again`: a broker killed after it made an index file and before it wrote its header leaves a file of zeros. Recovery
  keeps it (its end time, 0, is not behind the checkpoint's), and as it ends with no message, none is skipped: what
  recovery dispatches, from the first message of a log file on, is indexed once more, into this file and later ones.
* `lost` (not in the table: in DLedger groups of several, seen in 4.9.8): recovery deletes the unfinished index file
  of a killed member and dispatches from the end of its queues on; what stood in the deleted file is indexed no more.
  A member of 5.3.3 or 5.5.0 that led and comes back indexes what is taken back from it, too; one of 5.4.0 sometimes
  gives no units to what is written over that. A killed member of 5.4.0 that comes back sometimes has no unit for its
  last record, and those after it are one place too low. A member of 5.2.0 that comes back begins its queues again,
  behind the units that they had (`tests/oracle/test_group.py`).
* *lost at recovery* (not in the table: the brokers here are configured otherwise): from 5.4.0 on recovery looks at the
  ten newest log files only (`commitLogRecoverMaxNum`); what was not dispatched before them never gets units and
  entries.
* *units into the log equal*: a shortened log no longer proves the units of deleted messages; all others are equal.
* *passed over*: behind a record of the schedule topic whose DELAY is no number (no client gets one into a log) a broker
  dispatches nothing of what it had read to the end of the file, and truncates the log there when it recovers; the
  messages are whole, and we make their units (`tests/oracle/test_poison.py`).
* *removed, was empty*: a broker up to 5.1.2 that was killed between making a file and giving it its size does not load
  the store again until an operator removes that file.
"""

_KINDS_HEAD: Final = """\
## Store kinds of 5.x

Where a broker keeps its queues, with and without double write and light queues (LMQ; in 5.5.1 LITE topics besides),
stopped cleanly, or killed while it took messages. *Equal*: the rows of `messages`, the units in `consume_queue`, the
limits and units that `query` answers, and the queues that `rebuild-consumequeue` makes from the log alone are what the
broker answers, light queues included; `verify` exits with 0, has no finding, and says the word after the semicolon. For
a killed broker its next start answers. *Equal as far as dispatched*, *no unit on disk*: the last units, or all, were in
the memory of the killed broker; `verify` counts them as not dispatched yet, all that is there is equal, and what the
next start makes is what we make from the log. With `storeType=defaultRocksDB` double write makes no queue files. An
empty cell: the release has no such thing, or it was not run.
"""

_NOT_RUN: Final = """\
What cannot be run, and what was verified instead:

* *The broker does not start*: from 5.5.0 on double write demands light queues in RocksDB (`combineCQUseRocksdbForLmq`),
  and with them a broker refuses to let RocksDB give the numbers, with or without files beside it. A test shows each
  refusal; both kinds are read as 5.4.0 writes them.
* *The broker dispatches nothing*: 5.4.0 with double write, RocksDB read, and a message for a light queue. A test shows
  it, and that `verify` says that the whole log is to be dispatched. With files read light queues work.
* Double write with light queues in files, from 5.5.0 on: refused likewise, as a test shows. Double write of 5.5.1 has
  `combineCQUseRocksdbForLmq=true` in every row.
* LITE topics: from 5.5.0 on. Light queues of 5.3.3 and 5.4.0 are those that a message names (`INNER_MULTI_DISPATCH`).
* Transactions, index and timer messages in RocksDB are no rows here. Stores of 5.5.1 that have them are compared with
  what their brokers answered (`tests/jobs/query/test_query_recorded.py`).
* With only LITE topics written twice, plain light queues are nowhere: the broker answers that they are empty, `query`
  does too, `consume_queue` has their units as `missing`, `verify` names them, and a rebuild from the log makes them.
* A power cut, which also loses what the operating system had not written yet: a killed process loses its own memory
  alone. Instead, tests damage and shorten files and tables by hand (`tests/jobs/ingest/test_hostile.py`,
  `tests/jobs/store/test_rocksdb.py`).
"""


class Verdict(NamedTuple):
    """What became of one way of judging on one release."""

    release: str
    way: str
    verdict: str


def read_verdicts(*paths: Path) -> list[Verdict]:
    """Read the lines that test runs wrote; a later line about the same thing wins."""
    rows = (json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    found = {(row["release"], row["way"]): Verdict(**row) for row in rows}
    return list(found.values())


def document(verdicts: list[Verdict]) -> str:
    parts = (
        _tables(verdicts),
        _store_kinds(verdicts),
        [_CLASSES],
        _upgrades(verdicts),
        _fuzz(),
        _scenarios(),
        _stand_ins(),
    )
    return "\n".join([_HEAD, *("\n".join(part) + "\n" for part in parts)])


def _tables(verdicts: list[Verdict]) -> Iterator[str]:
    ways = sorted({verdict.way for verdict in verdicts} - {_UPGRADED}, key=_order)
    yield "## Queues and index files made from the log alone\n"
    yield "Queue files + index files, all of them equal.\n"
    yield from _table(verdicts, [way for way in ways if way in SCENARIOS and way not in _SHIFTED])
    yield "## Stores in which files shift\n"
    yield from _table(verdicts, [way for way in ways if way in _SHIFTED])
    yield "## In the presence of a broker\n"
    yield from _table(verdicts, [way for way in ways if way not in {*SCENARIOS, *_SHIFTED, *_CONVERTED, *_STORE_KINDS}])
    yield "## Queues converted from files to RocksDB, and back\n"
    yield from _table(verdicts, [way for way in _CONVERTED if way in ways])


def _table(verdicts: list[Verdict], ways: list[str]) -> Iterator[str]:
    known = {(verdict.release, verdict.way): verdict.verdict for verdict in verdicts}
    yield f"| release | {' | '.join(ways)} |"
    yield "|---|" + "---|" * len(ways)
    for release in MATRIX:
        yield f"| {release} | " + " | ".join(known.get((release, way), "") for way in ways) + " |"
    yield ""


def _store_kinds(verdicts: list[Verdict]) -> Iterator[str]:
    known = {(verdict.release, verdict.way): verdict.verdict for verdict in verdicts}
    yield _KINDS_HEAD
    yield f"| store kind | double write | light queues | end | {' | '.join(OF_STORE_KINDS)} |"
    yield "|---|---|---|---|" + "---|" * len(OF_STORE_KINDS)
    for way in _STORE_KINDS:
        yield f"| {way} | " + " | ".join(known.get((release, way), "") for release in OF_STORE_KINDS) + " |"
    yield "\n| store kind | played from | settings |\n|---|---|---|"
    for kind in KINDS:
        settings = ", ".join(f"`{name}={value}`" for name, value in kind.settings)
        yield f"| {kind.name} | {kind.since} | {settings} |"
    yield f"\n{_NOT_RUN}"


def _order(way: str) -> tuple[int, str]:
    names = list(SCENARIOS)
    return (names.index(way) if way in names else len(names)), way


def _upgrades(verdicts: list[Verdict]) -> Iterator[str]:
    yield "## Stores that two releases wrote\n"
    yield f"{UPGRADES[0].why}\n"
    yield "| releases | verdict |\n|---|---|"
    for verdict in verdicts:
        if verdict.way == _UPGRADED:
            first, second = verdict.release.split("-")[1:3]
            yield f"| {first}, then {second} | {verdict.verdict} |"


def _fuzz() -> Iterator[str]:
    *rounds, total = (json.loads(line) for line in _RECORDED_FUZZ.read_text(encoding="utf-8").splitlines())
    yield "## Random messages, one long run\n"
    yield (
        f"{total['messages']:,} messages in {len(rounds)} rounds of random geometry: {total['differences']} differences"
        f" in {total['seconds']} s. Each round with its seed: `tests/oracle/{_RECORDED_FUZZ.name}`.\n"
    )
    yield "| release | door | rounds | messages | differences |\n|---|---|---:|---:|---:|"
    for release, door in dict.fromkeys((one["release"], one["door"]) for one in rounds):
        these = [one for one in rounds if (one["release"], one["door"]) == (release, door)]
        messages = sum(one["messages"] for one in these)
        yield f"| {release} | {door} | {len(these)} | {messages:,} | {sum(len(one['differences']) for one in these)} |"


def _scenarios() -> Iterator[str]:
    yield "## Scenarios\n"
    yield "| name | from release | what is done |\n|---|---|---|"
    for scenario in SCENARIOS.values():
        yield f"| {scenario.name} | {scenario.since} | {scenario.why} |"


def _stand_ins() -> Iterator[str]:
    yield "## Modules that were never published\n"
    yield (
        "The nearest published version stands in; none of them decides what stands in a store but the broker, whose\n"
        "code of the two releases differs in an administration command only.\n"
    )
    yield "| release | module | version used |\n|---|---|---|"
    for release in MATRIX:
        for artifact in artifacts_of(release):
            if artifact.version != release:
                yield f"| {release} | {artifact.module} | {artifact.version} |"


def main() -> int:
    """Record the verdicts of a run, and write the document."""
    verdicts = read_verdicts(_RECORDED, Path(sys.argv[1]))
    lines = (json.dumps(verdict._asdict()) for verdict in sorted(verdicts, key=lambda verdict: verdict[:2]))
    _RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _DOCUMENT.write_text(document(verdicts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
