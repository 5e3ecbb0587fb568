"""Topics: the assignment of replicas and the state of each partition. Pure.

Kafka's classes: TopicZNode, TopicPartitionStateZNode, LeaderIsrAndControllerEpoch. The znode of a topic is written in
version 3; versions 1 (partitions only) and 2 (adding and removing replicas) are read too.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from klamm.base import json_bytes
from klamm.protocol.vocabulary import NO_LEADER, encode_topic_id
from klamm.znodes.fields import INT32_MAX, Fields

TOPICS_PATH = "/brokers/topics"

Replicas = Mapping[int, Sequence[int]]
"""Partition -> broker ids."""

MAX_TOPIC_NAME_LENGTH = 249

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}(==)?")
_LEGAL_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_TOPIC_NAME_LENGTH}}}")


def is_legal_topic_name(name: str) -> bool:
    """Whether a client may create a topic of this name. Other names may be invalid even for a directory."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")


def topic_path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS_PATH}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS_PATH}/{topic}/partitions/{partition}/state"


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """/brokers/topics/T: the replicas of each partition, the preferred leader first.

    `adding_replicas` and `removing_replicas` name only partitions under reassignment. `topic_id` is None when a broker
    older than 2.8 created the topic. `zk_version` is the znode's version at the read and not part of its content.
    """

    partitions: Replicas
    topic_id: UUID | None = None
    adding_replicas: Replicas = field(default_factory=dict)
    removing_replicas: Replicas = field(default_factory=dict)
    zk_version: int = field(default=-1, compare=False)

    def encode(self) -> bytes:
        assignment: dict[str, object] = {
            "version": 3,
            "partitions": dict(sorted(self.partitions.items())),
            "adding_replicas": {partition: ids for partition, ids in sorted(self.adding_replicas.items()) if ids},
            "removing_replicas": {partition: ids for partition, ids in sorted(self.removing_replicas.items()) if ids},
        }
        if self.topic_id is not None:
            assignment["topic_id"] = encode_topic_id(self.topic_id)
        return json_bytes.encode(assignment)

    @classmethod
    def decode(cls, topic: str, data: bytes, zk_version: int = -1) -> "TopicAssignment":
        fields = Fields.parse(topic_path(topic), data)
        fields.version()
        return cls(
            _replicas(fields.nested("partitions")),
            _topic_id(fields) if fields.has("topic_id") else None,
            _replicas(fields.optional("adding_replicas")),
            _replicas(fields.optional("removing_replicas")),
            zk_version,
        )


ENVELOPE_BYTES = 110
"""The size of an encoded assignment without its partitions, with an id."""


def assignment_bytes(partition: int, *replicas: Sequence[int]) -> int:
    """The size of one partition in an encoded assignment, with its replicas, adding and removing replicas."""
    name_bytes = len(f'"{partition}":[],')
    return sum(name_bytes + sum(len(f"{broker_id},") for broker_id in ids) for ids in replicas if ids)


def _replicas(fields: Fields | None) -> dict[int, tuple[int, ...]]:
    """The replicas of each partition, ascending by partition, whatever the order in the znode."""
    if fields is None:
        return {}
    replicas = {}
    for key in fields.values:
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or int(key) > INT32_MAX:
            raise fields.problem(key, "is not a partition's number")
        replicas[int(key)] = fields.integers(key)
    return dict(sorted(replicas.items()))


def _topic_id(fields: Fields) -> UUID:
    text = fields.text("topic_id")
    if not _TOPIC_ID.fullmatch(text):
        raise fields.problem("topic_id", f"is {text!r}, not 16 bytes in URL-safe base64")
    return UUID(bytes=base64.urlsafe_b64decode(text[:22] + "=="))


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """/brokers/topics/T/partitions/P/state: a partition's leader (or NO_LEADER) and its ISR.

    `controller_epoch` is the epoch of the controller that wrote the state or elected the leader. `zk_version` is the
    znode's version at the read and not part of its content.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    zk_version: int = field(default=-1, compare=False)

    def encode(self) -> bytes:
        # Formatted by hand: a controller writes tens of thousands at once, and a dict for each would dominate the cost.
        isr = ",".join(map(str, self.isr))
        return (
            f'{{"version":1,"leader":{self.leader},"leader_epoch":{self.leader_epoch},"isr":[{isr}],'
            f'"controller_epoch":{self.controller_epoch}}}'
        ).encode()

    @classmethod
    def decode(cls, topic: str, partition: int, data: bytes, zk_version: int = -1) -> "LeaderAndIsr":
        fields = Fields.parse(partition_state_path(topic, partition), data)
        return cls(
            fields.integer("leader", NO_LEADER),
            fields.integer("leader_epoch", 0),
            fields.integers("isr"),
            fields.integer("controller_epoch", 0),
            zk_version,
        )
