"""Records after damage in the segment that a broker writes to: left over from a cut, or stored by a clock set back."""

import shutil
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.golden import StoreOf
from tests.rmq_formats.stores import newest_segment
from tests.support.clocks import Placed, placed_records, set_store_times
from tests.support.commands import Run, copy_of, overwrite
from tests.support.lakes import table_of

_STEP_BACK = 5000


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a store in whose newest segment the clock stepped back at a record that is zeroed now."""
    store = copy_of(golden("b533-base"), tmp_path)
    damaged = _damaged(store)
    set_store_times(
        store, lambda _, one: one.store_timestamp - _STEP_BACK * (one.physical_offset >= damaged.record.physical_offset)
    )
    overwrite(damaged.path, damaged.position, bytes(damaged.record.total_size))
    return store


def _damaged(store: Path) -> Placed:
    in_newest = [one for one in placed_records(store) if one.path == newest_segment(store)]
    return in_newest[len(in_newest) // 3]


def _intact(golden: StoreOf) -> tuple[list[int], int]:
    whole = golden("b533-base")
    damaged = _damaged(whole).record.physical_offset
    offsets = [one.record.physical_offset for one in placed_records(whole)]
    return [offset for offset in offsets if offset != damaged], damaged


def _ingested(store: Path, lake: Path, run: Run) -> tuple[ExitCode, list[int]]:
    code = run("ingest", store, "--lake", lake, "--engine", "here").code
    return code, sorted(table_of(lake / "messages", ["physical_offset"])["physical_offset"].to_pylist())


def test_no_message_after_the_damage_is_left_out(golden: StoreOf, store: Path, tmp_path: Path, run: Run) -> None:
    """Time alone does not make a record a leftover: a unit leads to it, and one to the record that was damaged."""
    intact, damaged = _intact(golden)

    assert _ingested(store, tmp_path / "lake", run) == (ExitCode.DAMAGE, intact)

    looked = run("inspect", "--deep", "--json", store)
    assert looked.code is ExitCode.DAMAGE
    assert looked.document["log"]["records"] == len(intact)
    assert [one["offset"] for one in looked.document["problems"] if one["severity"] == "damage"][:1] == [damaged]


def test_without_a_unit_that_proves_it_an_earlier_record_is_left_over(
    golden: StoreOf, store: Path, tmp_path: Path, run: Run
) -> None:
    """A broker that was killed cuts its log, and writes on before older records that it has once stored."""
    intact, damaged = _intact(golden)
    shutil.rmtree(store / "consumequeue")

    expected = [offset for offset in intact if offset < damaged]
    assert _ingested(store, tmp_path / "lake", run) == (ExitCode.CLEAN, expected)
