"""Compare answers from a lake of two masters with the recorded output of the real mqadmin, which asks both."""

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode, RequestError
from jobs.query.lake_tables import LakeTables
from tests.golden import CLUSTERS, release_of, unpack_cluster
from tests.support.commands import Run
from tests.support.lakes import ingest_store, raw_rows

MASTERS = ("broker-a", "broker-b")
_STDOUT, _STDERR = "# ---- stdout ----\n", "# ---- stderr ----\n"
_TRACKS = "WARN: No Consumer"  # only a broker knows which groups have consumed a message
_BODY_PATH = "/tmp/rocketmq/msgbodys/"
_PUT_RATE = re.compile(r"Topic Put TPS: [0-9.E-]+")  # only a broker knows it


class Recorded(NamedTuple):
    """A cluster, the lake of its masters, and a directory for bodies."""

    place: Path
    lake: Path
    release: str


@pytest.fixture(scope="module", params=sorted(CLUSTERS))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("cluster")
    release = release_of(request.param)
    place = unpack_cluster(request.param, directory)
    for master in MASTERS:
        ingest_store(place / master, directory / "lake", master, release=release)
    return Recorded(place, directory / "lake", release)


def _read_recorded(path: Path) -> tuple[list[str], str]:
    """Return the arguments of mqadmin, and its output."""
    head, _, rest = path.read_text(encoding="utf-8").partition(_STDOUT)
    return shlex.split(head.removeprefix("# mqadmin ")), rest[: rest.rindex(_STDERR)]


def test_mqadmin_of_a_cluster_is_answered_from_a_lake_of_its_masters(
    cluster: Recorded, run: Run, tmp_path: Path
) -> None:
    """A topic on two brokers could not be queried: each of these lines ended with "choose one"."""
    different, compared = [], 0
    for path in sorted((cluster.place / "EXPECT").glob("*.txt")):
        arguments, printed = _read_recorded(path)
        expected = _PUT_RATE.sub("Topic Put TPS: 0.0", printed.replace(_TRACKS, "").replace(_BODY_PATH, f"{tmp_path}/"))
        own = ("--lake", cluster.lake, "--time-zone", "UTC", "--body-dir", tmp_path, "--quiet")
        answered = run("query", "mqadmin", *own, *arguments)
        code = ExitCode.CLEAN if printed else ExitCode.NOT_FOUND
        compared += 1
        if (code, expected) != (answered.code, answered.out):
            different.append((path.stem, answered.code, answered.out))

    assert [] == different
    assert compared > 45


def test_a_lake_that_recorded_the_first_release_with_an_index_answers_as_the_release_of_its_messages(
    cluster: Recorded, run: Run, tmp_path: Path
) -> None:
    """Early versions recorded 4.9.1 for a store of 5.3.3: consumerProgress was "not a supported command of 4.9.1"."""
    lake = shutil.copytree(cluster.lake, tmp_path / "lake")
    if cluster.release.startswith("4."):
        pytest.skip("4.9.8 has the index of 4.9.1, and its messages do not exclude 4.9.1")
    recorded = f'replace(detail, \'"release": "{cluster.release}"\', \'"release": "4.9.1"\')'
    DeltaTable(lake / "runs").update(updates={"detail": recorded})
    asked = ("query", "mqadmin", "--quiet", "--lake")
    expected = run(*asked, cluster.lake, "consumerProgress", "-g", "billing")
    early = run(*asked, lake, "consumerProgress", "-g", "billing")

    assert ExitCode.CLEAN == early.code
    assert expected.out == early.out
    assert "Orders" in early.out


def test_a_slave_is_a_replica_of_its_master_and_adds_no_message(cluster: Recorded, tmp_path: Path) -> None:
    lake = shutil.copytree(cluster.lake, tmp_path / "lake")
    before = raw_rows(lake)
    for master in MASTERS:
        slave = cluster.place / f"{master}-slave"
        with pytest.raises(RequestError, match=f"which this lake has as broker '{master}'"):
            ingest_store(slave, lake, f"{master}-slave", release=cluster.release)
        ingest_store(slave, lake, master, release=cluster.release)

    assert sorted(before) == sorted(raw_rows(lake))
    assert set(MASTERS) == {broker for broker, _ in LakeTables(str(lake), {}).stores}
    assert len(MASTERS) == len(LakeTables(str(lake), {}).stores)
