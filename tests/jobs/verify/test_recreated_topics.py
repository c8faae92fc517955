"""A topic that was deleted and created again: whether its earlier queues were lost is undecided, with a way out."""

import json
import shlex
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.support.commands import Run
from tests.support.legal_stores import GEOMETRY, LegalStore, draw_store
from tests.support.stores import list_segments

_GEOMETRY = ("--hash-slots", str(GEOMETRY.hash_slots), "--index-num", str(GEOMETRY.index_num))
_RESTARTED = (12, 13, 14, 17, 20, 23, 30)
# Each message of one queue is older than those of the others, so no queue has units of both topics.
_MOVED = 98


@pytest.fixture(params=(*_RESTARTED, _MOVED))
def recreated(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LegalStore, Path]:
    legal = draw_store(request.param, end="clean", events=["topic created again"])
    return legal, legal.write(tmp_path / "store")


def commands_in(text: str, program: str) -> list[str]:
    return [line.strip() for line in text.replace(" \\\n", " ").splitlines() if line.strip().startswith(program)]


def names_of_lost_queues(document: str) -> set[str]:
    findings = json.loads(document)["findings"]
    return {one["accept_as"] for one in findings if one["kind"] == "deleted_or_lost_queue"}


@pytest.mark.sample(3, always=["98"])
def test_a_topic_that_was_created_again_is_accepted_by_the_printed_command(
    recreated: tuple[LegalStore, Path], run: Run
) -> None:
    """A healthy store had exit code 3 or 4 for as long as its log had messages of the earlier topic."""
    legal, store = recreated
    options = ("--release", legal.release, *_GEOMETRY)

    found = json.loads(run("verify", store, "--json", *options).out)["findings"]

    assert {"deleted_or_lost_queue"} == {one["kind"] for one in found}

    (command,) = [
        one for one in commands_in(run("verify", store, *options).out, "rmq-lake verify") if "--accept" in one
    ]
    outcome = run(*shlex.split(command)[1:])

    assert ExitCode.CLEAN == outcome.code
    assert "accepted: deleted_or_lost_queue" in outcome.out


@pytest.mark.parametrize("seed", [13])
def test_messages_from_before_a_queue_began_again_are_exported_by_the_printed_command(
    seed: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the queue was lost, nothing else brings them to consumers: their queue offsets are taken."""
    monkeypatch.chdir(tmp_path)
    legal = draw_store(seed, end="clean", events=["topic created again"])
    store = legal.write(tmp_path / "store")
    in_queue = [one for one in legal.records if (one.topic, one.queue_id) == ("Orders", 0)]
    begin = max(one.physical_offset for one in in_queue if one.queue_offset == 0)

    (command,) = commands_in(run("verify", store, "--release", legal.release, *_GEOMETRY).out, "rmq-lake export")
    run(*shlex.split(command)[1:])

    rows = [json.loads(line) for line in (tmp_path / "Orders.ndjson").read_text().splitlines()]

    assert [one.physical_offset for one in in_queue if one.physical_offset < begin] == [
        row["physical_offset"] for row in rows
    ]


def test_retention_does_not_change_the_name_of_an_accepted_finding(run: Run, tmp_path: Path) -> None:
    """The first of the earlier messages expire one segment after the other."""
    legal = draw_store(13, end="clean", events=["topic created again"])
    store = legal.write(tmp_path / "store")
    options = ("--json", "--release", legal.release, *_GEOMETRY)

    before = names_of_lost_queues(run("verify", store, *options).out)
    list_segments(store)[0].unlink()
    after = names_of_lost_queues(run("verify", store, *options).out)

    assert after
    assert after <= before


def test_inspect_does_not_report_lost_units_of_a_topic_that_was_created_again(run: Run, tmp_path: Path) -> None:
    legal = draw_store(13, end="clean", events=["topic created again"])
    store = legal.write(tmp_path / "store")

    out = run("inspect", store).out

    assert "is missing, although the log has" not in out
    assert "either its topic was deleted, or the queue was lost" in out


def test_a_repair_does_not_rebuild_a_queue_of_a_topic_that_may_have_been_deleted(run: Run, tmp_path: Path) -> None:
    """The rebuilt queue would have delivered messages of the deleted topic to consumers of the new one."""
    legal = draw_store(_MOVED, end="clean", events=["topic created again"])
    store = legal.write(tmp_path / "store")

    out = run("repair", store, "--out", tmp_path / "repair", "--release", legal.release, *_GEOMETRY).out

    assert "new: consumequeue/Orders" not in out
    assert "repair --accept 'consumequeue/Orders/*'" in out
