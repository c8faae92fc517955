"""
Typings that are killed and run again: `python -m tests.support.killing_typings FOLDER STRIDE`.

Kills one after each *stride*-th of its effects, while it has all to do: new messages, superseded ones, a topic whose
types are wider now. Nothing here touches a lake before it forks.
"""

import json
import signal
import sys
from functools import partial
from itertools import count
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.store.workers import OneByOne
from jobs.typed.declaration import read_types
from jobs.typed.run import TypeRequest, type_lake
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.killing import EFFECTS, counted_effects, ended, forked
from tests.support.lakes import rows_of

_TYPES = '[topic.Orders]\nformat = "json"\nschema = "id {id}"\n[topic.Payments]\nformat = "json"\nschema = "id int"\n'
_TABLES = {"Orders": "typed/Orders", "Payments": "typed/Payments"}


def _run(root: Path, id_type: str) -> None:
    (root / "types.toml").write_text(_TYPES.format(id=id_type))
    type_lake(TypeRequest(Lake(str(root / "lake")), read_types(root / "types.toml")), OneByOne())


def _ingest(root: Path) -> None:
    ingest(IngestRequest(str(root / "store"), str(root / "lake"), broker="b", range_size=4096), OneByOne())


def _write(broker: Broker, start: int, messages: int) -> None:
    bodies = (b"x" if number % 5 == 0 else b'{"id": %d}' % number for number in range(start, start + messages))
    broker.append(a_record(body, topic=("Orders", "Payments")[n % 2]) for n, body in enumerate(bodies))


def _prepare(root: Path) -> None:
    """Make a lake that was typed once, and has new, superseded and retyped messages since."""
    broker = Broker(root / "store")
    _write(broker, 0, 40)
    at = broker.offset
    _write(broker, 100, 20)
    _ingest(root)
    _run(root, "int")
    broker.truncate(at)
    _write(broker, 200, 60)
    _ingest(root)


def _killed_at(effect: int, root: Path) -> None:
    with counted_effects(EFFECTS, effect, signal.SIGKILL):
        _run(root, "bigint")


def _judged(root: Path) -> None:
    """Write down what is wrong with a lake."""
    wrong = []
    for topic, table in _TABLES.items():
        messages = {row["physical_offset"]: row["body"] for row in rows_of(root / "lake") if row["topic"] == topic}
        rows = {row["physical_offset"]: row["id"] for row in rows_of(root / "lake", table)}
        dead = [row["physical_offset"] for row in rows_of(root / "lake", "dead_letters") if row["topic"] == topic]
        if sorted([*rows, *dead]) != sorted(messages) or len(rows) != len(rows_of(root / "lake", table)):
            wrong.append(f"{topic}: {len(messages)} messages, {len(rows)} rows, {len(dead)} dead letters")
        wrong += [f"{at}: {messages[at]!r}" for at, id_ in rows.items() if messages.get(at) != b'{"id": %d}' % id_]
    for table in (*_TABLES.values(), "dead_letters", "typings"):
        log = "".join(path.read_text() for path in (root / "lake" / table / "_delta_log").glob("*.json"))
        wrong += [path.name for path in (root / "lake" / table).glob("*.parquet") if path.name not in log]
    (root / "wrong.json").write_text(json.dumps(wrong))


def campaign(folder: Path, stride: int) -> dict[str, Any]:
    base, root = folder / "base", folder / "here"
    base.mkdir(parents=True, exist_ok=True)
    assert ended(forked(partial(_prepare, base))) == 0
    reached, bad = 0, []
    for effect in count(stride, stride):
        rmtree(root, ignore_errors=True)
        copytree(base, root)
        code = ended(forked(partial(_killed_at, effect, root)))
        if code != -signal.SIGKILL:
            break
        reached += 1
        code = ended(forked(partial(_run, root, "bigint")))
        assert ended(forked(partial(_judged, root))) == 0
        wrong = json.loads((root / "wrong.json").read_text())
        if code or wrong:
            bad.append({"effect": effect, "code": code, "wrong": wrong})
    return {"reached": reached, "bad": bad}


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]))))
