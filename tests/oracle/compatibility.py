"""
Write docs/compatibility.md from the verdicts of a test run.

    ORACLE_VERDICTS=verdicts.jsonl python -m pytest -m matrix tests/oracle
    python -m tests.oracle.compatibility verdicts.jsonl
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.oracle.releases import MATRIX, artifacts_of
from tests.oracle.scenarios import SCENARIOS, UPGRADES

_DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
_UPGRADED: Final = "upgraded"

_HEAD: Final = """\
# Compatibility

This file is generated: `make test-matrix` plays every scenario below on every release of Apache RocketMQ named here
(published artifacts, Java 17), compares what the brokers leave with what this project makes, and writes down what it
found. *Equal* means byte for byte, every file, made from the log alone, by the scalar modules and by the compiled ones.
"""

_CLASSES: Final = """\
## Where a rebuild from the log cannot be equal

Each inequality has one of these names; nothing else was seen, and a test fails on anything else.

* `whole`: the first index file; it is what the log alone gives.
* `continued`: an index file that follows byte for byte from the real header before it; a message whose keys straddle
  both goes on where it stopped.
* `repeated`: as `continued`, but the straddling message has all its keys once more: after a crash the broker deletes
  the unfinished file and dispatches that message again. An unfinished file survives if its end time is not behind the
  checkpoint's, which is the end time of the last full file; then its last message stands in it twice.
* `partly`: the first index file of a shortened log; it still names deleted messages, and agrees about all others.
* `behind`: the newest index file of a killed broker; it lacks the keys that were not dispatched yet.
* `torn`: as `behind`, with one entry half put.
* `again`: a broker killed after it made an index file and before it wrote its header leaves a file of zeros. Recovery
  keeps it (its end time, 0, is not behind the checkpoint's), and as it ends with no message, none is skipped: what
  recovery dispatches, from the first message of a log file on, is indexed once more, into this file and later ones.
* *units into the log equal*: a shortened log no longer proves the units of deleted messages; all others are equal.
* *passed over*: behind a record of the schedule topic whose DELAY is no number (no client gets one into a log) a broker
  dispatches nothing of what it had read to the end of the file, and truncates the log there when it recovers; the
  messages are whole, and we make their units (`tests/oracle/test_poison.py`).
* *removed, was empty*: a broker up to 5.1.2 that was killed between making a file and giving it its size does not load
  the store again until an operator removes that file.
"""


class Verdict(NamedTuple):
    """What became of one way of judging on one release."""

    release: str
    way: str
    verdict: str


def read_verdicts(path: Path) -> list[Verdict]:
    """Read the lines that a test run wrote; a later line about the same thing wins."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    found = {(row["release"], row["way"]): Verdict(**row) for row in rows}
    return list(found.values())


def document(verdicts: list[Verdict]) -> str:
    """Write the whole document."""
    return "\n".join([_HEAD, *_table(verdicts), "", _CLASSES, *_upgrades(verdicts), "", *_scenarios(), *_stand_ins()])


def _table(verdicts: list[Verdict]) -> Iterator[str]:
    known = {(verdict.release, verdict.way): verdict.verdict for verdict in verdicts}
    ways = [way for way in dict.fromkeys(verdict.way for verdict in verdicts) if way != _UPGRADED]
    for way in sorted(ways, key=_order):
        yield f"## {way}\n"
        yield "| release | verdict |\n|---|---|"
        for release in MATRIX:
            if verdict := known.get((release, way)):
                yield f"| {release} | {verdict} |"
        yield ""


def _order(way: str) -> int:
    names = list(SCENARIOS)
    return names.index(way) if way in names else len(names)


def _upgrades(verdicts: list[Verdict]) -> Iterator[str]:
    yield "## Stores that two releases wrote\n"
    yield f"{UPGRADES[0].why}\n"
    yield "| releases | verdict |\n|---|---|"
    for verdict in verdicts:
        if verdict.way == _UPGRADED:
            first, second = verdict.release.split("-")[1:3]
            yield f"| {first}, then {second} | {verdict.verdict} |"


def _scenarios() -> Iterator[str]:
    yield "## Scenarios\n"
    yield "| name | from release | what is done |\n|---|---|---|"
    for scenario in SCENARIOS.values():
        yield f"| {scenario.name} | {scenario.since} | {scenario.why} |"


def _stand_ins() -> Iterator[str]:
    yield "\n## Modules that were never published\n"
    yield "The nearest published version stands in; none of them decides what stands in a store but the broker, whose\n"
    yield "code of the two releases differs in an administration command only.\n"
    yield "| release | module | version used |\n|---|---|---|"
    for release in MATRIX:
        for artifact in artifacts_of(release):
            if artifact.version != release:
                yield f"| {release} | {artifact.module} | {artifact.version} |"


def main() -> int:
    """Write the document."""
    _DOCUMENT.write_text(document(read_verdicts(Path(sys.argv[1]))) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
