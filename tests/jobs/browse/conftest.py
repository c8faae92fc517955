"""A store in which every name is an injection attempt, and its lake."""

import json
from pathlib import Path

import pytest

from tests.rmq_formats.builders import make_record, place_records
from tests.support.lakes import ingest_store
from tests.support.pages import HOSTILE, HOSTILE_FOLDER
from tests.support.query_stores import RELEASE, write_queues, write_segment


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the store and the lake; names, topics, groups, keys, tags and bodies contain mark-up."""
    folder = tmp_path_factory.mktemp("hostile") / HOSTILE_FOLDER
    names = {"KEYS": HOSTILE.replace(" ", ""), "TAGS": HOSTILE, "UNIQ_KEY": HOSTILE, HOSTILE: HOSTILE}
    bodies = (HOSTILE.encode(), json.dumps({HOSTILE: [HOSTILE]}).encode(), b'{"a":' * 900 + b"1" + b"}" * 900)
    moved = {"PGROUP": HOSTILE, "REAL_TOPIC": HOSTILE, "RETRY_TOPIC": HOSTILE, "UNIQ_KEY": "another"}
    topics = (HOSTILE_FOLDER, f"%DLQ%{HOSTILE_FOLDER}", "RMQ_SYS_TRANS_HALF_TOPIC")
    records = place_records(
        [
            *(make_record(body, topic=HOSTILE, properties=names) for body in bodies),
            *(make_record(topic=topic, properties=moved) for topic in topics),
        ]
    )
    write_segment(folder / "store", records)
    write_queues(folder / "store", records[len(bodies) :])
    (folder / "store" / "config").mkdir()
    progress = {"offsetTable": {f"{HOSTILE_FOLDER}@{HOSTILE}": {"0": 1}}}
    (folder / "store" / "config" / "consumerOffset.json").write_text(json.dumps(progress))
    ingest_store(folder / "store", folder / "lake", HOSTILE, release=str(RELEASE.version))
    return folder
