"""
Describe `--json`: `python -m tests.support.reference` writes docs/schemas from the classes that commands print.

The type of a key is that of the class's field or property; this module adds its description. Keys that a command adds
to a class, or prints without one, are listed with their types. `query.json` and `dump.json`, which describe lines of
several types, are written by hand.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from jobs.console.result import Severity
from jobs.diagnosis.acceptance import AcceptedFinding
from jobs.diagnosis.findings import Finding
from jobs.diff import DiffSummary, LogDifference
from jobs.export.export import ExportSummary
from jobs.export.items import ExportDefect
from jobs.ingest.summary import OpenDamage, Summary
from jobs.inspect import usage_report
from jobs.inspect.report import (
    LogReport,
    Problem,
    QueueReport,
    QueuesReport,
    RocksReport,
    SegmentReport,
    StateReport,
    StoreReport,
)
from jobs.lake.catalog import Registration
from jobs.lake.commit import Savings
from jobs.lake.manifest import BackfilledTopic, FilledRange, GapRow
from jobs.lake.retention import ExpirySummary
from jobs.launch.engine import LOCAL, SPARK, EngineChoice
from jobs.products.index.file_builder import BuiltIndexFile
from jobs.query.source import Reason
from jobs.rebuild.dry_run import DryRun
from jobs.rebuild.index import IndexRebuildSummary
from jobs.rebuild.queue_run import QueueRebuildSummary
from jobs.repair.run import RepairSummary
from jobs.restore.check import CheckSummary, StoreCheck
from jobs.restore.run import RestoreSummary
from jobs.store_diff import StoreDifference, StoreDiffSummary
from jobs.typed.formats import UnknownField
from jobs.typed.run import TopicSummary, TypingSummary
from jobs.verify.verdict import Verdict
from rmq_formats.broker_start import StartOutcome
from tests.support.commands import ROOT

SCHEMAS = ROOT / "docs" / "schemas"
Schema: TypeAlias = dict[str, Any]
# By key: its description, after its type or the name of the field that it has, unless that is the key.
Keys: TypeAlias = Mapping[str, str | tuple[Any, str]]

_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
_LISTS = (list, tuple, set, frozenset, Sequence)
_SHARED: dict[str, Schema] = {}  # parts of several schemas, or of several places in one
_REFERENCES: dict[type, Schema] = {}  # by the class that a shared part describes


def _schema_of(annotation: Any) -> Schema:  # noqa: ANN401 - any annotation of a field
    """Return the schema of a type, with references to shared parts."""
    if annotation in _REFERENCES:
        return _REFERENCES[annotation]
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {"enum": [one.value for one in annotation]}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in {Union, UnionType}:
        return _any_of([_schema_of(one) for one in arguments])
    if origin in _LISTS and len({*arguments} - {Ellipsis}) == 1:
        count = len(arguments) if origin is tuple and Ellipsis not in arguments else None
        return _list_of(_schema_of(arguments[0])) | ({} if count is None else {"minItems": count, "maxItems": count})
    if origin is None or not issubclass(origin, Mapping):
        raise TypeError(f"{annotation}: has no JSON form; describe it with _share, or state the type of the key")
    return {"type": "object", "additionalProperties": _schema_of(arguments[1])}


def _any_of(schemas: list[Schema]) -> Schema:
    if all(schema.keys() == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _type_of(source: type, name: str) -> Any:  # noqa: ANN401 - any annotation
    """Return the type of a field or property."""
    names = {"GapRow": GapRow}  # which modules import only for type checks
    types = get_type_hints(source, localns=names)
    return types[name] if name in types else get_type_hints(getattr(source, name).fget, localns=names)["return"]


def _list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list_fields(source: type) -> list[str]:
    """Return the names of the fields of a dataclass, a named tuple or a typed dictionary."""
    if is_dataclass(source):
        return [one.name for one in fields(source)]
    return list(source.__annotations__) if is_typeddict(source) else list(source._fields)  # type: ignore[attr-defined]  # a named tuple


def describe_object(source: type | None, keys: Keys, hidden: Collection[str] | None = ()) -> Schema:
    """
    Return the schema of an object: the JSON form of a class, or of none.

    Raises `LookupError` for a field that is neither described nor *hidden*, unless *hidden* is None, because the JSON
    form does not follow the fields.
    """
    properties: Schema = {}
    described = set()
    for key, value in keys.items():
        kind, description = (key, value) if isinstance(value, str) else value
        described.add(kind if isinstance(kind, str) else key)
        annotation = _type_of(source, kind) if source is not None and isinstance(kind, str) else kind
        properties[key] = {
            "description": description,
            **(annotation if isinstance(annotation, dict) else _schema_of(annotation)),
        }
    if source is not None and hidden is not None:
        missing = [name for name in _list_fields(source) if name not in described and name not in hidden]
        if missing:
            raise LookupError(f"{source.__name__}: describe {', '.join(missing)} in tests/support/schemas.py")
    return {"type": "object", "properties": properties, "required": list(keys)}


def _share(name: str, source: type | None, keys: Keys, hidden: Collection[str] | None = ()) -> Schema:
    """Add an object to the shared parts, and return the reference to it."""
    _SHARED[name] = describe_object(source, keys, hidden)
    reference = {"$ref": f"#/$defs/{name}"}
    if source is not None:
        _REFERENCES.setdefault(source, reference)
    return reference


# --- keys of several commands ---

_STORE: Keys = {"store": (str, "Location of the broker's store: a path or a URI.")}
_LAKE: Keys = {"lake": "Location of the lake: a path or a URI."}
_LABEL: Keys = {"broker": "Label of the store in the lake.", "store_id": "Id of the store in the lake."}
_OUT: Keys = {"out": (str, "Directory or file to which the result is written.")}
_NOTES: Keys = {"notes": (list[str], "Human-readable remarks, one sentence each.")}
_SECONDS: Keys = {"seconds": (float, "Duration of the command in seconds.")}
_RANGES = "Ranges of physical offsets [from, to)"
_HOLES: Keys = {"gaps": (list[tuple[int, int]], f"{_RANGES} that are in no file.")}
_FIRST_TIME, _LAST_TIME = (
    f"Store time of the {which} record, in milliseconds since 1970; null if" for which in ("first", "last")
)
_DUE = "Delivery time of the {} timer message, in milliseconds since 1970; null if there is none."

_SHARED["severity"] = _schema_of(Severity)
_REFERENCES[Severity] = {"$ref": "#/$defs/severity"}
_SEVERITY: Keys = {"severity": (Severity, "Worst severity that the command found.")}

_ENGINE = _share(
    "engine",
    EngineChoice,
    {
        "name": ({"enum": [LOCAL, SPARK]}, "`local` for this machine, or `spark`."),
        "cores": "Number of CPU cores of this machine that the command may use.",
    },
    {"engine"},
)
_ENGINE_KEY = {"engine": {"description": "Engine that did the work.", **_ENGINE}}
_LOST_KEYS = _share(
    "lost_keys",
    None,
    {
        "from_offset": (int, "Physical offset at which the range begins."),
        "to_offset": (int, "Physical offset at which the range ends."),
    },
)
_share(
    "start",
    StartOutcome,
    {
        "release": "RocketMQ release whose start is predicted.",
        "starts": "Whether the broker would start; null if unknown.",
        "refuses": (str | None, "File whose length keeps the broker from starting; null if there is none."),
        "cuts_at": "Physical offset at which the start would truncate the log; null if it would not, or if unknown.",
        "deletes_messages": "Number of complete messages that the start would delete; null if unknown.",
        "deletes_files": "Files that the start would delete.",
        "loses_keys": (
            _or_null(_LOST_KEYS),
            "Range of the log whose index keys the start would lose; null if there is none.",
        ),
        "unknown": ("unknown_reason", "Reason why some effects are unknown; empty if all are known."),
    },
    {"unloadable_file", "ignores_from", "may_cut", "after_repair"},
)
_START: Keys = {
    "broker": ("start", "Predicted effects of the broker's next start on the store; null if they were not predicted.")
}
_ROW_OF_FINDING: Keys = {
    "part": "Part of the store: log, queues, index or configuration.",
    "kind": "Kind of the finding; docs/reference/findings.md lists all kinds.",
    "file": "Path of the file, relative to the store's root.",
    "offset": "Position in the file, in bytes, of the first wrong byte; null if the finding is about the whole file.",
    "field": "Name of the field that is wrong; empty if the finding is not about a field.",
    "found": "Stored value, as text.",
    "expected": "Expected value, as text.",
    "cause": "Likely cause.",
    "times": "Number of consecutive occurrences from this position on.",
    "log_offset": "Physical offset in the log that the finding is about; null if unknown.",
    "log_end": "Physical offset at which that part of the log ends; null if unknown.",
    "right_time": "Timestamp in milliseconds that the file should state; null if the finding is not about a time.",
    "follows": (str, "Title of the finding of which this one is a consequence; empty if it has a cause of its own."),
}
_FINDING: Keys = {**_ROW_OF_FINDING, "severity": "Severity of the finding."}
_NAMED: Keys = {
    **_FINDING,
    "accept_as": (
        str,
        "Name of the finding for `--accept`: kind, place and a checksum; empty for a consequence of another finding.",
    ),
}
_ACCEPTED_AT = (
    "Time at which the finding was accepted, as the lake has it, in UTC; null if an option of this command accepts it."
)
_HIDDEN_OF_FINDING = {"is_undecided"}
_share("finding", Finding, _FINDING, _HIDDEN_OF_FINDING)
_FACT = _share("fact", Finding, _ROW_OF_FINDING, _HIDDEN_OF_FINDING)
_FINDINGS = _list_of(_share("named_finding", Finding, _NAMED, _HIDDEN_OF_FINDING))
_SHARED["accepted_finding"] = describe_object(
    Finding, {**_NAMED, "accepted_at": (str | None, _ACCEPTED_AT)}, _HIDDEN_OF_FINDING
)
_REFERENCES[AcceptedFinding] = {"$ref": "#/$defs/accepted_finding"}
_ACCEPTED: Keys = {"accepted": (list[AcceptedFinding], "Findings that the user has accepted: they are not problems.")}


# --- verify, repair, diff, restore ---

_VERIFY = describe_object(
    Verdict,
    {
        **_STORE,
        **_SEVERITY,
        **_START,
        "findings": (_FINDINGS, "Problems that were found, with their consequences."),
        **_ACCEPTED,
        "facts": (_list_of(_FACT), "Facts that need no action."),
        "parts": (Mapping[str, Severity], "Severity of each part of the store."),
        "unverified": (Mapping[str, str], "Parts that were not verified completely, with the reason."),
        "numbers": (Mapping[str, Mapping[str, int]], "Figures of each part."),
        "notes": (Mapping[str, list[str]], "Remarks on each part."),
        "bytes": (int, "Number of bytes of the log that were read."),
        **_SECONDS,
    },
    None,
)
_REPAIR = describe_object(
    RepairSummary,
    {
        **_STORE,
        **_START,
        "plan": "Steps of the repair, one sentence each.",
        **_NOTES,
        "undecided": (
            "undecided_files",
            "Files that contradict the log and stay, because it is unknown which side is wrong.",
        ),
        "withheld": ("withheld_reason", "Reason why the plan must not be carried out; null if it may be."),
        "applied": (bool, "Whether the plan was carried out."),
        "found": (_FINDINGS, "Findings before the repair."),
        **_ACCEPTED,
        "left": (_or_null(_FINDINGS), "Findings after the repair; null if it was not carried out."),
        **_SEVERITY,
        "kept": ("kept_directories", "Directories that hold the replaced files for `--undo`."),
        **_SECONDS,
    },
    None,
)
_UNDO = describe_object(
    None,
    {
        **_STORE,
        "undone": (list[str], "Restored files, one line for each step."),
        **_SECONDS,
    },
)
_share(
    "log_difference",
    LogDifference,
    {
        "severity": "Severity of the difference.",
        "what": "Kind of the difference, in words.",
        "start": "Physical offset at which the range begins.",
        "end": "Physical offset at which the range ends.",
        "records": "Number of records in the range.",
        "cause": "Likely cause.",
        "is_before_log": "Whether only the lake has these records, and the store's log begins after them.",
    },
)
_share(
    "store_difference",
    StoreDifference,
    {
        "severity": "Severity of the difference.",
        "part": "Part of the stores: log, queues, index, positions or epochs.",
        "text": "Description of the difference.",
        "file": "File of the first store, or of the second if only that has it; null if there is none.",
        "offset": "Physical offset in the log, or the position in the file; null if it has no position.",
        "times": "Number of differences of this kind.",
    },
)
_DIFF = describe_object(
    DiffSummary,
    {
        **_STORE,
        **_LAKE,
        **_LABEL,
        "from_offset": "Physical offset at which the comparison began.",
        "to_offset": "Physical offset at which the comparison ended.",
        "equal": "Number of records that are equal in the store and in the lake.",
        "incomplete": "Number of rows of the lake without a body, from which no record can be built and compared.",
        "unchecked": f"{_RANGES} whose rows have no CRC to compare.",
        "differences": "Differences between the store and the lake.",
        "lost": "Missing or damaged files of the lake, one sentence each.",
        "broker_state": (
            "Findings on the store's configuration, positions of consumers and timers, compared with the lake."
        ),
        "notes": "Remarks, one sentence each.",
        **_SEVERITY,
        "bytes": (int, "Number of bytes of the log that were compared."),
        **_SECONDS,
    },
)
_STORE_DIFF = describe_object(
    StoreDiffSummary,
    {
        "first_store": "Location of the first store.",
        "second_store": "Location of the second store.",
        "from_offset": "Physical offset at which the comparison began.",
        "equal_until": "Physical offset up to which the logs are equal.",
        "first_end": "End of the first store's log.",
        "second_end": "End of the second store's log.",
        "equal_queues": "Number of queues that are equal for the equal part of the log.",
        "equal_index_files": "Number of index files that are equal.",
        "differences": "The first difference of each part.",
        "relation": "Which store continues the other, or where they differ, as a sentence.",
        **_SEVERITY,
        "bytes": (int, "Number of bytes of the log that were compared."),
        **_SECONDS,
    },
)
_RESTORABLE: Keys = {
    **_LABEL,
    "segments": "Number of restored segments.",
    "segment_size": "Size of a segment in bytes.",
    "segment_size_origin": "How that size is known.",
    "from_offset": "First physical offset of the restored log.",
    "to_offset": "Physical offset at which the restored log ends.",
    "messages": "Number of restored messages.",
    "missing": f"{_RANGES} that the lake does not have.",
    "expired": f"{_RANGES} that the lake does not have, because `optimize --keep` has removed them.",
    "assumed": f"{_RANGES} at the ends of full segments, filled as releases from 4.9.1 on leave them.",
    "causes": "Causes of the missing ranges, one sentence each.",
    "lost": "Missing or damaged files of the lake, one sentence each.",
    "incomplete": "Physical offsets of rows without a body, from which no record can be built.",
    "twice": f"{_RANGES} for which the lake has several rows.",
    "changed": "Physical offsets of rows that other data in the lake contradicts.",
    "unchecked": f"{_RANGES} whose rows have no CRC.",
    "newest_store_timestamp": "Store time of the newest restored message, in milliseconds since 1970.",
    "config": "Restored configuration files.",
    **_NOTES,
    **_SEVERITY,
}
_RESTORE = describe_object(
    RestoreSummary,
    {
        **_LAKE,
        **_OUT,
        **_RESTORABLE,
        "resumed": "Number of segments that an earlier, interrupted restore had completed.",
        "forms": "Sizes and release of queue and index files, and how they are known.",
        "log_folders": "Directories of the log below `out`; `commitlog`, unless the log was elsewhere.",
        "bytes": (int, "Size of the restored log in bytes."),
        **_SECONDS,
    },
)
_SHARED["restorable"] = describe_object(
    RestoreSummary,
    {
        **_RESTORABLE,
        "oldest_store_timestamp": (int, "Store time of the oldest restorable message, in milliseconds since 1970."),
        "missing_bytes": (int, "Number of bytes of the log that the lake does not have."),
    },
    {"lake", "out", "resumed", "forms", "log_folders"},
)
_NOT_RESTORABLE = _share(
    "not_restorable",
    StoreCheck,
    {**_LABEL, "severity": "Severity of the store.", "why_nothing": "Reason why nothing can be restored."},
    {"restored", "oldest_store_timestamp"},
)
_RESTORE_CHECK = describe_object(
    CheckSummary,
    {
        **_LAKE,
        **_SEVERITY,
        "stores": (
            _list_of({"anyOf": [{"$ref": "#/$defs/restorable"}, _NOT_RESTORABLE]}),
            "Result for each store, with `--check`: the part that can be restored, or why there is none.",
        ),
        "bytes": (int, "Size of the restorable log in bytes."),
        **_SECONDS,
    },
)


# --- ingest, type, export ---

_share(
    "gap",
    GapRow,
    {
        "broker": "Label of the store.",
        "from": "Physical offset at which the range begins.",
        "to": "Physical offset at which the range ends.",
        "why": "Reason, as text.",
    },
)
_FILLED = _share(
    "filled_range",
    FilledRange,
    {
        "from": ("start", "Physical offset at which the range begins."),
        "to": ("end", "Physical offset at which the range ends."),
        "source": "Directory from which the range was read.",
    },
)
_BACKFILLED = _share(
    "backfilled_topic",
    BackfilledTopic,
    {
        "topic": "Name of the topic.",
        "from": ("start", "Physical offset from which the messages were read."),
        "to": ("end", "Physical offset up to which the messages were read."),
        "source": "Directory from which the messages were read.",
    },
)
_share(
    "open_damage",
    OpenDamage,
    {
        "since_run": "First run that found damage; 0 if there is none.",
        "quarantined": "Number of damaged ranges.",
        "superseded": "Number of times that the broker truncated or rewrote its log.",
        "contradictions": "Number of queue units that contradict the log.",
        "gap_count": "Number of gaps in the log.",
        "gaps": "First of these gaps.",
        "unreadable": "Number of damaged RocksDB databases of queues.",
    },
)
_INGEST = describe_object(
    Summary,
    {
        **_STORE,
        **_LAKE,
        **_LABEL,
        "run": "Number of the run in the lake; null if there was nothing to commit.",
        "from_offset": "Physical offset at which the run began.",
        "to_offset": "Physical offset up to which the log is now in the lake.",
        "segment_ends": "Number of segments by the way in which they end.",
        "messages": "Number of messages added to the lake.",
        "quarantined": "Number of damaged ranges added to the table quarantine.",
        "units": "Number of queue units by the result of their comparison with the log.",
        "index_entries": "Number of index entries added to the lake.",
        "contradictions": "Number of queue units that contradict the log.",
        "behind": "Number of bytes of the log that the broker has not dispatched yet.",
        "gaps": "Ranges of the log that could not be read.",
        "filled": (_list_of(_FILLED), "Ranges that earlier runs found missing or damaged, and that this run has read."),
        "filled_messages": "Number of messages of these ranges that were added to the lake.",
        "backfilled": (_list_of(_BACKFILLED), "Topics that earlier runs left out, and that this run has read."),
        "backfilled_messages": "Number of messages of these topics that were added to the lake.",
        "unreadable": "Damaged RocksDB databases of queues, one sentence each.",
        "superseded": (
            "Rows of the lake that were replaced, because the broker truncated or rewrote its log; null if there "
            "are none."
        ),
        "left_out": (
            "Messages of the store that were not ingested, because the lake has newer ones at their offsets. The "
            "range ends at the end of the store's log; null if there are none."
        ),
        "lost_end": (
            "Records at the end of the log that the store has lost. The range begins at the end of the log, and "
            "ends where queues, index files or the lake have the last record; `why` states the evidence and the "
            "remedy. Null if there are none."
        ),
        "topics": "Selected topics, as options of the command; empty if all topics are ingested.",
        "selected_since": (
            "First run with this selection of topics, if an earlier run has stored it: 0 if unknown; null if this"
            " command selects the topics, or all are ingested."
        ),
        "release": "Release that wrote the store, and how it is known.",
        **_NOTES,
        "versions": "Delta version of each table after the run.",
        "recovered": "Number of an earlier, interrupted run that this run completed; null if there was none.",
        "open": "Damage found by runs since the last acknowledgement.",
        "plan": "Figures of the ranges to read, with `--dry-run`; null otherwise.",
        "seconds": "Duration of each step in seconds.",
        "steps": "Number of runs that this command committed.",
        "bytes_left": "Number of bytes of the log that the next step would read.",
        "newest_ms": (
            "Store time of the store's newest message in the lake, in milliseconds since 1970; null if there is none."
        ),
        "bytes": "Number of bytes of the log that were read.",
        **_SEVERITY,
    },
)
_REFUSED = {
    "error": {
        "description": "Why the command was refused with exit code 2; only then does the document have this key.",
        "type": "string",
    }
}
_share(
    "unknown_field",
    UnknownField,
    {
        "messages": "Number of messages with the field.",
        "at": "Physical offset of a message with the field.",
        "example": "Value of the field in that message, shortened.",
    },
)
_OPEN = _share(
    "open_dead_letters", None, {"since": (int, "Number of this run."), "dead_letters": (int, "Number of messages.")}
)
_share(
    "topic",
    TopicSummary,
    {
        "topic": "Topic.",
        "table": "Typed table.",
        "rows": "Number of rows added.",
        "dead_letters": "Number of messages added to the table dead_letters.",
        "reasons": "Number of dead letters by reason.",
        "removed": "Whether rows of truncated messages, or all earlier rows, were removed.",
        "retyped": "Whether all messages of the topic were typed again.",
        "accepted": "Number of earlier dead letters that are now rows.",
        "unknown": "Fields of bodies without a column, by path.",
        "new_columns": "Columns added to the table.",
        "open": (
            _or_null(_OPEN),
            "Dead letters since the run that exceeded its limit, if they are not acknowledged; otherwise null.",
        ),
    },
)
_TYPE = describe_object(
    TypingSummary,
    {
        "number": "Number of the typing in the lake; null if there was nothing to do.",
        "topics": "Result for each topic.",
        "recovered": "Number of an earlier, interrupted typing that this command completed; null if there was none.",
        "absent": (list[str], "Declared topics of which the lake has no message."),
        "not_found": (list[str], "The absent topics that the broker does not have either."),
        "too_many_dead_letters": (list[str], "Topics with more dead letters than the limit allows."),
        **_SECONDS,
    },
    {"absent_topics"},
)
_INFER = describe_object(None, {"proposal": (str, "Proposed types in the form of types.toml, with `--infer`.")})
_share(
    "defect",
    ExportDefect,
    {
        "broker": "Label of the store; null if it has none.",
        "offset": "Physical offset at which the range begins.",
        "size": "Size of the range in bytes.",
        "reason": "Reason why the range is missing or was exported as stored.",
    },
)
_share("reason", Reason, {"kind": "Kind of the reason, for scripts.", "text": "Human-readable reason."})
_EXPORT = describe_object(
    ExportSummary,
    {
        "messages": "Number of exported messages.",
        "bytes": "Size of the output in bytes.",
        **_OUT,
        "without_body": "Number of messages whose bodies are not in the lake.",
        "undecoded_bodies": (
            "Number of bodies that were read and left as stored, because they cannot be decompressed or are too "
            "large; with a condition on bodies, also those of messages that it excludes."
        ),
        "undecoded": "First of these bodies.",
        "damaged_bytes": "Number of damaged bytes of the log, whose messages are missing in the output.",
        "damaged": "First damaged ranges of the log.",
        "gaps": "Ranges of the log that are in no file.",
        "reason": (Reason | None, "Explanation of an empty export; null if a message was found."),
        **_NOTES,
        **_SEVERITY,
        **_SECONDS,
    },
    {"damaged_ranges", "file"},
)
_EXPORT_PLAN = describe_object(
    None,
    {
        "files": (int, "Number of files that would be read."),
        "bytes": (int, "Total size in bytes of the files that would be read."),
        "format": (str, "Output format."),
        **_OUT,
        "gaps": (list[ExportDefect], "Ranges of the log that are in no file."),
        **_SECONDS,
    },
)


# --- rebuild-index, rebuild-consumequeue ---

_KNOWN: Keys = {"origin": (str, "`given`, `detected` or `assumed`."), "evidence": (str, "Evidence, in words.")}
_REPLACED = "Files of the store that the rebuilt files replace."
_INSTALLED: Keys = {"installed": (bool, "Whether the files were installed in the store.")}
_GEOMETRY = _share(
    "geometry",
    None,
    {
        "hash_slots": (int, "Number of slots (maxHashSlotNum)."),
        "index_num": (int, "Number of entries (maxIndexNum)."),
        **_KNOWN,
    },
)
_RANGE_OF_RELEASE = _share(
    "range_of_release",
    None,
    {"from_offset": (int, "Physical offset at which the range begins."), "release": (str, "Release.")},
)
_RULES = _share(
    "rules",
    None,
    {
        "releases": (_list_of(_RANGE_OF_RELEASE), "Releases by the range of the log that they wrote."),
        "text": (str, "Releases as text."),
        **_KNOWN,
    },
)
_ZONE = _share("time_zone", None, {"zone": (str, "Name of the time zone."), **_KNOWN})
_SETTINGS: Keys = {
    "geometry": (_GEOMETRY, "Numbers of slots and entries of the index files."),
    "rules": (_RULES, "Releases whose rules the files follow."),
    "time_zone": (_ZONE, "Broker's time zone, in which the files are named."),
}
_share(
    "index_file",
    BuiltIndexFile,
    {
        "name": "Name of the file.",
        "kind": (
            "Kind of the file. An open file is the newest one; a supplement has keys that no file of a broker "
            "would have."
        ),
        "size": "Size in bytes.",
        "sha256": "SHA-256 of the file.",
        "header": (
            Mapping[str, int],
            "Fields of the header: times in milliseconds since 1970, physical offsets, and counts.",
        ),
        "first_key": "Number of the file's first key among all keys of the log.",
        "keys": "Number of keys in the file.",
        "ranges": "Number of ranges of the log that the keys come from.",
        "proven": "Whether the file is proven to be identical to the lost one.",
        "proof": "Evidence for that, or the reason why it is not proven.",
    },
    {"host", "state", "equal_name"},
)
_REFUSED_FILE: Keys = {
    "name": (str, "Name of the file."),
    "verdict": (str, "Classification of the file."),
    "detail": (str, "Details as human-readable text."),
}
_SURVIVOR = _share(
    "survivor",
    None,
    {
        **_REFUSED_FILE,
        "verdict": (str, "Result of the comparison with the log."),
        "role": (str, "`kept`, `lost`, `contradicts` or `stays`."),
        "differences": (list[str], "First differences from the expected file, in words."),
    },
)
_INDEX = describe_object(
    IndexRebuildSummary,
    {
        **_STORE,
        **_SETTINGS,
        "lost_only": "Whether only lost files are rebuilt.",
        "messages": ("records", "Number of messages in the log."),
        "keys": ("log_key_count", "Number of keys in the log."),
        "damaged_bytes": "Number of damaged bytes of the log.",
        **_HOLES,
        "left_out": ("left_out_keys", "Keys that are in no index file, and the reasons."),
        "files": "Files that were written.",
        "survivors": (_list_of(_SURVIVOR), "Existing index files of the store."),
        "replaced": _REPLACED,
        **_INSTALLED,
        **_SEVERITY,
        **_SECONDS,
    },
    None,
)
_PLAN: Keys = {
    **_STORE,
    **_OUT,
    "read": ("log_figures", "Figures of the log that would be read: ranges, segments, bytes and physical offsets."),
    **_HOLES,
    "kept": "Files of the store that would be kept.",
    "refused": (_list_of(_share("refused_file", None, _REFUSED_FILE)), "Files of the store that are not valid."),
    "write": ("written_text", "Description of the files that would be written."),
    **_SEVERITY,
    **_SECONDS,
}
_INDEX_PLAN = describe_object(
    DryRun, {**_PLAN, **_SETTINGS, "lost_only": (bool, "Whether only lost files are rebuilt.")}, None
)
_QUEUES = describe_object(
    QueueRebuildSummary,
    {
        **_STORE,
        **_OUT,
        "release": "Releases that wrote the store.",
        "release_origin": "How the releases are known.",
        "file_size": "Size of a queue file in bytes.",
        "from_offset": "Physical offset at which the rebuild began.",
        "records": "Number of records read.",
        "units": "Number of units written.",
        "queues": "Number of queues written.",
        "files": "Number of files written.",
        "damaged_bytes": "Number of damaged bytes of the log.",
        **_NOTES,
        **_HOLES,
        "blanks": "Number of blanks written in place of units of lost records.",
        "lost_only": "Whether only lost files were rebuilt.",
        "kept": "Number of correct files of the store that were kept.",
        "replaced": _REPLACED,
        "removed": "Copies of queue files under wrong names, which an installation sets aside.",
        "contradictions": (
            "Files of the store that contradict the log and were not replaced, because they may be right."
        ),
        "of_unknown_topics": "Missing files that were not rebuilt, because their topic may have been deleted.",
        "proof": "Evidence that the rebuilt files are correct; empty if there is none.",
        "has_lost_end": "Whether queues or index files point to lost records after the end of the log.",
        "log_bytes": "Number of bytes of the log that were read.",
        "to": "`files` or `rocksdb`.",
        "folder": "Directory of the database in the output; empty for files.",
        "has_place": "Whether the store's broker would read the rebuilt queues.",
        **_INSTALLED,
        **_SEVERITY,
        **_SECONDS,
    },
    {"written_queues"},
)
_QUEUES_PLAN = describe_object(
    DryRun,
    {
        **_PLAN,
        "release": (str, "Releases that wrote the store."),
        "release_origin": (str, "How the releases are known."),
        "file_size": (Mapping[str, int], "Size of a queue file in bytes, by kind of queue."),
        "ext_file_size": (int | None, "Size of a ConsumeQueueExt file in bytes; null if there are none."),
    },
    None,
)


# --- optimize, catalog ---

_SAVINGS = _share(
    "savings",
    Savings,
    {
        "table": "Table.",
        "merged": "Number of files that were replaced.",
        "written": "Number of files that replaced them.",
        "bytes_before": "Size of the replaced files in bytes.",
        "bytes_after": "Size of the files that replaced them in bytes; null if it is unknown in advance.",
        "vacuumed": "Number of obsolete files that were deleted.",
    },
)
_share(
    "expired",
    ExpirySummary,
    {
        **_LABEL,
        "messages": "Number of messages that have expired since the expiry before.",
        "to_offset": "Physical offset before which every message has expired.",
        "tables": "Tables that have lost rows.",
    },
)
_OPTIMIZE_KEEP = describe_object(
    None,
    {
        "expired": (list[ExpirySummary], "Expired messages of each store, with `--keep`."),
        "tables": (list[Savings], "Effect on each table."),
        **_SECONDS,
    },
)
_STATEMENT = _share(
    "statement",
    None,
    {
        "table": (str | None, "Table; null for a statement about the schema of all tables."),
        "text": (str, "SQL statement to run in the catalog."),
    },
)
_REGISTRATION = _share(
    "registration",
    Registration,
    {
        "table": "Table.",
        "version": "Version of the Delta table that was registered.",
        "added": "Number of files added to the Iceberg table.",
        "removed": "Number of files removed from the Iceberg table.",
    },
)


# --- inspect ---

_share(
    "segment",
    SegmentReport,
    {
        "file": "Path of the segment.",
        "base_offset": "Physical offset of the segment's first byte.",
        "size": "Size in bytes.",
        "framing": "Header before each record: `plain` for none, `dledger` for a DLedger entry header.",
        "end": "How the segment ends, for example sealed, open or damaged.",
        "end_offset": "Physical offset at which the segment's records end; null if unknown.",
        "first_store_timestamp": f"{_FIRST_TIME} unknown.",
        "last_store_timestamp": f"{_LAST_TIME} unknown.",
        "records": "Number of records; null unless the segment was read completely.",
    },
)
_share(
    "log",
    LogReport,
    {
        "segments": "Segments in log order.",
        "start_offset": "First physical offset on disk.",
        "end_offset": "Physical offset after the last record; null if unknown.",
        "first_store_timestamp": f"{_FIRST_TIME} unknown.",
        "last_store_timestamp": f"{_LAST_TIME} unknown.",
        "waiting_bytes": "Size in bytes of a last record that is not complete yet.",
        "lost_bytes": (
            "Size in bytes of the messages after the end of the log to which queues or index files point: the end"
            " of the log was lost, or it was copied before these files."
        ),
        "left_over_bytes": (
            "Size in bytes of old records after the end of the log, left over from before it was truncated."
        ),
        "records": "Number of records; null without `--deep`.",
        "topics": "Number of records by topic, with `--deep`.",
    },
)
_share(
    "queue",
    QueueReport,
    {
        "kind": "Kind of the queue: `consumequeue` or `batchconsumequeue`.",
        "topic": "Topic of the queue.",
        "queue_id": "Id of the queue in its topic.",
        "files": "Number of files.",
        "bytes": "Total size of the files in bytes.",
        "first_unit": "Number of the first unit on disk.",
        "next_unit": "Number of the unit that the broker writes next.",
        "min_offset": "Minimum queue offset, as mqadmin topicStatus prints it.",
        "max_offset": "Maximum queue offset, as mqadmin topicStatus prints it.",
        "first_physical_offset": "Physical offset to which the first unit points; null without units.",
        "last_physical_offset": "Physical offset to which the last unit points; null without units.",
        "left_over": "Number of units at the end whose messages a promotion truncated.",
    },
)
_share(
    "queues",
    QueuesReport,
    {
        "queues": "Queues, sorted by name.",
        "ext_files": "Number of ConsumeQueueExt files.",
        "in_rocksdb": "Whether the store has queues in RocksDB.",
        "units_in_rocksdb": "Number of units in RocksDB, of queues without files.",
        "deleted_topics": "Deleted topics whose messages are still in the log.",
        "units": (int, "Number of units of all queues."),
    },
)
_INDEX_FILES = _share(
    "index",
    None,
    {
        "files": (
            list[Mapping[str, int | str]],
            "Index files in order: path, size in bytes, and the fields of the header.",
        ),
        "hash_slots": (int | None, "Number of slots (maxHashSlotNum); null if unknown."),
        "index_num": (int | None, "Number of entries (maxIndexNum); null if unknown."),
        "geometry_origin": (str, "How these numbers are known."),
    },
)
_WAITING = "Number of timer messages that are not delivered yet."
_share(
    "rocksdb",
    RocksReport,
    {
        "index_rows": "Number of index rows, counted up to a limit.",
        "pending_transactions": "Number of transactions that are neither committed nor rolled back.",
        "oldest_transaction": (
            "Physical offset of the half message of the oldest pending transaction; null if there is none."
        ),
        "waiting_timers": _WAITING,
        "first_due": _DUE.format("first"),
        "last_due": _DUE.format("last"),
    },
)
_TIMERS = _share(
    "timers",
    None,
    {
        "wheel": (str, "Path of the timer wheel that was read."),
        "waiting": (int, _WAITING),
        "first_due": (int | None, _DUE.format("first")),
        "last_due": (int | None, _DUE.format("last")),
    },
)
_DIRECTORY = _share(
    "folder",
    None,
    {
        "folder": (str, "Path of the directory, relative to the store's root; empty for the root."),
        "kind": (str, "Kind of the files."),
        "files": (int, "Number of files."),
        "bytes": (int, "Total size of the files in bytes."),
    },
)
_share(
    "state",
    StateReport,
    {
        "broker": "Whether the broker runs, was killed or was shut down, in words.",
        "process": "Process that holds the store's lock; null if none does.",
        "abort": "Content of the file abort; null if it does not exist.",
        "checkpoint": "Fields of the checkpoint (times in milliseconds, offsets in bytes); null if it cannot be read.",
        "unknown_files": "Number of files of unknown kind.",
        "replica": "Cluster, broker and number of the replica in controller mode; null otherwise.",
        "epochs": (
            list[tuple[int, int]],
            "Epochs of masters in controller mode, each with its number and its first physical offset.",
        ),
        "folders": (_list_of(_DIRECTORY), "Files other than log, queues and index, by directory and kind."),
        "log_folders": "Directories with files that are named like segments but were not passed as `--commitlog`.",
        "rocksdb": "Index, transactions and timer messages in RocksDB; null if the store has none.",
        "timers": (_or_null(_TIMERS), "Timer messages in the broker's timer files; null if it has no such files."),
    },
)
_MARK = _share(
    "mark",
    None,
    {
        "reason": (str, "Evidence, in words."),
        "offset": (int | None, "Physical offset of the record that shows it; null if a file shows it."),
    },
)
_ERA = _share(
    "era",
    None,
    {
        "from_offset": (int, "Physical offset at which the range begins."),
        "lowest": (str, "Oldest possible release."),
        "highest": (str, "Newest possible release."),
        "candidates": (list[str], "All possible releases."),
        "marks": (_list_of(_MARK), "Evidence for these releases."),
    },
)
_CONTENTS = {"enum": [usage_report.MESSAGES, usage_report.RETRIES, usage_report.DEAD_LETTERS, usage_report.LIGHT_QUEUE]}
_share(
    "topic_usage",
    usage_report.TopicUsage,
    {
        "topic": "Name of the topic.",
        "group": "Consumer group whose retries or dead letters the topic has; null for other topics.",
        "content": (_CONTENTS, "Content of the topic. The units of a light queue point to records of another topic."),
        "record_bytes": "Bytes of the topic's records in the log; 0 for a light queue.",
        "records": "Number of the topic's records in the log.",
        "first_offset": "Physical offset of the first record; null if there is none.",
        "last_offset": "Physical offset of the last record; null if there is none.",
        "first_store_timestamp": f"{_FIRST_TIME} it cannot be read.",
        "last_store_timestamp": f"{_LAST_TIME} it cannot be read.",
    },
)
_share(
    "unconsumed",
    usage_report.UnconsumedMessages,
    {
        "topic": "Name of the topic.",
        "group": "Name of the consumer group.",
        "messages": "Number of messages that the group has not consumed.",
    },
)
_share(
    "next_deletion",
    usage_report.NextDeletion,
    {
        "segment": "Location of the segment.",
        "segment_bytes": "Size of the segment.",
        "last_store_timestamp": "Store time of its last record that a queue points to, in ms; null if there is none.",
        "records": "Number of its records that queues point to.",
        "unconsumed": "Messages in the segment that groups have not consumed yet.",
    },
)
_share(
    "usage",
    usage_report.Usage,
    {
        "log_bytes": (
            "Sum of the sizes of all segments. The bytes of the topics, `unused_bytes` and `unattributed_bytes` "
            "add up to it."
        ),
        "topics": "The topics, largest first.",
        "unused_bytes": "Bytes after the end of the log.",
        "unattributed_bytes": (
            "Bytes of no topic: ends of segments, entry headers of DLedger, records without units, damage. "
            "Negative if the estimates of the topics exceed the log."
        ),
        "is_estimated": "Whether sizes were estimated from some of the units.",
        "next_deletion": "Segment that retention deletes next; null if there is only one segment.",
    },
)
_share(
    "problem",
    Problem,
    {
        "severity": "Severity of the problem.",
        "file": "Location of the file, or the path of a missing queue relative to the store's root.",
        "text": "Description of the problem.",
        "offset": (
            "Physical offset for a problem in the log, otherwise the position in the file in bytes; null if the "
            "problem has no position."
        ),
    },
)
_NEXT = _share("next", None, {"run": (str, "Command line to run."), "why": (str, "Reason to run it.")})
_INSPECT = describe_object(
    StoreReport,
    {
        **_STORE,
        "health": "Worst severity of the problems.",
        **_START,
        "state": "Content of the store's small files.",
        "log": "CommitLog.",
        "queues": "ConsumeQueues.",
        "index": (_INDEX_FILES, "IndexFiles."),
        "releases": (_list_of(_ERA), "Releases that may have written the log, by range."),
        "usage": "Space that topics take in the log; null without `--usage`.",
        "problems": (list[Problem], "Problems that were found."),
        "next": (_list_of(_NEXT), "Recommended commands."),
    },
    {"eras", "deep", "options"},
)


# --- the schemas ---


def _document(*objects: Schema, optional: Schema = _ENGINE_KEY) -> Schema:
    """Return the schema of a document that is one of these objects, with *optional* keys."""
    if len(objects) > 1:
        return {"type": "object", "anyOf": list(objects), "properties": optional}
    (only,) = objects
    return only | {"properties": only["properties"] | optional}


def _array(*rows: Schema) -> Schema:
    return _list_of(rows[0] if len(rows) == 1 else {"anyOf": list(rows)})


_DOCUMENTS = {
    "catalog": _array(_STATEMENT, _REGISTRATION),
    "diff": _document(_DIFF, _STORE_DIFF),
    "export": _document(_EXPORT, _EXPORT_PLAN),
    "ingest": _document(_INGEST, optional=_ENGINE_KEY | _REFUSED),
    "inspect": _document(_INSPECT, optional={}),
    "optimize": {
        "anyOf": [_array(_SAVINGS), _OPTIMIZE_KEEP | {"properties": _OPTIMIZE_KEEP["properties"] | _ENGINE_KEY}]
    },
    "rebuild-consumequeue": _document(_QUEUES, _QUEUES_PLAN),
    "rebuild-index": _document(_INDEX, _INDEX_PLAN),
    "repair": _document(_REPAIR, _UNDO),
    "restore": _document(_RESTORE, _RESTORE_CHECK),
    "type": _document(_TYPE, _INFER),
    "verify": _document(_VERIFY),
}
_VERSIONS: Mapping[str, int] = {}  # 1 unless a field has changed its meaning or was removed


def _list_references(schema: object) -> Iterator[str]:
    """Yield the names of the shared parts that a schema refers to, also through other parts."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix("#/$defs/")
            yield name
            yield from _list_references(_SHARED[name])
        for value in schema.values():
            yield from _list_references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _list_references(value)


def generate_schemas() -> dict[str, str]:
    """Return the texts of the generated files, by name."""
    texts = {}
    for command, schema in _DOCUMENTS.items():
        document = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:rmq-lake:schema:{command}:{_VERSIONS.get(command, 1)}",
            "title": f"rmq-lake {command} --json",
            **schema,
            "$defs": {name: _SHARED[name] for name in sorted(set(_list_references(schema)))},
        }
        texts[f"{command}.json"] = json.dumps(document, indent=1) + "\n"
    return texts


def write_schemas() -> None:
    """Write the generated files to docs/schemas."""
    for name, text in generate_schemas().items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
