"""The page of verdicts has a place for everything that the matrix tries."""

from tests.oracle.compatibility import PAGE, Cell, of_upgrade, with_verdicts
from tests.oracle.releases import MATRIX, NEWEST_OF_TWO_LINES
from tests.oracle.scenarios import SCENARIOS, UPGRADES
from tests.oracle.test_store_kinds import cells


def test_every_release_scenario_upgrade_and_store_kind_has_a_cell() -> None:
    places = [*(Cell(release, "killed at random moments") for release in MATRIX)]
    places += [Cell(NEWEST_OF_TWO_LINES[0], name) for name in SCENARIOS if name not in {"timed", "property-crc"}]
    places += [of_upgrade(*upgrade.name.split("-")[1:3]) for upgrade in UPGRADES]
    places += [Cell(cell.release, cell.way) for cell in cells()]
    before = PAGE.read_text(encoding="utf-8")
    after = with_verdicts(before, {place: f"verdict {number} of a test" for number, place in enumerate(places)})

    assert [f"verdict {number} of a test" in after for number in range(len(places))] == [True] * len(places)
    assert len(before.split("\n")) == len(after.split("\n"))
