"""A store in which every name is an injection attempt, and its lake."""

import json
from pathlib import Path

import pytest

from tests.rmq_formats.builders import make_record, place_records
from tests.support.lakes import ingest_store
from tests.support.pages import HOSTILE, HOSTILE_DIRECTORY
from tests.support.query_stores import RELEASE, write_queues, write_segment


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the store and the lake; names, topics, groups, keys, tags and bodies contain mark-up."""
    directory = tmp_path_factory.mktemp("hostile") / HOSTILE_DIRECTORY
    names = {"KEYS": HOSTILE.replace(" ", ""), "TAGS": HOSTILE, "UNIQ_KEY": HOSTILE, HOSTILE: HOSTILE}
    bodies = (HOSTILE.encode(), json.dumps({HOSTILE: [HOSTILE]}).encode(), b'{"a":' * 900 + b"1" + b"}" * 900)
    moved = {"PGROUP": HOSTILE, "REAL_TOPIC": HOSTILE, "RETRY_TOPIC": HOSTILE, "UNIQ_KEY": "another"}
    topics = (HOSTILE_DIRECTORY, f"%DLQ%{HOSTILE_DIRECTORY}", "RMQ_SYS_TRANS_HALF_TOPIC")
    records = place_records(
        [
            *(make_record(body, topic=HOSTILE, properties=names) for body in bodies),
            *(make_record(topic=topic, properties=moved) for topic in topics),
        ]
    )
    write_segment(directory / "store", records)
    write_queues(directory / "store", records[len(bodies) :])
    (directory / "store" / "config").mkdir()
    progress = {"offsetTable": {f"{HOSTILE_DIRECTORY}@{HOSTILE}": {"0": 1}}}
    (directory / "store" / "config" / "consumerOffset.json").write_text(json.dumps(progress))
    ingest_store(directory / "store", directory / "lake", HOSTILE, release=str(RELEASE.version))
    return directory
