"""
Random histories of a store and its lake against a model in plain Python: no message is lost, twice, or back.

A history mixes growth of the log, faults of its segments, repairs, runs, fills from a replica, topics that are left out
and backfilled, undone runs, `type`, `optimize` and `optimize --keep`, each of which may be killed after any effect on
the disk and is then repeated. At the end, the store is repaired and ingested, and each topic is backfilled: the lake
then has each message once, except those that have expired.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from jobs.console.result import RequestError, Severity
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.manifest import Manifest
from jobs.lake.retention import Retention, remove_expired_rows
from jobs.lake.upkeep import optimize
from jobs.library import undo_runs
from jobs.requests.typing import TypeRequest
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from jobs.typed.typings import list_tables_by_topic
from rmq_formats.commitlog.record import MessageRecord, encode_record
from tests.rmq_formats.builders import STORED
from tests.support.lakes import compare_with_lake, ingest_store, raw_rows, rows_of
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stopping import KilledError, killing_after

HISTORIES = 300
STEPS = 14
TOPICS = ("Orders", "Audit")
LEFT_OUT = "Audit"
UNDONE_RUNS = 3  # at most
HOUR_S = 3600
KILL_PROBABILITY = 0.4
TYPES = '[topic."Orders"]\nformat = "json"\nschema = "id bigint"\n'


@dataclass
class History:
    """A store, its replica and its lake, and the messages that the lake must have."""

    directory: Path
    random: Random
    sent: list[Sent] = field(default_factory=list)
    faults: dict[int, Callable[[bytes], bytes | None]] = field(default_factory=dict)  # by number of the segment
    gone: set[int] = field(default_factory=set)  # offsets of messages that have expired
    expired_to: int = 0
    cutoffs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.directory / "types.toml").write_text(TYPES)
        self.grow()
        self.run_command(self.random.choice((self.ingest, self.leave_out)))

    @property
    def records(self) -> list[MessageRecord]:
        return stored(self.sent)

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    # the store

    def grow(self) -> None:
        count = self.random.randint(5, 60)
        first = len(self.sent)
        self.sent += [
            Sent(self.random.choice(TOPICS), body=b'{"id": %d}' % number) for number in range(first, first + count)
        ]
        self.write_log()

    def write_log(self) -> None:
        """Write the replica, and the store with the faults of its segments."""
        shutil.rmtree(self.directory / "replica", ignore_errors=True)
        write_store(self.directory / "replica", self.records, with_index=False)
        log = self.directory / "store" / "commitlog"
        log.mkdir(parents=True, exist_ok=True)
        queues = "consumequeue"
        shutil.copytree(self.directory / "replica" / queues, self.directory / "store" / queues, dirs_exist_ok=True)
        segments = sorted((self.directory / "replica" / "commitlog").iterdir())
        for number, path in enumerate(segments):
            change = self.faults.get(number)
            data = path.read_bytes() if change is None else change(path.read_bytes())
            if data is None:
                (log / path.name).unlink(missing_ok=True)
            elif not (log / path.name).exists() or (log / path.name).read_bytes() != data:
                (log / path.name).write_bytes(data)

    def damage(self) -> None:
        """Damage a segment; the newest two stay, because a log that lost its end is another case."""
        count = len(list((self.directory / "replica" / "commitlog").iterdir()))
        if count <= 3:
            return
        number = self.random.randrange(1, count - 2)
        cut = self.random.randrange(200, SEGMENT_SIZE - 200)
        # No checksum covers the header of a record: only a damaged body or size is found.
        inside = [one for one in self.records if one.physical_offset // SEGMENT_SIZE == number]
        record = self.random.choice(inside)
        start = record.physical_offset % SEGMENT_SIZE

        def lose(_: bytes) -> None:
            return None

        def truncate(data: bytes) -> bytes:
            return data[:cut]

        def change_body(data: bytes) -> bytes:
            at = data.index(record.body, start)
            return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]

        def overwrite(data: bytes) -> bytes:
            return data[:start] + b"\xff" * record.total_size + data[start + record.total_size :]

        self.faults[number] = self.random.choice([lose, truncate, change_body, overwrite])
        self.write_log()

    def repair(self) -> None:
        self.faults.clear()
        self.write_log()

    # the commands

    def run_command(self, command: Callable[[], object]) -> None:
        """Do a command; some are killed, and repeated."""
        if self.random.random() < KILL_PROBABILITY:
            with killing_after(self.random.randint(1, 25)), suppress(KilledError):
                command()
        command()

    def ingest(self) -> None:
        ingest_store(self.directory / "store", self.lake, "b")

    def leave_out(self) -> None:
        ingest_store(
            self.directory / "store",
            self.lake,
            "b",
            selection=Selection(exclude_topics=(LEFT_OUT,)),
            change_topics=True,
        )

    def backfill(self) -> None:
        ingest_store(self.directory / "store", self.lake, "b", backfill=(LEFT_OUT,))

    def undo(self) -> None:
        """Undo some of the newest runs, if none of them changed earlier rows."""
        newest = self.newest_run
        first = self.random.randint(max(newest.run - UNDONE_RUNS, 0) + 1, newest.run)

        def undo() -> None:
            with suppress(RequestError):
                undo_runs(self.lake, first)

        self.run_command(undo)

    @property
    def newest_run(self) -> Manifest:
        (lake_store,) = list_lake_stores(Lake(str(self.lake)))
        assert lake_store.newest_manifest is not None
        return lake_store.newest_manifest

    def fill_from_replica(self) -> None:
        ingest_store(self.directory / "replica", self.lake, "b", fill_gaps=True)

    def type(self) -> None:
        type_lake(TypeRequest(Lake(str(self.lake)), read_types(self.directory / "types.toml")), SerialWorkers())

    def merge(self) -> None:
        """Merge files as `optimize` does; without --keep, it removes expired messages that have arrived since."""

        def merge() -> None:
            place = Lake(str(self.lake))
            list(remove_expired_rows(place, Retention(), list_tables_by_topic(place)))
            optimize(str(self.lake), SerialWorkers())

        self.expire({})
        self.run_command(merge)

    def keep(self) -> None:
        """Expire messages; the model removes those that the lake has."""
        now = STORED + len(self.sent) * 100 + HOUR_S * 1000
        times = {topic: self.random.randrange(len(self.sent) // 2 + 1) * 100 + STORED for topic in TOPICS}
        if self.random.random() < 0.5:
            times = {"": times["Orders"]}
        retention = {topic: (now - time) / 1000 for topic, time in times.items()}

        def remove() -> None:
            place = Lake(str(self.lake))
            asked = Retention(retention.get(""), {topic: kept for topic, kept in retention.items() if topic})
            list(remove_expired_rows(place, asked, list_tables_by_topic(place), now_ms=now))

        self.expire(times)
        self.run_command(remove)

    def expire(self, times: Mapping[str, int]) -> None:
        """Remove the messages from the model that the lake has and that are older than these times, or earlier ones."""
        there = {row["physical_offset"] for row in rows_of(self.lake)}
        before = self.cutoffs.get("", 0)
        wanted = times.get("", 0)
        cutoffs = {
            topic: max(times.get(topic, wanted), self.cutoffs.get(topic, before))
            for topic in ("", *TOPICS)
        }  # fmt: skip
        records = [one for one in self.records if one.physical_offset in there]
        old = {one.physical_offset for one in records if one.store_timestamp < cutoffs[one.topic]}
        if old:
            end = min(there - old, default=self.newest_run.to_offset)
            self.cutoffs, self.expired_to = cutoffs, max(self.expired_to, end)
            self.gone |= old

    # the checks

    def check(self) -> None:
        """Check that each row is a message that was sent, once, and that none is back."""
        sent = {one.physical_offset: encode_record(one) for one in self.records}
        found = raw_rows(self.lake)
        assert len({offset for offset, _ in found}) == len(found), "twice"
        assert [] == [offset for offset, data in found if sent.get(offset) != data]
        assert set() == {offset for offset, _ in found} & self.gone, "back"
        units = Counter((row["topic"], row["queue_offset"]) for row in rows_of(self.lake, "consume_queue"))
        assert [] == [unit for unit, count in units.items() if count > 1], "unit twice"

    def end(self) -> None:
        """Repair the store, and check that nothing is lost."""
        self.repair()
        self.run_command(self.ingest)
        self.run_command(self.backfill)
        self.ingest()
        self.run_command(self.type)
        self.expire({})
        place = Lake(str(self.lake))
        list(remove_expired_rows(place, Retention(), list_tables_by_topic(place)))
        self.check()
        live = [one for one in self.records if one.store_timestamp >= self.cutoffs.get(one.topic, 0)]
        rows = rows_of(self.lake)
        found = {row["physical_offset"] for row in rows}
        assert {one.physical_offset for one in live if one.physical_offset >= self.expired_to} <= found, "lost"
        assert found <= {one.physical_offset for one in live}
        orders = sorted(row["physical_offset"] for row in rows if row["topic"] == "Orders")
        assert orders == [row["physical_offset"] for row in rows_of(self.lake, "typed/Orders")]
        assert compare_with_lake(self.directory / "replica", self.lake).severity is Severity.HEALTHY


def play(seed: int, directory: Path) -> None:
    history = History(directory, Random(seed))
    for _ in range(STEPS):
        step, is_command = history.random.choices(
            (
                (history.grow, False), (history.damage, False), (history.repair, False), (history.ingest, True),
                (history.fill_from_replica, True), (history.type, True), (history.merge, False), (history.keep, False),
                (history.leave_out, True), (history.backfill, True), (history.undo, False),
            ),
            (4, 3, 1, 5, 1, 2, 1, 2, 1, 2, 2),
        )[0]  # fmt: skip
        if is_command:
            history.run_command(step)
        else:
            step()
        history.check()
    history.end()


@pytest.mark.sample(4, always=["14", "47", "71"])
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_message_is_lost_twice_or_back_after_a_random_history(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)
