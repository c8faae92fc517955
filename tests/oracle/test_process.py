"""What the process that runs RocketMQ promises to the machine it runs on."""

import time
from pathlib import Path

import pytest

from tests.oracle.process import DriverError, DriverProcess
from tests.oracle.releases import NEWEST_OF_TWO_LINES


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
        deadline = time.monotonic() + 60
        while driver.is_running and time.monotonic() < deadline:
            time.sleep(0.1)

        assert not driver.is_running


@pytest.mark.oracle
def test_what_the_driver_cannot_do_is_an_error_that_says_what(tmp_path: Path) -> None:
    with DriverProcess(NEWEST_OF_TWO_LINES[0], tmp_path) as driver:
        with pytest.raises(DriverError, match="no such verb"):
            driver.ask("dance")
        with pytest.raises(DriverError, match="does not name topic"):
            driver.ask("put", {"queue": 1})
