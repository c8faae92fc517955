"""What is installed is what was locked: every package with its hashes, the same for users and developers."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_ENTRY = re.compile(
    r"^([\w.-]+)==(\S+)(?: ; ([^\\\n]+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def locked(name: str) -> dict[str, set[str]]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for package, version, _, _ in _ENTRY.findall(text):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_package_of_a_lock_has_one_version_and_its_hashes(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    named = {line.partition("==")[0] for line in lines if re.match(r"^[\w.-]+\S*==", line)}

    assert named == set(locked(name))
    assert named


def test_developers_have_what_users_have() -> None:
    developers = locked("requirements-dev.lock")

    assert {
        name: versions for name, versions in locked("requirements.lock").items() if developers.get(name) != versions
    } == {}


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for lock, wanted in (
        ("requirements.lock", project["project"]["dependencies"]),
        ("requirements.lock", project["project"]["optional-dependencies"]["spark"]),
        ("requirements-dev.lock", project["dependency-groups"]["dev"]),
    ):
        versions = locked(lock)
        for requirement in wanted:
            name, exact = re.fullmatch(r"([\w-]+)(?:==([\d.]+)|[<>].*)?", requirement).groups()  # type: ignore[union-attr]
            assert name in versions, requirement
            assert exact is None or versions[name] == {exact}
