"""
Real RocketMQ for tests.

For every change, each test runs on one release of the two newest lines (`on_releases`); on other releases it is marked
`campaign`, and runs in `make test-matrix`, which writes the results into docs/internals/compatibility.csv.
"""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let whichever worker is free run a test that starts brokers of its own, and does not share one of a fixture."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "driver" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.name))
