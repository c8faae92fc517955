"""The complete verification, except for the parts that transcripts cover."""

import errno
import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from socket import gethostname

import pytest

from jobs.console.result import ExitCode, Severity
from jobs.diagnosis.findings import QUEUES
from jobs.inspect.inspection import inspect_store
from jobs.products.index.explanation import FileVerdict as IndexVerdict
from jobs.products.queues.join_result import DifferenceKind
from jobs.query.source import do_nothing
from jobs.repair.run import repair
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.storage.local import LocalStorage
from jobs.storage.model import Reader
from jobs.storage.scratch import open_scratch, open_scratch_below_output
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from rmq_formats.broker_conf import BrokerConf
from tests.golden import StoreOf
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import Broker
from tests.support.commands import ROOT, Run
from tests.support.lakes import ingest_store
from tests.support.meanwhile import DisturbedWorkers, fail_reads_of_first_segment, refuse_to_open
from tests.support.stores import list_segments


def verify_store(store: Path) -> Verdict:
    return verify(VerifyRequest(str(store)), SerialWorkers())


def test_a_table_of_topics_that_cannot_be_read_here_leaves_queues_not_verified(
    situation: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy store of 5.5.1 with its configuration in RocksDB, without the package that reads RocksDB."""
    store = Path(shutil.copytree(situation("b551-configv2") / "store", tmp_path / "store"))

    assert verify_store(store).severity is Severity.HEALTHY
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    queues = verify_store(store).parts[QUEUES]

    assert queues.findings == []
    assert queues.severity == Severity.NOT_VERIFIED
    assert "rocketmq-lake[rocksdb]" in " ".join(queues.doubts)
    assert ingest_store(store, tmp_path / "lake").contradictions == 0
    assert not repair(RepairRequest(str(store), tmp_path / "repair"), SerialWorkers()).plan


def test_a_segment_that_cannot_be_opened_is_not_treated_as_a_stray_file(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, `verify` would recommend to move an intact segment out of the log's directory."""
    first, second, *_ = list_segments(store)
    first.write_bytes(first.read_bytes() + second.read_bytes()[:4096])
    opened = LocalStorage.open

    def failing(self: LocalStorage, location: str) -> AbstractContextManager[Reader]:
        if location == str(second):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), location)
        return opened(self, location)

    monkeypatch.setattr(LocalStorage, "open", failing)
    with pytest.raises(OSError, match="Too many open files"):
        list_store(str(store))


def test_inspect_sees_a_lost_queue_directory_in_the_middle_of_a_small_log(tmp_path: Path) -> None:
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
        r"^\| (`.+?) \|", (ROOT / "docs/reference/findings.md").read_text().partition("## Log")[2], re.MULTILINE
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
    assert not named & {severity.value for severity in Severity}


ADVICE = f"not accessible on {gethostname()}: pass --scratch with a directory or URI that all workers can reach"


@pytest.mark.usefixtures("spark")
def test_temporary_files_invisible_to_workers_are_reported_with_the_option(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def hide() -> None:
        for directory in (tmp_path / "temporary").iterdir():
            shutil.rmtree(directory)

    monkeypatch.setattr("jobs.command_line.engine.make_workers", lambda *_, **__: DisturbedWorkers(happens=hide))
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


def test_an_unreadable_sector_explains_pending_messages_without_a_record(golden: StoreOf, tmp_path: Path) -> None:
    store = golden("b551-timerwheel") / "store"
    with fail_reads_of_first_segment(errno.EIO, lambda at, size: at < 8192 and at + size > 4096):
        verdict = verify(VerifyRequest(str(store)), SerialWorkers())

    assert [cause.kind for cause, _ in verdict.findings_by_cause] == ["unreadable_range"]
    with fail_reads_of_first_segment(errno.EIO, lambda *_: True):
        assert ingest_store(store, tmp_path / "lake").severity is Severity.DAMAGE


def test_index_files_that_disappear_while_they_are_compared_are_missing(golden: StoreOf, tmp_path: Path) -> None:
    store = shutil.copytree(golden("b551-base"), tmp_path / "store")
    delete = partial(shutil.rmtree, store / "index", ignore_errors=True)
    verdict = verify(VerifyRequest(str(store)), DisturbedWorkers(happens=delete))

    assert [finding.kind for finding in verdict.findings] == ["missing_index_entries"]


@pytest.mark.parametrize(("name", "end"), [("b551-timerwheel", 6018), ("b551-indexrocks", 8240)])
def test_rows_may_point_to_a_segment_created_meanwhile(tmp_path: Path, golden: StoreOf, name: str, end: int) -> None:
    store = shutil.copytree(golden(name) / "store", tmp_path / "store")
    (store / "abort").touch()
    data = (log := store / "commitlog" / f"{0:020}").read_bytes()
    os.truncate(log, end)
    create = partial(log.with_name(f"{end:020}").write_bytes, data[end : 2 * end])

    assert not verify(VerifyRequest(str(store)), DisturbedWorkers(happens=create)).findings


@pytest.mark.parametrize(
    "paths",
    [
        f"consumequeue/T1/0/{200:020} consumequeue/T1/1/{0:020} checkpoint",
        "index/",
        "config/subscriptionGroup.json",
        "config/consumerOffset.json config/consumerOffset.json.bak",  # which were also reported as missing
    ],
)
def test_files_that_the_disk_cannot_read_are_reported_and_the_rest_is_compared(
    golden: StoreOf, monkeypatch: pytest.MonkeyPatch, paths: str, tmp_path: Path
) -> None:
    """The commands ended with 1, and without a report. The log is read once more, not once for each file."""
    store = golden("b551-base")
    bad = {file for path in paths.split() for file in [store / path, *(store / path).glob("*")] if file.is_file()}
    for path in paths.split():
        refuse_to_open(str(store / path), errno.EIO, monkeypatch)
    passes: list[None] = []
    verdict = verify(VerifyRequest(str(store)), DisturbedWorkers(happens=partial(passes.append, None)))

    found = {(cause.kind, cause.file, cause.found) for cause, _ in verdict.findings_by_cause}

    assert found == {("unreadable_range", str(file.relative_to(store)), "Input/output error") for file in bad}
    assert verdict.exit_code is ExitCode.DAMAGE
    assert len(passes) <= 2  # over the log
    refuse_to_open("/commitlog/00000000000000016384", errno.EIO, monkeypatch)

    assert verify(VerifyRequest(str(store)), SerialWorkers()).findings[0].kind == "unreadable_range"
    summary = ingest_store(store, tmp_path / "lake")

    assert summary.quarantined == 1
    assert str(store) in summary.unreadable[0]
    assert repair(RepairRequest(str(store), tmp_path / "plan"), SerialWorkers()).severity is Severity.DAMAGE


def test_a_repeated_comparison_leaves_out_files_that_the_disk_cannot_read(
    golden: StoreOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Retention deleted index files during the second comparison, and the third one read the bad file again."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    bad, *others = sorted((store / "index").iterdir())
    refuse_to_open(str(bad), errno.EIO, monkeypatch)

    def delete_others() -> None:
        for path in others:
            path.unlink(missing_ok=True)

    verdict = verify(VerifyRequest(str(store)), DisturbedWorkers(happens=delete_others))

    assert ("unreadable_range", f"index/{bad.name}") in {(one.kind, one.file) for one in verdict.findings}
