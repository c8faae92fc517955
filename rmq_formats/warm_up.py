"""
Compile all functions in advance: `python -m rmq_formats.warm_up`.

Functions are compiled at their first call. Each part of them is called with a log of one record, or with one JSON
document. A command that finds nothing compiled compiles the parts whose modules it has imported, in two processes,
which takes less time than one process. Functions that are already compiled are only loaded.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import encode_record, new_record
from rmq_formats.commitlog.scan import RawRecords, scan
from rmq_formats.compiled import compile_large_work, lacks_compiled_code
from rmq_formats.kernels.integers import as_bytes

_LARGE = 1 << 40  # bytes: functions are compiled at their first call


class Part(NamedTuple):
    """Functions that are compiled together."""

    compile: Callable[[], None]
    module: str  # a command that needs them has imported it
    last_function: str  # of those that are compiled, for `lacks_compiled_code`


def find_missing_parts() -> tuple[Part, ...]:
    """Return the parts that this process may need and that are not compiled."""
    return tuple(part for part in PARTS if part.module in sys.modules and lacks_compiled_code(part.last_function))


def load_compiled_parts() -> None:
    """Load all parts that are compiled and that this process may need."""
    for part in PARTS:
        if part.module in sys.modules and not lacks_compiled_code(part.last_function):
            part.compile()


def warm_up(parts: Sequence[Part] = ()) -> bool:
    """Compile *parts*, or all; return whether this succeeded. Missing code is compiled at its first call."""
    names = [part.compile.__name__ for part in parts or PARTS]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    commands = ([sys.executable, "-m", "rmq_formats.warm_up", *half] for half in (names[:1], names[1:]) if half)
    processes = [subprocess.Popen(command, env=environment) for command in commands]  # noqa: S603  our own command
    return not sum(process.wait() != 0 for process in processes)


def compile_messages() -> None:
    """Compile the readers of rows of `messages`."""
    from rmq_formats.commitlog.columns import compute_record_crcs, message_batch
    from rmq_formats.properties import PropertyParser

    compile_large_work(_LARGE)
    records = _records()
    compute_record_crcs(records.buffer, records.positions, records.sizes)
    message_batch(_records(), PropertyParser.SPLIT)
    message_batch(_records(), PropertyParser.SPLIT, wants_topic=bool)


def compile_assembly() -> None:
    """Compile the code that assembles records from rows of `messages`."""
    from rmq_formats.commitlog.assembly import assemble_records
    from rmq_formats.commitlog.columns import message_batch
    from rmq_formats.properties import PropertyParser

    compile_large_work(_LARGE)
    batch, _ = message_batch(_records(), PropertyParser.SPLIT)
    assemble_records(batch)


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


def compile_json() -> None:
    """Compile the readers of JSON bodies."""
    from rmq_formats.json import columns
    from rmq_formats.json.scan import OBJECT, find_named_values, scan_members

    compile_large_work(_LARGE)
    text = b'{"number":1}'
    data, bounds = as_bytes(text), np.array([0, len(text)], np.int32)
    found = scan_members(data, bounds[:1], bounds[1:], OBJECT)
    starts, ends = find_named_values(data, found, [b"number"])
    columns.decode_texts(data, starts, ends)
    values, states = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    columns.read_decimals(data, starts, ends, 0, 1, 0, values, states)
    columns.read_dates(data, starts, ends, values, states)
    columns.read_timestamps(data, starts, ends, values, states)


def compile_seldom_used() -> None:
    """Compile what only a damaged log, thousands of different tags or an index in RocksDB needs: in no part."""
    from rmq_formats.consumequeue.kernels import copy_texts
    from rmq_formats.kernels.text import new_text_table
    from rmq_formats.rocksdb.build import hash_index_rows

    compile_large_work(_LARGE)
    kernels.find_end_of_file(_records().buffer, 0, 1, 1, 1)
    copy_texts(new_text_table(4, 4), new_text_table(4, 4))
    hash_index_rows([b"key"], [b"value"])


_RECORD = encode_record(
    new_record(topic=b"t", magic_code=MAGIC_V1, body=b"body", properties="KEYS\x01é\x02TAGS\x01t\x02".encode())
)
PARTS = (
    Part(compile_messages, "rmq_formats.commitlog.columns", "fill.fill_topics"),
    Part(compile_queues_and_index, "rmq_formats.indexfile.build", "build._put_keys"),
    Part(compile_assembly, "rmq_formats.commitlog.assembly", "assembly._fill_records"),
    Part(compile_json, "rmq_formats.json.columns", "columns.read_timestamps"),
)


def _records() -> RawRecords:
    return RawRecords(as_bytes(_RECORD), 0, np.zeros(1, np.int64), np.array([len(_RECORD)], np.int32))


if __name__ == "__main__":
    chosen = [part for part in PARTS if part.compile.__name__ in sys.argv[1:]]
    for part_ in chosen or PARTS:
        part_.compile()
    if not chosen:
        compile_seldom_used()
