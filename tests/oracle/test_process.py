"""What the process that runs RocketMQ promises to the machine it runs on."""

from pathlib import Path

import pytest

from tests.oracle.process import DriverError, DriverProcess
from tests.oracle.releases import NEWEST_OF_TWO_LINES
from tests.support.waiting import wait_until


@pytest.mark.oracle
def test_a_process_ends_with_its_with_block(tmp_path: Path) -> None:
    """Whatever it was doing."""
    with DriverProcess(NEWEST_OF_TWO_LINES[0], tmp_path) as driver:
        assert Path(f"/proc/{driver.pid}").exists()

    assert not Path(f"/proc/{driver.pid}").exists()


@pytest.mark.oracle
def test_a_process_ends_when_nobody_speaks_to_it_any_more(tmp_path: Path) -> None:
    """A test run that is killed leaves nothing: the driver's standard input ends with it."""
    with DriverProcess(NEWEST_OF_TWO_LINES[0], tmp_path) as driver:
        driver.hang_up()
        wait_until(lambda: not driver.is_running, lambda: "the driver goes on")


@pytest.mark.oracle
def test_what_the_driver_cannot_do_is_an_error_that_says_what(tmp_path: Path) -> None:
    with DriverProcess(NEWEST_OF_TWO_LINES[0], tmp_path) as driver:
        with pytest.raises(DriverError, match="no such verb"):
            driver.ask("dance")
        with pytest.raises(DriverError, match="does not name topic"):
            driver.ask("put", {"queue": 1})
