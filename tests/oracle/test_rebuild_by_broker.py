"""What a broker itself rebuilds from a log alone, and how long it takes: the peer of our own rebuild."""

import shutil
from pathlib import Path

from tests.oracle.judge import by_scalar, differences, on_disk
from tests.oracle.on_scenarios import on_scenarios
from tests.oracle.plays import Plays
from tests.oracle.scenarios import SCENARIOS
from tests.oracle.sessions import rebuild_by_broker


@on_scenarios("edges")
def test_a_broker_that_finds_a_log_alone_makes_what_we_make(
    plays: Plays, tmp_path: Path, release: str, scenario: str
) -> None:
    """A clean start with neither queues nor index: the broker dispatches the whole log again."""
    played = plays.of(SCENARIOS[scenario], release)
    store = tmp_path / "store"
    shutil.copytree(played.store / "commitlog", store / "commitlog")
    seconds = rebuild_by_broker(release, store, played.stage.geometry)

    assert seconds.dispatch_seconds > 0
    assert differences(on_disk(store), by_scalar(played.log, played.writer)) == []
