"""Run every documented command, and compare its output with its page; test the scripts for schedulers."""

import importlib.util
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from jobs.console.result import ExitCode
from tests.support.commands import ROOT, Outcome, Run
from tests.support.lakes import table_of
from tests.support.recipes import make_recipe_data
from tests.support.scenes import (
    OWN_PROGRAMS,
    TRANSLATIONS,
    ShownCommand,
    check_scene,
    command_text,
    commands,
    fences,
    make_scene_directory,
    scene_name,
    scenes,
)


@pytest.mark.parametrize("scene", scenes(), ids=scene_name)
def test_every_command_of_a_page_runs_and_prints_what_the_page_shows(
    scene: list[ShownCommand], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of a scene run in one directory, in order; the expected exit code is in a comment, else it is 0."""
    monkeypatch.setattr("jobs.launch.engine.has_session", lambda: False)
    scene_directory = make_scene_directory(scene, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHELL", "/bin/bash")

    def run_shown(command: ShownCommand, words: list[str]) -> Outcome:
        monkeypatch.setenv("RMQ_LAKE_PROGRAM", command.text.partition(" ")[0])
        if words[0] in OWN_PROGRAMS:
            return run(*words[1:])
        if words[0] == "make":
            # `-n` checks only that the target exists; the targets are these tests themselves.
            done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False, text=True)
            return Outcome(done.returncode, "", "")
        if words[:2] == ["python", "-m"]:
            # Benchmarks and generators have their own tests; here, the module must exist.
            return Outcome(int(importlib.util.find_spec(words[2]) is None), "", "")
        done = subprocess.run(["bash", "-c", command.text], capture_output=True, check=False, text=True)
        return Outcome(done.returncode, done.stdout, done.stderr)

    check_scene(scene, scene_directory, run_shown)


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_translated_pages_show_only_commands_of_the_original(page: Path) -> None:
    """The test above runs the commands of the original. Sections may differ between languages."""
    original, translated = (
        {(command_text(command), command.exit_code) for of in pages for command in commands(of)}
        for pages in (TRANSLATIONS[page], [page])
    )

    assert translated
    assert translated <= original


_FENCES = fences(ROOT / "docs" / "guides" / "schedule.md")
_DELETION = next(iter(fences(ROOT / "docs" / "guides" / "delete-a-customer.md")))[1]
_COMMAND = "/opt/rocketmq-lake/spark-submit.sh"
_UNITS = {text.splitlines()[0].rpartition("/")[2]: text for language, text in _FENCES if language == "ini"}
_QUIET = {ExitCode.CLEAN, ExitCode.HELD, ExitCode.INTERRUPTED}


@pytest.mark.parametrize("code", ExitCode)
def test_cron_mails_and_pods_fail_only_for_problems(tmp_path: Path, code: ExitCode) -> None:
    """Runs the scripts of the page with a launcher that prints a line on each stream and ends with each exit code."""
    launcher, wrapper = tmp_path / "spark-submit.sh", tmp_path / "lake-from-cron"
    launcher.write_text(f"#!/bin/sh\necho data\necho trouble >&2\nexit {int(code)}\n")
    texts = {language: text.replace(_COMMAND, str(launcher)) for language, text in _FENCES}
    wrapper.write_text(texts["sh"])
    for program in (launcher, wrapper):
        program.chmod(0o755)
    (pod,) = yaml.safe_load(texts["yaml"])["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]

    mailed = subprocess.run([wrapper], capture_output=True, text=True, check=False)
    status = subprocess.run([*pod["command"], *pod["args"]], capture_output=True, check=False)

    expected = (0, "") if code in _QUIET else (int(code), f"data\ntrouble\nexit code {int(code)}\n")

    assert (*expected, "") == (mailed.returncode, mailed.stdout, mailed.stderr)
    assert expected[0] == status.returncode


def _successful_exit_codes(text: str) -> set[ExitCode]:
    """Return the exit codes that a unit of systemd counts as success, in addition to 0."""
    unit = ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    unit.read_string(text)
    return {ExitCode(int(code)) for code in unit["Service"]["SuccessExitStatus"].split()}


def test_systemd_fails_only_for_problems() -> None:
    assert _QUIET - {ExitCode.CLEAN} == _successful_exit_codes(_UNITS["rocketmq-lake@.service"])


def test_the_following_unit_restarts_after_a_failure_or_if_another_run_is_active() -> None:
    """Otherwise, a unit that is started during a run of the timer would stop without an alert."""
    text = (ROOT / "conf" / "rocketmq-lake-follow.service").read_text()

    assert "Restart=on-failure" in text.splitlines()
    status = {ExitCode.DAMAGE, ExitCode.MISMATCH, ExitCode.INTERRUPTED}

    assert status == _successful_exit_codes(text)


def test_the_deletion_script_deletes_the_rows_of_the_selected_messages_only(run: Run, tmp_path: Path) -> None:
    """It can be run again after an interruption."""
    lake = make_recipe_data(tmp_path) / "lake"
    types = tmp_path / "types.toml"
    types.write_text('[topic."Orders"]\nformat = "json"\nschema = "order bigint"\n')
    run("type", str(lake), "--types", str(types))
    messages = table_of(lake / "messages").select(["physical_offset", "properties"]).to_pylist()
    kept = {row["physical_offset"] for row in messages if ("region", "r1") not in row["properties"]}
    tables = ("tiered", "consume_queue", "index_entries", "typed/Orders", "messages")
    expected = {name: [offset for offset in _offsets(lake / name) if offset in kept] for name in tables}
    script = _DELETION.replace("/data/lake", str(lake)).replace("['customer'] = '4711'", "['region'] = 'r1'")

    for _ in range(2):
        exec(script, {})  # noqa: S102 - our own document

    assert expected == {name: _offsets(lake / name) for name in tables}
    assert ["id2"] == table_of(lake / "traces")["message_id"].to_pylist()


def _offsets(table: Path) -> list[int]:
    offsets: list[int] = sorted(table_of(table)["physical_offset"].to_pylist())
    return offsets
