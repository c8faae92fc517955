"""`dump` on the files of queues: every unit with its place, and how the file ends."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from rmq_formats.consumequeue.layout import EXT_UNIT, UNIT
from rmq_formats.consumequeue.unit import PRE_BLANK
from tests.golden import StoreOf, golden_stores
from tests.support.commands import Run

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
