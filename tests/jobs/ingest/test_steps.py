"""A run that commits in steps: the same rows as in one, whatever the steps, and at most one step to read again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest, steps
from jobs.store.workers import Item, OneByOne, Result
from tests.golden import unpack
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.lakes import gaps_of, rows_of, table_of
from tests.support.stores import segments_of

T = TypeVar("T")
OF_A_RUN = {"run", "store_id"}  # columns that name the run


def request(store: Path, lake: Path, step: int | None = None) -> IngestRequest:
    return IngestRequest(str(store), str(lake), broker="b", step_bytes=step)


def together(lake: Path) -> dict[str, list[str]]:
    found = {}
    for name in ("messages", "consume_queue", "index_entries", "quarantine"):
        if not (lake / name).exists():
            continue
        table = table_of(lake / name)
        table = table.drop_columns([column for column in table.column_names if column in OF_A_RUN])
        times = [column for column in table.column_names if pa.types.is_timestamp(table.schema.field(column).type)]
        for column in times:
            at = table.column_names.index(column)
            table = table.set_column(at, column, table[column].cast(pa.timestamp("us")).cast(pa.int64()))
        found[name] = sorted(map(repr, table.to_pylist()))
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "step"), [("b498-base", 4_000), ("b533-expired", 5_000), ("b498-dledger", 5_000)])
def test_steps_of_any_size_give_the_rows_of_one_run(name: str, step: int, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    whole = ingest(request(store, tmp_path / "whole"), OneByOne())
    stepped = ingest(request(store, tmp_path / "stepped", step), OneByOne())

    assert together(tmp_path / "stepped") == together(tmp_path / "whole")
    assert (stepped.messages, stepped.to_offset, stepped.units, stepped.index_entries) == (
        whole.messages,
        whole.to_offset,
        whole.units,
        whole.index_entries,
    )
    assert stepped.exit_code is whole.exit_code
    assert stepped.steps > 1


def test_a_gap_is_named_once_by_the_step_that_comes_to_it(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(200))
    lost = segments_of(broker.root)[2]
    lost.unlink()

    summary = ingest(request(broker.root, tmp_path / "lake", SEGMENT_SIZE), OneByOne())

    base = int(lost.name)
    assert [(gap["from"], gap["to"]) for gap in summary.gaps] == [(base, base + SEGMENT_SIZE)]
    assert gaps_of(tmp_path / "lake") == [(base, base + SEGMENT_SIZE)]


@dataclass(frozen=True, slots=True)
class _Interrupted(OneByOne):
    """Somebody presses Ctrl-C as the second step reads."""

    read: tuple[list[int], ...] = ([],)

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        if sizes and self.read[0]:
            raise KeyboardInterrupt
        self.read[0].extend(sizes[:1])
        return OneByOne.map(self, items, task, label, sizes)


def test_an_interruption_costs_no_more_than_one_step(broker: Broker, tmp_path: Path) -> None:
    records = broker.append(some_records(200))
    asked = request(broker.root, tmp_path / "lake", SEGMENT_SIZE)

    with pytest.raises(KeyboardInterrupt):
        ingest(asked, _Interrupted())
    committed = len(rows_of(tmp_path / "lake"))
    rest = ingest(asked, OneByOne())

    assert 0 < committed < len(records)
    assert (rest.messages, rest.from_offset) == (len(records) - committed, records[committed].physical_offset)
    assert [row["physical_offset"] for row in rows_of(tmp_path / "lake")] == [r.physical_offset for r in records]


def test_the_steps_of_one_command_name_it(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(200))
    summaries: list[Summary] = list(steps(request(broker.root, tmp_path / "lake", SEGMENT_SIZE), OneByOne()))
    broker.append(some_records(5, seed=2))
    ingest(request(broker.root, tmp_path / "lake"), OneByOne())

    prepared = [row for row in rows_of(tmp_path / "lake", "runs", "run") if row["state"] == "prepared"]
    commands = [json.loads(row["detail"])["command"] for row in prepared]
    assert len(summaries) > 2
    assert [commands.count(one) for one in dict.fromkeys(commands)] == [len(summaries), 1]
