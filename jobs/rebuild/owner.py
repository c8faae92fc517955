"""
Acting as the user whom a store belongs to.

Root follows a path into a store that somebody else may change at the same moment: a link may be there by then that was
not there before. Whoever acts as the store's owner can do no more in it than the owner can.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Owner(NamedTuple):
    """The owner and the mode of files in the index directory."""

    user: int
    group: int
    directory_mode: int
    file_mode: int


@contextmanager
def acting_as(user: int, group: int) -> Iterator[None]:
    """Temporarily switch effective user and group (root only; otherwise do nothing)."""
    if os.geteuid() != 0 or user == 0:
        yield
        return
    groups, before = os.getgroups(), os.getegid()
    os.setgroups([group])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)
        os.setgroups(groups)


@contextmanager
def acting_as_before() -> Iterator[None]:
    """Within `acting_as`, act as root once more: for our own files outside the store."""
    user, group = os.geteuid(), os.getegid()
    if user == os.getuid():
        yield
        return
    os.seteuid(os.getuid())
    os.setegid(os.getgid())
    try:
        yield
    finally:
        os.setegid(group)
        os.seteuid(user)
