"""topicList, consumerProgress and getConsumerConfig: a live broker's answers and ours are the same text."""

import json
import time
from pathlib import Path

import pytest

from tests.oracle.answers import differing_answers, on_releases
from tests.oracle.sessions import ClientMessage
from tests.oracle.stage import Line, Stage

_RELEASES = ("4.9.8", "5.0.0", "5.1.0", "5.1.4", "5.3.3", "5.5.0")
_RETRIES = "%RETRY%G"
_OFFSETS = {
    "Orders@G": {"0": 3, "1": 0},
    "OrdersLonger@G": {"0": 2},
    f"{_RETRIES}@G": {"0": 0},
    "Orders@Nobody": {"0": 1},
}


def _lines(stage: Stage) -> list[Line]:
    progress: Line = ("consumerProgress", "-g", "G")
    lines: list[Line] = [("topicList",), progress, (*progress, "-s", "true"), ("getConsumerConfig", "-g", "G")]
    lines += [("getConsumerConfig", "-g", "Nobody"), ("consumerProgress", "-g", "Nobody")]
    if stage.runs(since="5.0.0"):
        lines += [(*progress, "-t", "Orders"), (*progress, "-t", "Unread"), (*progress, "-t", "Missing")]
        lines += [("consumerProgress", "-g", "Nobody", "-t", "Orders")]
    if stage.runs(since="5.3.1"):
        for group in ("Nobody", "G"):
            cluster: Line = ("consumerProgress", "-g", group, "-c", "DefaultCluster")
            lines += [cluster, (*cluster, "-t", "Orders")]
    return lines


def _comparable(text: str, line: Line) -> str:
    return "\n".join(sorted(text.splitlines())) if line[0] == "topicList" else text


def _play(stage: Stage) -> None:
    with stage.broker() as broker:
        for topic, queues in (("Orders", 2), ("OrdersLonger", 1), ("Unread", 1), (_RETRIES, 1)):
            broker.make_topic(topic, queues=queues)
        broker.real.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "G", "-r", "3")
        for number in range(12):
            broker.send(f"message-{number}", ClientMessage(("Orders", "OrdersLonger")[number % 2], b"body", None, None))
            time.sleep(0.01)
    stage.end()
    config = stage.store_directory / "config"
    for path in config.glob("consumerOffset.json*"):
        path.unlink()
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": _OFFSETS}))
    with stage.broker() as broker:
        stage.ask(broker.real, _lines(stage))


@on_releases(*_RELEASES, in_every_run="4.9.8")
def test_a_brokers_tables_are_printed_as_a_live_broker_prints_them(
    version: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Columns, order and fields of the release; what mqadmin cannot answer is empty here, too."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        _play(stage)
    differing = differing_answers(stage, capfdbinary, comparable=_comparable)

    assert len(stage.asked) == len(_lines(stage))
    assert differing == []
