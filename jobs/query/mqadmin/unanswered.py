"""mqadmin's commands that nothing on a broker's disk answers, and why."""

from collections.abc import Mapping, Sequence

REASONS: Mapping[str, Sequence[str]] = {
    "makes brokers, name servers or controllers change something": (
        *(
            "updateTopic",
            "updateTopicList",
            "updateTopicPerm",
            "updateStaticTopic",
            "remappingStaticTopic",
            "deleteTopic",
        ),
        *("updateOrderConf", "updateSubGroup", "updateSubGroupList", "deleteSubGroup", "setConsumeMode"),
        *("cloneGroupOffset", "resetOffsetByTime", "resetOffsetByTimeOld", "skipAccumulatedMessage"),
        *("updateBrokerConfig", "updateNamesrvConfig", "updateControllerConfig", "updateKvConfig", "deleteKvConfig"),
        *("wipeWritePerm", "addWritePerm", "addBroker", "removeBroker", "resetMasterFlushOffset", "electMaster"),
        *("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog", "cleanBrokerMetadata"),
        *("setCommitLogReadAheadMode", "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig"),
        *("createUser", "updateUser", "deleteUser", "copyUser", "createAcl", "updateAcl", "deleteAcl", "copyAcl"),
    ),
    "sends messages": ("sendMessage", "sendMsgStatus", "checkMsgSendRT", "clusterRT"),
    "asks who is connected or how fast something goes, which only brokers and clients at work know": (
        *(
            "brokerStatus",
            "brokerConsumeStats",
            "consumer",
            "consumerConnection",
            "consumerStatus",
            "getConsumerStatus",
        ),
        *("producer", "producerConnection", "startMonitoring", "statsAll", "exportMetrics", "exportPopRecord"),
        *("haStatus", "getSyncStateSet", "getColdDataFlowCtrInfo"),
    ),
    "asks name servers or controllers, of which a broker's store has nothing": (
        *("clusterList", "topicRoute", "topicClusterList", "allocateMQ"),
        *("getNamesrvConfig", "getControllerConfig", "getControllerMetaData"),
    ),
    "asks for what the broker's process was started with, which broker.conf has": ("getBrokerConfig", "exportConfigs"),
    "asks for users and their rights, which are not read here": ("getUser", "listUser", "getAcl", "listAcl"),
    "prints a file of compacted messages, which dump does": ("dumpCompactionLog",),
    "writes out topics, groups and offsets; topicList, getConsumerConfig and consumerProgress print them": (
        *("exportMetadata", "exportMetadataInRocksDB", "rocksDBConfigToJson"),
    ),
    "asks for a broker's epochs, which inspect prints": ("getBrokerEpoch",),
    "compares a broker's queues in RocksDB with those in files, which verify does": ("checkRocksdbCqWriteProgress",),
}
_WHY = {name.lower(): why for why, names in REASONS.items() for name in names}


def why_unanswered(name: str) -> str | None:
    """Return the reason why a command cannot be answered here; None for an unknown one."""
    return _WHY.get(name.lower())
