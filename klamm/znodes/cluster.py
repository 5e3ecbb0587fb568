"""The znodes that exist once in a cluster: controller, controller epoch, cluster id, producer id block, features. Pure.

Kafka's classes: ControllerZNode, ControllerEpochZNode, ClusterIdZNode, BrokerSequenceIdZNode, ProducerIdBlockZNode
(with ProducerIdManager), FeatureZNode.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from klamm.base import json_bytes
from klamm.znodes.brokers import SupportedVersions
from klamm.znodes.fields import INT16_MAX, INT32_MAX, INT64_MAX, Fields, ZnodeError

CONTROLLER_PATH = "/controller"
CONTROLLER_EPOCH_PATH = "/controller_epoch"
CLUSTER_ID_PATH = "/cluster/id"
BROKER_SEQUENCE_ID_PATH = "/brokers/seqid"
PRODUCER_ID_BLOCK_PATH = "/latest_producer_id_block"
FEATURE_PATH = "/feature"

PERSISTENT_PATHS = (
    "/consumers",
    "/brokers/ids",
    "/brokers/topics",
    "/config/changes",
    "/admin/delete_topics",
    BROKER_SEQUENCE_ID_PATH,
    "/isr_change_notification",
    PRODUCER_ID_BLOCK_PATH,
    "/log_dir_event_notification",
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""The znodes that every broker creates when it starts, in this order."""


@dataclass(frozen=True, slots=True)
class Controller:
    """/controller: the controller's broker id, and the time of its election in milliseconds since 1970."""

    broker_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        return json_bytes.encode({"version": 1, "brokerid": self.broker_id, "timestamp": str(self.timestamp_ms)})

    @classmethod
    def decode(cls, data: bytes) -> "Controller":
        fields = Fields.parse(CONTROLLER_PATH, data)
        fields.version()
        return cls(fields.integer("brokerid"), fields.text_integer("timestamp"))


def encode_controller_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_controller_epoch(data: bytes) -> int:
    """/controller_epoch: decimal digits, not JSON."""
    if not data.isdigit() or len(data) > 10 or int(data) > INT32_MAX:
        raise ZnodeError(CONTROLLER_EPOCH_PATH, f"{data[:40]!r} is not an epoch from 0 to {INT32_MAX}")
    return int(data)


def encode_cluster_id(cluster_id: str) -> bytes:
    # The version is a string here, and nowhere else.
    return json_bytes.encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    cluster_id = Fields.parse(CLUSTER_ID_PATH, data).text("id")
    if not cluster_id:
        raise ZnodeError(CLUSTER_ID_PATH, "id is empty")
    return cluster_id


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the newest block of producer ids taken, both ends inclusive, and the broker's id."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        return json_bytes.encode(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def decode(cls, data: bytes) -> "ProducerIdBlock":
        fields = Fields.parse(PRODUCER_ID_BLOCK_PATH, data)
        block = cls(fields.integer("broker"), fields.text_integer("block_start"), fields.text_integer("block_end"))
        if block.last < block.first:
            raise ZnodeError(PRODUCER_ID_BLOCK_PATH, f"block_end {block.last} is below block_start {block.first}")
        return block

    @staticmethod
    def after(block: "ProducerIdBlock | None", broker_id: int, size: int) -> "ProducerIdBlock":
        """The block after `block` (None: no block was ever taken). Raises ZnodeError when all ids are used up."""
        first = 0 if block is None else block.last + 1
        if first + size - 1 > INT64_MAX:
            raise ZnodeError(PRODUCER_ID_BLOCK_PATH, f"no block of {size} producer ids is left after {first - 1}")
        return ProducerIdBlock(broker_id, first, first + size - 1)


class FeatureStatus(IntEnum):
    DISABLED = 0
    ENABLED = 1


@dataclass(frozen=True, slots=True)
class FinalizedVersions:
    """The range of a feature's versions that the whole cluster has agreed on."""

    min_version_level: int
    max_version_level: int


@dataclass(frozen=True, slots=True)
class Features:
    """/feature: the finalized features (KIP-584)."""

    status: FeatureStatus
    features: Mapping[str, FinalizedVersions] = field(default_factory=dict)

    def encode(self) -> bytes:
        features = {
            name: {"min_version_level": versions.min_version_level, "max_version_level": versions.max_version_level}
            for name, versions in self.features.items()
        }
        return json_bytes.encode({"version": 1, "status": int(self.status), "features": features})

    @classmethod
    def decode(cls, data: bytes) -> "Features":
        fields = Fields.parse(FEATURE_PATH, data)
        fields.version()
        status = FeatureStatus(fields.integer("status", FeatureStatus.DISABLED, FeatureStatus.ENABLED))
        features = fields.nested("features")
        finalized = {}
        for name in features.values:
            versions = features.nested(name)
            low = versions.integer("min_version_level", 1, INT16_MAX)
            high = versions.integer("max_version_level", 1, INT16_MAX)
            if low > high:
                raise features.problem(name, f"has versions {low} to {high}, which is no range")
            finalized[name] = FinalizedVersions(low, high)
        return cls(status, finalized)


class FinalizedFeatures(NamedTuple):
    """The finalized features while feature versioning is on, and their epoch: the version of /feature."""

    features: Mapping[str, FinalizedVersions]
    epoch: int


def incompatible_features(
    finalized: Mapping[str, FinalizedVersions], supported: Mapping[str, SupportedVersions]
) -> list[str]:
    """The finalized features that a broker with these supported versions does not fully support."""
    return [
        name
        for name, levels in finalized.items()
        if (versions := supported.get(name)) is None
        or levels.min_version_level < versions.min_version
        or levels.max_version_level > versions.max_version
    ]
