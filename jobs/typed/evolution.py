"""
A declaration that was changed: what its table keeps, and what would be lost.

Three things may happen to a table without a word of the user. It keeps its rows where the new declaration reads each
of them as the old one did, and may read more; it gets columns; it is rebuilt where a type is wider.
"""

from collections.abc import Mapping
from enum import Enum

from jobs.typed.ddl import narrowed, parse_columns
from jobs.typed.declaration import TopicType

_BY_COLUMN = ("columns", "from", "properties")
_MORE = ("epoch", "time_zone")  # given later, they make no row another one: without them such a body is a dead letter


class Change(Enum):
    """The effect of a declaration on a table that was made by an earlier one."""

    NOTHING = "its rows are as they are declared"
    MORE = "bodies may fit now that did not before"
    WIDER = "it is to be rebuilt"


class LosingError(Exception):
    """The table of an earlier declaration has values that the new one has no place for; the message says which."""


def change_of(type_: TopicType, declared: Mapping[str, object]) -> Change:
    """Return the change that a table *declared* before needs; `LosingError` where values would be lost."""
    now = type_.described()
    if now == declared:
        return Change.NOTHING
    if "by" in now or "by" in declared:
        return _change_of_several(type_, now, declared)
    old = {column.name: column for column in parse_columns(str(declared["columns"]))}
    new = {column.name: column for column in type_.all_columns}
    if lost := narrowed(list(new.values()), list(old.values())):
        raise LosingError(f"without, or with another type of: {', '.join(lost)}")
    changed = {name for name in ("from", "properties") if _about(old, now[name]) != _about(old, declared[name])}
    changed |= {
        key
        for key in now.keys() | declared.keys()
        if key not in _BY_COLUMN
        and now.get(key) != declared.get(key)
        and not (key in _MORE and declared.get(key) is None)
    }
    if changed:
        raise LosingError(f"with another {', '.join(sorted(changed))}")
    demanded = [
        one.name for one in new.values() if not one.nullable and (one.name not in old or old[one.name].nullable)
    ]
    if demanded:
        raise LosingError(f"where this may be NULL: {', '.join(demanded)}")
    is_wider = any(new[name].type != column.type for name, column in old.items())
    return Change.WIDER if is_wider else Change.MORE


def _change_of_several(type_: TopicType, now: Mapping[str, object], declared: Mapping[str, object]) -> Change:
    """Return the greatest change of a type; one that is added has dead letters that are its rows."""
    types = declared.get("types")
    if now.get("by") != declared.get("by") or not isinstance(types, Mapping):
        raise LosingError("with another by")
    if types.keys() - type_.types.keys():
        raise LosingError(f"without these types: {', '.join(sorted(types.keys() - type_.types.keys()))}")
    changes = [change_of(one, types[name]) if name in types else Change.WIDER for name, one in type_.types.items()]
    return max(changes, key=list(Change).index)


def _about(columns: Mapping[str, object], named: object) -> object:
    """Return the part of a declaration that names these columns."""
    if isinstance(named, Mapping):
        return {name: source for name, source in named.items() if name in columns}
    return {one for one in named if one.partition("=")[0] in columns} if isinstance(named, list) else named
