"""Completion is installed by one command, and completes what is typed: the console script, and the launcher."""

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.command.cli import main
from jobs.console.exit_codes import ExitCode

_ROOT = Path(__file__).parents[3]
_FOLDER = Path(".local/share/bash-completion/completions")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "BASH_COMPLETION_USER_DIR", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "files"),
    [
        ("/bin/bash", {_FOLDER / "rmq-lake", _FOLDER / "spark-submit.sh"}),
        ("/usr/bin/zsh", {Path(".zfunc/_rmq-lake")}),
        ("/usr/bin/fish", {Path(".config/fish/completions/rmq-lake.fish")}),
    ],
)
def test_one_command_installs_it_where_the_shell_looks(
    shell: str, files: set[Path], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the files, and what is left to do; done twice, nothing is there twice."""
    monkeypatch.setenv("SHELL", shell)

    assert [ExitCode.CLEAN] * 2 == [main(["--install-completion"]), main(["--install-completion"])]

    assert files == {path.relative_to(home) for path in home.rglob("*") if path.is_file()}
    said = capsys.readouterr().out
    assert all(str(home / name) in said for name in files)
    assert all("_RMQ_LAKE_COMPLETE" in (home / name).read_text() for name in files)


def test_another_shell_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")

    assert ExitCode.USAGE == main(["--install-completion"])
    assert [] == list(home.iterdir())


@pytest.mark.parametrize("login", ["/bin/bash", "/bin/false"])
def test_without_shell_it_is_the_one_of_the_login(login: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHELL", raising=False)
    entry = SimpleNamespace(pw_shell=login)
    monkeypatch.setattr("pwd.getpwuid", lambda _: entry)

    assert main(["--install-completion"]) == (ExitCode.CLEAN if login == "/bin/bash" else ExitCode.USAGE)

    assert (home / _FOLDER / "rmq-lake").exists() == (login == "/bin/bash")


def test_a_user_without_an_entry_is_asked_for_shell(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHELL", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)

    assert ExitCode.USAGE == main(["--install-completion"])

    assert "SHELL is not set" in capsys.readouterr().err
    assert [] == list(home.iterdir())


def completed(home: Path, command: str, function: str) -> list[str]:
    """Return what bash offers for `COMMAND ing`, by the function that is installed."""
    script = f"""
        source {home / _FOLDER / "spark-submit.sh"}
        COMP_WORDS=({command} ing); COMP_CWORD=1
        {function} {command}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return subprocess.check_output(["bash", "-c", script], cwd=home, text=True).split()


def test_bash_completes_the_console_script_and_the_launcher(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is typed; a spark-submit.sh of another project is not started by TAB."""
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert ExitCode.CLEAN == main(["--install-completion"])
    ours, others = home / "ours", home / "others"
    for folder in (ours, others):
        folder.mkdir()
        (folder / "spark-submit.sh").write_text(
            f'#!/bin/sh\ntouch {folder}/started\ncd {_ROOT} && exec {sys.executable} -m jobs.main "$@"\n'
        )
        (folder / "spark-submit.sh").chmod(0o755)
    (ours / "jobs" / "launch").mkdir(parents=True)
    (ours / "jobs" / "launch" / "environment.py").touch()

    assert ["ingest"] == completed(home, "ours/spark-submit.sh", "_rmq_lake_launcher")
    assert [] == completed(home, "others/spark-submit.sh", "_rmq_lake_launcher")
    assert ["ingest"] == completed(home, "ours/spark-submit.sh", "_rmq_lake_completion")
    assert not (others / "started").exists()


def typed_into_zsh(home: Path, keys: str, wanted: str) -> str:
    """Type into a zsh whose .zshrc has what our message says, and return its screen once *wanted* is there."""
    (home / ".zshrc").write_text(f"fpath+={home}/.zfunc; autoload -Uz compinit; compinit -u -D; PS1='ready> '\n")
    told = {"HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}", "TERM": "dumb"}
    terminal, keyboard = pty.openpty()
    shell = subprocess.Popen(["zsh", "-d", "-i"], stdin=keyboard, stdout=keyboard, stderr=keyboard, env=told)
    os.close(keyboard)
    screen, waited_for = "", ["ready> ", wanted]
    while waited_for and select.select([terminal], [], [], 120)[0]:
        screen += os.read(terminal, 4096).decode()
        if waited_for[0] in screen:
            del waited_for[0]
            os.write(terminal, keys.encode() if waited_for else b"\x03exit\r")
    os.close(terminal)
    shell.wait()
    return screen


@pytest.fixture
def console_script(home: Path) -> Path:
    """Put an `rmq-lake` on the PATH, as an installation does."""
    script = home / "rmq-lake"
    script.write_text(f'#!/bin/sh\ncd {_ROOT} && exec {sys.executable} -m jobs.main "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed here")
@pytest.mark.usefixtures("console_script")
def test_zsh_completes_the_console_script(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert ExitCode.CLEAN == main(["--install-completion"])

    assert "rmq-lake ingest " in typed_into_zsh(home, "rmq-lake ing\t", "rmq-lake ingest ")
    assert "--lineage" in typed_into_zsh(home, "rmq-lake ingest --lin\t", "--lineage")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed here")
def test_fish_completes_the_console_script(home: Path, console_script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert ExitCode.CLEAN == main(["--install-completion"])
    told = {"HOME": str(home), "PATH": f"{console_script.parent}:{os.environ['PATH']}"}
    asked = 'complete -C "rmq-lake ing"; complete -C "rmq-lake ingest --lin"'

    offered = subprocess.check_output(["fish", "-c", asked], env=told, text=True).splitlines()

    assert ["ingest", "--lineage"] == [line.partition("\t")[0] for line in offered]
