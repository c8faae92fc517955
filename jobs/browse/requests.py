"""The requests of pages, and their replies, which processes exchange."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple


class PageRequest(NamedTuple):
    """A page that a browser requests."""

    path: str
    query: Mapping[str, str]
    language: str
    before: str | None = None  # for a download, the position at which the previous part ended


class PageReply(NamedTuple):
    """The response to a request: the part of a page below its head, or a file."""

    content: bytes
    status: int = HTTPStatus.OK
    location: str = ""  # the target of a redirect
    next_position: str | None = None  # for a download, the position at which its next part begins
