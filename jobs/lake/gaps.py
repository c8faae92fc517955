"""Offsets of a log that a lake will not have, as manifests and summaries name them."""

from typing import TypedDict

GapRow = TypedDict("GapRow", {"broker": str, "from": int, "to": int, "why": str})
