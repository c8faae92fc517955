"""Every place that swallows errors says which it expects, and why: an error that nobody sees loses data."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for package in ("jobs", "rmq_formats") for path in (ROOT / package).rglob("*.py"))
BROAD = {"Exception", "BaseException", "OSError"}


def swallowing(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the code of each `suppress` and of each broad `except` of a module."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        is_suppress = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress"
        is_broad = isinstance(node, ast.ExceptHandler) and (
            node.type is None or any(isinstance(one, ast.Name) and one.id in BROAD for one in ast.walk(node.type))
        )
        # A handler that ends with `raise` says an error in other words; one that begins with `if …: raise` names in its
        # condition which errors it expects.
        is_raised_again = isinstance(node, ast.ExceptHandler) and (
            isinstance(node.body[-1], ast.Raise)
            or (isinstance(node.body[0], ast.If) and isinstance(node.body[0].body[-1], ast.Raise))
        )
        if (is_suppress or is_broad) and not is_raised_again:
            assert isinstance(node, ast.Call | ast.ExceptHandler)
            yield node.lineno, lines[node.lineno - 1].strip()


def is_explained(lines: list[str], number: int) -> bool:
    """Return whether the line, or one directly above it, has a comment that is more than an exemption of a linter."""
    same = lines[number - 1].partition("#")[2].strip()
    above = lines[number - 2].strip() if number > 1 else ""
    reason = same.partition(" - ")[2] if same.startswith("noqa") else same
    return bool(reason) or above.startswith("#")


def unexplained() -> list[str]:
    found = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        found += [
            f"{path.relative_to(ROOT)}:{number}: {code}"
            for number, code in swallowing(text)
            if not is_explained(lines, number)
        ]
    return found


def test_every_swallowed_error_has_its_reason_on_the_spot() -> None:
    """The reason names the error that is expected there, and who reports the others."""
    assert unexplained() == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("with suppress(OSError):\n    x()", False),
        ("with suppress(FileNotFoundError):  # deleted by the broker\n    x()", True),
        ("try:\n    x()\nexcept OSError:\n    pass", False),
        ("try:\n    x()\n# EINVAL: no holes on this file system\nexcept OSError:\n    pass", True),
        ("try:\n    x()\nexcept Exception:  # noqa: BLE001\n    pass", False),
        ("try:\n    x()\nexcept (ValueError, OSError):\n    y()", False),
        ("try:\n    x()\nexcept (ValueError, OSError) as error:\n    raise X from error", True),
        ("try:\n    x()\nexcept OSError as error:\n    if error.errno != EIO:\n        raise\n    y()", True),
        ("try:\n    x()\nexcept OSError as error:\n    y()\n    if error.errno != EIO:\n        raise\n    z()", False),
        ("try:\n    x()\nexcept ValueError:\n    pass", True),
    ],
)
def test_the_check_finds_what_it_is_for(code: str, expected: bool) -> None:
    lines = code.splitlines()

    assert expected == all(is_explained(lines, number) for number, _ in swallowing(code))


if __name__ == "__main__":
    print("\n".join(unexplained()))
