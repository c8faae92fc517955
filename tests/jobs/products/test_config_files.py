"""`config_files`: each version of the broker's configuration that a run has found, and what a restore gives back."""

from dataclasses import replace
from pathlib import Path

from jobs.ingest.look import Look
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.restore.config import write_config
from jobs.store.workers import OneByOne
from tests.support.lakes import rows_of

KEPT = {
    "consumerFilter.json", "consumerOffset.json", "consumerOrderInfo.json", "delayOffset.json",
    "subscriptionGroup.json", "topics.json", "transactionMetrics",
}  # fmt: skip


def request(store: Path) -> IngestRequest:
    return IngestRequest(str(store), str(store.parent / "lake"), release="5.3.3")


def restored(store: Path, folder: str, until: int | None = None) -> dict[str, bytes]:
    lake, out = store.parent / "lake", store.parent / folder
    (store_id,) = {row["store_id"] for row in rows_of(lake, "runs", "time")}
    config = write_config(Lake(str(lake)), store_id, out, until, {})
    return {Path(path).name: Path(path).read_bytes() for path in config.files}


def of_broker(store: Path) -> dict[str, bytes]:
    return {name: (store / "config" / name).read_bytes() for name in KEPT if (store / "config" / name).exists()}


def test_the_brokers_configuration_comes_back_byte_for_byte(store: Path) -> None:
    ingest(request(store), OneByOne())

    assert of_broker(store) == restored(store, "out")
    assert set(of_broker(store)) == KEPT


def test_a_run_keeps_what_has_changed_and_what_was_deleted(store: Path) -> None:
    ingest(request(store), OneByOne())
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T@g":{0:1}}}')
    (store / "config" / "delayOffset.json").unlink()
    (store / "config" / "delayOffset.json.bak").unlink()

    assert Look(request(store)).nothing_new() is None
    again = ingest(request(store), OneByOne())

    assert (again.messages, again.run) == (0, 2)
    assert ["consumerOffset.json", "delayOffset.json"] == sorted(
        row["name"] for row in rows_of(store.parent / "lake", "config_files", "run") if row["run"] == again.run
    )
    assert of_broker(store) == restored(store, "out")
    assert Look(request(store)).nothing_new() is not None


def test_a_file_that_is_being_written_again_is_its_backup(store: Path) -> None:
    """A broker that finds an empty file loads the backup, and so does who reads beside it."""
    expected = (store / "config" / "topics.json.bak").read_bytes()
    (store / "config" / "topics.json").write_bytes(b"")

    ingest(request(store), OneByOne())

    assert expected == restored(store, "out")["topics.json"]


def test_progress_after_the_end_of_a_shorter_log_is_left_out(store: Path) -> None:
    """The lake knows no earlier version: topics are better than none, offsets are not."""
    until = ingest(request(store), OneByOne()).to_offset - 1

    assert set(restored(store, "then", until=until)) == {
        "consumerFilter.json", "subscriptionGroup.json", "topics.json", "transactionMetrics",
    }  # fmt: skip


def test_a_run_in_steps_keeps_the_configuration_with_its_last_step(store: Path) -> None:
    """Consumers are where they are now: the first step's part of the log ends long before."""
    summary = ingest(replace(request(store), step_bytes=20_000), OneByOne())

    (run,) = {row["run"] for row in rows_of(store.parent / "lake", "config_files", "run")}
    assert (summary.steps > 1, run) == (True, summary.run)
    assert of_broker(store) == restored(store, "out")
