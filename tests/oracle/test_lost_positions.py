"""
Lost configuration and positions: a real broker starts on the repaired store, and groups receive what they had not.

Faults whose repair yields the same files share a start. A start without the repair shows what happens otherwise.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from jobs.console.result import ExitCode
from tests.oracle.releases import on_releases
from tests.oracle.sessions import ClientMessage, Consumption, RealBroker, real_broker
from tests.support.commands import Run
from tests.support.lakes import ingest_store

_TOPIC = "Orders"
_OFFSETS = Path("config/consumerOffset.json")
_LEFT = {
    "billing": [f"m-{number:02}" for number in range(20, 30)],
    "audit": [f"m-{number}" for number in range(25, 30)],
}


def _delete(store: Path, name: str) -> None:
    for path in (store / "config").glob(f"{name}*"):
        path.unlink()


def _scale_positions(store: Path, divisor: int) -> None:
    """Write positions as an earlier version of the file has them; with 0, all of them are 0."""
    path = store / _OFFSETS
    table = json.loads(re.sub(r"([{,])\s*(\d+):", r'\1"\2":', path.read_text()))
    for offsets in table["offsetTable"].values():
        offsets |= {queue: offset // divisor if divisor else 0 for queue, offset in offsets.items()}
    path.write_text(json.dumps(table))
    path.with_name(f"{path.name}.bak").write_text(json.dumps(table))


_OF_FILES: dict[str, Callable[[Path], object]] = {
    "positions lost": lambda store: _delete(store, _OFFSETS.name),
    "topics lost": lambda store: _delete(store, "topics.json"),
    "configuration lost": lambda store: shutil.rmtree(store / "config"),
}
_OF_POSITIONS: dict[str, Callable[[Path], object]] = {
    "positions zeroed": lambda store: _scale_positions(store, 0),
    "positions of an earlier time": lambda store: _scale_positions(store, 2),
}


def _send(broker: RealBroker, numbers: range) -> None:
    for number in numbers:
        broker.send(ClientMessage(_TOPIC, keys=f"m-{number:02}"))


def _consume(broker: RealBroker, group: str, count: int) -> list[str]:
    return sorted(one.keys for one in broker.consume(Consumption(_TOPIC, group, count)))


def _fill(broker: RealBroker) -> None:
    """Let `billing` consume the first 20 of 30 messages, and `audit` the first 25."""
    broker.make_topic(_TOPIC, 2)
    _send(broker, range(20))
    for group in ("billing", "audit"):
        assert len(_consume(broker, group, 20)) == 20
    _send(broker, range(20, 25))
    assert len(_consume(broker, "audit", 5)) == 5
    _send(broker, range(25, 30))
    broker.drain()


def _read_config(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "config").iterdir() if path.suffix == ".json"}


@on_releases("4.9.8", "5.3.3", "5.5.1", in_every_run="5.3.3")
def test_groups_receive_after_a_repair_what_they_had_not_consumed(tmp_path: Path, release: str, run: Run) -> None:
    original, lake = tmp_path / "store", tmp_path / "lake"
    with real_broker(release, original) as broker:
        _fill(broker)
    ingest_store(original, lake, release=release)
    before = _read_config(original)
    repaired = dict[str, dict[str, bytes]]()
    for name, inject in (_OF_FILES | _OF_POSITIONS).items():
        store = shutil.copytree(original, tmp_path / name / "store")
        inject(store)

        assert run("diff", store, lake).code == ExitCode.DAMAGE
        options = ("--positions", "lake") if name in _OF_POSITIONS else ()
        run("repair", store, "--lake", lake, "--out", tmp_path / name / "out", *options, "--apply")
        repaired[name] = _read_config(store)

    assert [repaired[name] for name in _OF_FILES] == [before] * len(_OF_FILES)
    assert repaired["positions zeroed"] == repaired["positions of an earlier time"]

    for name in ("configuration lost", "positions zeroed"):
        with real_broker(release, tmp_path / name / "store") as broker:
            received = {group: _consume(broker, group, len(left)) for group, left in _LEFT.items()}

        assert received == _LEFT

    _OF_FILES["positions lost"](original)
    with real_broker(release, original) as broker:
        assert _consume(broker, "billing", 30) == [f"m-{number:02}" for number in range(30)]
