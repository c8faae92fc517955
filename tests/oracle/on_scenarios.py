"""How a test says which scenarios it looks at."""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def on_scenarios(*names: str) -> Callable[[Test], Test]:
    """Run a test once for each release and each scenario of *names* that the release knows."""

    def mark(test: Test) -> Test:
        test.scenarios = names  # type: ignore[attr-defined]
        return test

    return mark
