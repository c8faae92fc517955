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


def test_java_home_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine / "jvm" / "a", "17.0.1")
    expected = install(machine / "mine", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(expected))

    assert expected == find_java_home()


def test_a_java_on_the_path_is_followed_to_its_home(machine: Path) -> None:
    expected = install(machine / "somewhere" / "jdk", "17.0.1")
    (machine / "bin").mkdir()
    (machine / "bin" / "java").symlink_to(expected / "bin" / "java")

    assert expected == find_java_home()


def test_too_old_ones_are_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's own machines often have JAVA_HOME at Java 8."""
    monkeypatch.setenv("JAVA_HOME", str(install(machine / "old", "1.8.0_412")))
    install(machine / "jvm" / "a", "11.0.20")
    expected = install(machine / "jvm" / "b", "17")

    assert expected == find_java_home()


def test_of_several_in_the_usual_directories_the_oldest_that_suits_is_taken(machine: Path) -> None:
    """Spark is tested on the long-term releases it names; the newest Java may be newer than Spark."""
    install(machine / "jvm" / "a", "25")
    expected = install(machine / "jvm" / "b", "17.0.2")

    assert expected == find_java_home()


def test_a_java_without_a_release_file_is_asked(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = install(machine / "mine", None)
    monkeypatch.setenv("JAVA_HOME", str(expected))

    assert expected == find_java_home()


def test_a_java_home_that_holds_none_does_not_stop_the_search(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "gone"))
    expected = install(machine / "jvm" / "a", "17.0.1")

    assert expected == find_java_home()


@pytest.mark.usefixtures("machine")
def test_without_a_java_one_sentence_says_what_to_install_where() -> None:
    with pytest.raises(SetupError) as caught:
        find_java_home()

    message = str(caught.value)
    assert [] == [word for word in ("Debian", "Fedora", "macOS", "JAVA_HOME") if word not in message]
    assert os.linesep not in message
