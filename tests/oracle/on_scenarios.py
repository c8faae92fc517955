"""How a test says which scenarios it looks at."""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def on_scenarios(*names: str, is_long: bool = False) -> Callable[[Test], Test]:
    """Run a test once for each release and each scenario of *names* that it knows; a long one in the matrix."""

    def mark(test: Test) -> Test:
        test.scenarios = names  # type: ignore[attr-defined]
        test.is_long = is_long  # type: ignore[attr-defined]
        return test

    return mark
