"""A broker's `config/*.json` files: JSON but for numbers as names, which the broker's writer does not quote."""

import json
import re
from collections.abc import Mapping
from io import StringIO

from rmq_formats.errors import CorruptData

# A text, or a number where a name should be. Texts are matched first, so that nothing inside them is. Repeats give
# nothing back (`*+`): for each way back `re` notes 130 bytes, which are gigabytes for a text of some megabytes.
_NUMBER_AS_NAME = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{,]\s*+(-?[0-9]++)(?=\s*+:)')
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # of a pair, or alone


def decode_config(raw: bytes) -> dict[str, object]:
    """Return the object in a configuration file; `CorruptData` when it is none."""
    text = raw.decode("utf-8", "replace")
    has_half = _HALF_CHARACTER.search(text) is not None
    text = _with_quoted_names(text)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is also a ValueError
        raise CorruptData(f"no JSON: {error}") from error
    if has_half:  # which no UTF-8 can hold: a broker's writer also makes a question mark of it
        values = json.loads(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    if not isinstance(values, dict):
        raise CorruptData(f"JSON, but no object: {type(values).__name__}")
    return values


def _with_quoted_names(text: str) -> str:
    """Return JSON; written piece by piece, for a list of the names of a million positions takes ten times as much."""
    quoted, end = StringIO(), 0
    for found in _NUMBER_AS_NAME.finditer(text):
        if found[1]:
            quoted.write(f'{text[end : found.start(1)]}"{found[1]}"')
            end = found.end(1)
    quoted.write(text[end:])
    return quoted.getvalue()


def change_counter(config: Mapping[str, object]) -> int:
    """Return how many changes a file counts; 0 where it does not, as up to 4.9.3."""
    version = config.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else None
    return counter if isinstance(counter, int) else 0


def change_time(config: Mapping[str, object]) -> int | None:
    """Return when a file's table was last changed, in ms; None where it does not say."""
    version = config.get("dataVersion")
    timestamp = version.get("timestamp") if isinstance(version, dict) else None
    return timestamp if isinstance(timestamp, int) else None
