"""dumpCompactionLog and rocksDBConfigToJson: the real tools' text of files that brokers, or nobody, wrote."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.command import cli
from jobs.console.exit_codes import ExitCode
from rmq_formats.commitlog.record import encode_record
from tests.golden import unpack_situation
from tests.golden.features import unpack_feature
from tests.oracle.process import running
from tests.oracle.sessions import ClientMessage, Consumption
from tests.oracle.settings import SMALL_GEOMETRY
from tests.oracle.stage import Stage
from tests.rmq_formats.builders import a_record

_KINDS = ("topics", "subscriptionGroups", "consumerOffsets", "TOPICS")
# Where the tools of 5.3.2 and 5.3.3 look: no broker has such folders.
_NAMES_OF_533 = {"topics": "TOPICS", "subscriptionGroups": "SUBSCRIPTION_GROUPS", "consumerOffsets": "CONSUMER_OFFSETS"}
_KEYS = ("plain", "50%% off", "a%nb", "100%", "50% off", "%s", "%d %%", "%!", "%-d", "%tY", "%tq", "%5.2f", "%Q", "键")


def _releases(*versions: str, in_every_run: str) -> Sequence[object]:
    every_run = [pytest.mark.oracle, pytest.mark.slow]
    return [
        pytest.param(version, marks=every_run if version == in_every_run else pytest.mark.campaign)
        for version in versions
    ]


def _real(release: str, lines: Sequence[Sequence[str]]) -> list[str]:
    with running(release) as driver:
        numbered = [{f"argument.{number:02}": word for number, word in enumerate(line)} for line in lines]
        return [driver.ask("mqadmin", line)["stdout"] for line in numbered]


def _ours(release: str, line: Sequence[str], captured: pytest.CaptureFixture[bytes]) -> tuple[int, str]:
    captured.readouterr()
    code = cli.main(["query", "mqadmin", "--release", release, "--quiet", *line])
    sys.stdout.flush()
    return code, captured.readouterr().out.decode()


def _record(position: int, **properties: str) -> bytes:
    return encode_record(a_record(b"body", topic="Comp", properties=properties, physical_offset=position))


def _write_logs(folder: Path) -> list[Path]:
    """Write files of messages that a compaction would leave, and of ones that it would not."""
    folder.mkdir()
    messages = [_record(number * 1000, KEYS=key) for number, key in enumerate(_KEYS)]
    both = _record(0) + _record(7, KEYS="k", UNIQ_KEY="u", TAGS="T", TRAN_MSG="true")
    contents = {
        "each": b"".join(messages) + bytes(100),
        "full": both,
        "negative": both + b"\xff" * 8,
        "too-long": both + (1 << 20).to_bytes(4, "big") + bytes(100),
        "cut-off": both + _record(9)[:-3],
        "no-message": both + (100).to_bytes(4, "big") + bytes(96),
        "zeros": bytes(1000),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("version", _releases("5.1.0", "5.1.1", "5.3.3", "5.5.0", in_every_run="5.5.0"))
def test_a_compaction_log_is_dumped_as_the_real_tool_dumps_it(
    version: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Logs of brokers; and text that is a format to the tool, and ends of all kinds."""
    logs = _write_logs(tmp_path / "logs")
    root = unpack_situation("b551-compaction", tmp_path / "golden") / "store"
    logs += [path for path in sorted((root / "compaction" / "compactionLog").rglob("0*")) if path.is_file()]
    # The tool opens its file for writing.
    lines = [("dumpCompactionLog", "-f", str(shutil.copy(log, tmp_path / f"copy-{n}"))) for n, log in enumerate(logs)]
    theirs = _real(version, lines)
    ours = [_ours(version, line, capfdbinary) for line in lines]

    assert len([text for text in theirs if text.count("MessageExt") > 1]) >= 7
    assert [text for _, text in ours] == theirs
    codes = {log.name: code for log, (code, _) in zip(logs, ours, strict=True)}
    assert {name for name, code in codes.items() if code != ExitCode.CLEAN} - {"each"} == {
        "negative",
        "too-long",
        "cut-off",
        "no-message",
    }


def _config_lines(config: Path) -> list[tuple[str, ...]]:
    every = [("rocksDBConfigToJson", "-p", str(config), "-t", kind) for kind in _KINDS]
    return [*every, *((*line, "-j", "false") for line in every)]


@pytest.mark.parametrize("version", _releases("5.4.0", "5.5.0", in_every_run="5.5.0"))
def test_configuration_in_rocksdb_is_printed_as_the_real_tool_prints_it(
    version: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Topics, groups and offsets of a store that a broker left."""
    config = unpack_feature("b551-rockscq-clean", tmp_path / "golden").root / "config"
    theirs = _real(version, _config_lines(Path(shutil.copytree(config, tmp_path / "copy"))))
    ours = [_ours(version, line, capfdbinary) for line in _config_lines(config)]

    assert ours == [(ExitCode.CLEAN, text) for text in theirs]
    assert all("Orders" in text for _, text in ours[:1])


@pytest.mark.campaign
def test_configuration_of_a_release_with_hash_maps_is_printed_as_its_tool_prints_it(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Up to 5.3.3 names come in the order of a hash map, of topics with attributes and queues of many numbers, too."""
    place = Stage("5.3.3", tmp_path / "store", SMALL_GEOMETRY, tmp_path / "scratch")
    with place as stage, stage.broker({"storeType": "defaultRocksDB"}) as broker:
        for number in range(40):
            broker.make_topic(f"Topic{number}", queues=number % 5 + 1)
        broker.make_topic("Queued", queues=20)
        broker.real.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "G", "-r", "3")
        broker.real.send_each(ClientMessage("Queued") for _ in range(40))
        broker.real.consume(Consumption("Queued", "G", 40))
    config = stage.store_directory / "config"
    copy = Path(shutil.copytree(config, tmp_path / "copy"))
    for folder, wrong_name in _NAMES_OF_533.items():
        (copy / folder).rename(copy / wrong_name)
    theirs = _real("5.3.3", _config_lines(copy))
    ours = [_ours("5.3.3", line, capfdbinary) for line in _config_lines(config)]

    assert ours == [(ExitCode.CLEAN, text) for text in theirs]
