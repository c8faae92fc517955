"""The files of a store: their names, the checkpoint, and the hashes of golden stores."""

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.store import (
    CHECKPOINT,
    CHECKPOINT_SIZE,
    Checkpoint,
    FileKind,
    StoreFile,
    classify,
    decode_checkpoint,
    encode_checkpoint,
    parse_offset_name,
)
from tests.golden import ARCHIVES, CLUSTERS, DIRECTORY, GOLDEN, StoreOf
from tests.support.stores import list_names

ZERO = "0" * 20


KINDS = {
    FileKind.COMMITLOG: (f"commitlog/{ZERO}",),
    FileKind.DLEDGER_LOG: (f"dledger-n0/data/{ZERO}",),
    FileKind.DLEDGER_STATE: (f"dledger-n0/index/{ZERO}", "dledger-n0/currterm"),
    FileKind.INDEX: ("index/20261120074236725",),
    FileKind.CHECKPOINT: ("checkpoint",),
    FileKind.ABORT: ("abort",),
    FileKind.ABORT_BACKUP: ("abort.bak",),
    FileKind.LOCK: ("lock",),
    FileKind.CONFIG: ("config/topics.json",),
    FileKind.CONFIG_BACKUP: ("config/topics.json.bak",),
    FileKind.TIMER_PROGRESS: ("config/timercheck",),
    FileKind.TIMER_METRICS: ("config/timermetrics.bak",),
    FileKind.ROCKSDB: (
        "config/topics/CURRENT",
        "consumequeue/CURRENT",
        "consumequeue/000010.sst",
        "rocksdbstore/CURRENT",
        "consumequeue_rocksdb/CURRENT",
    ),
    FileKind.UNKNOWN: (
        "config/topics/notes.txt",
        "timerlog/notes",
        "readme.txt",
        "elsewhere/readme.txt",
        "timerwheel.old",
        "212d6b50_DefaultCluster/notes",
        "",
        *("commitlog/0", "commitlog/0000000000000000000x", f"commitlog/{ZERO}.bak", f"commitlog/old/{ZERO}"),
        *("commitlog/99999999999999999999", f"commitlog/{chr(0x660) * 20}", "index/notes", f"index/old/{ZERO}"),
        *(f"consumequeue/{ZERO}", f"consumequeue/Orders/{ZERO}", f"consumequeue/Orders/x/{ZERO}"),
        *(f"consumequeue/Orders/{'9' * 5000}/{ZERO}", f"consumequeue/Orders/00/{ZERO}", "consumequeue/Orders/0/1"),
        *(f"consumequeue/Orders/{1 << 31}/{ZERO}", f"consumequeue_ext/Orders/{1 << 31}/{ZERO}"),
    ),
    FileKind.TIMER_WHEEL: ("timerwheel", "timerwheel.1564"),
    FileKind.TIMER_LOG: (f"timerlog/{ZERO}",),
    FileKind.COMPACTION_LOG: (f"compaction/compactionLog/T/0/{ZERO}",),
    FileKind.COMPACTION_QUEUE: (f"compaction/compactionCq/T/0/{ZERO}",),
    FileKind.OTHER_COMPACTION: (f"compaction/compactionLog/T/0/compacting/{ZERO}", "compaction/position-checkpoint"),
    FileKind.TIERED: (
        "tieredStore/config/x",
        "tiered_index_file/1764000000000",
        f"212d6b50_DefaultCluster/b0/rmq_sys_INDEX/0/INDEX/cfcd2084{ZERO}",
        f"212d6b50_DefaultCluster/b0/Bills/0/COMMIT_LOG/cfcd2084{ZERO}",
        f"212d6b50_DefaultCluster/b0/Bills/0/CONSUME_QUEUE/cfcd2084{ZERO}",
    ),
    FileKind.CONTROLLER: ("brokerIdentity", "epochFileCheckpoint", "epochFileCheckpoint.bak"),
}


@pytest.mark.parametrize(("kind", "paths"), KINDS.items())
def test_the_path_of_a_file_determines_its_kind(kind: FileKind, paths: Sequence[str]) -> None:
    assert {path: classify(path).kind for path in paths} == dict.fromkeys(paths, kind)


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        (f"{4096:020d}", 4096),
        (f"cfcd2084{4096:020d}", None),
        ("4096", None),
        ("09223372036854775807", (1 << 63) - 1),  # Java parses a signed 64-bit number
        ("09223372036854775808", None),
    ],
)
def test_the_name_of_a_file_has_20_digits_of_a_64_bit_offset(name: str, offset: int | None) -> None:
    assert parse_offset_name(name) == offset


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("consumequeue", FileKind.CONSUME_QUEUE),
        ("batchconsumequeue", FileKind.BATCH_CONSUME_QUEUE),
        ("consumequeue_ext", FileKind.CONSUME_QUEUE_EXT),
    ],
)
@pytest.mark.parametrize("topic", ["Orders", "_a", ".x", "%RETRY%group", "%LMQ%qa", "топик-主题", "a b", "[x]{y}*"])
def test_a_queue_file_is_named_by_topic_queue_and_offset(directory: str, kind: FileKind, topic: str) -> None:
    path = f"{directory}/{topic}/12/00000000000000000200"

    assert classify(path) == StoreFile(path, kind, 200, topic, 12)


def test_segments_in_unknown_directories_have_the_offset_of_their_name() -> None:
    assert classify(f"commitlog-b/{ZERO}") == StoreFile(f"commitlog-b/{ZERO}", FileKind.UNKNOWN, 0)


@given(st.text())
def test_any_path_is_classified(path: str) -> None:
    assert classify(path).path == path


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_every_file_of_a_broker_is_known(golden: StoreOf, name: str) -> None:
    unknown = {path for path in list_names(golden(name)) if classify(path).kind is FileKind.UNKNOWN}

    assert all(path.startswith(("commitlog-a/", "commitlog-b/")) for path in unknown)
    assert bool(unknown) == ("multipath" in name)


# --- checkpoint


def test_a_checkpoint_has_six_numbers_and_zeros() -> None:
    checkpoint = Checkpoint(1, 2, 3, 4, 5, 6)
    raw = encode_checkpoint(checkpoint)

    assert [row.offset for row in CHECKPOINT.describe_fields()] == [0, 8, 16, 24, 32, 40]
    assert len(raw) == CHECKPOINT_SIZE == 4096
    assert raw[7::8][:6] == bytes([1, 2, 3, 4, 5, 6])
    assert decode_checkpoint(raw) == checkpoint


def test_archives_of_golden_stores_are_unchanged() -> None:
    lines = (DIRECTORY / "SHA256SUMS").read_text().splitlines()
    files = (*ARCHIVES.values(), *CLUSTERS.values(), *DIRECTORY.glob("*.json"))

    assert {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
