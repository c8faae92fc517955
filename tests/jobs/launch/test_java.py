"""Which Java a run takes."""

import os
from pathlib import Path

import pytest

from jobs.launch import java
from jobs.launch.errors import SetupError
from jobs.launch.java import find_java_home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_USUAL", (str(tmp_path / "jvm" / "*"),))
    return tmp_path


def install(home: Path, version: str | None) -> Path:
    """Put something that looks like a Java at *home*; without a version there is no `release` file."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\necho '    java.version = 21.0.2' >&2\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


def test_a_java_on_the_path_is_followed_to_its_home(machine: Path) -> None:
    expected = install(machine / "somewhere" / "jdk", "17.0.1")
    (machine / "bin").mkdir()
    (machine / "bin" / "java").symlink_to(expected / "bin" / "java")

    assert expected == find_java_home()


@pytest.mark.parametrize(
    ("java_home", "installed", "expected"),
    [
        ("mine", {"jvm/a": "17.0.1", "mine": "21.0.1"}, "mine"),
        ("old", {"old": "1.8.0_412", "jvm/a": "11.0.20", "jvm/b": "17"}, "jvm/b"),  # as on RocketMQ's own machines
        (None, {"jvm/a": "25", "jvm/b": "17.0.2"}, "jvm/b"),  # the newest Java may be newer than Spark
        ("mine", {"mine": None}, "mine"),  # it is asked
        ("gone", {"jvm/a": "17.0.1"}, "jvm/a"),
    ],
)
def test_java_home_comes_first_then_the_oldest_that_suits(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    java_home: str | None,
    installed: dict[str, str | None],
    expected: str,
) -> None:
    if java_home is not None:
        monkeypatch.setenv("JAVA_HOME", str(machine / java_home))
    for home, version in installed.items():
        install(machine / home, version)

    assert machine / expected == find_java_home()


@pytest.mark.usefixtures("machine")
def test_without_a_java_one_sentence_says_what_to_install_where() -> None:
    with pytest.raises(SetupError) as caught:
        find_java_home()

    message = str(caught.value)
    assert [] == [word for word in ("Debian", "Fedora", "macOS", "JAVA_HOME") if word not in message]
    assert os.linesep not in message
