"""`dump` on the files of queues and index: every unit and entry with its place, and how the file ends."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from rmq_formats.consumequeue.layout import EXT_UNIT, UNIT
from rmq_formats.consumequeue.unit import PRE_BLANK
from rmq_formats.indexfile.file import IndexFile
from rmq_formats.indexfile.layout import Geometry, decode_header
from rmq_formats.release import HashSlotCount
from tests.golden import StoreOf, golden_stores
from tests.support.commands import Run, overwrite

UNITS = [UNIT.pack(1000 * number, 100 + number, number) for number in range(4)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(data: bytes, folder: str = "consumequeue", base: int = 200) -> Path:
        path = tmp_path / folder / "T" / "0" / f"{base:020d}"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return path

    return make


@pytest.mark.parametrize("name", golden_stores("base", "types", "cqext"))
def test_every_file_of_a_real_queue_is_printed_without_damage(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    files = [
        path
        for folder in ("consumequeue", "batchconsumequeue", "consumequeue_ext")
        for path in store.glob(f"{folder}/*/*/*")
    ]

    outcome = run("dump", "--json", *files)

    assert outcome.code is ExitCode.CLEAN
    for path in files:
        items = [line for line in outcome.lines if line["file"] == str(path)]
        assert items[0]["offset"] == 0
        assert all(before["offset"] + before["size"] == item["offset"] for before, item in pairwise(items))
        assert items[-1]["offset"] + items[-1]["size"] == path.stat().st_size
        assert items[-1]["damaged_places"] == 0


def test_a_unit_is_told_with_its_number_in_the_queue(write: Callable[..., Path], run: Run) -> None:
    path = write(b"".join(UNITS).ljust(200, b"\0"))

    lines = run("dump", "--json", path).lines

    assert [line["position_in_queue"] for line in lines[:4]] == [10, 11, 12, 13]
    assert [tuple(line["unit"].values()) for line in lines[:4]] == [
        (1000 * number, 100 + number, number) for number in range(4)
    ]
    assert (lines[4]["offset"], lines[4]["end"]) == (80, "not full: zeros follow")


def test_blanks_are_one_line(write: Callable[..., Path], run: Run) -> None:
    path = write(UNIT.pack(*PRE_BLANK) * 7 + UNITS[0] + bytes(40))

    outcome = run("dump", path)

    assert outcome.code is ExitCode.CLEAN
    assert "7 blank units" in outcome.out
    assert "1 unit, 0 damaged places" in outcome.out
    assert "after byte 20; the bytes before it were not read" in run("dump", "--from", 20, path).out


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        (UNITS[0] + bytes(40) + UNITS[1], 20, "2 units of zeros"),
        (UNITS[0] + UNIT.pack(-1, 5, 0), 20, "NO UNIT"),
        (UNITS[0] + b"abc", 20, "3 bytes, less than a unit"),
    ],
)
def test_what_is_no_unit_is_damage(write: Callable[..., Path], run: Run, data: bytes, offset: int, text: str) -> None:
    outcome = run("dump", write(data))
    (line,) = [line for line in outcome.out.splitlines() if text in line]

    assert outcome.code is ExitCode.DAMAGE
    assert int(line.split()[0]) == offset


@pytest.mark.parametrize(
    ("rest", "text", "code"),
    [
        (b"\xff\xff".ljust(20, b"\0"), "the file is full", ExitCode.CLEAN),
        (bytes(20), "not full", ExitCode.CLEAN),
        (b"\x00\x05".ljust(20, b"\1"), "extension unit of 5 bytes", ExitCode.DAMAGE),
        (b"\x80\x00".ljust(20, b"\1"), "neither a unit nor an end mark", ExitCode.DAMAGE),
    ],
)
def test_an_extension_file_ends_in_a_mark_or_in_zeros(
    write: Callable[..., Path], run: Run, rest: bytes, text: str, code: ExitCode
) -> None:
    outcome = run("dump", write(EXT_UNIT.pack(23, 5, 6, 3) + b"abc" + rest, "consumequeue_ext", 0))

    assert outcome.code is code
    assert "bitmap of 3 bytes" in outcome.out
    assert text in outcome.out


@pytest.mark.parametrize("kept", [40, 50])
def test_a_truncated_file_of_a_queue_is_damage_and_not_full(write: Callable[..., Path], run: Run, kept: int) -> None:
    whole = write(b"".join(UNITS), base=0)
    (whole.parent / f"{len(UNITS) * UNIT.size:020d}").write_bytes(b"".join(UNITS))
    whole.write_bytes(whole.read_bytes()[:kept])

    outcome = run("dump", whole)

    assert outcome.code is ExitCode.DAMAGE
    assert "cut short: it has" in outcome.out


TEACHING = (16, 29, 29, 8, 16, 16)


@pytest.fixture
def teaching(tmp_path: Path) -> Path:
    file = IndexFile.created(Geometry(32, 20))
    for number, slot in enumerate(TEACHING):
        file.put(slot, 1000 * number, 1_700_000_000_000 + 1000 * number, HashSlotCount.EMPTY_SLOT)
    path = tmp_path / "index" / "20231114221320000"
    path.parent.mkdir()
    path.write_bytes(file.encode())
    return path


@pytest.mark.parametrize("name", golden_stores("base", "direct"))
def test_every_byte_is_accounted_for(golden: StoreOf, run: Run, name: str) -> None:
    for path in sorted((golden(name) / "index").iterdir())[:-1]:
        outcome = run("dump", path, "--json")
        items = outcome.lines

        assert outcome.code is ExitCode.CLEAN
        assert items[0]["offset"] == 0
        assert all(left["offset"] + left["size"] == right["offset"] for left, right in pairwise(items))
        assert items[-1]["offset"] == path.stat().st_size
        assert sum(item["kind"] == "entry" for item in items) == decode_header(path.read_bytes()).index_count - 1


def test_a_chain_is_told_newest_first(teaching: Path, run: Run) -> None:
    chains = {}
    for slot in (16, 29, 8):
        outcome = run("dump", teaching, "--chain", slot, "--json")
        assert outcome.code is ExitCode.CLEAN
        chains[slot] = [item["entry"] for item in outcome.lines if item["kind"] == "entry"]

    assert chains == {16: [6, 5, 1], 29: [3, 2], 8: [4]}


def test_the_chain_of_a_key_marks_its_hash(golden: StoreOf, run: Run) -> None:
    newest = max((golden("b498-base") / "index").iterdir())
    code, text, _ = run("dump", newest, "--chain", "T1#7F00000140144E0E2F2A638357C0003B")

    assert code is ExitCode.CLEAN
    assert "record at 50622  2026-11-20 07:45:51.410Z" in text
    assert text.count("this hash") == 1


def test_an_endless_chain_is_damage(teaching: Path, run: Run) -> None:
    overwrite(teaching, Geometry(32, 20).entry_position(1) + 16, (6).to_bytes(4))
    code, text, _ = run("dump", teaching, "--chain", 16)

    assert code is ExitCode.DAMAGE
    assert "slot 16: the chain comes back to entry" in text
    code, text, _ = run("dump", teaching)
    assert code is ExitCode.DAMAGE
    assert "POINTS FORWARD" in text
    assert "entry 1 points at entry 6, not at 0" in text


def test_a_slot_that_points_nowhere_and_bytes_behind_the_end_are_damage(teaching: Path, run: Run) -> None:
    overwrite(teaching, 40, (99).to_bytes(4))
    overwrite(teaching, teaching.stat().st_size - 1, b"\1")
    code, text, _ = run("dump", teaching)

    assert code is ExitCode.DAMAGE
    assert "slot 0 → entry 99  POINTS NOWHERE" in text
    assert "1 bytes after the last entry" in text


def test_what_is_asked_for_is_printed_from_an_offset_on(teaching: Path, run: Run) -> None:
    at = Geometry(32, 20).entry_position(3)
    _, text, _ = run("dump", teaching, "--from", at, "--limit", 1, "--fields")

    assert f"{at:>20}  entry" in text
    assert "#3  slot 29" in text
    assert "#2 " not in text
    assert f"{at + 16:>20}      prev_entry                   2" in text


def test_a_file_that_does_not_tell_its_geometry_asks_for_it(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "index" / "20231114221320000"
    path.parent.mkdir()
    path.write_bytes(IndexFile.created(Geometry(100, 20)).encode())

    outcome = run("dump", path)
    given = ("dump", path, "--hash-slots", 100, "--index-num", 20)

    assert outcome.code is ExitCode.FAILED
    assert "give --hash-slots and --index-num" in outcome.err
    assert run(*given).code is ExitCode.CLEAN
    assert run(*given, "--chain", 100).code is ExitCode.FAILED


def test_a_truncated_index_file_is_damage_and_read_by_the_geometry_of_the_others(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    folder = Path(shutil.copytree(golden("b551-base") / "index", tmp_path / "index"))
    first = min(folder.iterdir())
    whole = first.stat().st_size
    first.write_bytes(first.read_bytes()[: whole - 30])

    code, text, _ = run("dump", first)

    assert code is ExitCode.DAMAGE
    assert f"{whole - 30} bytes, where {whole} are" in text
