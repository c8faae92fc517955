"""The tier of b550-tiered: where its files lie, and the place of each message in its queue."""

import json
from pathlib import Path

from tests.support.lakes import rows_of

BROKER = "212d6b50_DefaultCluster/b0"
Place = tuple[str, int, int]  # topic, queue and offset in it


def files(tier: Path, queue: str, kind: str = "COMMIT_LOG") -> list[Path]:
    return sorted((tier / BROKER / queue / kind).iterdir(), key=lambda path: path.name[-20:])


def said(answers: Path) -> list[Place]:
    queues = json.loads(answers.read_text())["beforeStop"]["queues"]
    found = []
    for name, queue in queues.items():
        topic, _, number = name.rpartition("/")
        found += [(topic, int(number), offset) for offset in range(queue["min"], queue["max"])]
    return sorted(found)


def taken(lake: Path) -> list[Place]:
    return sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in rows_of(lake, "tiered"))
