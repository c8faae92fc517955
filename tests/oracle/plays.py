"""
Scenarios that are played once for all tests of their results, or stored as golden stores.

    python -m tests.oracle.plays --out build/golden --release 5.5.0 --scenario everyday

Times, ids and names of index files differ between runs; the messages, and the rules by which they are stored, do not.
"""

import argparse
import hashlib
import shlex
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from rmq_formats.commitlog.record import MessageRecord
from tests.oracle.judge import (
    DerivedFiles,
    Writer,
    build_with_scalar_modules,
    find_differences,
    read_derived_files,
    read_log,
)
from tests.oracle.releases import MATRIX, class_path_of
from tests.oracle.scenarios import ORDERS, SCENARIOS, UPGRADES, Scenario
from tests.oracle.stage import Stage
from tests.support.stores import read_files


@dataclass(frozen=True)
class PlayedScenario:
    """The store of a played scenario."""

    scenario: Scenario
    stage: Stage

    @property
    def store(self) -> Path:
        return self.stage.store_directory

    @cached_property
    def log(self) -> list[MessageRecord]:
        return read_log(self.store)

    @cached_property
    def writer(self) -> Writer:
        stage = self.stage
        return Writer(tuple(stage.rules), stage.geometry, stage.settings, frozenset(stage.batch_topics))

    @cached_property
    def disk(self) -> DerivedFiles:
        return read_derived_files(self.store)


_NOT_KEPT: Final = ("lock", "compaction", "rocksdbstore", "timerlog", "timerwheel")


def store_as_golden(scenario: Scenario, release: str, out: Path) -> Path:
    """Archive the store of a scenario as a golden store, with its provenance and the hash of every file."""
    digits = [part.replace("-incubating", "i").replace(".", "") for part in (release, *scenario.name.split("-")[1:3])]
    name = f"up{digits[1]}-{digits[2]}" if scenario in UPGRADES else f"b{digits[0]}-{scenario.name}"
    with tempfile.TemporaryDirectory(prefix="oracle-golden-") as scratch:
        store = Path(scratch) / name
        played = PlayedScenario(scenario, scenario.on(release, store, Path(scratch) / "scratch"))
        for part in _NOT_KEPT:
            shutil.rmtree(store / part, ignore_errors=True)
            (store / part).unlink(missing_ok=True)
        provenance = "\n".join((*_provenance(played), ""))
        (store / "EXPECT").mkdir()
        (store / "EXPECT" / "sent.txt").write_text("".join(f"{line}\n" for line in played.stage.sent), encoding="utf-8")
        for number, answered in enumerate(played.stage.answered_lines, 1):
            (store / "EXPECT" / f"{number:02}-{answered.arguments[0]}.txt").write_text(
                f"# mqadmin {shlex.join(answered.arguments)}\n# ---- stdout ----\n{answered.printed.stdout}"
                f"# ---- stderr ----\n{answered.printed.stderr}",
                encoding="utf-8",
            )
        (store / "PROVENANCE.md").write_text(provenance, encoding="utf-8")
        return Path(shutil.make_archive(str(out / name), "xztar", scratch, name))


def _provenance(played: PlayedScenario) -> Iterator[str]:
    stage, size = played.stage, played.stage.geometry
    found = find_differences(played.disk, build_with_scalar_modules(played.log, played.writer))
    yield f"# {played.store.name}"
    yield from (f"* Apache RocketMQ **{release}** wrote from offset {since} on" for since, release in stage.rules)
    yield f"* scenario `{played.scenario.name}`: {played.scenario.why}"
    yield f"* geometry {size}; zone UTC; further settings: {stage.settings or 'none'}"
    yield f"* a rebuild from the log differs in: {', '.join(difference.file for difference in found) or 'nothing'}"
    checkpoint = (played.store / "checkpoint").read_bytes()
    yield f"* not kept, where the broker left it: {', '.join(_NOT_KEPT)}\n"
    yield f"CHECKPOINT {struct.unpack_from('>6q', checkpoint)}\n\n## sha256"  # without the code under test
    for name, data in read_files(played.store).items():
        yield f"{hashlib.sha256(data).hexdigest()}  {name}"
    yield "\n## JARs"
    yield from sorted(jar.name for jar in class_path_of(stage.release) if jar.name.startswith("rocketmq-"))


def main() -> None:
    known = {**SCENARIOS, ORDERS.name: ORDERS}
    parser = argparse.ArgumentParser(description=store_as_golden.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--release", action="append", choices=MATRIX)
    parser.add_argument("--scenario", action="append", choices=known)
    chosen = parser.parse_args()
    wanted = [known[name] for name in chosen.scenario or SCENARIOS]
    plays = [(one, release) for release in chosen.release or MATRIX for one in wanted if one.runs_on(release)]
    if not plays:
        parser.error(f"these scenarios need later releases: {', '.join(f'{one.name} {one.since}' for one in wanted)}")
    if not (chosen.release or chosen.scenario):
        plays += [(upgrade, upgrade.since) for upgrade in UPGRADES]
    for scenario, release in plays:
        print(store_as_golden(scenario, release, chosen.out), flush=True)


if __name__ == "__main__":
    main()
