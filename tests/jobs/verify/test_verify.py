"""The complete verification, except for the parts that transcripts cover."""

import errno
import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from socket import gethostname

import pytest

from jobs.console.result import ExitCode, Severity
from jobs.diagnosis.findings import INDEX, LOG, QUEUES
from jobs.inspect.inspection import inspect_store
from jobs.products.index.explanation import FileVerdict as IndexVerdict
from jobs.products.queues import DifferenceKind
from jobs.query.source import do_nothing
from jobs.repair.run import RepairRequest, repair
from jobs.storage.local import LocalReader, LocalStorage
from jobs.storage.scratch import open_scratch, open_scratch_below_output
from jobs.store.record_places import find_record
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.store import file_name_of_offset
from tests.golden import StoreOf, golden_stores
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import Broker
from tests.support.commands import ROOT, Run, overwrite
from tests.support.lakes import ingest_store, list_tier_files, rows_of
from tests.support.meanwhile import DisturbedWorkers
from tests.support.stores import list_segments, read_store_records


def verify_store(store: Path) -> Verdict:
    return verify(VerifyRequest(str(store)), SerialWorkers())


@pytest.mark.parametrize("name", golden_stores("expired"))
def test_a_log_cut_by_retention_is_healthy(golden: StoreOf, name: str) -> None:
    assert verify_store(golden(name)).severity is Severity.HEALTHY


def test_every_message_that_the_broker_sent_is_in_the_tier_with_its_unit(place: Path, tier: Path) -> None:
    queues = json.loads((place / "EXPECT.json").read_text())["beforeStop"]["queues"]
    parts = verify_store(tier).parts

    assert sum(len(queue["units"]) for queue in queues.values()) == parts[QUEUES].numbers["matched"]
    assert parts[LOG].numbers["records"] * 3 == parts[INDEX].numbers["keys"]


def test_findings_of_a_tier_are_kept_in_a_lake_as_those_of_a_store(tier: Path, tmp_path: Path, run: Run) -> None:
    summary = ingest_store(tier, tmp_path / "lake")
    overwrite(list_tier_files(tier, "Orders/0")[1], 120, b"?")
    run("verify", tier, "--findings-lake", tmp_path / "lake")
    (row,) = rows_of(tmp_path / "lake", "findings", "kind")

    assert ("b0", summary.store_id, "wrong_body_crc") == (row["broker"], row["store_id"], row["kind"])
    run("verify", tier, "--findings-lake", tmp_path / "lake")
    assert [1, 2] == [row["verification"] for row in rows_of(tmp_path / "lake", "findings", "verification")]


def test_a_table_of_topics_that_cannot_be_read_here_leaves_queues_not_verified(
    situation: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy store of 5.5.1 with its configuration in RocksDB, without the package that reads RocksDB."""
    store = Path(shutil.copytree(situation("b551-configv2") / "store", tmp_path / "store"))
    assert verify_store(store).severity is Severity.HEALTHY
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    queues = verify_store(store).parts[QUEUES]

    assert (queues.findings, queues.severity) == ([], Severity.NOT_VERIFIED)
    assert "rocketmq-lake[rocksdb]" in " ".join(queues.doubts)
    assert ingest_store(store, tmp_path / "lake").contradictions == 0
    assert not repair(RepairRequest(str(store), tmp_path / "repair"), SerialWorkers()).plan


def test_a_copy_of_a_segment_inside_the_range_of_another_one_hides_no_message(golden: StoreOf, tmp_path: Path) -> None:
    """By its name, the copy would truncate the other segment."""
    healthy = golden("b533-base")
    store = Path(shutil.copytree(healthy, tmp_path / "store"))
    first, second, *_ = list_segments(store)
    copy = Path(shutil.copyfile(first, second.with_name(file_name_of_offset(int(second.name) + 20))))
    offsets = [stored.record.physical_offset for stored in read_store_records(healthy)]
    listed = list_store(str(store))
    inspected = inspect_store(str(store), (), BrokerConf(), deep=True, progress=do_nothing).problems

    assert len(offsets) == ingest_store(store, tmp_path / "lake").messages
    assert offsets == [offset for offset in offsets if find_record(listed, offset) is not None]
    assert [("overlapping_file", f"commitlog/{copy.name}")] == [
        (finding.kind, finding.file) for finding in verify_store(store).findings
    ]
    assert [str(copy)] == [problem.file for problem in inspected if problem.severity is Severity.DAMAGE]


def test_a_file_named_near_the_largest_offset_is_reported_and_not_part_of_the_log(store: Path, run: Run) -> None:
    """All commands that read the log failed with exit code 1, without naming the file."""
    first = list_segments(store)[0]
    copy = Path(shutil.copyfile(first, first.with_name("09223372036854775000")))
    inspected = run("inspect", store)
    verified_copy = run("verify", store)
    first.unlink()
    verified_misnamed = run("verify", store)

    assert ExitCode.DAMAGE == inspected.code == verified_copy.code == verified_misnamed.code
    assert f"DAMAGE     commitlog/{copy.name}: the name of the file is wrong: its" in inspected.out
    assert f"overlapping_file: commitlog/{copy.name} @0" in verified_copy.out
    assert f"mv -n {copy} {first}" in verified_misnamed.out


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("consumequeue/T1/0/00000000000000000200", "wrong_file_size"),
        ("commitlog/00000000000000016384", "gap"),
        ("index/20261120074348803", "damaged"),
        ("checkpoint", "checkpoint_cut_short"),
        ("config/topics.json", "damaged_configuration"),
    ],
)
def test_a_link_to_itself_is_reported_like_an_empty_file(
    name: str, kind: str, store: Path, tmp_path: Path, run: Run
) -> None:
    """`verify` and `ingest` ended with exit code 1: too many levels of symbolic links."""
    path = store / name
    path.unlink()
    path.symlink_to(path.name)

    assert (kind, name) == next((finding.kind, finding.file) for finding in verify_store(store).findings)
    assert run("ingest", store, "--lake", tmp_path / "lake").code is not ExitCode.FAILED


@pytest.mark.parametrize("name", ["09223372036854775808", "99999999999999999999", "a copy"])
def test_a_file_whose_name_is_not_an_offset_is_named_and_not_its_size(
    name: str, golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """`verify` reported: size: 16384, expected 16384."""
    store = Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))
    shutil.copyfile(list_segments(store)[0], store / "commitlog" / name)

    (found,) = verify_store(store).findings
    assert (found.kind, found.file, found.field, found.found) == ("unexpected_file", f"commitlog/{name}", "name", name)
    out = run("verify", store).out
    assert f"commitlog/{name} has a name that brokers do not use" in out
    assert f"mv -n {store}/commitlog/" in out


def test_a_segment_that_cannot_be_opened_is_not_treated_as_a_stray_file(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, `verify` would recommend to move an intact segment out of the log's folder."""
    first, second, *_ = list_segments(store)
    first.write_bytes(first.read_bytes() + second.read_bytes()[:4096])
    opened = LocalStorage.open

    def failing(self: LocalStorage, location: str) -> AbstractContextManager[LocalReader]:
        if location == str(second):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), location)
        return opened(self, location)

    monkeypatch.setattr(LocalStorage, "open", failing)
    with pytest.raises(OSError, match="Too many open files"):
        list_store(str(store))


def test_a_segment_that_is_too_long_ends_where_the_next_one_begins(
    store: Path, golden: StoreOf, tmp_path: Path
) -> None:
    first, second, *_ = list_segments(store)
    first.write_bytes(first.read_bytes() + second.read_bytes()[:4096])
    overwrite(second, 0, bytes(100))
    taken = ingest_store(golden("b533-base"), tmp_path / "whole").messages

    assert taken - 1 == ingest_store(store, tmp_path / "lake").messages
    assert {"damaged_range", "wrong_file_size"} == {one.kind for one in verify_store(store).findings if not one.follows}


def test_inspect_sees_a_lost_queue_folder_in_the_middle_of_a_small_log(tmp_path: Path) -> None:
    """A small log is a single segment of 1 GiB, and the queue may not occur among its first records."""
    broker = Broker(tmp_path / "store", segment_size=1 << 20, dispatches=True)
    for topic, count in (("Bills", 400), ("Orders", 20), ("Bills", 20)):
        broker.append(
            make_record(bytes(200), topic=topic, properties={"TAGS": "TagA"}, store_timestamp=STORED + number)
            for number in range(count)
        )
    (broker.root / "abort").unlink()
    (broker.root / "config").mkdir()
    table = {"topicConfigTable": {"Bills": {}, "Orders": {}}, "dataVersion": {"timestamp": STORED - 1, "counter": 2}}
    (broker.root / "config" / "topics.json").write_text(json.dumps(table))
    shutil.rmtree(broker.root / "consumequeue" / "Orders")
    problems = inspect_store(str(broker.root), (), BrokerConf(), deep=False, progress=do_nothing).problems

    assert [(problem.severity, problem.file) for problem in problems if problem.severity.is_alarm] == [
        (Severity.GAP, "consumequeue/Orders/0")
    ]


def test_every_kind_of_finding_is_on_its_page() -> None:
    rows = re.findall(
        r"^\| (`.+?) \|", (ROOT / "docs/internals/findings.md").read_text().partition("## Log")[2], re.MULTILINE
    )
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    modules = [ROOT / "jobs/diagnosis/kinds.py", *(ROOT / "jobs/verify").glob("*.py")]
    constants = {
        kind
        for module in modules
        for kind in re.findall(
            r'^[A-Z]\w+ = "([a-z]+(?:_[a-z]+)*)"', module.read_text().partition("\nclass ")[0], re.MULTILINE
        )
    }
    of_files = {verdict.kind for verdict in IndexVerdict if not verdict.is_explained}

    assert constants | {kind.value for kind in DifferenceKind} | of_files == named


ADVICE = f"not accessible on {gethostname()}: pass --scratch with a directory or URI that all workers can reach"


@pytest.mark.usefixtures("spark")
def test_temporary_files_invisible_to_workers_are_reported_with_the_option(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def hide() -> None:
        for folder in (tmp_path / "temporary").iterdir():
            shutil.rmtree(folder)

    monkeypatch.setattr("jobs.command.engine.make_workers", lambda *_, **__: DisturbedWorkers(happens=hide))
    without = run("verify", golden("b533-base"), "--quiet")
    given = run("verify", golden("b533-base"), "--quiet", "--scratch", tmp_path / "shared")

    assert 1 == without.code
    assert without.err.splitlines()[-1].startswith(f"rmq-lake: {tmp_path / 'temporary'}/")
    assert without.err.splitlines()[-1].endswith(ADVICE)
    assert 0 == given.code


def test_the_scratch_option_is_suggested_only_if_it_was_not_given(tmp_path: Path) -> None:
    """A task may read keys on a host where the directory is not visible, although all ranges were read elsewhere."""
    with open_scratch(None, {}) as scratch:
        shutil.rmtree(scratch.location)
        with pytest.raises(OSError, match=ADVICE), scratch.open("keys"):
            pass
    with (
        open_scratch_below_output(str(tmp_path), {}) as scratch,
        pytest.raises(FileNotFoundError),
        scratch.open("keys"),
    ):
        pass
    with open_scratch(str(tmp_path), {}) as scratch:
        shutil.rmtree(scratch.location)
        with (
            pytest.raises(OSError, match=r"not accessible on .*: use a directory that all workers share"),
            scratch.create("keys"),
        ):
            pass


def test_the_offset_of_a_newest_segment_that_was_cut_is_where_its_file_ends_now(newer_store: Path) -> None:
    newest = max((newer_store / "commitlog").iterdir())
    with newest.open("r+b") as file:
        file.truncate(8387)

    (found,) = (finding for finding in verify_store(newer_store).findings if finding.kind == "wrong_file_size")

    assert found.log_offset == int(newest.name) + 8387
