"""Messages of a queue that was lost and begins again: mqadmin sends them again by the printed commands."""

import os
import shlex
import shutil
import subprocess
from itertools import islice
from pathlib import Path

from rmq_formats.properties import KEYS, TAGS, PropertyParser, parse_properties
from tests.oracle.judge import read_log
from tests.oracle.releases import on_releases
from tests.oracle.sessions import ClientMessage, real_broker
from tests.support.commands import Run

_TOPIC, _OTHER = "Orders", "Payments"
_BODIES = (
    b"plain text",
    b'{"id": 1, "note": "it\'s $HOME `id` \\n"}',
    "two lines\nand Grüße, 你好".encode(),
    b"-5 begins like an option",
    b"C:\\new\\0",
)
_CHANGED_BY_MQADMIN = (b" spaces around ", b"line\n", b"\xff\xfe")


@on_releases("4.9.8", "5.3.3", "5.5.1", in_every_run="5.3.3")
def test_earlier_messages_of_a_queue_that_begins_again_are_sent_by_the_printed_commands(
    tmp_path: Path, release: str, run: Run
) -> None:
    """No shell and no mqadmin changes the bytes of a body; bodies that it would change are not sent."""
    store = tmp_path / "store"
    earlier = [
        ClientMessage(_TOPIC, body, tags=f"Tag{number}" if number % 2 else None, keys=f"k{number}" if number else None)
        for number, body in enumerate(_BODIES)
    ]
    with real_broker(release, store) as broker:
        broker.make_topic(_TOPIC, 1)
        broker.send_each([*earlier, *(ClientMessage(_TOPIC, body) for body in _CHANGED_BY_MQADMIN)])
        broker.make_topic(_OTHER, 1)
        broker.send(ClientMessage(_OTHER))
        broker.drain()
    shutil.rmtree(store / "consumequeue" / _TOPIC)
    with real_broker(release, store) as broker:
        broker.send(ClientMessage(_TOPIC, b"later", keys="later"))
        broker.drain()
    out = run("verify", store, "--release", release, "--hash-slots", "100", "--index-num", "20").out
    (export,) = [line.strip() for line in out.splitlines() if line.strip().startswith("rmq-lake export")]
    (send,) = [line.strip() for line in out.splitlines() if line.strip().startswith("jq ")]
    words = shlex.split(export)[1:]
    exported = tmp_path / words[-1]
    run(*words[:-1], exported)

    lines = _list_mqadmin_lines(send, tmp_path)

    with real_broker(release, store) as broker:
        printed = [
            broker.mqadmin(*(broker.name_server if word == "NAMESRV" else word for word in line)) for line in lines
        ]
        broker.drain()
        pulled = {one.physical_offset for one in broker.pull(_TOPIC)}

    received = [record for record in read_log(store) if record.physical_offset in pulled]
    properties = [parse_properties(one.properties_raw, PropertyParser.SCAN) for one in received]
    found = [(one.body, has.get(KEYS), has.get(TAGS)) for one, has in zip(received, properties, strict=True)]
    expected = [(b"later", "later", None), *((one.body, one.keys, one.tags) for one in earlier)]

    assert expected == found, printed


def _list_mqadmin_lines(command: str, directory: Path) -> list[list[str]]:
    """Run a command in a shell, and return the arguments of each mqadmin that it starts."""
    program, arguments = directory / "mqadmin", directory / "arguments"
    program.write_text(f'#!/bin/sh\nprintf "%s\\0" "$#" "$@" >> {arguments}\n')
    program.chmod(0o755)
    path = os.pathsep.join((str(directory), os.environ["PATH"]))
    subprocess.run(["sh", "-c", command], cwd=directory, env={**os.environ, "PATH": path}, check=True)
    words = iter(os.fsdecode(arguments.read_bytes()).split("\0")[:-1])
    return [list(islice(words, int(count))) for count in words]
