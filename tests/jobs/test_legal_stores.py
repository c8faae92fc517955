"""Stores that brokers may write: every message is read, nothing is reported, and rebuilt files have the same bytes."""

import json
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.rebuild.queue_run import MANIFEST_FILE
from rmq_formats.commitlog.record import encode_record
from tests.support.commands import Run
from tests.support.lakes import raw_rows, rows_of
from tests.support.legal_stores import GEOMETRY, QUEUE_FILE_SIZE, LegalStore, draw_store
from tests.support.stores import read_files

_SEEDS = tuple(range(60))
_GEOMETRY = ("--hash-slots", str(GEOMETRY.hash_slots), "--index-num", str(GEOMETRY.index_num))


@pytest.fixture(params=_SEEDS, ids=str)
def drawn(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LegalStore, Path]:
    legal = draw_store(request.param)
    return legal, legal.write(tmp_path / "store")


@pytest.mark.sample(6)
def test_a_legal_store_is_healthy(drawn: tuple[LegalStore, Path], run: Run) -> None:
    legal, store = drawn

    code, out, err = run("verify", store, "--json", "--release", str(legal.release), *_GEOMETRY)

    verdict = json.loads(out)
    assert ([], ExitCode.CLEAN) == (verdict["findings"], code), (legal.end, legal.release, err)
    assert not legal.is_clean or "healthy" == verdict["severity"], (legal.end, legal.release, verdict["notes"])


@pytest.mark.sample(6)
def test_every_message_of_a_legal_store_is_ingested(drawn: tuple[LegalStore, Path], run: Run, tmp_path: Path) -> None:
    legal, store = drawn

    code, _, err = run("ingest", store, "--lake", tmp_path / "lake", "--release", str(legal.release), *_GEOMETRY)

    assert ExitCode.CLEAN == code, err
    assert [(one.physical_offset, encode_record(one)) for one in legal.records] == raw_rows(tmp_path / "lake")
    assert [] == rows_of(tmp_path / "lake", "quarantine")


@pytest.mark.sample(6)
def test_rebuilt_files_of_a_legal_store_have_the_same_bytes(
    drawn: tuple[LegalStore, Path], run: Run, tmp_path: Path
) -> None:
    legal, store = drawn
    if legal.has_expired:
        pytest.skip("the files of expired messages cannot be rebuilt")
    release, queues, index = ("--release", str(legal.release)), tmp_path / "queues", tmp_path / "index"

    for command in (
        ("rebuild-consumequeue", store, "--out", queues, "--consume-queue-size", str(QUEUE_FILE_SIZE)),
        ("rebuild-index", store, "--out", index, *_GEOMETRY),
    ):
        code, _, err = run(*command, *release)
        assert ExitCode.CLEAN == code, err

    built = {f"consumequeue/{name}": data for name, data in read_files(queues).items() if name != MANIFEST_FILE}
    contents = [data for name, data in sorted(read_files(index).items()) if name != MANIFEST_FILE]
    assert legal.list_files("consumequeue") == built
    assert [data for _, data in sorted(legal.list_files("index").items())] == contents
