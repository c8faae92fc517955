"""The tier of a tiered store is verified as the small stores that its queues are."""

import json
import shutil
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.lake.findings import INDEX, LOG, QUEUES
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict
from rmq_formats.tier_index import ENTRY, HEADER, SLOT
from tests.support.commands import Run, overwrite, without_spark
from tests.support.lakes import files, ingest_store, rows_of


def verified(tier: Path) -> Verdict:
    return verify(VerifyRequest(str(tier)), OneByOne())


def test_every_message_that_the_broker_sent_is_there_with_its_unit(place: Path, tier: Path) -> None:
    queues = json.loads((place / "EXPECT.json").read_text())["beforeStop"]["queues"]
    verdict = verified(tier)

    assert [] == verdict.findings
    assert sum(len(queue["units"]) for queue in queues.values()) == verdict.parts[QUEUES].numbers["matched"]
    assert verdict.parts[LOG].numbers["records"] * 3 == verdict.parts[INDEX].numbers["keys"]
    assert (7, "") == (verdict.parts[INDEX].numbers["files"], verdict.parts[INDEX].unverified)
    assert verdict.exit_code is ExitCode.CLEAN


def test_a_body_that_changed_is_damage(tier: Path) -> None:
    segment = files(tier, "Orders/0", "COMMIT_LOG")[1]
    overwrite(segment, 120, b"?")
    (finding,) = verified(tier).findings

    assert (LOG, "wrong_body_crc") == (finding.part, finding.kind)
    assert finding.file.endswith(segment.name)


def test_a_missing_segment_is_a_gap_that_its_units_follow_from(tier: Path) -> None:
    files(tier, "Orders/1", "COMMIT_LOG")[1].unlink()
    verdict = verified(tier)
    cause, *consequences = verdict.findings

    assert (LOG, "gap") == (cause.part, cause.kind)
    assert {cause.title} == {one.follows for one in consequences}
    assert verdict.exit_code is ExitCode.DAMAGE


def test_a_unit_that_changed_contradicts_its_record(tier: Path) -> None:
    path = files(tier, "Bills/0", "CONSUME_QUEUE")[1]
    overwrite(path, 3 * 20 + 11, b"\7")
    verdict = verified(tier)
    (finding,) = verdict.findings

    assert (QUEUES, "tier_unit_differs", "unit 23", 60) == (
        finding.part, finding.kind, finding.field, finding.offset,
    )  # fmt: skip
    assert finding.file == str(path.relative_to(tier))
    assert "size 7" not in finding.expected
    assert verdict.exit_code is ExitCode.MISMATCH


@pytest.mark.parametrize(
    ("queue", "kind", "deleted"),
    [
        ("Orders/1", "COMMIT_LOG", slice(1)),  # expired
        ("rmq_sys_INDEX/0", "INDEX", slice(2)),  # expired: the first file's name says that there were others
        ("Orders/0", "COMMIT_LOG", slice(-1, None)),  # not copied yet: records before their units, or after them
        ("Orders/0", "CONSUME_QUEUE", slice(-1, None)),
    ],
)
def test_what_expired_or_is_not_copied_yet_is_not_wrong(tier: Path, queue: str, kind: str, deleted: slice) -> None:
    for path in files(tier, queue, kind)[deleted]:
        path.unlink()
    verdict = verified(tier)

    assert [] == verdict.findings
    assert verdict.exit_code is ExitCode.CLEAN


def test_a_record_of_another_queue_is_named(tier: Path) -> None:
    ours, other = (files(tier, f"Orders/{number}", "COMMIT_LOG")[0] for number in (0, 1))
    shutil.copy(other, ours)
    kinds = {finding.kind for finding in verified(tier).findings}

    assert "record_of_another_queue" in kinds


def test_findings_of_a_tier_are_kept_in_a_lake_as_those_of_a_store(
    tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    without_spark(monkeypatch)
    lake = tmp_path / "lake"
    summary = ingest_store(tier, lake)
    overwrite(files(tier, "Orders/0", "COMMIT_LOG")[1], 120, b"?")
    outcome = run("verify", tier, "--findings-lake", lake)
    (row,) = rows_of(lake, "findings", "kind")

    assert ExitCode.DAMAGE is outcome.code
    assert ("b0", summary.store_id, "wrong_body_crc") == (row["broker"], row["store_id"], row["kind"])


_ENTRIES_AT = HEADER.size + 50 * SLOT.size  # tieredStoreIndexFileMaxHashSlotNum of the store


def index_files(tier: Path) -> list[Path]:
    return files(tier, "rmq_sys_INDEX/0", "INDEX")


def change(path: Path, entry: int, name: str, by: int) -> None:
    position = _ENTRIES_AT + entry * ENTRY.size + ENTRY.offset(name)
    size = 8 if name == "physical_offset" else 4
    value = int.from_bytes(path.read_bytes()[position : position + size], "big") + by
    overwrite(path, position, (value % (1 << 8 * size)).to_bytes(size, "big"))


@pytest.mark.parametrize("name", ["topic_id", "size", "time_diff_s"])
@pytest.mark.parametrize("number", [0, -1])
def test_an_entry_that_its_message_contradicts_is_named(tier: Path, name: str, number: int) -> None:
    path = index_files(tier)[number]
    change(path, 3, name, 1)
    (finding,) = verified(tier).findings

    assert (INDEX, "tier_entry_differs", f"entry 3 {name}") == (finding.part, finding.kind, finding.field)
    assert (str(path.relative_to(tier)), 1) == (finding.file, finding.times)
    assert int(finding.found) == int(finding.expected) + 1


@pytest.mark.parametrize(
    ("name", "by"), [("key_hash", 50), ("queue_id", 7), ("physical_offset", 1), ("physical_offset", 1 << 40)]
)
def test_an_entry_of_no_message_is_surplus_and_its_key_lacks_one(tier: Path, name: str, by: int) -> None:
    path = index_files(tier)[0]
    change(path, 3, name, by)
    verdict = verified(tier)
    found = {finding.kind: finding for finding in verdict.findings}

    assert {"tier_entry_differs", "missing_index_entries"} == found.keys()
    assert str(path.relative_to(tier)) == found["tier_entry_differs"].file
    assert found["missing_index_entries"].found.startswith("no entries for 1 key of")
    assert verdict.exit_code is ExitCode.MISMATCH


def test_entries_of_no_message_are_named_whatever_queue_they_lead_to(tier: Path) -> None:
    count = 0
    for path in index_files(tier)[:-1]:
        entries = (path.stat().st_size - _ENTRIES_AT) // ENTRY.size
        count += entries
        for number in range(entries):
            change(path, number, "key_hash", 50)

    assert count == sum(one.times for one in verified(tier).findings if one.kind == "tier_entry_differs")


def test_a_missing_index_file_is_named_with_the_queues_that_lack_entries(tier: Path) -> None:
    path, after = index_files(tier)[2:4]
    count = (path.stat().st_size - _ENTRIES_AT) // ENTRY.size
    path.unlink()
    hole, *lacking = verified(tier).findings

    assert ("before this file", str(after.relative_to(tier))) == (hole.field, hole.file)
    assert {"missing_index_entries"} == {finding.kind for finding in (hole, *lacking)}
    assert count == sum(finding.times for finding in lacking)


def test_keys_whose_index_file_is_not_full_yet_wait(tier: Path) -> None:
    path = index_files(tier)[-1]
    count = (path.stat().st_size - _ENTRIES_AT) // ENTRY.size
    path.unlink()
    verdict = verified(tier)

    assert [] == verdict.findings
    assert any(note.startswith(f"{count} keys had no entry yet") for note in verdict.parts[INDEX].notes)


def test_a_tier_without_index_files_is_not_verified_in_this_part(tier: Path) -> None:
    shutil.rmtree(index_files(tier)[0].parent)
    verdict = verified(tier)

    assert [] == verdict.findings
    assert "messageIndexEnable" in verdict.parts[INDEX].unverified


@pytest.mark.parametrize(
    ("position", "raw", "kind"),
    [
        (0, b"?", "damaged"),
        (HEADER.offset("end_timestamp"), bytes(8), "damaged"),
        (HEADER.offset("entry_count"), bytes(4), "damaged"),
        (HEADER.size + SLOT.size, bytes(4), "damaged"),
        (_ENTRIES_AT, b"\xff", "damaged"),
    ],
)
def test_an_index_file_with_other_bits_is_damage_of_that_file(tier: Path, position: int, raw: bytes, kind: str) -> None:
    path = index_files(tier)[-1]
    overwrite(path, position, raw)
    finding, *others = verified(tier).findings

    assert {"missing_index_entries"} >= {other.kind for other in others}
    assert (kind, str(path.relative_to(tier)), position) == (finding.kind, finding.file, finding.offset)


@pytest.mark.parametrize(("left", "offset"), [(-10, 1762), (100, 28)])
def test_an_index_file_that_was_cut_off_is_truncated(tier: Path, left: int, offset: int) -> None:
    path = index_files(tier)[-1]
    path.write_bytes(path.read_bytes()[:left])
    finding, *others = verified(tier).findings

    assert {"missing_index_entries"} >= {other.kind for other in others}
    assert ("damaged", offset) == (finding.kind, finding.offset)


def test_entries_of_messages_that_the_log_has_lost_follow_from_it(tier: Path) -> None:
    files(tier, "Orders/0", "COMMIT_LOG")[1].unlink()
    cause, *consequences = verified(tier).findings
    entries = [finding for finding in consequences if finding.part == INDEX]

    assert {"entries_of_lost_messages"} == {finding.kind for finding in entries}
    assert {cause.title} == {finding.follows for finding in entries}
