"""
mqadmin's command lines: the option letters of each release, and their meaning.

Letters change their meaning: `-c` of queryMsgByKey does not exist at first, then is the maximum number of messages,
then the cluster.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from getopt import GetoptError, gnu_getopt
from pathlib import PurePath
from typing import NamedTuple

from jobs.console.amounts import TIME_EXAMPLES, TimeArgument
from jobs.console.result import ExitCode
from jobs.query.merging import concatenate_answers, join_remarks, refuse_two_stores_of_a_broker
from jobs.query.mqadmin.java import check_charset, hash_set_order
from jobs.query.output import AnswerPrinter
from jobs.query.source import Answer, Reason, Source, join_reasons, name_note
from jobs.requests.query import QueryTarget
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.release import Release, Version

_LETTER = re.compile(r"(\w):(\w+)([!?]?)(?:@([\d.]+))?(?:-([\d.]+))?")
_ALWAYS = "n:namesrvAddr h:help?"
_TIMES = "b:beginTimestamp e:endTimestamp"
_TIMES_OF_KEYS = "b:beginTimestamp@5.1.1 e:endTimestamp@5.1.1"
_DIRECTLY = "g:consumerGroup d:clientId"  # hand a message to a consumer: needs a broker

# The options of each command, as `letter:name`: `!` marks one that is required, `?` one that takes no value, and
# `@since-until` one of the releases [since, until).
COMMANDS: Mapping[str, str] = {
    "queryMsgByKey": (
        f"t:topic! k:msgKey! {_TIMES_OF_KEYS} c:maxNum@5.1.1-5.3.1 m:maxNum@5.3.1 c:cluster@5.3.1 p:keyType@5.4.0 "
        "l:lastKey@5.4.0"
    ),
    # mqadmin requires the topic; here an offset id is enough.
    "queryMsgById": (f"i:msgId! t:topic@5.3.0 {_DIRECTLY} s:sendMessage u:unitName f:bodyFormat@5.0.0 c:cluster@5.3.0"),
    "queryMsgByUniqueKey": (
        f"i:msgId! t:topic! {_DIRECTLY} a:showAll?@4.9.0 c:cluster@5.3.1 s:startTime@5.4.0 e:endTime@5.4.0"
    ),
    "queryMsgByOffset": "t:topic! b:brokerName! i:queueId! o:offset! f:bodyFormat@5.0.0 r:routeTopic@5.5.0",
    "queryMsgTraceById": f"i:msgId! t:traceTopic {_TIMES_OF_KEYS} c:maxNum@5.1.1",
    "printMsg": f"t:topic! c:charsetName s:subExpression {_TIMES} d:printBody l:lmqParentTopic@5.3.2",
    "printMsgByQueue": (
        f"t:topic! a:brokerName! i:queueId! c:charsetName s:subExpression {_TIMES} p:printMsg d:printBody f:calculate"
    ),
    "consumeMessage": (
        "t:topic! b:brokerName i:queueId o:offset g:consumerGroup s:beginTimestamp e:endTimestamp c:messageNumber"
    ),
    "queryCq": "t:topic! q:queue! i:index! c:count b:broker g:consumer",
    "topicStatus": "t:topic! c:cluster@5.3.1",
    "topicList": "c:clusterModel?",
    "consumerProgress": "g:groupName t:topicName@5.0.0 s:showClientIP c:cluster@5.3.1",
    "getConsumerConfig": "g:groupName!",
}
# The commands that cannot be answered from a broker's disk, by reason.
UNSUPPORTED_COMMANDS: Mapping[str, Sequence[str]] = {
    "changes brokers, name servers or controllers": (
        *("updateTopic", "updateTopicList", "updateTopicPerm", "updateStaticTopic", "remappingStaticTopic"),
        *("deleteTopic", "updateOrderConf", "updateSubGroup", "updateSubGroupList", "deleteSubGroup", "setConsumeMode"),
        *("cloneGroupOffset", "resetOffsetByTime", "resetOffsetByTimeOld", "skipAccumulatedMessage"),
        *("updateBrokerConfig", "updateNamesrvConfig", "updateControllerConfig", "updateKvConfig", "deleteKvConfig"),
        *("wipeWritePerm", "addWritePerm", "addBroker", "removeBroker", "resetMasterFlushOffset", "electMaster"),
        *("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog", "cleanBrokerMetadata"),
        *("setCommitLogReadAheadMode", "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig"),
        *("createUser", "updateUser", "deleteUser", "copyUser", "createAcl", "updateAcl", "deleteAcl", "copyAcl"),
    ),
    "sends messages": ("sendMessage", "sendMsgStatus", "checkMsgSendRT", "clusterRT"),
    "shows connections or rates, which only a running broker has": (
        *("brokerStatus", "brokerConsumeStats", "consumer", "consumerConnection", "consumerStatus"),
        *("producer", "producerConnection", "startMonitoring", "statsAll", "exportMetrics", "exportPopRecord"),
        *("getConsumerStatus", "haStatus", "getSyncStateSet", "getColdDataFlowCtrInfo"),
    ),
    "queries name servers or controllers, whose data is not in a broker's store": (
        *("clusterList", "topicRoute", "topicClusterList", "allocateMQ"),
        *("getNamesrvConfig", "getControllerConfig", "getControllerMetaData"),
    ),
    "shows the settings of the broker's process, which are in broker.conf": ("getBrokerConfig", "exportConfigs"),
    "shows users and their permissions, which rmq-lake does not read": ("getUser", "listUser", "getAcl", "listAcl"),
    "prints a file of compacted messages; use `dump`": ("dumpCompactionLog",),
    "exports topics, groups and offsets; use `topicList`, `getConsumerConfig` and `consumerProgress`": (
        "exportMetadata",
        "exportMetadataInRocksDB",
        "rocksDBConfigToJson",
    ),
    "shows a broker's epochs; use `inspect`": ("getBrokerEpoch",),
    "compares a broker's queues in RocksDB with those in files; use `verify`": ("checkRocksdbCqWriteProgress",),
}
_OF_PLACE = frozenset(field.name.replace("_", "-") for field in fields(QueryTarget))  # options of `query mqadmin`
_SHELLS = frozenset({"sh", "bash"})
_PROGRAMS = frozenset({"mqadmin", "mqadmin.cmd"})
# queryCq is not in 4.0.0; the output of the other two before 4.9.8 is unknown. queryMsgTraceById of 4.8.0 prints the
# address of the machine that it runs on.
_SINCE = {
    "queryCq": "4.1.0",
    "consumerProgress": "4.9.8",
    "getConsumerConfig": "4.9.8",
    "queryMsgTraceById": "4.9.0",
    "consumeMessage": "4.3.0",
}
_INTEGER = re.compile(r"[+-]?\d{1,19}")  # like Java's Long.parseLong, in the digits of any script
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)#(\d\d):(\d\d):(\d\d):(\d{3})")  # yyyy-MM-dd#HH:mm:ss:SSS


class MqadminCall(NamedTuple):
    """A command, its options by long name, the source that answers it, and the printer."""

    command: str
    options: Mapping[str, str]
    sources: Sequence[Source]  # the stores that are asked: one, or those of all brokers of a lake
    printer: AnswerPrinter
    now_ms: int  # the current time, for windows that are relative to it
    ignore_host: bool = False

    @property
    def source(self) -> Source:
        """The store of a command that asks one broker."""
        return self.sources[0]

    @property
    def release(self) -> Release:
        """The release of mqadmin: the newest one of the brokers."""
        return max((source.release for source in self.sources), key=lambda release: release.version)

    def of_source(self, source: Source) -> "MqadminCall":
        """Return the call for one broker."""
        return self._replace(sources=(source,))

    def find_sources_of_topic(self) -> list[Source]:
        """
        Return the brokers with the topic, in the order of a route: that of the HashMap of a name server (4.9.3+).

        Raises `SeveralStoresError` if two are stores of one broker.
        """
        able = [source for source in self.sources if source.has_topic(self.options["topic"])]
        refuse_two_stores_of_a_broker(able)
        if len(able) == 1 < len(self.sources):
            able[0].remarks.note(name_note(able[0]))
        by_name = {self.of_source(source).broker_name: source for source in able}
        return [by_name[name] for name in hash_set_order(by_name)]

    def ask_each(self, ask: Callable[["MqadminCall"], Answer]) -> Answer:
        """Ask each broker like a client, and return their messages, broker by broker."""

        def ask_one(source: Source) -> Answer:
            return ask(self.of_source(source))

        return concatenate_answers(self.sources, ask_one, names_brokers=self.printer.prints_rows).answer

    def integer_option(self, name: str, default: int | None = None) -> int:
        """Return an integer option."""
        text = self.options.get(name)
        if text is None and default is not None:
            return default
        if text is None or not _INTEGER.fullmatch(text.strip()):
            raise UnsupportedFormat(f"{self.command}: {name} must be a number, not {text!r}")
        return int(text)

    def time_option(self, name: str, default: int) -> int:
        """Return a time option in the printer's zone, in mqadmin's format or in that of our own queries."""
        text, zone = self.options.get(name), self.printer.zone
        if text is None:
            return default
        match = _TIME.fullmatch(text)
        try:
            if match:
                year, month, day, hour, minute, second, rest = map(int, match.groups())
                moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
                return int(moment.timestamp()) * 1000 + rest
            return TimeArgument(text).milliseconds(zone)
        except (ValueError, OverflowError) as error:
            reason = f"{text!r} is not a valid time (examples: yyyy-MM-dd#HH:mm:ss:SSS, {TIME_EXAMPLES})"
            raise UnsupportedFormat(reason) from error

    def is_true(self, name: str, default: str = "false") -> bool:
        """Return whether an option is `true`, ignoring case."""
        return self.options.get(name, default).lower() == "true"

    def charset_option(self, name: str, default: str | None) -> str | None:
        """Return a charset option."""
        text = self.options.get(name)
        if text is None:
            return default
        try:
            check_charset(text)
        except ValueError as error:
            raise UnsupportedFormat(f"{self.command}: {error}") from error
        return text

    @property
    def broker_name(self) -> str:
        """The broker's name as printed."""
        return self.source.broker or "broker"

    def finish(self, answer: Answer | None = None) -> ExitCode:
        """End a command whose rows, or those of *answer*, are printed."""
        return self.printer.finish((answer or Answer()).include_earlier(join_remarks(self.sources)))

    def refuse(self, reason: Reason) -> ExitCode:
        """End a command that has no answer."""
        return self.finish(Answer(reason=reason))

    def refuse_for_each(self, explain: Callable[[Source], Reason]) -> ExitCode:
        """End a command for which no broker has an answer."""
        return self.finish(join_reasons([(source, Answer(reason=explain(source))) for source in self.sources]))


def parse_mqadmin_line(arguments: Sequence[str], release: Release) -> tuple[str, Mapping[str, str]]:
    """
    Return the command and the options of a line, parsed as the mqadmin of *release* does.

    `UnsupportedFormat` names the part that it would reject.
    """
    words = list(arguments)
    # A pasted line may begin with the program: `mqadmin`, `sh mqadmin`, `bin/mqadmin`, or its path.
    if words and PurePath(words[0]).name in _SHELLS:
        words.pop(0)
    if words and PurePath(words[0].replace("\\", "/")).name in _PROGRAMS:
        words.pop(0)
    word = words.pop(0) if words else ""
    # mqadmin ignores case: up to 4.9.3 its own name of the command was QueryMsgTraceById.
    name = next((command for command in COMMANDS if command.lower() == word.lower()), word)
    why = next((why for why, names in UNSUPPORTED_COMMANDS.items() if name.lower() in map(str.lower, names)), None)
    if why is not None:
        raise UnsupportedFormat(f"mqadmin {name} is not supported here: it {why}")
    if name in COMMANDS and not _has_command(release, name):
        since = _SINCE[name]
        reason = (
            f"{name} of mqadmin of RocketMQ {release} is not supported; to print what {since} prints, pass --release"
        )
        raise UnsupportedFormat(f"{reason} {since}")
    if name not in COMMANDS:
        supported = ", ".join(command for command in COMMANDS if _has_command(release, command))
        reason = f"{name!r} is not a supported mqadmin command of RocketMQ {release}; supported: {supported}"
        raise UnsupportedFormat(reason)
    version = release.version
    letters = [
        option
        for *option, since, until in _LETTER.findall(f"{COMMANDS[name]} {_ALWAYS}")
        if (not since or Version.parse(since) <= version) and (not until or version < Version.parse(until))
    ]
    return name, _options(name, words, letters, release)


def _has_command(release: Release, command: str) -> bool:
    return release.version >= Version.parse(_SINCE.get(command, "0.0.0"))


def _options(command: str, words: list[str], letters: Sequence[Sequence[str]], release: Release) -> Mapping[str, str]:
    short = "".join(letter + ":" * (mark != "?") for letter, _, mark in letters)
    long = [name + "=" * (mark != "?") for _, name, mark in letters]
    try:
        given, surplus = gnu_getopt(words, short, long)
    except GetoptError as error:
        hint = f". Pass --{error.opt} before {command}" if error.opt in _OF_PLACE else ""
        raise UnsupportedFormat(f"mqadmin {command} of RocketMQ {release}: {error}{hint}") from error
    if surplus:
        raise UnsupportedFormat(f"mqadmin {command}: unexpected argument {surplus[0]!r}")
    names = {f"-{letter}": name for letter, name, _ in letters}
    options = {names.get(option, option.removeprefix("--")): value.strip() for option, value in given}
    for letter, name, mark in letters:
        if mark == "!" and name not in options:
            raise UnsupportedFormat(f"mqadmin {command} of RocketMQ {release} requires -{letter} ({name})")
    return options
