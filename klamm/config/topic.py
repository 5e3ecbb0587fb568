"""A topic's configuration: the topic's overrides, and the values inherited from the broker. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from klamm.config.broker import BrokerConfig
from klamm.config.broker_keys import COMPRESSION_TYPES
from klamm.config.definition import (
    LONG_MAX,
    LOW,
    ConfigDef,
    ConfigError,
    Validator,
    all_of,
    at_least,
    attribute,
    between,
    boolean,
    double,
    integer,
    list_of,
    long,
    one_of,
    string,
)
from klamm.config.safest import SAFEST_TOPIC_VALUES, values_instead
from klamm.config.versions import ANY_VERSION
from klamm.config.without_effect import ONE_FORMAT


def _are_throttled_replicas(value: tuple[str, ...]) -> bool:
    if value == ("*",):
        return True
    pairs = [element.split(":") for element in value]
    return all(len(pair) == 2 and all(number.isascii() and number.isdigit() for number in pair) for pair in pairs)


_THROTTLED_REPLICAS = Validator("* or partition:broker,partition:broker,...", _are_throttled_replicas)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TopicKeys:
    """Every key of a topic's configuration, one field each; the defaults are those of a broker without any settings."""

    cleanup_policy: tuple[str, ...] = list_of(
        ("delete",), "Delete old records, compact by key, or both.", all_of("compact", "delete")
    )
    compression_type: str = string(
        "producer", "Compression of stored batches; producer keeps theirs.", COMPRESSION_TYPES
    )
    delete_retention_ms: int = long(86400000, "How long tombstones stay after cleaning.", at_least(0))
    file_delete_delay_ms: int = long(60000, "Wait between a file's removal and its deletion.", at_least(0))
    flush_messages: int = long(LONG_MAX, "Records after which the log is synced.", at_least(0))
    flush_ms: int = long(LONG_MAX, "Time after which the log is synced.", at_least(0))
    follower_replication_throttled_replicas: tuple[str, ...] = list_of(
        (), "Replicas whose fetches are throttled on followers.", _THROTTLED_REPLICAS
    )
    index_interval_bytes: int = integer(4096, "Bytes of records between two index entries.", at_least(0))
    leader_replication_throttled_replicas: tuple[str, ...] = list_of(
        (), "Replicas whose fetches are throttled on leaders.", _THROTTLED_REPLICAS
    )
    max_compaction_lag_ms: int = long(LONG_MAX, "Age from which a record must be compacted.", at_least(1))
    max_message_bytes: int = integer(1048588, "Largest record batch accepted.", at_least(0))
    message_downconversion_enable: bool = boolean(
        True, "Convert records for old clients.", importance=LOW, without_effect=ONE_FORMAT
    )
    message_format_version: str = string(
        "2.8-IV1", "Record format of old clients.", ANY_VERSION, without_effect=ONE_FORMAT
    )
    message_timestamp_difference_max_ms: int = long(
        LONG_MAX, "How far a producer's time may be from the broker's.", at_least(0)
    )
    message_timestamp_type: str = string(
        "CreateTime",
        "Whether records keep the producer's time or get the broker's.",
        one_of("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = double(0.5, "Uncleaned share from which the log is cleaned.", between(0, 1))
    min_compaction_lag_ms: int = long(0, "Age below which a record is not compacted.", at_least(0))
    min_insync_replicas: int = integer(1, "In-sync replicas that acks=all needs.", at_least(1))
    preallocate: bool = boolean(False, "Reserve a segment's space at once.")
    retention_bytes: int = long(-1, "Size of a partition above which old segments are deleted; -1 for no limit.")
    retention_ms: int = long(604800000, "Age at which records are deleted; -1 never.", at_least(-1))
    segment_bytes: int = integer(1 << 30, "Size at which a segment is closed.", at_least(14))
    segment_index_bytes: int = integer(10485760, "Largest index file.", at_least(0))
    segment_jitter_ms: int = long(0, "Random part of segment.ms.", at_least(0))
    segment_ms: int = long(604800000, "Age at which a segment is closed.", at_least(1))
    unclean_leader_election_enable: bool = boolean(False, "Let a replica lead that may lack records.")


TOPIC_CONFIG_DEF = ConfigDef(TopicKeys)

# Topic key -> the broker's key that it inherits from. The two throttled-replicas keys do not inherit.
BROKER_KEY: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "compression.type": "compression.type",
        "delete.retention.ms": "log.cleaner.delete.retention.ms",
        "file.delete.delay.ms": "log.segment.delete.delay.ms",
        "flush.messages": "log.flush.interval.messages",
        "flush.ms": "log.flush.interval.ms",
        "index.interval.bytes": "log.index.interval.bytes",
        "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
        "max.message.bytes": "message.max.bytes",
        "message.downconversion.enable": "log.message.downconversion.enable",
        "message.format.version": "log.message.format.version",
        "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
        "message.timestamp.type": "log.message.timestamp.type",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
        "min.insync.replicas": "min.insync.replicas",
        "preallocate": "log.preallocate",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "segment.index.bytes": "log.index.size.max.bytes",
        "segment.jitter.ms": "log.roll.jitter.ms",
        "segment.ms": "log.roll.ms",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
    }
)


class ContradictoryTopicConfig(ConfigError):
    """Values that are each valid, but contradict each other."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TopicConfig(TopicKeys):
    """The configuration of one topic; an attribute for each key (`segment.bytes` -> `segment_bytes`).

    `overrides` has the values set for the topic itself, as text, and the substitutes for values that cannot be read.
    Every other value comes from `broker_config`.
    """

    broker_config: BrokerConfig
    overrides: Mapping[str, str]

    @staticmethod
    def from_overrides(broker_config: BrokerConfig, overrides: Mapping[str, str | None]) -> "TopicConfig":
        """Raises ConfigError listing every unknown key, and every bad value with what is allowed; or
        ContradictoryTopicConfig."""
        problems = [f"{key} is not a topic config" for key in overrides if key not in TOPIC_CONFIG_DEF.keys]
        problems += [
            f"{key}=null is not allowed; allowed: a value" for key, value in overrides.items() if value is None
        ]
        texts = {key: value for key, value in overrides.items() if value is not None}
        values, bad_values = TOPIC_CONFIG_DEF.parse(texts)
        if problems := problems + bad_values:
            raise ConfigError(problems)
        # As in Kafka, only the topic's own values are compared: a broker's values may change whatever its topics have.
        if contradictions := _contradictions(values):
            raise ContradictoryTopicConfig(contradictions)
        return _topic_config(_inherit(values, texts, broker_config), texts, broker_config)

    @staticmethod
    def from_stored(
        broker_config: BrokerConfig, stored: Mapping[str, str], known: "TopicConfig | None" = None
    ) -> "tuple[TopicConfig, list[str]]":
        """The configuration stored in ZooKeeper, and a sentence for each invalid value in it.

        A bad value does not affect the others; `safest` has its substitute. `known` is the topic's configuration until
        now. Unknown keys are ignored, because another program may know them.
        """
        valid: dict[str, str] = {}
        bad: list[str] = []
        problems: list[str] = []
        for name, text in stored.items():
            key = TOPIC_CONFIG_DEF.keys.get(name)
            if key is None:
                continue
            try:
                key.parse(text)
            except ConfigError as error:
                problems += error.problems
                bad.append(name)
            else:
                valid[name] = text
        valid.update(values_instead(bad, None if known is None else known.overrides, SAFEST_TOPIC_VALUES))
        values, _ = TOPIC_CONFIG_DEF.parse(valid)
        return _topic_config(_inherit(values, valid, broker_config), valid, broker_config), problems

    @staticmethod
    def unreadable(broker_config: BrokerConfig, known: "TopicConfig | None" = None) -> "TopicConfig":
        """The configuration of a topic whose stored configuration cannot be read. `known` is as in `from_stored`."""
        overrides = SAFEST_TOPIC_VALUES if known is None else known.overrides
        return TopicConfig.from_stored(broker_config, overrides)[0]

    @property
    def compact(self) -> bool:
        """Whether the topic is compacted by key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old records are deleted."""
        return "delete" in self.cleanup_policy


def override_problems(overrides: Mapping[str, str]) -> list[str]:
    """A sentence for each value that a topic cannot have, and for values that contradict each other.

    For programs without a broker's configuration. Unknown keys are ignored.
    """
    values, problems = TOPIC_CONFIG_DEF.parse(overrides)
    return problems or _contradictions(values)


def _inherit(values: dict[str, Any], overrides: Mapping[str, str], broker_config: BrokerConfig) -> dict[str, Any]:
    """`values`, with the broker's value for each key that the topic does not set."""
    for key, broker_key in BROKER_KEY.items():
        if key not in overrides:
            values[key] = getattr(broker_config, attribute(broker_key))
    return values


def _topic_config(values: Mapping[str, Any], overrides: Mapping[str, str], broker_config: BrokerConfig) -> TopicConfig:
    attributes = {attribute(key): value for key, value in values.items()}
    return TopicConfig(**attributes, broker_config=broker_config, overrides=MappingProxyType(dict(overrides)))


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    minimum, maximum = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if minimum <= maximum:
        return []
    return [f"min.compaction.lag.ms={minimum} is more than max.compaction.lag.ms={maximum}"]
