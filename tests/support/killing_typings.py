"""
Typings that are killed and run again: `python -m tests.support.killing_typings SCENARIO FOLDER NUMBER`.

`effects` kills one after each NUMBER-th of its effects, while it has all to do: new messages, superseded ones, a topic
whose types are wider now, dead letters that fit now. `moments` kills NUMBER of them at any moment, while an ingest goes
on and the broker takes back some of its log. Nothing here touches a lake before it forks.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from jobs.lake.lake import Lake
from jobs.store.workers import OneByOne
from jobs.typed.declaration import read_types
from jobs.typed.run import TypeRequest, type_lake
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.killing import ended, every_effect, forked, told_by_fork
from tests.support.killing import run as ingest
from tests.support.lakes import rows_of

_TYPES = """
[topic.Orders]
format = "json"
schema = "id {id}"
[topic.Payments]
format = "json"
schema = "id int, at timestamp"
{epoch}
"""
_TAKES_BACK = 0.15  # of bursts
_JUDGED = 10  # kills between two judgements
_TABLES = {"Orders": "typed/Orders", "Payments": "typed/Payments"}


def _run(root: Path, *, is_later: bool = True, retries: bool = True) -> None:
    """Type; later with a wider type of one topic, and times of the other that were dead letters before."""
    declared = _TYPES.format(id="bigint", epoch='epoch = "s"') if is_later else _TYPES.format(id="int", epoch="")
    (root / "types.toml").write_text(declared)
    types = read_types(root / "types.toml")
    type_lake(TypeRequest(Lake(str(root / "lake")), types, retries=retries), OneByOne())


def _write(broker: Broker, start: int, messages: int) -> None:
    broker.append(
        a_record(_body(number), topic=("Orders", "Payments")[number % 2], store_timestamp=1_795_000_000_000 + number)
        for number in range(start, start + messages)
    )


def _body(number: int) -> bytes:
    if number % 5 == 0:
        return b"x"
    return b'{"id": %d%b}' % (number, b', "at": %d' % number if number % 3 == 0 else b"")


def _prepare(root: Path) -> int:
    """Make a lake that was typed once, and has new, superseded and retyped messages since; return the log's end."""
    broker = Broker(root / "store")
    _write(broker, 0, 40)
    at = broker.offset
    _write(broker, 100, 20)
    ingest(root)
    _run(root, is_later=False)
    broker.truncate(at)
    _write(broker, 200, 60)
    ingest(root)
    return broker.offset


def _judged(root: Path) -> list[str]:
    """Return the faults of a lake, in words."""
    wrong = []
    for topic, table in _TABLES.items():
        messages = {row["physical_offset"]: row["body"] for row in rows_of(root / "lake") if row["topic"] == topic}
        rows = [(row["physical_offset"], row["id"]) for row in rows_of(root / "lake", table)]
        dead = [row["physical_offset"] for row in rows_of(root / "lake", "dead_letters") if row["topic"] == topic]
        ids = [(at, json.loads(body)["id"]) for at, body in messages.items() if body != b"x"]
        if sorted(rows) != sorted(ids) or sorted(dead) != sorted(at for at, body in messages.items() if body == b"x"):
            wrong.append(f"{topic}: {len(messages)} messages, {len(rows)} rows, {len(dead)} dead letters")
    for table in (*_TABLES.values(), "dead_letters", "typings"):
        log = "".join(path.read_text() for path in (root / "lake" / table / "_delta_log").glob("*.json"))
        wrong += [path.name for path in (root / "lake" / table).glob("*.parquet") if path.name not in log]
    return wrong


def effects(folder: Path, stride: int) -> dict[str, Any]:
    def prepare(base: Path) -> None:
        told_by_fork(base, partial(_prepare, base))

    return every_effect(prepare, folder, stride, command=_run, finished=_finished)


def _finished(root: Path) -> list[str]:
    """Type to the end; return what is wrong with the lake then."""
    code = ended(forked(partial(_run, root)))
    return [f"exit code {code}"] * (code != 0) + told_by_fork(root, partial(_judged, root))


def moments(folder: Path, kills: int) -> dict[str, Any]:
    """Kill typings at any moment, each beside an ingest; now and then the broker has taken back some of its log."""
    random = Random(int(os.environ.get("SEED", "1000")))
    folder.mkdir(parents=True, exist_ok=True)
    broker = Broker(folder / "store", offset=told_by_fork(folder, partial(_prepare, folder)))
    number, longest, killed, took_back, bad, ends = 1000, 1.0, 0, 0, [], [broker.offset]
    while killed < kills:
        if random.random() < _TAKES_BACK:
            broker.truncate(ends.pop(random.randrange(max(0, len(ends) - 4), len(ends))))
            ends = [end for end in ends if end < broker.offset] or [broker.offset]
            took_back += 1
        ends.append(broker.offset)
        messages = random.randrange(5, 60)
        _write(broker, number, messages)
        number += messages
        ingesting = forked(partial(ingest, folder))
        began = time.monotonic()
        typing = forked(partial(_run, folder, retries=random.random() < 0.5))
        time.sleep(random.random() * longest)
        with suppress(ProcessLookupError):
            os.killpg(typing, signal.SIGKILL)
        code = ended(typing)
        killed += code == -signal.SIGKILL
        longest = (longest + 1.5 * (time.monotonic() - began)) / 2 if code >= 0 else longest * 1.05
        ended(ingesting)
        if killed and killed % _JUDGED == 0:
            bad += _finished(folder)
    return {"killed": killed, "took_back": took_back, "messages": number - 1000, "bad": bad + _finished(folder)}


SCENARIOS: dict[str, Callable[[Path, int], dict[str, Any]]] = {"effects": effects, "moments": moments}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
