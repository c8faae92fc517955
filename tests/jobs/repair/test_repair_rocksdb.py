"""A store with queues or index in RocksDB: files are repaired; rows are only reported."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from jobs.console.result import ExitCode
from jobs.products.index.settings import GivenSettings
from jobs.repair.run import RepairRequest, RepairSummary, repair
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import recommend_steps
from rmq_formats.rocksdb.layout import UNIT_VALUE
from tests.golden import StoreOf
from tests.support.stores import read_store_files

WANTED = GivenSettings(release="5.5.1")


def copied(situation: StoreOf, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(situation(name) / "store", tmp_path / "store"))


def repair_store(store: Path, out: str) -> RepairSummary:
    return repair(RepairRequest(str(store), store.parent / out, given_settings=WANTED, apply=True), SerialWorkers())


def change_rows(folder: Path, change: Callable[[Rdict, Any], object]) -> None:
    raw = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(folder), raw)}
    database = Rdict(str(folder), raw, families, AccessType.read_write())
    units = database.get_column_family("default")
    for key in list(units.keys())[10:14]:
        change(units, key)
    units.flush()
    units.close()
    database.close()
    (folder / "rocksdict-config.json").unlink()


def overwrite_rows(folder: Path) -> None:
    change_rows(folder, lambda units, key: units.put(key, b"\1" * UNIT_VALUE.size))


@pytest.mark.parametrize("damage", [overwrite_rows, lambda folder: min(folder.glob("*.sst")).unlink()])
def test_findings_about_a_second_copy_set_only_the_database_aside(
    damage: Callable[[Path], object], situation: StoreOf, tmp_path: Path
) -> None:
    """Its files are next to the folders of topics, which are compared and repaired after the command."""
    store = copied(situation, "b551-cqdouble", tmp_path)
    files = {path for path in read_store_files(store) if path.count("/") > 1}
    damage(store / "consumequeue")
    (note,) = repair_store(store, "repair").notes

    subprocess.run(["bash", "-c", note.rpartition(":")[2]], check=True)

    assert files == {path for path in read_store_files(store) if path.count("/") > 1}
    assert repair_store(store, "again").exit_code is ExitCode.CLEAN


def test_verify_does_not_recommend_queue_files_for_a_broker_that_reads_none(situation: StoreOf, tmp_path: Path) -> None:
    store = copied(situation, "b551-rockscq-clean", tmp_path)
    change_rows(store / "consumequeue", lambda units, key: units.delete(key))
    verdict = verify(VerifyRequest(str(store), WANTED), SerialWorkers())
    words = [command for step, _ in recommend_steps(verdict) for command in step.commands]

    assert [f"mv {quote(str(store / 'consumequeue'))} {quote(f'{store}-consumequeue-aside')}"] == words
