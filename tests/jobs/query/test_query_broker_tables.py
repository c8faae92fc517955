"""topicList, consumerProgress and getConsumerConfig from stores, as far as brokers themselves answered about them."""

import shutil
import sys
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.golden import FeatureStore, unpack_feature
from tests.support.commands import Run


@pytest.fixture
def ask(ask: Run) -> Run:
    return lambda store, line, *options: ask(store, line, "--release", "5.5.1", *options)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return unpack_feature("b551-rockscq-clean", tmp_path_factory.mktemp("clean"))


@pytest.mark.parametrize("name", ["b551-cqdouble", "b551-rockscq-clean", "b551-rockscq-killed"])
def test_progress_is_the_offsets_and_limits_that_the_broker_answered(name: str, tmp_path: Path, ask: Run) -> None:
    """From JSON, from RocksDB, and after a kill from the log and the rows that outlived it."""
    unpacked = unpack_feature(name, tmp_path)
    queues, offsets = unpacked.of_disk["queues"], unpacked.of_disk["consumerOffsets"]["Orders@G"]
    code, out, _ = ask(unpacked.root, "consumerProgress -g G")

    rows = [line.split()[:7] for line in out.splitlines() if line.startswith("Orders")]
    assert code == ExitCode.CLEAN
    assert rows == [
        ["Orders", "b0", queue, str(end), str(offsets[queue]), str(end - offsets[queue]), "0"]
        for queue in sorted(offsets)
        for end in [queues[f"Orders/{queue}"]["max"]]
    ]
    assert f"Consume Diff Total: {sum(int(row[5]) for row in rows)}\n" in out


def test_progress_without_a_group_is_a_line_for_each_group(clean: FeatureStore, ask: Run) -> None:
    code, out, _ = ask(clean.root, "consumerProgress")
    _, one, _ = ask(clean.root, "consumerProgress -g G")

    header, line = out.splitlines()
    assert code == ExitCode.CLEAN
    assert header.split() == ["#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff", "Total"]
    behind = one.split("Consume Diff Total: ")[1].split()[0]
    assert line == f"G{'':63}  0       OFFLINE{'':17}{'':7} {'':14}  0        {behind}"


def test_topics_are_listed_from_rocksdb(clean: FeatureStore, ask: Run) -> None:
    code, out, _ = ask(clean.root, "topicList")

    assert code == ExitCode.CLEAN
    assert sorted(out.splitlines()) == sorted(clean.of_disk["topics"])


@pytest.mark.parametrize(
    ("line", "expected", "said"),
    [
        ("consumerProgress -g Missing", ExitCode.NOT_FOUND, ("no group Missing", "CID_RMQ_SYS_TRANS, G\n")),
        ("getConsumerConfig -g Missing", ExitCode.NOT_FOUND, ("of the group Missing", "FILTERSRV_CONSUMER, G, ")),
        ("topicList -c", ExitCode.USAGE, ("only brokers at work know",)),
    ],
)
def test_an_unknown_group_and_what_only_a_broker_at_work_knows_have_a_reason(
    line: str, expected: ExitCode, said: tuple[str, ...], clean: FeatureStore, ask: Run
) -> None:
    code, out, err = ask(clean.root, line)

    assert (code, out) == (expected, "")
    assert [text for text in said if text not in err] == []


def test_settings_of_a_group_come_field_by_field(clean: FeatureStore, ask: Run) -> None:
    code, out, _ = ask(clean.root, "getConsumerConfig -g G")
    head, *lines = out.splitlines()

    assert code == ExitCode.CLEAN
    assert head == f"{'=' * 29}DefaultCluster:b0{'=' * 29}"
    assert lines[0] == f"{'groupName':40}=  G"
    assert f"{'subscriptionDataSet':40}=  " in lines
    policy = "GroupRetryPolicy{type=CUSTOMIZED, exponentialRetryPolicy=null, customizedRetryPolicy=null}"
    assert f"{'groupRetryPolicy':40}=  {policy}" in lines


def test_rows_are_json_for_scripts(clean: FeatureStore, ask: Run) -> None:
    progress, topics, group = (
        ask(clean.root, line, "--json").lines
        for line in ("consumerProgress -g G", "topicList", "getConsumerConfig -g G")
    )

    assert [(row["type"], row["queue_id"], row["consumer_offset"]) for row in progress] == [
        ("progress", 0, 30),
        ("progress", 1, 30),
    ]
    assert [row["broker_offset"] - 30 for row in progress] == [row["behind"] for row in progress]
    assert {row["type"] for row in topics} == {"topic"}
    assert [row["settings"]["groupName"] for row in group] == ["G"]


def test_a_configuration_that_cannot_be_read_is_said(
    clean: FeatureStore, tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    root = Path(shutil.copytree(clean.root, tmp_path / "copy"))  # what was read of a database once is kept
    code, out, err = ask(root, "consumerProgress -g G")

    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert "pip install" in err
