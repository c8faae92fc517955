"""Keys from the environment, a profile or a file never appear in any output."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jobs.command_line.result_printer import ResultPrinter
from jobs.console.log import is_secret, mask_program_output, mask_secrets, remember_secret
from jobs.launch.arguments import file_system_options, parse_properties_file, split_secrets
from jobs.storage.s3 import delta_options
from jobs.storage.settings import file_system_settings, read_environment_settings
from tests.support.fault_kinds import as_other_user

KEY, SECRET, TOKEN = "AKIAEXAMPLEEXAMPLE", "wJalrXUtnFEMIexampleexample", "IQoJb3JpZ2luexample"
HADOOP = {"fs.s3a.access.key": KEY, "fs.s3a.secret.key": SECRET, "fs.s3a.session.token": TOKEN}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("AWS_", "RMQ_LAKE_", "HADOOP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


def test_the_environments_keys_region_and_endpoint_are_those_of_amazons_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    found = file_system_settings([])
    of_delta = delta_options("s3a://bucket/lake", found)

    assert HADOOP.items() <= found.items()
    assert "eu-north-1" == found["fs.s3a.endpoint.region"]
    assert "http://127.0.0.1:9000" == found["fs.s3a.endpoint"]
    assert "true" == found["fs.s3a.path.style.access"]
    assert "http://127.0.0.1:9000" == of_delta["AWS_ENDPOINT_URL"]
    assert "true" == of_delta["AWS_ALLOW_HTTP"]


def test_a_profile_supplies_settings_missing_in_the_environment(home: Path) -> None:
    (home / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = other\n[lake]\naws_access_key_id = {KEY}\naws_secret_access_key={SECRET}\n"
    )
    (home / ".aws" / "config").write_text("[profile lake]\nregion = eu-west-1\nendpoint_url = https://s3.example.org\n")

    found = read_environment_settings({"HOME": str(home), "AWS_PROFILE": "lake"})

    assert KEY == found["fs.s3a.access.key"]
    assert SECRET == found["fs.s3a.secret.key"]
    assert "eu-west-1" == found["fs.s3a.endpoint.region"]
    assert "https://s3.example.org" == found["fs.s3a.endpoint"]
    assert {"fs.s3a.access.key": "other"} == read_environment_settings({"HOME": str(home)})


def test_an_unreadable_home_directory_has_no_profile(home: Path) -> None:
    (home / ".aws" / "credentials").write_text(f"[default]\naws_access_key_id = {KEY}\n")
    home.chmod(0)
    with as_other_user(home, denied=True):  # root can read everything
        assert {} == read_environment_settings({"HOME": str(home)})
    home.chmod(0o700)


def test_the_access_key_and_its_secret_come_from_the_same_source(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws" / "credentials").write_text("[default]\naws_session_token = stale\naws_access_key_id = a\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    spark = [("spark.hadoop.fs.s3a.access.key", "k"), ("spark.hadoop.fs.s3a.secret.key", "s")]

    assert {"fs.s3a.access.key": KEY, "fs.s3a.secret.key": SECRET} == file_system_settings([])
    assert {"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"} == file_system_settings(spark)


def test_an_invalid_profile_is_named_but_not_quoted(home: Path) -> None:
    (home / ".aws" / "credentials").write_text(f"[default]\n{SECRET}\n")

    with pytest.raises(OSError, match="credentials: not a valid AWS configuration file") as caught:
        read_environment_settings({"HOME": str(home)})

    assert SECRET not in str(caught.value)


def test_a_command_without_a_session_reads_the_properties_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "spark.conf"
    text = f"# \u00e9\nspark.hadoop.fs.s3a.access.key  {KEY}\nspark.hadoop.fs.s3a.secret.key={SECRET}\n\n"
    path.write_text(text, encoding="latin-1")  # Spark also replaces invalid UTF-8
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", f"--properties-file {path} --conf spark.hadoop.fs.s3a.access.key=mine")

    assert {"fs.s3a.access.key": "mine", "fs.s3a.secret.key": SECRET} == file_system_options()
    assert 2 == len(parse_properties_file(path))


def test_secrets_are_not_passed_as_arguments_to_the_jvm() -> None:
    options = ["--master", "local[2]", "--conf", f"spark.hadoop.fs.s3a.secret.key={SECRET}", "-c", "spark.ui.port=1"]
    public, secret = split_secrets(options)

    assert ["--master", "local[2]", "-c", "spark.ui.port=1"] == public
    assert {"spark.hadoop.fs.s3a.secret.key": SECRET} == secret


def test_secrets_are_not_arguments_of_the_spark_submit_that_starts_a_driver_on_a_cluster(tmp_path: Path) -> None:
    """With `--deploy-mode cluster` and RMQ_LAKE_SPARK_OPTIONS, all users of the machine saw them."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    lines = (
        "#!/usr/bin/env bash",
        'printf "%s\\n" "$@" ""',
        'while [ "$1" != --properties-file ]; do shift; done',
        'bash -c \'cat "$0"\' "$2"',  # as the real one does, it reads the file in a child process
    )
    submit.write_text("\n".join(lines))
    submit.chmod(0o755)
    (tmp_path / "user.conf").write_bytes(b"# \xe9\nspark.ui.port 7")
    secret = f"{SECRET}\\x"
    options = ["--deploy-mode", "cluster", "--properties-file", str(tmp_path / "user.conf")]
    options += ["--conf", f"spark.hadoop.fs.s3a.secret.key={secret}", "--conf", "a=b"]
    program = (
        "import sys\n"
        "from unittest.mock import patch\n"
        "from jobs.launch import spark\n"
        "home, *options = sys.argv[1:]\n"
        "with patch.object(spark, 'prepare_submission', lambda options, s3: (options, {'SPARK_HOME': home})):\n"
        "    spark.submit_to_cluster(options, ['verify', 'store'], s3=False)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), *options]
    text = subprocess.run(command, capture_output=True, check=True).stdout.decode("latin-1")
    arguments, _, file = text.partition("\n\n")

    assert SECRET not in arguments
    assert ["a=b", "verify", "store"] == [word for word in arguments.split("\n") if word in {"a=b", "verify", "store"}]
    assert ["# \xe9", "spark.ui.port 7", f"spark.hadoop.fs.s3a.secret.key={SECRET}\\\\x"] == file.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        f"--conf spark.hadoop.fs.s3a.secret.key={SECRET} --conf a=b",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f'{{"fs.s3a.session.token": "{SECRET}"}}',
        f"fs.azure.account.key.x = {SECRET}",
        f"s3a://{KEY}:{SECRET}@bucket/lake: no such bucket",
        f"password: {SECRET}",
    ],
)
def test_a_secret_in_the_output_of_another_program_is_masked(text: str) -> None:
    shown = mask_program_output(text)

    assert SECRET not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "rmq-lake verify /data/token=7/store --out /backup/secret:old/out",
        "the topic has a property token: x",
        "http://127.0.0.1:9000/a@b",
        "store = /data/keys/token.d  # command line; fs.s3a.endpoint=http://127.0.0.1:9000 keys k1, k2",
    ],
)
def test_our_own_text_is_not_masked(text: str) -> None:
    """With a masked path, a printed command would name a directory that does not exist."""
    assert text == mask_secrets(text)
    assert not is_secret("spark.hadoop.fs.s3a.endpoint")


def test_a_known_secret_is_masked_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    file_system_settings([("spark.hadoop.fs.s3a.secret.key", "Xk3examplexamp")])
    remember_secret("short")

    assert "cannot sign with *** (short)" == mask_secrets("cannot sign with Xk3examplexamp (short)")
    for answer in (ResultPrinter(as_json=True), ResultPrinter()):
        with click.Context(click.Command("verify")):
            answer.print_json_or_lines({"note": "signed with Xk3examplexamp"}, ["signed with Xk3examplexamp"])

        assert "signed with ***" in capsys.readouterr().out
