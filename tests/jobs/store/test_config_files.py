"""Configuration files of a hostile store, and of a hostile user."""

from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.store.config_files import read_config
from jobs.store.store import list_store, read_broker_conf
from tests.golden import StoreOf
from tests.support.commands import Run, copy_of

TOPICS = "topics.json"


@pytest.fixture
def root(golden: StoreOf, tmp_path: Path) -> Path:
    copied = copy_of(golden("b551-base"), tmp_path)
    (copied / "config").mkdir(exist_ok=True)
    return copied


def a_number_of_5000_digits(path: Path) -> None:
    """Python refuses to read it, for it would take long."""
    path.write_text('{"topicConfigTable":{"T1":{"writeQueueNums":' + "9" * 5000 + "}}}")


def a_terabyte_of_nothing(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


def a_tower_of_brackets(path: Path) -> None:
    path.write_text('{"topicConfigTable":' + "[" * 1_000_000)


HOSTILE = [a_number_of_5000_digits, a_terabyte_of_nothing, a_tower_of_brackets]


@pytest.mark.parametrize(
    "line",
    [
        ("inspect", "STORE"),
        ("query", "by-offset", "-t", "T1", "-i", "0", "-o", "3", "--store", "STORE"),
        ("query", "mqadmin", "--store", "STORE", "topicStatus", "-t", "T1"),
    ],
)
def test_a_table_of_topics_that_cannot_be_read_says_nothing(line: tuple[str, ...], root: Path, run: Run) -> None:
    words = [str(root) if word == "STORE" else word for word in line]
    assert ExitCode.CLEAN == run(*words).code
    for make in HOSTILE:
        make(root / "config" / TOPICS)
        outcome = run(*words)

        assert read_config(list_store(str(root)), TOPICS) is None
        assert "Traceback" not in outcome.err
        assert outcome.code in {ExitCode.CLEAN, *([ExitCode.DAMAGE] if line[0] == "inspect" else [])}


def test_a_configuration_of_a_terabyte_is_refused(tmp_path: Path) -> None:
    a_terabyte_of_nothing(tmp_path / "broker.conf")

    with pytest.raises(OSError, match="no broker's configuration"):
        read_broker_conf(tmp_path / "broker.conf")
