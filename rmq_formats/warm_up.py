"""
Compile the readers of a log in advance: `python -m rmq_formats.warm_up`.

Functions are compiled at their first call. Each half of them is called with a log of one record, in a process of its
own, which takes half the time of one process. Functions that are already compiled are only loaded.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import encode_record, new_record
from rmq_formats.commitlog.scan import RawRecords, scan
from rmq_formats.compiled import compile_large_work
from rmq_formats.kernels.integers import as_bytes

_LARGE = 1 << 40  # bytes: functions are compiled at their first call


def warm_up() -> bool:
    """Compile both halves in parallel; return whether both succeeded. Missing code is compiled at its first call."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    commands = ([sys.executable, "-m", "rmq_formats.warm_up", half.__name__] for half in _HALVES)
    processes = [subprocess.Popen(command, env=environment) for command in commands]  # noqa: S603  our own command
    return not sum(process.wait() != 0 for process in processes)


def compile_messages() -> None:
    """Compile the readers of rows of `messages`, and the code that assembles records from them."""
    from rmq_formats.commitlog.assembly import assemble_records
    from rmq_formats.commitlog.columns import compute_record_crcs, message_batch
    from rmq_formats.properties import PropertyParser

    compile_large_work(_LARGE)
    batch, _ = message_batch(_records(), PropertyParser.SPLIT)
    message_batch(_records(), PropertyParser.SPLIT, wants_topic=bool)
    assemble_records(batch)
    records = _records()
    compute_record_crcs(records.buffer, records.positions, records.sizes)


def compile_queues_and_index() -> None:
    """Compile the functions that walk a log, and that derive queue units and index files from it."""
    from rmq_formats.consumequeue.build import QueueBuilder
    from rmq_formats.consumequeue.collect import UnitCollector
    from rmq_formats.consumequeue.dispatch import QueueKind, UnitRules
    from rmq_formats.indexfile.build import FileBuilder, RuleTable, pack_keys
    from rmq_formats.indexfile.layout import Geometry
    from rmq_formats.release import NEWEST, make_rules

    compile_large_work(_LARGE)
    size = len(_RECORD)
    list(scan(lambda at, length: _RECORD[at : at + length], 0, size, size, 0, final=False))
    list(scan(lambda _, size: bytes(size), 0, 64, 64, 0, final=False))  # an end that is looked for
    records = _records()
    numbers = np.empty(1, np.int64)
    kernels.count_settled_records(records.buffer, records.positions, 0, 0)
    kernels.read_store_timestamps(records.buffer, records.positions, numbers)
    kernels.has_right_body_crc(records.buffer, records.positions[0])
    kernels.find_records_with_wrong_crc(records.buffer, records.positions, numbers, numbers.copy())
    rules = UnitRules()
    collector = UnitCollector(rules, with_tags=True)
    collector.add(records)
    units = collector.finish().units
    list(QueueBuilder(QueueKind.PLAIN, 20, rules.releases).append(units))
    table = RuleTable.from_rules(make_rules((0, NEWEST)))
    for keys, _ in pack_keys(records, table, with_texts=True):
        FileBuilder(Geometry(4, 4), table, None).add(keys.copy())


_RECORD = encode_record(
    new_record(topic=b"t", magic_code=MAGIC_V1, body=b"body", properties="KEYS\x01é\x02TAGS\x01t\x02".encode())
)
_HALVES = (compile_messages, compile_queues_and_index)


def _records() -> RawRecords:
    return RawRecords(as_bytes(_RECORD), 0, np.zeros(1, np.int64), np.array([len(_RECORD)], np.int32))


if __name__ == "__main__":
    halves_to_compile = [half for half in _HALVES if half.__name__ in sys.argv[1:]]
    for half in halves_to_compile:
        half()
    sys.exit(0 if halves_to_compile or warm_up() else 1)
