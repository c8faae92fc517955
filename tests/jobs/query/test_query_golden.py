"""Every recorded mqadmin line is answered as the real mqadmin answered it."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.command import cli
from rmq_formats.commitlog.layout import MAGIC_V1
from tests.golden import GOLDEN, StoreOf, release_of
from tests.support.lakes import ingest_store

BASES = tuple(name for name in GOLDEN if name.endswith("-base"))
_STDOUT, _STDERR = b"# ---- stdout ----\n", b"# ---- stderr ----\n"
_TRACKS = b"WARN: No Consumer"  # which groups have taken a message only a broker knows
MAGIC = MAGIC_V1.to_bytes(4, "big", signed=True)
_BODY_PATH = b"/tmp/rocketmq/msgbodys/"


# The broker checked an open transaction, stored it once more and committed it, after these lines had been answered.
_ANSWERED_BEFORE_THE_END = {
    ("b533-base", "05-queryMsgByKey-hit-tx"),
    ("b533-base", "06-queryMsgByKey-hit-half"),
    ("b533-base", "37-queryMsgByOffset-hit-big"),
    ("b551-base", "05-queryMsgByKey-hit-tx"),
    ("b551-base", "06-queryMsgByKey-hit-half"),
}
_CHECKED = b"TRANSACTION_CHECK_TIMES"


class Recorded(NamedTuple):
    """One call of the real mqadmin."""

    arguments: list[str]
    stdout: bytes
    new_bodies: list[str]


def recorded(path: Path) -> Recorded:
    head, _, rest = path.read_bytes().partition(_STDOUT)
    call, outcome = head.decode().splitlines()[:2]
    bodies = re.search(r"new body files: \[(.*)\]", outcome)
    return Recorded(
        shlex.split(call.removeprefix("# mqadmin ")),
        rest[: rest.rindex(_STDERR)],
        [name for name in (bodies[1] if bodies else "").split(", ") if name],
    )


def as_it_was(store: Path, folder: Path) -> Path:
    """Copy a store as it was before the broker checked a transaction: what came later is not in its log and queues."""
    copy = Path(shutil.copytree(store, folder / store.name))
    segments = sorted((copy / "commitlog").iterdir())
    end = min(_offset_of_checked(segment) for segment in segments)
    for segment in segments:
        keep = max(min(end - int(segment.name), segment.stat().st_size), 0)
        segment.write_bytes(segment.read_bytes()[:keep].ljust(segment.stat().st_size, b"\0"))
    for queue in (copy / "consumequeue").rglob("0*"):
        if queue.is_file():
            units = [queue.read_bytes()[at : at + 20] for at in range(0, queue.stat().st_size, 20)]
            queue.write_bytes(b"".join(unit if int.from_bytes(unit[:8]) < end else bytes(20) for unit in units))
    return copy


def _offset_of_checked(segment: Path) -> int:
    """Return where the first record begins that the check has written; after everything if none is in the segment."""
    data = segment.read_bytes()
    found = data.find(_CHECKED)
    return 1 << 62 if found < 0 else int(segment.name) + data.rfind(MAGIC, 0, found) - 4


def _answer(  # noqa: PLR0913, PLR0917 - a call, where and how
    store: Path,
    release: str,
    arguments: list[str],
    bodies: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    place: str = "--store",
) -> tuple[int, bytes, str]:
    own = [place, str(store), "--release", release, "--time-zone", "UTC", "--bodies", str(bodies)]
    code = cli.main(["query", "mqadmin", *own, *arguments])
    sys.stdout.flush()
    captured = capfdbinary.readouterr()
    return code, captured.out, captured.err.decode()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", BASES)
def test_each_recorded_line_is_answered_byte_for_byte(
    name: str, golden: StoreOf, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    store = golden(name)
    earlier = as_it_was(store, tmp_path) if name in {case[0] for case in _ANSWERED_BEFORE_THE_END} else store
    written: dict[str, bytes] = {}
    for path in sorted((store / "EXPECT").glob("[0-9]*.txt")):
        call = recorded(path)
        asked = earlier if (name, path.stem) in _ANSWERED_BEFORE_THE_END else store
        bodies = tmp_path / path.stem
        code, out, err = _answer(asked, release_of(name), call.arguments, bodies, capfdbinary)

        expected = call.stdout.replace(_TRACKS, b"").replace(_BODY_PATH, f"{bodies}/".encode())
        assert expected == out, path.name
        is_hit = bool(expected)
        # The log as it was earlier ends before messages that the index of the end points at.
        codes = {0, 3} if asked != store else {0}
        assert code in (codes if is_hit else {5}), (path.name, err)
        assert is_hit or err.startswith("rmq-lake: "), path.name
        own = {body.name: body.read_bytes() for body in bodies.glob("*")}
        assert sorted(call.new_bodies) == sorted(own), path.name
        written |= own

    assert {path.name: path.read_bytes() for path in (store / "EXPECT" / "msgbodys").iterdir()} == written


# A lake has no ConsumeQueue files, at whose ends pulls and queryCq end: it finds more, and needs no empty pull.
_END_WITH_A_QUEUE_FILE = ("printMsg-tag", "queryCq-tail")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BASES)
def test_a_lake_of_the_store_answers_each_recorded_line_byte_for_byte(
    name: str, golden: StoreOf, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    store, lake = golden(name), tmp_path / "lake"
    ingest_store(store, lake, "b0", release=release_of(name))
    later = {case for of, case in _ANSWERED_BEFORE_THE_END if of == name}
    for path in sorted((store / "EXPECT").glob("[0-9]*.txt")):
        call = recorded(path)
        if path.stem in later or path.stem.endswith(_END_WITH_A_QUEUE_FILE):
            continue
        bodies = tmp_path / "bodies"
        arguments = ["--broker", "b0", *call.arguments]
        code, out, err = _answer(lake, release_of(name), arguments, bodies, capfdbinary, "--lake")

        expected = call.stdout.replace(_TRACKS, b"").replace(_BODY_PATH, f"{bodies}/".encode())
        assert expected == out, (path.name, err)
        assert (0 if expected else 5) == code, (path.name, err)
