"""Where stores, lakes and output may be: said before anything starts."""

from pathlib import Path

import pytest

from jobs.command import cli
from jobs.console.exit_codes import ExitCode

UNKNOWN = "gs:// can be neither read nor written; known are local paths, s3a://, abfss:// and hdfs://"
READ_ONLY = "hdfs:// is for stores alone; lakes and output are local paths, s3a:// or abfss://"
PLACE = "://bucket/place"

STORES = (
    "inspect {}",
    "dump {}",
    "ingest {} --lake /lake",
    "ingest /store --lake /lake --commitlog {}",
    "verify {}",
    "rebuild-index {} --out /out",
    "rebuild-consumequeue {} --out /out",
    "query by-key -t T -k K --store {}",
    "query mqadmin --store {} queryMsgByKey -t T -k K",
    "export --store {} --format ndjson --out /out",
)
WRITTEN = (
    "ingest /store --lake {}",
    "verify /store --findings-lake {}",
    "verify /store --scratch {}",
    "rebuild-index /store --out {}",
    "rebuild-consumequeue /store --out {}",
    "query by-key -t T -k K --lake {}",
    "export --lake {} --format ndjson --out /out",
    "optimize {}",
)


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.launch.spark.submission", pytest.fail)


@pytest.mark.parametrize(
    ("line", "scheme", "reason"),
    [(line, "gs", UNKNOWN) for line in (*STORES, *WRITTEN)] + [(line, "hdfs", READ_ONLY) for line in WRITTEN],
)
def test_what_nobody_can_reach_is_refused_before_anything_starts(
    line: str, scheme: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    location = f"{scheme}{PLACE}"

    assert ExitCode.USAGE is cli.main(line.format(location).split())
    assert f"{location}: {reason}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        *(line for line in WRITTEN if "--lake" in line or line.startswith("optimize")),
        "diff . {}", "restore {} --out /out", "repair /store --out /out --lake {}",
    ],
)  # fmt: skip
def test_a_file_is_no_lake(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lake.parquet"
    file.touch()

    assert ExitCode.USAGE is cli.main(line.format(file).split())
    assert f"{file}: is a file; a lake is a directory of tables" in capfd.readouterr().err
