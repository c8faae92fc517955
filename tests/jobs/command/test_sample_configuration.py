"""`conf/job.toml` as it is shipped: it works with every verb, and no verb changes a lake that nobody has named."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import click
import pytest

from jobs.command import cli
from jobs.console.exit_codes import ExitCode
from jobs.console.verbs import VERBS
from jobs.launch.cache import CONF
from tests.golden import StoreOf
from tests.support.commands import Run, copy_of, state_of, without_spark
from tests.support.lakes import ingest_store

# What the line of a verb needs besides `--config`; the sample gives the rest.
LINES = {
    "inspect": "",
    "dump": "{segment}",
    "ingest": "",
    "verify": "",
    "rebuild-index": "",
    "rebuild-consumequeue": "--out {new}",
    "restore": "{other} --out {new}",
    "repair": "--out {new}",
    "diff": "{store} {other}",
    "query by-key": "-t T1 -k k1",
    "query by-id": "-i 7F00000100002A9F0000000000000000",
    "query message": "-i 7F00000100002A9F0000000000000000",
    "query by-unique-key": "-t T1 -i 7F00000100002A9F0000000000000000",
    "query by-offset": "-t T1 -i 0 -o 0",
    "query list": "-t T1",
    "query story": "-t T1 -k k1",
    "query sql": "--lake {other}",
    "query decode-id": "7F00000100002A9F0000000000000000",
    "query mqadmin": "topicList",
    "browse": "{store}",
    "export": "--out {new}",
    "type": "{other} --types {types}",
    "optimize": "{other}",
    "catalog": "{other}",
}
_NO_CONFIG = {"demo", "query decode-id"}


@pytest.fixture
def fill(golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Return a function that fills in places; the sample's own places are moved below a temporary folder."""
    without_spark(monkeypatch)
    monkeypatch.setattr("jobs.browse.server.serve", lambda *_, **__: ExitCode.CLEAN)
    store = copy_of(golden("b551-base"), tmp_path)
    ingest_store(store, tmp_path / "other")
    (tmp_path / "types.toml").write_text('topic.T1 = {format = "json", schema = "id bigint"}')
    text = (CONF / "job.toml").read_text().replace("/data/rocketmq/store", str(store))
    (tmp_path / "job.toml").write_text(text.replace("/data/", f"{tmp_path}/data/"))
    assert cli.main(["ingest", "--config", str(tmp_path / "job.toml"), "--quiet"]) is ExitCode.CLEAN
    places = {"store": store, "other": tmp_path / "other", "new": tmp_path / "new", "types": tmp_path / "types.toml"}
    places["segment"] = min((store / "commitlog").iterdir())
    return lambda line: line.format(**places).split()


@pytest.mark.parametrize("verb", LINES)
def test_the_sample_works_with_every_verb_and_changes_no_lake_but_that_of_ingest(
    verb: str, fill: Callable[[str], list[str]], tmp_path: Path, run: Run
) -> None:
    """`query` and `export` refused it, and `verify` wrote tables into a lake that its line does not name."""
    before = state_of(tmp_path / "data" / "lake")
    config = [] if verb in _NO_CONFIG else ["--config", str(tmp_path / "job.toml")]

    ended = run(*verb.split(), *config, *fill(LINES[verb]))

    assert ended.code in {ExitCode.CLEAN, ExitCode.DAMAGE, ExitCode.MISMATCH, ExitCode.NOT_FOUND}, ended.err
    assert verb == "ingest" or before == state_of(tmp_path / "data" / "lake")


def test_every_verb_is_tried_with_the_sample() -> None:
    query = cast("click.Group", VERBS["query"].load())
    verbs = {*VERBS.keys() - {"query", "demo"}, *(f"query {name}" for name in query.commands)}

    assert verbs == LINES.keys()


def test_an_argument_that_is_not_named_is_asked_for(tmp_path: Path, run: Run) -> None:
    """`optimize --config job.toml` changed the lake of `ingest`."""
    for verb in ("optimize", "type", "catalog", "restore", "diff"):
        ended = run(verb, "--config", CONF / "job.toml", *(["--out", tmp_path / "new"] if verb == "restore" else []))

        assert ended.code is ExitCode.USAGE
        assert "Missing argument 'LAKE'" in ended.err
