"""
Keep what scenarios leave as golden stores: one archive a store, with its provenance, and every file's hash.

    python -m tests.oracle.golden --out build/golden --release 5.5.0 --scenario everyday

Times, ids and names of index files differ from run to run; what is sent, and the rules by which it is stored, do not.
"""

import argparse
import hashlib
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.oracle.judge import by_scalar, differences
from tests.oracle.plays import Played, fill_store
from tests.oracle.releases import MATRIX, class_path_of
from tests.oracle.scenarios import ORDERS, SCENARIOS, UPGRADES, Scenario

_NOT_KEPT: Final = ("lock", "compaction", "rocksdbstore", "timerlog", "timerwheel")


def keep(scenario: Scenario, release: str, out: Path) -> Path:
    name = _name(scenario, release)
    with tempfile.TemporaryDirectory(prefix="oracle-golden-") as scratch:
        store = Path(scratch) / name
        played = fill_store(release, scenario, store, Path(scratch) / "scratch")
        left_out = sorted(path.name for path in store.iterdir() if path.name in _NOT_KEPT)
        provenance = "\n".join(_provenance(played, left_out))
        for part in left_out:
            _remove(store / part)
        _write_expectations(played)
        (store / "PROVENANCE.md").write_text(provenance + "\n", encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        archive = out / f"{name}.tar.xz"
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(store, arcname=name)
    return archive


def _name(scenario: Scenario, release: str) -> str:
    if scenario in UPGRADES:
        first, second = scenario.name.split("-")[1:3]
        return f"up{_digits(first)}-{_digits(second)}"
    return f"b{_digits(release)}-{scenario.name}"


def _digits(release: str) -> str:
    return release.replace("-incubating", "i").replace(".", "")


def _provenance(played: Played, left_out: list[str]) -> Iterator[str]:
    stage, scenario = played.stage, played.scenario
    geometry = stage.geometry
    found = differences(played.disk, by_scalar(played.log, played.writer))
    yield f"# {played.store.name}"
    yield f"* scenario `{scenario.name}`: {scenario.why}"
    for since, release in stage.rules:
        yield f"* Apache RocketMQ **{release}** (published artifacts) wrote from offset {since} on"
    yield (
        f"* geometry: log files of {geometry.commit_log_file_size} bytes, queue files of"
        f" {geometry.consume_queue_file_size}, index {geometry.hash_slots} slots and {geometry.index_entries} entries;"
        " zone UTC"
    )
    yield f"* settings beside those: {stage.settings or 'none'}"
    yield f"* left by the broker and not kept: {', '.join(left_out) or 'nothing'}"
    yield f"* {len(played.log)} records, {len(played.disk.queues)} queue and {len(played.disk.index_files)} index files"
    yield f"* a rebuild from the log differs in: {', '.join(one.file for one in found) or 'nothing'}"
    yield "\n## sha256"
    for path in sorted(played.store.rglob("*")):
        inside = path.relative_to(played.store)
        if path.is_file() and inside.parts[0] not in _NOT_KEPT:
            yield f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {inside.as_posix()}"
    yield "\n## JARs"
    yield from sorted(jar.name for jar in class_path_of(stage.release) if jar.name.startswith("rocketmq-"))


def _write_expectations(played: Played) -> None:
    expect = played.store / "EXPECT"
    expect.mkdir()
    (expect / "sent.txt").write_text("".join(f"{line}\n" for line in played.stage.sent), encoding="utf-8")
    for number, asked in enumerate(played.stage.asked, 1):
        text = (
            f"# mqadmin {shlex.join(asked.arguments)}\n# ---- stdout ----\n{asked.printed.stdout}"
            f"# ---- stderr ----\n{asked.printed.stderr}"
        )
        (expect / f"{number:02}-{asked.arguments[0]}.txt").write_text(text, encoding="utf-8")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--release", action="append", choices=MATRIX)
    parser.add_argument("--scenario", action="append", choices=[*SCENARIOS, ORDERS.name])
    chosen = parser.parse_args()
    known = {**SCENARIOS, ORDERS.name: ORDERS}
    wanted = [known[name] for name in chosen.scenario or SCENARIOS]
    plays = [(one, release) for release in chosen.release or MATRIX for one in wanted if one.runs_on(release)]
    if not (chosen.release or chosen.scenario):
        plays += [(upgrade, upgrade.since) for upgrade in UPGRADES]
    for scenario, release in plays:
        print(keep(scenario, release, chosen.out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
