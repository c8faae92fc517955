"""What a broker itself rebuilds from a log alone, and how long it takes: the peer of our own rebuild."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.oracle.judge import Derived, by_scalar, differences, on_disk
from tests.oracle.on_scenarios import on_scenarios
from tests.oracle.plays import Plays
from tests.oracle.releases import version_of
from tests.oracle.scenarios import SCENARIOS
from tests.oracle.sessions import rebuild_by_broker

Verdict = Callable[[str, str, str], None]


@on_scenarios("edges")
def test_a_broker_that_finds_a_log_alone_makes_what_we_make_or_nothing(
    plays: Plays, tmp_path: Path, verdict: Verdict, release: str, scenario: str
) -> None:
    """After a clean stop: some releases dispatch the whole log again, the others begin at its end."""
    played = plays.of(SCENARIOS[scenario], release)
    store = tmp_path / "store"
    shutil.copytree(played.store / "commitlog", store / "commitlog")
    seconds = rebuild_by_broker(release, store, played.stage.geometry)
    made = on_disk(store)

    assert seconds > 0
    if _makes_lost_files_again(release):
        assert differences(made, by_scalar(played.log, played.writer)) == []
        verdict(release, "finds a log alone", "makes what we make")
    else:
        assert made == Derived({}, [])
        verdict(release, "finds a log alone", "makes nothing")


def _makes_lost_files_again(release: str) -> bool:
    """Tell what was seen: 4.3.2 and 5.0.0 to 5.2.0 do not, 4.5.2 to 4.9.8 and 5.3.3 do."""
    return (4, 5, 0) <= version_of(release) < (5, 0, 0) or version_of(release) >= (5, 3, 0)
