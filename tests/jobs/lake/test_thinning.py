"""Old states of consumer offsets: which ones a lake keeps, and that answers do not change."""

import json
import shutil
from copy import copy
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.lake import thinning, upkeep
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.snapshot_files import list_snapshot_files
from jobs.lake.tables import CONFIG_FILES, CONSUMER_OFFSETS
from jobs.lake.thinning import RunPeriods
from jobs.products import state_file
from jobs.products.broker_config import read_state
from jobs.products.state_file import forget_state_files
from jobs.query.lake_source import LakeSource, open_lake_stores
from jobs.restore.config import restore_config_files
from tests.support.broker import Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import ingest_store, rows_of

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_NOW = 20_000 * _DAY + 7 * _HOUR
_GROUPS = 12


class LakeOfOffsets:
    """A lake that is filled by runs, each of which finds other offsets of some groups."""

    def __init__(self, root: Path) -> None:
        self.broker, self.path = Broker(root / "store"), root / "lake"
        self.offsets = dict.fromkeys((f"T@g{number:02}" for number in range(_GROUPS)), 0)
        (self.broker.root / "config").mkdir(parents=True)
        self.states: list[dict[str, int]] = []  # after each run

    def copied(self, root: Path) -> "LakeOfOffsets":
        other = copy(self)
        other.broker, other.path = self.broker.copied(root / "store"), root / "lake"
        other.offsets, other.states = dict(self.offsets), [*self.states]
        shutil.copytree(self.path, other.path)
        return other

    @property
    def lake(self) -> Lake:
        return Lake(str(self.path))

    @property
    def store_id(self) -> str:
        return list_lake_stores(self.lake)[0].store_id

    def write_offsets(self) -> None:
        table = {name: {"0": offset} for name, offset in self.offsets.items()}
        (self.broker.root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))

    def run(self, *moved: int) -> None:
        for number in moved:
            self.offsets[f"T@g{number:02}"] += 1
        self.write_offsets()
        self.broker.append(some_records(1, seed=self.broker.offset))
        ingest_store(self.broker.root, self.path, "b")
        self.states.append(dict(self.offsets))

    def read_states(self) -> list[dict[str, int]]:
        """Return the offsets after each run, as a reader computes them: the newest row of each group counts."""
        rows = rows_of(self.path, "consumer_offsets", "run")
        found = []
        for run in range(1, len(self.states) + 1):
            newest = {row["consumer_group"]: row["next_offset"] for row in rows if row["run"] <= run}
            found.append({f"T@{group}": offset for group, offset in newest.items() if offset is not None})
        return found

    def thin(self, minutes_apart: float, age_days: float) -> None:
        """Thin out the states as if the runs were some minutes apart, and the newest one had this age."""
        newest = _NOW - int(age_days * _DAY)
        times = {
            run: newest - int((len(self.states) - run) * minutes_apart * _MINUTE)
            for run in range(1, len(self.states) + 1)
        }
        periods = RunPeriods.from_times(self.store_id, times, _NOW)
        with patch.object(RunPeriods, "read", lambda *_: periods):
            for table in (CONSUMER_OFFSETS, CONFIG_FILES):
                upkeep.thin_states(self.lake, table, [self.store_id])

    def positions(self) -> dict[str, int]:
        return {f"T@{one.consumer_group}": one.next_offset for one, _ in self.open_source().consumer_progress()}

    def open_source(self) -> LakeSource:
        (source,) = open_lake_stores(str(self.path))
        return source


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> LakeOfOffsets:
    found = LakeOfOffsets(tmp_path_factory.mktemp("filled"))
    found.run(*range(_GROUPS))
    for number in range(29):
        found.run(number % _GROUPS, (number * 5) % _GROUPS)
    return found


@pytest.fixture
def lake_of_offsets(filled: LakeOfOffsets, tmp_path: Path) -> LakeOfOffsets:
    return filled.copied(tmp_path)


@pytest.mark.parametrize(
    ("age", "every", "kept"),
    [(2 * _DAY, 5 * _MINUTE, 288), (10 * _DAY, 5 * _MINUTE, 24), (100 * _DAY, 5 * _MINUTE, 1), (100 * _DAY, _DAY, 1)],
)
def test_states_are_kept_for_three_days_then_hourly_for_thirty_days_then_daily(age: int, every: int, kept: int) -> None:
    midnight = _NOW - age - (_NOW - age) % _DAY
    times = {number: midnight + number * every for number in range(_DAY // every)}

    periods = RunPeriods.from_times("s", times, _NOW)

    assert (len(times), kept) == periods.count_states(0, len(times) - 1)


def test_a_clock_that_was_set_back_does_not_mix_periods() -> None:
    times = {1: _NOW - 50 * _DAY, 2: _NOW - 49 * _DAY, 3: _NOW - 50 * _DAY, 4: _NOW - 48 * _DAY}

    periods = RunPeriods.from_times("s", times, _NOW)

    assert [1, 2, 2, 3] == periods.periods.tolist()


def test_thinned_states_are_those_at_the_end_of_each_hour(lake_of_offsets: LakeOfOffsets) -> None:
    before = lake_of_offsets.read_states()
    rows = len(rows_of(lake_of_offsets.path, "consumer_offsets", "run"))

    lake_of_offsets.thin(20, 10)

    after = lake_of_offsets.read_states()
    hours = RunPeriods.from_times(
        "s", {run: _NOW - 10 * _DAY - (30 - run) * 20 * _MINUTE for run in range(1, 31)}, _NOW
    )
    ends = [run for run in range(30) if run == 29 or hours.periods[run] != hours.periods[run + 1]]

    assert lake_of_offsets.states == before
    assert [before[run] for run in ends] == [after[run] for run in ends]
    assert len(rows_of(lake_of_offsets.path, "consumer_offsets", "run")) < rows


def test_thinned_positions_are_never_after_the_true_ones(lake_of_offsets: LakeOfOffsets) -> None:
    lake_of_offsets.thin(20, 10)

    for true, found in zip(lake_of_offsets.states, lake_of_offsets.read_states(), strict=True):
        assert all(true[name] >= offset for name, offset in found.items())


def test_answers_are_the_same_after_thinning(lake_of_offsets: LakeOfOffsets, run: Run) -> None:
    def answer() -> list[object]:
        lag = run(
            "query",
            "sql",
            "--lake",
            lake_of_offsets.path,
            "SELECT * FROM consumer_lag ORDER BY ALL",
            "--output",
            "ndjson",
        )
        files = restore_config_files(lake_of_offsets.lake, lake_of_offsets.store_id, None, None, {})
        progress = run("query", "mqadmin", "--lake", lake_of_offsets.path, "consumerProgress", "-g", "g03")
        return [lake_of_offsets.positions(), lag.out, files, progress.out]

    before = answer()

    lake_of_offsets.thin(20, 100)

    assert lake_of_offsets.offsets == before[0]
    assert before == answer()


def test_the_newest_version_before_the_end_of_a_restored_log_is_restored(
    lake_of_offsets: LakeOfOffsets, tmp_path: Path
) -> None:
    rows = rows_of(lake_of_offsets.path, "config_files", "run")
    lake_of_offsets.thin(20, 10)
    kept = rows_of(lake_of_offsets.path, "config_files", "run")
    ends = {row["run"]: row["to_offset"] for row in rows}

    files, _, lost = restore_config_files(
        lake_of_offsets.lake, lake_of_offsets.store_id, tmp_path / "out", ends[17], {}
    )

    (path,) = files
    newest = max(row["run"] for row in kept if row["run"] <= 17)

    assert {} == lost
    assert 0 < len(kept) < len(rows)
    assert next(row["bytes"] for row in rows if row["run"] == newest) == Path(path).read_bytes()


def test_versions_of_other_configuration_files_are_all_kept(lake_of_offsets: LakeOfOffsets) -> None:
    topics = lake_of_offsets.broker.root / "config" / "topics.json"
    for number in range(6):
        topics.write_text(json.dumps({"topicConfigTable": {f"T{number}": {"topicName": f"T{number}"}}}))
        lake_of_offsets.run(1)

    lake_of_offsets.thin(1, 100)

    names = [row["name"] for row in rows_of(lake_of_offsets.path, "config_files", "run")]

    assert names.count("topics.json") == 6
    assert names.count("consumerOffset.json") <= 2


def test_thinning_twice_rewrites_nothing(lake_of_offsets: LakeOfOffsets) -> None:
    lake_of_offsets.thin(20, 10)
    snapshot = open_table(lake_of_offsets.lake, CONSUMER_OFFSETS.name)

    assert snapshot is not None

    lake_of_offsets.thin(20, 10)

    again = open_table(lake_of_offsets.lake, CONSUMER_OFFSETS.name)

    assert again is not None
    assert snapshot.version() == again.version()


def test_a_state_that_is_dropped_by_day_after_it_was_kept_by_hour(lake_of_offsets: LakeOfOffsets) -> None:
    lake_of_offsets.thin(60, 10)

    lake_of_offsets.thin(60, 100)

    snapshot = open_table(lake_of_offsets.lake, CONSUMER_OFFSETS.name)

    assert snapshot is not None
    paths = [file.path for file in list_snapshot_files(lake_of_offsets.lake, snapshot)]

    assert all(path.startswith(thinning.THINNED_PREFIX) for path in paths)
    assert len(rows_of(lake_of_offsets.path, "consumer_offsets", "run")) <= 2 * len(paths) * _GROUPS
    assert lake_of_offsets.states[-1] == lake_of_offsets.read_states()[-1]


def test_later_runs_continue_a_thinned_lake(lake_of_offsets: LakeOfOffsets) -> None:
    lake_of_offsets.thin(20, 100)

    lake_of_offsets.run(2, 3)

    assert lake_of_offsets.offsets == lake_of_offsets.positions()
    assert lake_of_offsets.offsets == lake_of_offsets.read_states()[-1]


def test_a_run_thins_out_states_by_itself(lake_of_offsets: LakeOfOffsets) -> None:
    rows = len(rows_of(lake_of_offsets.path, "consumer_offsets", "run"))
    with (
        patch.multiple(upkeep, MAX_SMALL_FILES=1, _RUNS_BETWEEN_VACUUMS=1),
        patch("jobs.lake.upkeep.time.time", lambda: 4e9),
    ):
        lake_of_offsets.run(4)

    assert len(rows_of(lake_of_offsets.path, "consumer_offsets", "run")) < rows / 2
    assert lake_of_offsets.offsets == lake_of_offsets.positions()


def test_readers_of_current_offsets_read_few_rows(lake_of_offsets: LakeOfOffsets) -> None:
    for _ in range(8):
        lake_of_offsets.run(*range(8))

    since = lake_of_offsets.open_source()._runs.full_state_run  # noqa: SLF001 - the limit, not the answer

    rows = [row for row in rows_of(lake_of_offsets.path, "consumer_offsets", "run") if row["run"] >= since]

    assert since > 1
    assert len(rows) <= 5 * _GROUPS
    assert lake_of_offsets.offsets == lake_of_offsets.positions()


def test_a_deleted_group_stays_deleted_after_a_full_state(lake_of_offsets: LakeOfOffsets) -> None:
    del lake_of_offsets.offsets["T@g07"]
    for _ in range(8):
        lake_of_offsets.run(*range(7))

    assert lake_of_offsets.offsets == lake_of_offsets.positions()
    assert lake_of_offsets.offsets == lake_of_offsets.read_states()[-1]


def test_manifests_have_only_changed_offsets(lake_of_offsets: LakeOfOffsets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "MAX_VALUES_IN_MANIFEST", 6)
    del lake_of_offsets.offsets["T@g09"]
    for number in range(6):
        lake_of_offsets.run(number % 4, 11)
        forget_state_files()
        (lake_store,) = list_lake_stores(lake_of_offsets.lake)

        assert lake_store.newest_manifest is not None
        state = lake_store.newest_manifest.state["broker_config"]

        assert isinstance(state, dict)

        assert sum(len(queues) for *_, queues in state["offsets"]) <= 6
        _, offsets = read_state(lake_of_offsets.lake, state)

        assert lake_of_offsets.offsets == {
            f"{topic}@{group}": queues["0"] for (_, group, topic), queues in offsets.items()
        }

    assert lake_of_offsets.offsets == lake_of_offsets.read_states()[-1]
