"""What `docs/internals/formats.md` has to say, rendered from the declarations: layouts, switches, bits."""

import pkgutil
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import rmq_formats
from rmq_formats import flags
from rmq_formats.layout import Layout
from rmq_formats.release import SWITCHES


def layouts() -> Iterator[tuple[str, Layout]]:
    for module in pkgutil.walk_packages(rmq_formats.__path__, "rmq_formats."):
        if module.name.endswith(("layout", "store", "message_id", "tier_index", "timer_files")):
            for name, value in vars(import_module(module.name)).items():
                if isinstance(value, Layout):
                    yield f"{module.name}.{name}", value
                elif isinstance(value, dict) and all(isinstance(layout, Layout) for layout in value.values()):
                    yield from ((f"{module.name}.{name}[{key}]", layout) for key, layout in value.items())


def layout_table(layout: Layout) -> str:
    lines = ["| Offset | Bytes | Name | Type | Meaning |", "|---:|---:|---|---|---|"]
    lines += [f"| {row.offset} | {row.size} | {row.name} | {row.kind} | {row.meaning} |" for row in layout.rows()]
    return "\n".join(lines)


def switch_text(name: str) -> str:
    (_, first), *later = SWITCHES[name].items()
    return "; ".join([_value(first), *(f"{since} {_value(value)}" for since, value in later)])


def _value(value: Any) -> str:  # noqa: ANN401 - each switch has its own type
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value.value if isinstance(value, Enum) else value)


def flag_bits() -> dict[str, int]:
    return {
        name: value
        for name, value in vars(flags).items()
        if name.isupper() and isinstance(value, int) and not name.endswith("SHIFT")
    }
