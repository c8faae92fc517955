"""A broker's own `messageDelayLevel` is read from the units of its delayed messages, and recorded in the lake."""

import shutil
import struct
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.golden import unpack_cluster
from tests.support.commands import Run
from tests.support.stores import read_store_files

_SIZES = ("--hash-slots", "100", "--index-num", "20")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the store of a broker whose level 3 is one second instead of ten."""
    return unpack_cluster("b498-cluster", tmp_path / "cluster") / "broker-b"


def _newest_file(store: Path) -> Path:
    return store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / ("0" * 20)


@pytest.mark.parametrize("command", ["verify", "ingest"])
def test_own_delay_levels_are_no_contradiction(command: str, store: Path, run: Run, tmp_path: Path) -> None:
    """Without `--broker-conf`, each delayed message was one, with exit code 4."""
    code = run(command, store, *(("--lake", tmp_path / "lake") if command == "ingest" else ())).code

    assert ExitCode.CLEAN == code


def test_a_restored_queue_has_the_delays_of_its_broker(store: Path, run: Run, tmp_path: Path) -> None:
    """It had RocketMQ's defaults, and `restore` reported that nothing was missing."""
    run("ingest", store, "--lake", tmp_path / "lake")

    code = run("restore", tmp_path / "lake", "--out", tmp_path / "restored", *_SIZES).code
    whole, restored = (read_store_files(root / "consumequeue") for root in (store, tmp_path / "restored"))

    assert ExitCode.CLEAN == code
    assert whole == restored


def test_a_lost_queue_is_repaired_with_the_delays_that_the_lake_recorded(store: Path, run: Run, tmp_path: Path) -> None:
    whole = read_store_files(store)
    run("ingest", store, "--lake", tmp_path / "lake")
    shutil.rmtree(store / "consumequeue" / "SCHEDULE_TOPIC_XXXX")

    code = run("repair", store, "--lake", tmp_path / "lake", "--out", tmp_path / "repair", "--apply").code

    assert ExitCode.CLEAN == code
    assert whole == read_store_files(store)


@pytest.mark.parametrize("change", [1 << 3, 1 << 12, 1_500])
def test_a_changed_tags_code_of_a_delayed_message_is_still_found(change: int, store: Path, run: Run) -> None:
    path = _newest_file(store)
    data = bytearray(path.read_bytes())
    last = max(at for at in range(0, len(data), 20) if any(data[at : at + 20]))
    (tags_code,) = struct.unpack_from(">q", data, last + 12)
    struct.pack_into(">q", data, last + 12, tags_code ^ change)
    path.write_bytes(data)

    code, out, _ = run("verify", store)

    assert ExitCode.MISMATCH == code
    assert "wrong_tags_code" in out


def test_levels_that_a_given_configuration_states_are_compared(store: Path, run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel=1s 5s 10s")

    assert ExitCode.MISMATCH == run("verify", store, "--broker-conf", conf).code
