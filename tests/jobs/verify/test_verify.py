"""The whole verification: the log is a part, consequences follow from their cause, and it ends with what to do."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from socket import gethostname

import click
import pytest

from jobs.console.result import ExitCode, Severity
from jobs.products.index.explanation import Verdict as IndexVerdict
from jobs.products.index.settings import Wanted
from jobs.products.queues.differences import DifferenceKind
from jobs.storage.scratch import scratch_beside, scratch_for
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict, verdict_lines
from rmq_formats.indexfile.layout import Geometry
from tests.golden import StoreOf, golden_stores
from tests.support.commands import Run, copy_of, overwrite
from tests.support.meanwhile import Meanwhile
from tests.support.stores import segments_of, stored_records

SEGMENT = 16384


def verified(store: Path, wanted: Wanted | None = None) -> Verdict:
    return verify(VerifyRequest(str(store), wanted=wanted or Wanted()), OneByOne())


def segments(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def text_of(verdict: Verdict) -> str:
    return click.unstyle("\n".join(verdict_lines(verdict, 20)))


def test_a_cause_is_one_line_and_its_places_are_asked_for(store: Path) -> None:
    segments(store)[1].unlink()
    verdict = verified(store)
    (group,) = verdict.groups
    lines = [line for line in text_of(verdict).splitlines() if " 1. gap: " in line or "→" in line]
    assert len(lines) == 1
    assert lines[0].endswith("that follow: --places)")
    with_places = click.unstyle("\n".join(verdict_lines(verdict, 20, places=True)))
    assert with_places.count("→") == len(group.consequences) > 1


def the_cause(verdict: Verdict) -> tuple[str, str, str]:
    """Return part, kind and place of the only cause; everything else must follow from it."""
    (group,) = verdict.groups
    assert len(group.consequences) == len(verdict.findings) - 1
    return group.cause.part, group.cause.kind, group.cause.found


def change_a_body(store: Path) -> None:
    record = next(record for record, _ in stored_records(store) if record.body)
    place = segments(store)[0].read_bytes().index(record.body, record.physical_offset)
    overwrite(segments(store)[0], place, bytes([record.body[0] ^ 1]))


def change_checkpoint(store: Path, position: int) -> None:
    overwrite(store / "checkpoint", position, bytes([(store / "checkpoint").read_bytes()[position] ^ 1]))


@pytest.mark.parametrize(
    ("change", "part", "kind", "words"),
    [
        (change_a_body, "log", "wrong_body_crc", "repair --lake"),
        # Nothing of a store that was shut down in order can be newer than its log.
        (lambda store: segments(store)[-1].unlink(), "log", "lost_end", "repair "),
        (lambda store: os.truncate(segments(store)[-1], 5000), "log", "lost_end", "repair "),
        # A broker deletes queue files and index files with the segment that they lead to.
        (lambda store: segments(store)[0].unlink(), "log", "lost_start", f"physical_offset < {SEGMENT}"),
        # Of log or queues: after a crash the broker would begin to recover too late.
        (lambda store: change_checkpoint(store, 1), "log", "checkpoint_after_log", "only after a crash"),
        (lambda store: change_checkpoint(store, 9), "log", "checkpoint_after_log", "only after a crash"),
        (
            lambda store: (store / "config" / "topics.json").write_text("{"),
            "queues", "damaged_configuration", "restore the file in `config`",
        ),
    ],
    ids=["body", "no end", "cut", "no start", "checkpoint of the log", "checkpoint of queues", "topics"],
)  # fmt: skip
def test_damage_has_one_cause_and_advice(
    store: Path, change: Callable[[Path], object], part: str, kind: str, words: str
) -> None:
    change(store)
    verdict = verified(store)

    assert the_cause(verdict)[:2] == (part, kind)
    assert {one.part for one in verdict.findings} == ({"log", "queues", "index"} if kind == "lost_end" else {part})
    assert verdict.exit_code is ExitCode.DAMAGE
    assert words in text_of(verdict)
    assert verdict.parts["log"].numbers["wrong_bodies"] == (kind == "wrong_body_crc")


def test_damage_of_the_log_is_the_cause_of_what_queues_and_index_files_say(store: Path) -> None:
    """One record's magic number is overwritten: its unit and its keys lead nowhere."""
    records = [record for record, _ in stored_records(store)]
    place = records[3].physical_offset
    overwrite(segments(store)[0], place + 4, b"\0\0\0\0")
    verdict = verified(store)

    assert the_cause(verdict) == ("log", "damaged_range", f"{place} to {place + records[3].total_size}")
    assert {finding.part for finding in verdict.findings} == {"log", "queues", "index"}
    assert verdict.exit_code is ExitCode.DAMAGE


def test_index_files_beside_a_missing_segment_are_not_of_another_log(store: Path) -> None:
    segments(store)[1].unlink()
    verdict = verified(store)

    assert the_cause(verdict) == ("log", "gap", f"{SEGMENT} to {2 * SEGMENT}")
    assert verdict.parts["log"].numbers["missing_bytes"] == SEGMENT
    assert verdict.findings[0].part == "log"
    assert {finding.kind for finding in verdict.findings} == {"gap", "unit_of_lost_record", "entries_of_lost_messages"}
    assert verdict.exit_code is ExitCode.DAMAGE
    assert f"physical_offset >= {SEGMENT}" in text_of(verdict)
    assert f"repair {store} --out REPAIR --lake LAKE" in text_of(verdict)


def test_a_newest_segment_without_its_zeros_is_damage(store: Path) -> None:
    """Every record is there, and it was healthy; a broker refuses the log, and an operator saw green."""
    newest = segments(store)[-1]
    os.truncate(newest, len(newest.read_bytes().rstrip(b"\0")))
    verdict = verified(store)
    (finding,) = verdict.findings

    assert ("log", "wrong_file_size", str(SEGMENT)) == (finding.part, finding.kind, finding.expected)
    assert verdict.exit_code is ExitCode.DAMAGE
    assert "repair " in text_of(verdict)


def test_an_empty_newest_segment_is_no_damage(store: Path) -> None:
    """A broker makes a file first and gives it its size then; one that starts deletes it."""
    (store / "commitlog" / f"{4 * SEGMENT:020d}").touch()

    assert verified(store).findings == []


def test_a_contradiction_outweighs_the_gap_beside_it(store: Path) -> None:
    segments(store)[1].unlink()
    path = min((store / "index").iterdir())
    overwrite(path, 40 + 400 + 20, b"\x55")
    verdict = verified(store)

    assert [group.cause.part for group in verdict.groups] == ["log", "index"]
    assert verdict.exit_code is ExitCode.MISMATCH


def test_keys_that_were_not_indexed_while_the_index_was_off_are_found(golden: StoreOf) -> None:
    verdict = verified(golden("field-indexoff-533"))
    (finding,) = verdict.findings

    assert (finding.kind, finding.field, finding.times) == ("keys_not_indexed", "entry 181", 180)
    assert "at offsets 28740 to 57132" in finding.found
    assert "messageIndexEnable" in finding.cause
    assert verdict.exit_code is ExitCode.MISMATCH
    assert "only a full rebuild adds them" in text_of(verdict)


def test_a_deleted_topic_is_no_damage(golden: StoreOf) -> None:
    verdict = verified(golden("field-deleted-498"))

    assert verdict.findings == []
    assert verdict.exit_code is ExitCode.CLEAN
    assert [(fact.kind, fact.file, fact.times) for fact in verdict.parts["queues"].facts] == [
        ("deleted_topic", "consumequeue/Gone/0", 20),
        ("deleted_topic", "consumequeue/Gone/1", 20),
    ]
    assert "70 of 70 units" in text_of(verdict)


def test_a_topic_that_the_broker_knows_and_that_has_no_folder_is_damage(golden: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("field-deleted-498"), tmp_path / "store"))
    shutil.rmtree(store / "consumequeue" / "Orders")
    verdict = verified(store)

    assert [(finding.kind, finding.file) for finding in verdict.findings] == [("missing_queue", "consumequeue")]


def test_an_old_table_of_topics_does_not_make_a_lost_folder_a_deleted_topic(golden: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("field-deleted-498"), tmp_path / "store"))
    table = store / "config" / "topics.json"
    table.write_text(table.read_text().replace('"Orders"', '"Older"'))
    verdict = verified(store)

    assert {finding.kind for finding in verdict.findings} == {"deleted_or_lost_queue"}
    assert "lacks 'Orders', which has queues" in text_of(verdict)
    assert verdict.exit_code is ExitCode.DAMAGE


def test_a_geometry_that_cannot_be_detected_does_not_end_the_verification(store: Path) -> None:
    for path in sorted((store / "index").iterdir()):
        overwrite(path, 36, (3).to_bytes(4))
        os.truncate(path, 811)
    segments(store)[1].unlink()
    verdict = verified(store)

    assert verdict.parts["index"].severity is Severity.NOT_VERIFIED
    assert "--hash-slots" in verdict.parts["index"].unverified
    assert verdict.parts["log"].severity is Severity.GAP
    assert verdict.exit_code is ExitCode.DAMAGE
    assert "The index could not be verified" in text_of(verdict)


def test_a_lost_index_folder_is_named_by_the_checkpoint(store: Path) -> None:
    shutil.rmtree(store / "index")
    verdict = verified(store)

    assert [(finding.part, finding.kind, finding.file, finding.found) for finding in verdict.findings] == [
        ("index", "missing_index_entries", "index", "none")
    ]
    assert verdict.exit_code is ExitCode.MISMATCH


def test_the_summary_is_a_table_for_people(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "T1")
    lines = text_of(verified(store)).splitlines()

    assert lines[0] == f"{store}: contradiction: 1 cause"
    assert lines[2].split() == ["part", "verdict", "problems", "compared"]
    assert [line.split()[:2] for line in lines[3:6]] == [
        ["log", "healthy"], ["queues", "contradiction"], ["index", "healthy"],
    ]  # fmt: skip
    assert lines[-1].endswith(f" repair {store} --out REPAIR")


def failover(situation: StoreOf, replica: str, tmp_path: Path) -> Path:
    """Copy one of the stores of two replicas, of which the second took over at offset 20,340."""
    return Path(shutil.copytree(situation("b551-controller-failover") / replica, tmp_path / replica))


def test_a_master_that_returned_after_a_failover_is_no_contradiction(situation: StoreOf, tmp_path: Path) -> None:
    """It was `lost_end` and an index file that nothing explained: a broker leaves a returned master like this."""
    verdict = verified(failover(situation, "store", tmp_path))
    facts = [fact for part in verdict.parts.values() for fact in part.facts]

    assert verdict.severity is Severity.HEALTHY
    assert [(fact.kind, fact.times) for fact in facts] == [
        ("promotion", 1),
        ("units_of_taken_back_messages", 2),
        ("entries_of_taken_back_messages", 55),
        ("keys_not_indexed_on_this_replica", 29),
    ]
    assert facts[0].log_offset == facts[2].log_offset == 20340
    assert facts[0].expected == "the log ends at 23251, 2,114 bytes after that are left over"
    assert "WHAT TO DO" not in text_of(verdict)


@pytest.mark.parametrize("replica", ["old-master-killed", "new-master-elected", "new-master-end"])
def test_the_other_replicas_of_a_failover_have_nothing_to_take_back(
    situation: StoreOf, tmp_path: Path, replica: str
) -> None:
    verdict = verified(failover(situation, replica, tmp_path))

    assert verdict.severity is Severity.HEALTHY
    assert [fact for part in verdict.parts.values() for fact in part.facts] == []


@pytest.mark.parametrize(("replica", "entry"), [("store", 3), ("new-master-end", 2)])
def test_a_failover_explains_no_damaged_index_entry(
    situation: StoreOf, tmp_path: Path, replica: str, entry: int
) -> None:
    """Neither before the new master's epoch in the old one's file, nor a first one in the new one's own."""
    store = failover(situation, replica, tmp_path)
    index_file = sorted((store / "index").iterdir())[4]
    overwrite(index_file, Geometry(100, 60).entry_position(entry) + 3, b"\x55")

    assert verified(store).exit_code is ExitCode.MISMATCH


def test_a_returned_master_that_lost_its_end_is_said_to_have_lost_it(situation: StoreOf, tmp_path: Path) -> None:
    """Old records after the end are the proof of a promotion; where they are zeros the log was damaged."""
    store = failover(situation, "store", tmp_path)
    overwrite(segments(store)[0], 22807, bytes(32768 - 22807))
    verdict = verified(store)

    assert verdict.groups[0].cause.kind == "lost_end"
    assert verdict.exit_code is ExitCode.DAMAGE


@pytest.mark.parametrize(("number", "name"), [(1, "16384000032768"), (1, "65536"), (0, "65536")])
def test_a_segment_under_a_wrong_name_is_one_cause_and_the_command_that_mends_it(
    store: Path, number: int, name: str
) -> None:
    right = segments(store)[number]
    wrong = right.rename(store / "commitlog" / name.zfill(20))
    verdict = verified(store)
    command = f"mv -n {wrong} {right}"

    assert the_cause(verdict)[:2] == ("log", "misnamed_segment")
    assert verdict.exit_code is ExitCode.DAMAGE
    assert command in text_of(verdict)
    subprocess.run(shlex.split(command), check=True)
    assert verified(store).severity is Severity.HEALTHY


def test_the_command_for_a_wrong_name_can_be_pasted_wherever_the_log_is(store: Path, tmp_path: Path) -> None:
    log = (store / "commitlog").rename(tmp_path / "the log's")
    right = sorted(log.iterdir())[1]
    wrong = right.rename(log / "65536".zfill(20))
    verdict = verify(VerifyRequest(str(store), commitlog=[str(log)]), OneByOne())

    (command,) = (line for line in text_of(verdict).splitlines() if line.lstrip().startswith("mv -n "))
    assert shlex.split(command)[2:] == [str(wrong), str(right)]


def test_empty_segments_have_no_right_name(store: Path) -> None:
    segments(store)[0].unlink()
    for segment in segments(store):
        segment.write_bytes(b"")

    assert verified(store).exit_code is not ExitCode.CLEAN


def test_a_segment_of_another_place_with_a_damaged_first_record_has_no_other_name(store: Path) -> None:
    wrong = segments(store)[1].rename(store / "commitlog" / "65536".zfill(20))
    overwrite(wrong, 90, b"\xff\xff")

    assert "misnamed_segment" not in {group.cause.kind for group in verified(store).groups}


@pytest.mark.parametrize("name", golden_stores("expired"))
def test_a_log_that_retention_cut_has_lost_nothing(golden: StoreOf, name: str) -> None:
    assert verified(golden(name)).severity is Severity.HEALTHY


def test_a_store_without_a_checkpoint_is_not_said_to_be_healthy(store: Path) -> None:
    (store / "checkpoint").unlink()
    verdict = verified(store)

    assert verdict.severity is Severity.NOT_VERIFIED
    assert verdict.exit_code is ExitCode.CLEAN
    assert "there is no checkpoint" in text_of(verdict)


def test_a_store_whose_log_lies_elsewhere_is_said_to_have_no_segment(store: Path) -> None:
    shutil.rmtree(store / "commitlog")

    assert "there is no segment: the log is in another directory (--commitlog" in text_of(verified(store))


def test_commands_to_paste_quote_a_path_with_a_space(golden: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("b533-base"), tmp_path / "a store"))
    min((store / "index").iterdir()).unlink()

    assert f"repair '{store}' --out REPAIR" in text_of(verified(store))


def test_sizes_that_nothing_decides_lead_to_no_command(golden: StoreOf, tmp_path: Path) -> None:
    """Three queue files of three lengths: the longest won, and the right one was lengthened."""
    store = Path(shutil.copytree(golden("b514-timer"), tmp_path / "store"))
    for number, added in enumerate((4096, 20)):
        with (store / "consumequeue" / "T1" / f"{number}" / f"{0:020d}").open("ab") as file:
            file.write(bytes(added))
    verdict = verified(store)

    assert [(one.file, one.found) for one in verdict.findings] == [("consumequeue", "200 or 220 or 4296")]
    assert f"repair {store}" not in text_of(verdict)


ROOT = Path(__file__).parents[3]


def test_every_kind_of_finding_is_on_its_page() -> None:
    rows = re.findall(
        r"^\| (`.+?) \|", (ROOT / "docs/internals/findings.md").read_text().partition("## Log")[2], re.MULTILINE
    )
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    modules = [ROOT / "jobs/lake/findings.py", *(ROOT / "jobs/verify").glob("*.py")]
    constants = {
        kind
        for module in modules
        for kind in re.findall(
            r'^[A-Z]\w+ = "([a-z]+(?:_[a-z]+)*)"', module.read_text().partition("\nclass ")[0], re.MULTILINE
        )
    }
    of_files = {one.name.lower() for one in IndexVerdict if not one.is_explained}

    assert constants | {kind.value for kind in DifferenceKind} | of_files == named


@pytest.mark.parametrize("number", [0, -1])
def test_a_lengthened_segment_that_the_broker_leaves_out_is_not_healthy(
    golden: StoreOf, tmp_path: Path, run: Run, number: int
) -> None:
    """Every record can be read, and the broker serves none from there on."""
    store = copy_of(golden("b420-base"), tmp_path)
    segment = segments_of(store)[number]
    with segment.open("ab") as file:
        file.write(bytes(4096))

    verified = run("verify", "--engine", "here", "--json", store)
    looked = run("inspect", "--json", store)

    (finding,) = verified.document["findings"]
    assert (finding["kind"], Path(finding["file"]).name) == ("wrong_file_size", segment.name)
    assert "starts without this file" in finding["cause"]
    assert verified.code is ExitCode.DAMAGE
    assert looked.code is ExitCode.DAMAGE


ADVICE = f"not to be seen on {gethostname()}: give --scratch, a directory or URI that all workers reach"


@pytest.mark.usefixtures("spark")
def test_workers_that_do_not_see_the_drivers_temporary_files_are_told_of_the_option(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def hide() -> None:
        for folder in (tmp_path / "temporary").iterdir():
            shutil.rmtree(folder)

    monkeypatch.setattr("jobs.command.engine.workers_of", lambda *_, **__: Meanwhile(happens=hide))
    without = run("verify", golden("b533-base"), "--quiet")
    given = run("verify", golden("b533-base"), "--quiet", "--scratch", tmp_path / "shared")

    assert 1 == without.code
    assert without.err.splitlines()[-1].startswith(f"rmq-lake: {tmp_path / 'temporary'}/")
    assert without.err.splitlines()[-1].endswith(ADVICE)
    assert 0 == given.code


def test_who_reads_keys_without_seeing_their_directory_is_told_the_same(tmp_path: Path) -> None:
    """All ranges may have been read where it is seen, and the work gone on where it is not."""
    with scratch_for(None, {}) as scratch:
        shutil.rmtree(scratch.location)
        with pytest.raises(OSError, match=ADVICE), scratch.open("keys"):
            pass
    with scratch_beside(str(tmp_path), {}) as scratch, pytest.raises(FileNotFoundError), scratch.open("keys"):
        pass


def test_a_directory_that_was_given_is_no_reason_to_give_one(tmp_path: Path) -> None:
    with scratch_for(str(tmp_path), {}) as scratch:
        shutil.rmtree(scratch.location)
        with pytest.raises(OSError, match=r"not to be seen on .*: no shared directory"), scratch.create("keys"):
            pass
