"""
mqadmin's own command lines: which letters a release knows, and what they mean there.

Letters change: `-c` of queryMsgByKey does not exist at first, then is the largest number of messages, then the cluster.
"""

from collections.abc import Mapping, Sequence
from getopt import GetoptError, gnu_getopt
from pathlib import PurePath
from typing import NamedTuple

from jobs.query.charset import check_charset
from jobs.query.mqadmin.unanswered import why_unanswered
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.release import Release, Version


class Letter(NamedTuple):
    """One option of a command, in the releases [since, until)."""

    letter: str
    name: str  # its long form, and its name here
    is_required: bool = False
    since: str = ""
    until: str = ""
    has_value: bool = True

    def is_known_to(self, version: Version) -> bool:
        """Return whether a release has the option."""
        after = not self.since or Version.parse(self.since) <= version
        return after and (not self.until or version < Version.parse(self.until))


_ALWAYS = (Letter("n", "namesrvAddr"), Letter("h", "help", has_value=False))
_TOPIC = Letter("t", "topic", is_required=True)
_CLUSTER = Letter("c", "cluster", since="5.3.1")
_DIRECTLY = (Letter("g", "consumerGroup"), Letter("d", "clientId"))  # hand a message to a consumer: needs a broker

COMMANDS: Mapping[str, tuple[Letter, ...]] = {
    "queryMsgByKey": (
        _TOPIC,
        Letter("k", "msgKey", is_required=True),
        Letter("b", "beginTimestamp", since="5.1.1"),
        Letter("e", "endTimestamp", since="5.1.1"),
        Letter("c", "maxNum", since="5.1.1", until="5.3.1"),
        Letter("m", "maxNum", since="5.3.1"),
        _CLUSTER,
        Letter("p", "keyType", since="5.4.0"),
        Letter("l", "lastKey", since="5.4.0"),
    ),
    "queryMsgById": (
        Letter("i", "msgId", is_required=True),
        Letter("t", "topic", since="5.3.0"),  # required there; here an offset id is enough
        *_DIRECTLY,
        Letter("s", "sendMessage"),
        Letter("u", "unitName"),
        Letter("f", "bodyFormat", since="5.0.0"),
        Letter("c", "cluster", since="5.3.0"),
    ),
    "queryMsgByUniqueKey": (
        Letter("i", "msgId", is_required=True),
        _TOPIC,
        *_DIRECTLY,
        Letter("a", "showAll", since="4.9.0", has_value=False),
        _CLUSTER,
        Letter("s", "startTime", since="5.4.0"),
        Letter("e", "endTime", since="5.4.0"),
    ),
    "queryMsgByOffset": (
        _TOPIC,
        Letter("b", "brokerName", is_required=True),
        Letter("i", "queueId", is_required=True),
        Letter("o", "offset", is_required=True),
        Letter("f", "bodyFormat", since="5.0.0"),
        Letter("r", "routeTopic", since="5.5.0"),
    ),
    "queryMsgTraceById": (
        Letter("i", "msgId", is_required=True),
        Letter("t", "traceTopic"),
        Letter("b", "beginTimestamp", since="5.1.1"),
        Letter("e", "endTimestamp", since="5.1.1"),
        Letter("c", "maxNum", since="5.1.1"),
    ),
    "printMsg": (
        _TOPIC,
        Letter("c", "charsetName"),
        Letter("s", "subExpression"),
        Letter("b", "beginTimestamp"),
        Letter("e", "endTimestamp"),
        Letter("d", "printBody"),
        Letter("l", "lmqParentTopic", since="5.3.2"),
    ),
    "printMsgByQueue": (
        _TOPIC,
        Letter("a", "brokerName", is_required=True),
        Letter("i", "queueId", is_required=True),
        Letter("c", "charsetName"),
        Letter("s", "subExpression"),
        Letter("b", "beginTimestamp"),
        Letter("e", "endTimestamp"),
        Letter("p", "printMsg"),
        Letter("d", "printBody"),
        Letter("f", "calculate"),
    ),
    "consumeMessage": (
        _TOPIC,
        Letter("b", "brokerName"),
        Letter("i", "queueId"),
        Letter("o", "offset"),
        Letter("g", "consumerGroup"),
        Letter("s", "beginTimestamp"),
        Letter("e", "endTimestamp"),
        Letter("c", "messageNumber"),
    ),
    "queryCq": (
        _TOPIC,
        Letter("q", "queue", is_required=True),
        Letter("i", "index", is_required=True),
        Letter("c", "count"),
        Letter("b", "broker"),
        Letter("g", "consumer"),
    ),
    "topicStatus": (_TOPIC, _CLUSTER),
    "topicList": (Letter("c", "clusterModel", has_value=False),),
    "consumerProgress": (
        Letter("g", "groupName"),
        Letter("t", "topicName", since="5.0.0"),
        Letter("s", "showClientIP"),
        _CLUSTER,
    ),
    "getConsumerConfig": (Letter("g", "groupName", is_required=True),),
}
_SHELLS = frozenset({"sh", "bash"})
_PROGRAMS = frozenset({"mqadmin", "mqadmin.cmd"})
# queryCq is not in 4.0.0; what the other two printed before 4.9.8 is not known here.
# queryMsgTraceById of 4.8.0 prints the address of the machine that it runs on.
_SINCE = {
    "queryCq": "4.1.0",
    "consumerProgress": "4.9.8",
    "getConsumerConfig": "4.9.8",
    "queryMsgTraceById": "4.9.0",
    "consumeMessage": "4.3.0",
}


class Line(NamedTuple):
    """A command line that was understood: the command, and its options by their long names."""

    command: str
    options: Mapping[str, str]

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a number that the line gives."""
        text = self.options.get(name)
        if text is None and default is not None:
            return default
        try:
            return int(text or "")
        except ValueError as error:
            reason = f"{self.command}: {text!r} is no number for {name}"
            raise UnsupportedFormat(reason) from error

    def charset(self, name: str, default: str | None) -> str | None:
        """Return a charset that the line gives."""
        text = self.options.get(name)
        if text is None:
            return default
        try:
            check_charset(text)
        except ValueError as error:
            reason = f"{self.command}: {error}"
            raise UnsupportedFormat(reason) from error
        return text


def parse(arguments: Sequence[str], release: Release) -> Line:
    """Read a line as the mqadmin of *release* does; `UnsupportedFormat` says what it would not take."""
    words = _without_program(arguments)
    word = words.pop(0) if words else ""
    # mqadmin does not look at the case: up to 4.9.3 it wrote QueryMsgTraceById itself.
    name = next((command for command in COMMANDS if command.lower() == word.lower()), word)
    why = why_unanswered(name)
    if why is not None:
        reason = f"mqadmin {name} is not answered from a disk: it {why}"
        raise UnsupportedFormat(reason)
    if name not in COMMANDS or not _has(release, name):
        known = ", ".join(command for command in COMMANDS if _has(release, command))
        reason = f"{name!r} is no mqadmin command that is answered here for RocketMQ {release}; these are: {known}"
        raise UnsupportedFormat(reason)
    letters = [letter for letter in (*COMMANDS[name], *_ALWAYS) if letter.is_known_to(release.version)]
    return Line(name, _options(name, words, letters, release))


def _without_program(arguments: Sequence[str]) -> list[str]:
    """Return the words of a pasted line after the program: `mqadmin`, `sh mqadmin`, `bin/mqadmin`, a path to it."""
    words = list(arguments)
    if words and PurePath(words[0]).name in _SHELLS:
        words.pop(0)
    if words and PurePath(words[0].replace("\\", "/")).name in _PROGRAMS:
        words.pop(0)
    return words


def _has(release: Release, command: str) -> bool:
    return release.version >= Version.parse(_SINCE.get(command, "0.0.0"))


def _options(command: str, words: list[str], letters: Sequence[Letter], release: Release) -> Mapping[str, str]:
    short = "".join(letter.letter + ":" * letter.has_value for letter in letters)
    long = [letter.name + "=" * letter.has_value for letter in letters]
    try:
        given, surplus = gnu_getopt(words, short, long)
    except GetoptError as error:
        reason = f"mqadmin {command} of RocketMQ {release}: {error}"
        raise UnsupportedFormat(reason) from error
    if surplus:
        reason = f"mqadmin {command}: {surplus[0]!r} belongs to no option"
        raise UnsupportedFormat(reason)
    names = {f"-{letter.letter}": letter.name for letter in letters}
    options = {names.get(option, option.removeprefix("--")): value.strip() for option, value in given}
    for letter in letters:
        if letter.is_required and letter.name not in options:
            reason = f"mqadmin {command} of RocketMQ {release} needs -{letter.letter} ({letter.name})"
            raise UnsupportedFormat(reason)
    return options
