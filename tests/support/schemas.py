"""
JSON Schemas of each verb's `--json`: `python -m tests.support.schemas DIR` writes a file a verb.

They are made from the types of the values, so that neither can be changed without the other. The number at the end of
`$id` grows when a name goes or changes its meaning; new names may come.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from jobs.console.severity import Severity
from jobs.diff.run import DiffSummary
from jobs.export.items import LeftOut
from jobs.ingest.request import Summary as IngestSummary
from jobs.inspect.log import LogReport
from jobs.inspect.queues import QueuesReport
from jobs.inspect.state import StateReport
from jobs.lake.catalog import Statement
from jobs.lake.findings import Finding
from jobs.lake.healing import Lost
from jobs.lake.iceberg import Registration
from jobs.lake.open_damage import OpenDamage
from jobs.lake.writers import Saved
from jobs.launch.engine import VERBS_WITH_ENGINE, Engine
from jobs.query import json_text
from jobs.query.evidence import KeyFact, Origin, QueueFact
from jobs.query.story import GroupFact
from jobs.rebuild.queue_run import Summary as QueuesSummary
from jobs.restore.run import Summary as RestoreSummary
from jobs.typed.rows import UnknownField
from jobs.typed.run import Summary as TypeSummary
from jobs.typed.run import TopicSummary
from rmq_formats.trace import Trace

Schema = dict[str, Any]

_VERSIONS = {"query": json_text.VERSION}  # 1 for all others
_SIMPLE: Mapping[object, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Path: {"type": "string"},
}
_TEXT, _INTEGER, _NUMBER, _FLAG = (_SIMPLE[kind] for kind in (str, int, float, bool))
_SEVERITY: Schema = {"enum": [severity.value for severity in Severity]}
_HAS_SEVERITY = {"severity": _SEVERITY, "seconds": _NUMBER}


# In every document of a verb that ran jobs; not where nothing was to be done.
_ENGINE: Schema = {
    "type": "object",
    "properties": {
        "name": {"enum": [engine.value for engine in Engine]},
        "bytes": {"type": ["integer", "null"]},
        "limit": _INTEGER,
        "cores": _INTEGER,
    },
    "required": ["name", "bytes", "limit", "cores"],
}


def schemas() -> Iterator[tuple[str, Schema]]:
    """Yield each verb's name and the schema of its document, or of each line where it prints lines."""
    for verb, schema in _schemas():
        version = _VERSIONS.get(verb, 1)
        has_engine = verb in VERBS_WITH_ENGINE and schema["type"] == "object"
        engine = {"properties": {**schema.get("properties", {}), "engine": _ENGINE}} if has_engine else {}
        yield (
            verb,
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$id": f"urn:rmq-lake:schema:{verb}:{version}",
                "title": f"rmq-lake {verb} --json",
                **schema,
                **engine,
            },
        )


def _schemas() -> Iterator[tuple[str, Schema]]:
    yield "ingest", _of(IngestSummary, open=_of(OpenDamage), bytes=_INTEGER, severity=_SEVERITY)
    yield "rebuild-consumequeue", _either(_of(QueuesSummary, **_HAS_SEVERITY), _dry_run())
    yield "restore", _of(RestoreSummary, bytes=_INTEGER, **_HAS_SEVERITY)
    names = _list(_TEXT)
    topic = _of(TopicSummary, unknown=_map(_of(UnknownField)))
    typing = _of(TypeSummary, topics=_list(topic), absent=names, not_found=names, too_many_dead_letters=names,
                 seconds={"type": "number"})  # fmt: skip
    yield "type", _either(typing, _object(proposal=_TEXT))
    yield "optimize", _list(_either(_of(Saved), _of(Lost)))  # those of --heal
    yield "catalog", _list(_either(_of(Statement), _of(Registration)))  # those of --iceberg
    yield "diff", _of(DiffSummary, differences=_list({"type": "object"}), bytes=_INTEGER, **_HAS_SEVERITY)
    yield "repair", _repair()
    yield "verify", _verify()
    yield "rebuild-index", _rebuild_index()
    yield "export", _export()
    yield "inspect", _inspect()
    yield "query", _query()
    yield "dump", _object(file=_TEXT, kind=_TEXT) | {"description": "One line; other names by kind."}


def _verify() -> Schema:
    return _object(
        store=_TEXT,
        severity=_SEVERITY,
        broker=_or_null(_start()),
        findings=_list(_finding()),
        facts=_list(_of(Finding)),
        parts=_map(_SEVERITY),
        unverified=_map(_TEXT),
        numbers=_map({"type": "object"}),
        notes=_map(_list(_TEXT)),
        bytes=_INTEGER,
        seconds=_NUMBER,
    )


def _start() -> Schema:
    return _object(
        release=_TEXT,
        starts=_or_null(_FLAG),
        refuses=_or_null(_TEXT),
        cuts_at=_or_null(_INTEGER),
        deletes_messages=_or_null(_INTEGER),
        deletes_files=_list(_TEXT),
        loses_keys=_or_null(_object(from_offset=_INTEGER, to_offset=_INTEGER)),
        unknown=_TEXT,
    )


def _rebuild_index() -> Schema:
    file = _object(
        name=_TEXT, kind=_TEXT, size=_INTEGER, sha256=_TEXT, header=_map(_INTEGER), first_key=_INTEGER, keys=_INTEGER,
        ranges=_INTEGER, proven=_FLAG, proof=_TEXT,
    )  # fmt: skip
    survivor = _object(name=_TEXT, verdict=_TEXT, role=_TEXT, detail=_TEXT, differences=_list(_TEXT))
    origin = {"origin": _TEXT, "evidence": _TEXT}
    settings = {
        "geometry": _object(hash_slots=_INTEGER, index_num=_INTEGER, **origin),
        "rules": _object(releases=_list(_object(from_offset=_INTEGER, release=_TEXT)), text=_TEXT, **origin),
        "time_zone": _object(zone=_TEXT, **origin),
        "lost_only": _FLAG,
    }
    done = _object(
        store=_TEXT,
        **settings,
        messages=_INTEGER,
        keys=_INTEGER,
        damaged_bytes=_INTEGER,
        gaps=_list(_list(_INTEGER)),
        left_out=_list(_TEXT),
        files=_list(file),
        survivors=_list(survivor),
        replaced=_list(_TEXT),
        installed=_FLAG,
        **_HAS_SEVERITY,
    )
    return _either(done, _dry_run(**settings))


def _dry_run(**settings: Schema) -> Schema:
    return _object(
        store=_TEXT,
        out=_TEXT,
        **settings,
        read=_map(_or_null(_INTEGER)),
        gaps=_list(_list(_INTEGER)),
        kept=_list(_TEXT),
        refused=_list(_object(name=_TEXT, verdict=_TEXT, detail=_TEXT)),
        write=_TEXT,
        **_HAS_SEVERITY,
    )


def _finding() -> Schema:
    return _of(Finding, severity=_SEVERITY)


def _repair() -> Schema:
    findings = _list(_finding())
    planned = _object(
        store=_TEXT,
        broker=_or_null(_start()),
        plan=_list(_TEXT),
        notes=_list(_TEXT),
        undecided=_list(_TEXT),
        withheld=_or_null(_TEXT),
        applied=_FLAG,
        found=findings,
        left=_or_null(findings),
        **_HAS_SEVERITY,
    )
    return _either(planned, _object(store=_TEXT, undone=_list(_TEXT), seconds=_NUMBER))


def _export() -> Schema:
    places = _list(_of(LeftOut))
    done = _object(
        messages=_INTEGER,
        bytes=_INTEGER,
        out=_TEXT,
        undecoded_bodies=_INTEGER,
        undecoded=places,
        damaged_bytes=_INTEGER,
        damaged=places,
        gaps=places,
        reason=_or_null(_object(kind=_TEXT, text=_TEXT)),
        notes=_list(_TEXT),
        **_HAS_SEVERITY,
    )
    return _either(done, _object(files=_INTEGER, bytes=_INTEGER, format=_TEXT, out=_TEXT, seconds=_NUMBER))


def _inspect() -> Schema:
    problem = _object(severity=_SEVERITY, file=_TEXT, text=_TEXT, offset=_or_null(_INTEGER))
    return _object(
        store=_TEXT,
        health=_SEVERITY,
        broker=_or_null(_start()),
        state=_of(StateReport),
        log=_of(LogReport),
        queues=_of(QueuesReport, units=_INTEGER, deleted_topics=_list(_TEXT)),
        index=_object(files=_list({"type": "object"})),
        releases=_list(_object(from_offset=_INTEGER, lowest=_TEXT, highest=_TEXT, candidates=_list(_TEXT))),
        problems=_list(problem),
        next=_list(_object(run=_TEXT, why=_TEXT)),
    )


def _query() -> Schema:
    texts = ("topic", "born_host", "store_host", "message_id", "offset_id", "transaction_type")
    moment = {"type": "string", "pattern": "T.*Z$"}
    base64 = {"type": "string", "contentEncoding": "base64"}
    message = _line(
        "message",
        **dict.fromkeys(texts, _TEXT),
        **dict.fromkeys(json_text.INTEGERS, _INTEGER),
        born_time=moment,
        store_time=moment,
        unique_key=_or_null(_TEXT),
        tags=_or_null(_TEXT),
        keys=_list(_TEXT),
        properties=_map(_TEXT),
        **dict.fromkeys(("is_compressed", "has_right_body_crc"), _FLAG),
        properties_base64=base64,
        topic_base64=base64,
        body_base64=base64,
    )
    numbers = ("queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    return {
        "description": "One line of --json or --output ndjson; --output json prints an array of them.",
        "oneOf": [
            message,
            _line("empty", reason=_TEXT, text=_TEXT),
            _line("unit", topic=_TEXT, **dict.fromkeys(numbers, _INTEGER)),
            _line("queue", topic=_TEXT, broker=_TEXT,
                  **dict.fromkeys(("queue_id", "min_offset", "max_offset", "updated"), _INTEGER)),
            _line("topic", topic=_TEXT, settings=_map({})),
            _line("group", consumer_group=_TEXT, settings=_map({})),
            _line("progress", consumer_group=_TEXT, topic=_TEXT, broker=_TEXT,
                  **dict.fromkeys(("queue_id", "broker_offset", "consumer_offset", "pull_offset", "last_timestamp",
                                   "behind"), _INTEGER)),
            _line("trace", trace_topic=_TEXT, physical_offset=_INTEGER, client_address=_TEXT,
                  **_of(Trace)["properties"]),
            _line("story", unique_key=_or_null(_TEXT), state=_TEXT, copies=_list(_copy()), not_known=_list(_TEXT),
                  traces=_list(_of(Trace, text=_TEXT, known_from=_of(Origin)))),
            _line("id", offset_id=_object(store_host=_TEXT, physical_offset=_INTEGER),
                  unique_id=_object(address=_TEXT, process_id=_INTEGER, loader_hash=_INTEGER, time_diff=_INTEGER,
                                    nearly_time=_INTEGER, counter=_INTEGER)),
        ],
    }  # fmt: skip


def _copy() -> Schema:
    texts = dict.fromkeys(("role", "text", "offset_id", "topic", "store_time"), _TEXT)
    integers = dict.fromkeys(("physical_offset", "queue_id", "queue_offset", "reconsume_times"), _INTEGER)
    return _object(
        **texts, **integers, due_time=_or_null(_TEXT), ended_by_offset=_or_null(_INTEGER), retention=_or_null(_TEXT),
        known_from=_of(Origin), queues=_list(_of(QueueFact)), keys=_list(_of(KeyFact)), groups=_list(_of(GroupFact)),
    )  # fmt: skip


def _line(kind: str, /, **properties: Schema) -> Schema:
    return _object(version={"const": json_text.VERSION}, type={"const": kind}, **properties)


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _either(done: Schema, other: Schema) -> Schema:
    """Return the schema of a verb that may be asked for something else: a dry run, or to take back what it did."""
    return {"type": "object", "anyOf": [done, other]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _SIMPLE[NoneType]]}


def _of(kind: type[Any], **more: Schema) -> Schema:
    """Return the schema of a type with named fields; *more* are names that its document has besides, or others."""
    hints = get_type_hints(kind)
    names: Sequence[str] = tuple(getattr(kind, "__dataclass_fields__", getattr(kind, "_fields", hints)))
    return _object(**{name: _of_type(hints[name]) for name in names} | more)


def _of_type(hint: object) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return {"anyOf": [_of_type(argument) for argument in arguments]}
    if origin is None and isinstance(hint, type):
        return _of_class(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _map(_of_type(arguments[1]))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        kinds = {str(argument): argument for argument in arguments if argument is not Ellipsis}
        return _list(_of_type(next(iter(kinds.values()))) if len(kinds) == 1 else {})
    return {}


def _of_class(kind: type[Any]) -> Schema:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if issubclass(kind, Severity):
        return _SEVERITY
    if issubclass(kind, Enum):
        return {} if not issubclass(kind, str) else _TEXT
    if is_dataclass(kind) or is_typeddict(kind) or kind is Origin:
        return _of(kind)
    return _list({}) if issubclass(kind, tuple) else {}


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for verb, schema in schemas():
        (directory / f"{verb}.json").write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
