"""A DLedger group of three brokers, each a process with a store of its own, whose members can be killed."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from tests.oracle.process import DriverProcess
from tests.oracle.sessions import RealBroker, open_broker
from tests.support.ports import free_port
from tests.support.waiting import wait_until

MEMBERS: Final = ("n0", "n1", "n2")


class Role(NamedTuple):
    """What a member is in its group, and the numbers of the last entry that it has and that a majority has."""

    leads: bool
    term: int
    end: int
    committed: int


class Group:
    """Members by name; `store_of` says where each has its store."""

    def __init__(self, release: str, directory: Path) -> None:
        self._release = release
        self._directory = directory
        self._peers = ";".join(f"{name}-127.0.0.1:{free_port()}" for name in MEMBERS)
        self._running: dict[str, tuple[DriverProcess, RealBroker, ExitStack]] = {}

    def store_of(self, name: str) -> Path:
        return self._directory / name / "store"

    def start(self, *names: str) -> None:
        settings = {"enableDLegerCommitLog": "true", "dLegerGroup": "b0", "dLegerPeers": self._peers}
        for name in names:
            place = self._directory / name
            stack = ExitStack()
            driver = stack.enter_context(DriverProcess(self._release, place))
            own = settings | {"dLegerSelfId": name}
            opened = open_broker(driver, self.store_of(name), settings=own, home=place / "home")
            self._running[name] = driver, stack.enter_context(opened), stack

    def kill(self, *names: str) -> None:
        """Kill members as a power cut would."""
        for name in names:
            driver, _, stack = self._running.pop(name)
            driver.kill()
            stack.close()

    def stop(self, *names: str) -> None:
        for name in names:
            self._running.pop(name)[2].close()

    def member(self, name: str) -> RealBroker:
        return self._running[name][1]

    def role(self, name: str) -> Role:
        answer = self._running[name][0].ask("role")
        return Role(answer["leads"] == "true", *(int(answer[key]) for key in ("term", "end", "committed")))

    def leader(self) -> str:
        leaders = wait_until(lambda: [name for name in self._running if self.role(name).leads], lambda: "nobody leads")
        return leaders[0]

    def await_agreement(self) -> None:
        """Wait until all running members have the same entries, and know that a majority has them."""
        wait_until(
            lambda: len({number for name in self._running for number in self.role(name)[2:]}) == 1,
            lambda: {name: self.role(name) for name in self._running},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*list(self._running))
