"""`--dry-run` of the two rebuilds: what would be built, told by a look at the store, and nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.products.index.settings import Wanted
from jobs.rebuild import index_dry_run as index_foreseeing
from jobs.rebuild import queues_dry_run as queue_foreseeing
from jobs.rebuild.index import Request
from jobs.rebuild.index_dry_run import ForeseenIndex, Gap
from jobs.rebuild.queues_dry_run import ForeseenQueues
from jobs.verbs.rebuild_consumequeue import Request as QueueRequest
from jobs.verbs.rebuild_consumequeue import look
from rmq_formats.indexfile.layout import HEADER, Geometry, IndexHeader, decode_header
from tests.golden import GOLDEN, SCENARIO, golden_stores, release_of
from tests.rmq_formats.builders import a_record, a_segment
from tests.support.commands import runner, state_of

StoreOf = Callable[[str], Path]
BASES = [name for name in GOLDEN if SCENARIO[name] in {"base", "multipath", "dledger", "expired", "types"}]
# Halted before the dispatch, copied while being written, deleted in part, without queue files.
WITHOUT_ALL_QUEUES = {"b533-crash-before", "b498-live", "b551-rockscq", *golden_stores("expired")}
TINY = Geometry(100, 20)
LONG, STRETCH = 4000, 64 << 10  # records of a log that is looked at in eight stretches


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Copy a store that may be changed: thirteen index files, the last one not full."""
    copy = tmp_path / "store"
    shutil.copytree(golden("b533-base"), copy)
    return copy


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log that is too long to be read in a moment: queue offsets 1000 to 4999, one key a message."""
    store = tmp_path_factory.mktemp("long")
    (store / "commitlog").mkdir()
    records = [a_record(bytes(300), queue_offset=1000 + number) for number in range(LONG)]
    (store / "commitlog" / f"{0:020d}").write_bytes(a_segment(records, 4 << 20))
    return store


def _logs(store: Path) -> list[str]:
    return [str(path) for path in sorted(store.glob("commitlog-*"))]


def _names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "index").iterdir())


def _index_of(store: Path, *, lost_only: bool = False, broker_runs: bool = False) -> ForeseenIndex:
    """Foresee index files without Spark."""
    wanted = Wanted(100, 20, "5.3.3")
    request = Request(str(store), "never", wanted, _logs(store), lost_only, broker_runs)
    return index_foreseeing.foresee(request, {})


def _queues_of(store: Path, release: str | None = None, file_size: int | None = None) -> ForeseenQueues:
    """Foresee queues without Spark."""
    request = QueueRequest(str(store), Path("never"), _logs(store), release=release, file_size=file_size)
    listing, settings = look(request, {}, None)
    return queue_foreseeing.foresee(listing, "never", settings, STRETCH)


@pytest.mark.parametrize("name", [name for name in BASES if SCENARIO[name] != "expired"])
def test_as_many_index_files_are_foreseen_as_the_broker_wrote(golden: StoreOf, name: str) -> None:
    """With all their keys; of a log this short nothing is guessed."""
    store = golden(name)
    headers = [decode_header((store / "index" / file).read_bytes()) for file in _names(store)]
    foreseen = index_foreseeing.foresee(Request(str(store), "never", commitlog=_logs(store)), {})

    assert foreseen.files == len(headers)
    assert foreseen.keys == sum(header.entry_count for header in headers)
    assert foreseen.exit_code is ExitCode.CLEAN


def test_the_name_of_the_first_file_is_known(golden: StoreOf) -> None:
    """It is the store time of the log's first key, in the broker's zone."""
    log = (golden("b533-base") / "commitlog" / f"{0:020d}").read_bytes()
    assert _index_of(golden("b533-base")).first_name == "20261120074348740"
    assert int.from_bytes(log[56:64], "big") % 1000 == 740


def test_lost_files_are_counted_gap_by_gap(golden: StoreOf, tmp_path: Path) -> None:
    """Between which of those that are there; the last one lost is the one that a broker would go on in."""
    store = Path(shutil.copytree(golden("b514-base"), tmp_path / "store"))
    names = _names(store)
    for number in (0, 4, 5, 11):
        (store / "index" / names[number]).unlink()
    foreseen = _index_of(store, lost_only=True)

    assert [
        Gap("", names[1], 1),
        Gap(names[3], names[6], 2),
        Gap(names[10], "", 1),
    ] == list(foreseen.gaps)
    assert list(foreseen.kept) == _names(store)
    assert (foreseen.files, foreseen.exit_code) == (4, ExitCode.CLEAN)


def test_where_the_log_has_moved_on_the_first_file_is_a_partial_one(golden: StoreOf, tmp_path: Path) -> None:
    """The log begins inside of the file that was there: what it still has of its keys becomes a file, too."""
    store = Path(shutil.copytree(golden("b533-expired"), tmp_path / "store"))
    names = _names(store)
    for number in (0, 1, 3):
        (store / "index" / names[number]).unlink()

    assert _index_of(store, lost_only=True).gaps == [Gap("", names[2], 2), Gap(names[2], names[4], 1)]


def test_the_newest_file_lacks_nothing_of_a_message_that_a_lost_file_begins(golden: StoreOf, tmp_path: Path) -> None:
    """Its one key is the last of that message; the others come back with the file before it."""
    store = Path(shutil.copytree(golden("up533-540"), tmp_path / "store"))
    names = _names(store)
    (store / "index" / names[12]).unlink()
    foreseen = _index_of(store, lost_only=True)

    assert (foreseen.gaps, foreseen.continued) == ([Gap(names[11], names[13], 1)], None)


def test_a_lost_file_with_the_last_keys_of_a_message_of_the_one_before_is_foreseen(store: Path) -> None:
    """Of the newest message's keys all but one are in the file before the newest."""
    names = _names(store)
    (store / "index" / names[12]).unlink()

    assert _index_of(store, lost_only=True).gaps == [Gap(names[11], "", 1)]


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in {"b533-crash-before", "b498-live"}])
def test_nothing_is_foreseen_where_nothing_is_lost(golden: StoreOf, name: str) -> None:
    """Whatever happened to the broker: restarts, deleted messages, topics upgraded."""
    request = Request(str(golden(name)), "never", Wanted(100, 20), _logs(golden(name)), lost_only=True)
    foreseen = index_foreseeing.foresee(request, {})

    assert (foreseen.files, foreseen.gaps, foreseen.refused, foreseen.continued) == (0, [], [], None)
    assert "  would write no index file, for none is missing, and MANIFEST.json" in foreseen.lines()


def test_a_file_that_is_cut_short_would_be_replaced(store: Path) -> None:
    """By its name; the exit code is that of the rebuild."""
    name = _names(store)[6]
    path = store / "index" / name
    path.write_bytes(path.read_bytes()[:500])
    foreseen = _index_of(store, lost_only=True)

    assert [(one.real.name, one.detail) for one in foreseen.refused] == [(name, "truncated: 500 bytes of 840")]
    assert foreseen.gaps == [Gap(_names(store)[5], _names(store)[7], 1)]
    assert foreseen.exit_code is ExitCode.DAMAGE


def test_a_file_of_another_geometry_would_stop_everything(store: Path) -> None:
    """No file would be written."""
    path = store / "index" / _names(store)[6]
    path.write_bytes(path.read_bytes() + bytes(20))
    foreseen = _index_of(store, lost_only=True)

    assert [one.real.name for one in foreseen.contradictions] == [path.name]
    assert (foreseen.files, foreseen.exit_code) == (0, ExitCode.MISMATCH)
    assert any("nothing would be written" in line for line in foreseen.lines())


def test_the_newest_file_would_be_completed_unless_a_broker_goes_on_in_it(golden: StoreOf) -> None:
    """The broker was killed before it had indexed its last messages."""
    store = golden("b533-crash-before")
    stopped, beside = (_index_of(store, lost_only=True, broker_runs=runs) for runs in (False, True))

    assert (stopped.continued, stopped.files, stopped.exit_code) == (_names(store)[-1], 1, ExitCode.DAMAGE)
    assert (beside.continued, beside.files, beside.exit_code) == (None, 0, ExitCode.CLEAN)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in WITHOUT_ALL_QUEUES])
def test_the_files_of_all_queues_are_foreseen_by_name(golden: StoreOf, name: str) -> None:
    """Those of batches and extensions included: of a log this short, exactly the broker's own."""
    store = golden(name)
    folders = {"consumequeue": "", "batchconsumequeue": "batchconsumequeue/", "consumequeue_ext": "consumequeue_ext/"}
    real = {
        f"{prefix}{path.relative_to(store / folder)}": path.stat().st_size
        for folder, prefix in folders.items()
        for path in (store / folder).rglob("*")
        if path.is_file()
    }
    foreseen = _queues_of(store, release_of(name)).describe()

    assert {path for queue in foreseen["queues"] for path in queue["files"]} == set(real)
    assert (foreseen["write"]["files"], foreseen["write"]["bytes"]) == (len(real), sum(real.values()))


def test_of_a_long_log_a_sample_stands_for_the_rest(long_store: Path) -> None:
    """Units and keys are estimated, files are named as far as they are certain; most of the log is not read."""
    queues = _queues_of(long_store, file_size=20_000)
    request = Request(str(long_store), "never", Wanted(100, 20, "5.3.3"))
    index = index_foreseeing.foresee(request, {}, STRETCH)

    assert not queues.sample.is_whole
    assert queues.sample.seen <= 8 * STRETCH < queues.sample.size / 2
    assert LONG == pytest.approx(queues.units, rel=0.05)
    assert LONG == pytest.approx(index.keys, rel=0.05)
    assert LONG / 19 == pytest.approx(index.files, rel=0.05)
    assert [path for queue in queues.queues for path in queue.paths] == [
        f"Orders/0/{base:020d}" for base in (20_000, 40_000, 60_000, 80_000)
    ]
    assert any("at least 4 files of 1 queues" in line for line in queues.lines())


def test_a_header_that_points_far_behind_the_log_adds_no_files(long_store: Path, tmp_path: Path) -> None:
    """Offsets behind the log's end are of no message, however long a log is."""
    store = Path(shutil.copytree(long_store, tmp_path / "store"))
    (store / "index").mkdir()
    for number, offset in enumerate((1 << 20, 1 << 61)):
        header = IndexHeader(1, 1, offset, offset, 1, 20)
        (store / "index" / f"2026112007434874{number}").write_bytes(
            HEADER.pack(*header) + bytes(TINY.file_size - HEADER.size)
        )
    request = Request(str(store), "never", Wanted(100, 20, "5.3.3"), lost_only=True)

    assert index_foreseeing.foresee(request, {}, STRETCH).files < LONG / 19 * 1.1


def test_what_lies_between_two_segments_of_which_one_is_lost_is_no_log(tmp_path: Path) -> None:
    """Its keys are gone, and so are its bytes."""
    (tmp_path / "commitlog").mkdir()
    for base in (0, 8192):
        (tmp_path / "commitlog" / f"{base:020d}").write_bytes(
            a_segment([a_record(queue_offset=base)], base_offset=base, sealed=True)
        )
    foreseen = _index_of(tmp_path)

    assert foreseen.keys == 2
    assert (foreseen.sample.size, foreseen.sample.segments) == (8192, 2)


def test_a_damaged_queue_offset_names_no_more_files_than_the_log_has_room_for(tmp_path: Path) -> None:
    """A unit that claims to be the last of a hundred billion."""
    (tmp_path / "commitlog").mkdir()
    records = [a_record(queue_offset=0), a_record(queue_offset=10**17)]
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(a_segment(records))

    (queue,) = _queues_of(tmp_path, file_size=200).queues
    assert queue.paths == (f"Orders/0/{0:020d}",)


def test_a_topic_that_is_no_folder_name_is_said_to_get_no_files(tmp_path: Path) -> None:
    """As the rebuild says it."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(a_segment([a_record(topic="../evil")]))
    foreseen = _queues_of(tmp_path)

    assert [queue.paths for queue in foreseen.queues] == [()]
    assert any("no files for '../evil' 0" in line for line in foreseen.lines())


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("rebuild-index", "  would write about 13 files of 840 bytes, named by the times of their first keys, and M"),
        ("rebuild-consumequeue", "  would write 14 files of 10 queues, 2800 bytes"),
    ],
)
def test_the_command_says_it_and_writes_nothing(
    golden: StoreOf, tmp_path: Path, capfd: pytest.CaptureFixture[str], verb: str, said: str
) -> None:
    """On standard error, with `--json` on standard output; the directory is not even made."""
    store, out = golden("b533-base"), tmp_path / "deep" / "out"
    before = state_of(store)
    text, document, quiet = (
        runner(capfd)(verb, store, "--out", out, "--dry-run", *more) for more in ((), ("--json",), ("--quiet",))
    )

    assert {text.code, document.code, quiet.code} == {ExitCode.CLEAN}
    assert any(line.startswith(said) for line in text.err.splitlines())
    assert text.out == quiet.out == ""
    assert "would" not in quiet.err
    assert (document.document["out"], document.document["read"]["segments"]) == (str(out), 4)
    assert before == state_of(store)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("verb", ["rebuild-index", "rebuild-consumequeue"])
def test_what_the_real_run_refuses_the_dry_run_refuses_in_the_same_words(
    golden: StoreOf, tmp_path: Path, capfd: pytest.CaptureFixture[str], verb: str
) -> None:
    """An output with something in it or inside the store, a release that is none, a store that is none."""
    store = golden("b533-base")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    before = state_of(tmp_path)
    out = tmp_path / "out"
    for arguments in (
        (store, "--out", tmp_path / "full"),
        (store, "--out", store / "new"),
        (store, "--out", out, "--release", "5.3.x"),
        (tmp_path / "empty", "--out", out),
    ):
        real, dry = (runner(capfd)(verb, *arguments, *more) for more in ((), ("--dry-run",)))

        assert real.code == dry.code != ExitCode.CLEAN
        assert real.err.splitlines()[-1] == dry.err.splitlines()[-1]
    assert before == state_of(tmp_path)


@pytest.mark.usefixtures("spark")
def test_with_install_the_files_are_built_and_the_store_stays_as_it_is(
    store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """That dry run is the whole rebuild, but for its last step."""
    for number in (1, 2):
        (store / "index" / _names(store)[number]).unlink()
    before = state_of(store)
    arguments = ("rebuild-index", store, "--out", tmp_path / "out", "--lost-only", "--install", "--dry-run")
    outcome = runner(capfd)(*arguments)
    built = json.loads((tmp_path / "out" / "MANIFEST.json").read_text())["files"]

    assert outcome.code is ExitCode.CLEAN
    assert [line for line in outcome.err.splitlines() if "would be new: " in line] == [
        f"  would be new: {file['name']}" for file in built
    ]
    assert before == state_of(store)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--advance-checkpoint",), "--advance-checkpoint belongs to --install"),
        (("--dry-run", "--report", "report"), "--report belongs to a run"),
    ],
)
def test_options_that_have_nothing_to_do_are_refused(
    store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    """Rather than left out in silence."""
    outcome = runner(capfd)("rebuild-index", store, "--out", tmp_path / "out", *options)

    assert outcome.code is ExitCode.USAGE
    assert said in outcome.err
    assert not (tmp_path / "out").exists()
