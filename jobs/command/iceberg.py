"""The option `--iceberg`: a catalog in which readers of Iceberg find the lake after each commit."""

import re
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

import click

from jobs.command.options import ParsedType
from jobs.console.log import say
from rmq_formats.errors import FormatError

if TYPE_CHECKING:
    from jobs.lake.iceberg import Registrar, Registration, Target
    from jobs.lake.lake import Lake

_NAME = re.compile(r"[\w-]+(\.\w+)*")
_PAUSE_S = 60.0  # after a failure, while a store is followed
_LAST_S = 60.0  # for a registration that is at work when everything else is done


def _target(text: str) -> "Target":
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r}: the name of a catalog, and of a namespace after a dot")
    from jobs.lake.iceberg import target_of

    return target_of(text)


iceberg_option = click.option(
    "--iceberg",
    type=ParsedType("catalog", _target),
    metavar="CATALOG[.NAMESPACE]",
    help="After each commit, also register the lake's tables in this Iceberg catalog, without copying files. CATALOG "
    "is a name in pyiceberg's configuration; NAMESPACE is rocketmq by default.",
)


class Registrations:
    """Registers a lake in a catalog, if there is one to do it in; a failure waits until everything else is done."""

    def __init__(self, target: "Target | None") -> None:
        """Without a *target* nothing is done."""
        self._target = target
        self._registrar: Registrar | None = None
        self._thread: Thread | None = None
        self._again = 0.0  # not before
        self._failure: Exception | None = None

    def register(self, lake: "Lake") -> "list[Registration]":
        """Bring the catalog up to date; say why it could not be done."""
        if self._target is None:
            return []
        from jobs.lake.iceberg import Registrar
        from jobs.typed.typings import typed_tables

        self._registrar = self._registrar or Registrar(self._target)
        try:
            done = self._registrar.register(lake, typed_tables(lake))
        except (OSError, FormatError) as error:  # raised by `raise_failure`, when everything else is done
            self._failure, self._again = error, monotonic() + _PAUSE_S
            return []
        self._failure = None
        return done

    def begin(self, lake: "Lake") -> None:
        """Bring the catalog up to date while the next commit is prepared: a catalog that hangs must not stop it."""
        is_at_work = self._thread is not None and self._thread.is_alive()
        if self._target is None or is_at_work or monotonic() < self._again:
            return
        self._thread = Thread(target=self._register_and_say, args=(lake,), daemon=True)
        self._thread.start()

    def _register_and_say(self, lake: "Lake") -> None:
        self.register(lake)
        if self._failure is not None:
            say(f"rmq-lake: {self._failure}", "error")

    def finish(self, lake: "Lake") -> None:
        """Bring the catalog up to date after the last commit."""
        # A registration that is at work may have read the tables before that commit: it ends first, then comes another.
        if self._thread is not None:
            self._thread.join(_LAST_S)
            if self._thread.is_alive():
                self._failure = OSError(
                    f"Iceberg catalog {self._target}: no answer for {_LAST_S:.0f} s; the Delta tables of "
                    f"{lake.location} are complete, and the next command with --iceberg registers what is missing"
                )
                return
        self.register(lake)

    def raise_failure(self) -> None:
        """Raise the error of the last attempt, if it had one."""
        if self._failure is not None:
            raise self._failure
