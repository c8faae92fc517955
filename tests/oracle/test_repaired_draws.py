"""Draws of faults, repaired: a broker of the release that wrote the store starts as `verify` says, and serves it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from jobs.products.index.settings import Wanted
from jobs.repair.run import NotRepairableError, RefusedError, RepairRequest, repair
from jobs.store.known import UndecidedError
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import decode_record, encode_record, has_right_body_crc
from rmq_formats.errors import FormatError
from tests.oracle.judge import records
from tests.oracle.process import DriverProcess, running
from tests.oracle.sessions import StoreRefusedError, open_store
from tests.oracle.settings import SMALL_GEOMETRY
from tests.support.fault_draws import Draw, drawn, planted
from tests.support.faults import GEOMETRY, SEGMENT

STORES = {
    "4.9.8": ("b498-crash-before",),
    "5.3.3": ("b533-base", "b533-crash-before"),
    "5.5.0": ("b551-base", "b551-crash-before"),
}
_KEEP = {"fileReservedTime": "1000000"}  # hours: the stores are older than a broker keeps its files
_FIRST = {"4.9.8": 810_000, "5.3.3": 820_000, "5.5.0": 830_000}  # draws
_DRAWS = 30  # of each release in the campaign


class _Served(NamedTuple):
    """A started store: where its log ends, and its messages by queue and number."""

    log_end: int
    messages: frozenset[tuple[str, int, int, int]]  # topic, queue id, queue offset, physical offset


def _started(driver: DriverProcess, store: Path) -> _Served | None:
    try:
        with open_store(driver, store, settings=_KEEP) as opened:
            queues = [
                (topic.name, int(queue.name))
                for topic in (store / "consumequeue").glob("[A-Z]*") for queue in topic.iterdir()
            ]  # fmt: skip
            found = {(*queue, *message) for queue in queues for message in opened.read_queue(*queue)}
            return _Served(opened.log_end(), frozenset(found))
    except StoreRefusedError:
        return None


class _Left(NamedTuple):
    """The offsets of a healthy store's records that a damaged one has."""

    equal: set[int]  # byte by byte
    whole: set[int]  # as a broker sees it: framed, with the CRC of its body


def _left(store: Path, healthy: Path) -> _Left:
    left = _Left(set(), set())
    for record in records(healthy):
        path = store / "commitlog" / f"{record.physical_offset // SEGMENT * SEGMENT:020d}"
        data, at = path.read_bytes() if path.exists() else b"", record.physical_offset % SEGMENT
        if data[at : at + record.total_size] == encode_record(record):
            left.equal.add(record.physical_offset)
        with suppress(FormatError):
            if has_right_body_crc(decode_record(data, at, record.physical_offset)):
                left.whole.add(record.physical_offset)
    return left


def _surprises(driver: DriverProcess, draw: Draw, healthy: Path, folder: Path) -> Iterator[str]:
    """Yield each difference between a start and what `verify` said after the repair."""
    (folder / "healthy").mkdir(parents=True)
    whole_store = planted(Draw(draw.store, ()), folder / "healthy").root
    served = _started(driver, whole_store)
    assert served is not None
    store = planted(draw, folder).root
    conf = BrokerConf(consume_queue_size=SMALL_GEOMETRY.consume_queue_file_size)
    wanted = Wanted(GEOMETRY.hash_slots, GEOMETRY.index_num, driver.release, conf=conf)
    request = RepairRequest(str(store), folder / "repair", wanted=wanted, apply=True)
    with suppress(NotRepairableError, RefusedError, UndecidedError):
        repair(request, OneByOne())
    said = verify(VerifyRequest(str(store), wanted), OneByOne())
    left = _left(store, healthy)
    seen = _started(driver, store)
    assert said.start is not None
    if said.start.starts not in {None, seen is not None}:
        yield f"said {said.start}, started: {seen is not None}"
    if seen is None or said.start.deletes_messages is None:
        return
    lost = sum(offset >= seen.log_end for offset in left.whole)
    others = any(kind == "foreign-segment" for kind, _ in draw.faults)  # whose whole messages are counted, too
    if lost > said.start.deletes_messages or (lost < said.start.deletes_messages and not others):
        yield f"said {said.start}, lost {lost}, log ends at {seen.log_end}"
    if not said.severity.is_alarm:
        missing = {one for one in served.messages if one[3] in left.equal} - seen.messages
        if missing:
            yield f"not served: {sorted(missing)[:3]} of {len(missing)}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("writer", "count"),
    [
        pytest.param(writer, count, marks=pytest.mark.oracle if count == 1 else pytest.mark.campaign)
        for writer in STORES for count in (1, _DRAWS)
    ],
)  # fmt: skip
def test_a_broker_starts_on_a_repaired_draw_as_verify_says(writer: str, count: int, tmp_path: Path) -> None:
    surprises = []
    with running(writer) as driver:
        for seed in range(_FIRST[writer], _FIRST[writer] + count):
            draw = drawn(seed)._replace(store=Random(seed).choice(STORES[writer]))
            healthy = planted(Draw(draw.store, ()), _new(tmp_path / f"{seed}-was")).root
            found = _surprises(driver, draw, healthy, _new(tmp_path / f"{seed}"))
            surprises += [f"{draw}: {text}" for text in found]
    assert surprises == []


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
