"""The names and numbers of Kafka's protocol, each defined once, under Kafka's name if it has one.

Error codes are in `error_codes`, the numbers of the APIs in `api_keys`.
"""

import base64
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID


class TopicPartition(NamedTuple):
    """One partition; sorts by topic and number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


PartitionKey: TypeAlias = tuple[str, int]
"""A partition as a plain tuple of topic and number: the key of the tables in a broker and its controller, which make
millions of keys. A `TopicPartition` is equal to the tuple, but takes eight times as long to make."""

# Timestamps of ListOffsets that ask for an end of the log (`ListOffsetsRequest`).
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2

# Isolation levels (`IsolationLevel`).
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
KNOWN_ISOLATION_LEVELS: Final = (READ_UNCOMMITTED, READ_COMMITTED)

# The replicas that must have a record before its produce is answered.
ACKS_ALL: Final = -1
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1

NO_EPOCH: Final = -1
"""In place of the epoch of a leader, a broker or a feature: unknown or not requested."""

NO_LEADER: Final = -1
"""In place of the broker id of a leader: the partition has no leader (`LeaderAndIsr.NoLeader`)."""

# In place of the broker id of a follower: the request comes from a consumer (`ListOffsetsRequest`).
CONSUMER_REPLICA_ID: Final = -1
DEBUGGING_REPLICA_ID: Final = -2
"""The same, for a client that asks for the leader's log end offset instead of the high watermark."""

INVALID_PREFERRED_REPLICA_ID: Final = -1
"""In place of the broker id of the follower that a consumer should read from: the consumer stays with the broker that
it reads from (`FetchResponse`)."""

UNKNOWN_OFFSET: Final = -1
"""In place of an offset: no offset, or an unknown one (`ListOffsetsResponse`)."""

# In place of a new topic's counts: the broker chooses them, or an assignment gives them (`CreateTopicsRequest`).
NO_NUM_PARTITIONS: Final = -1
NO_REPLICATION_FACTOR: Final = -1

# Fetch sessions (`FetchMetadata`).
INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1

GROUP_METADATA_TOPIC_NAME: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC_NAME: Final = "__transaction_state"
INTERNAL_TOPICS: Final = (GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME)


class ConfigResourceType(IntEnum):
    """`ConfigResource.Type`, which differs from an authorizer's resource types."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class OpType(IntEnum):
    """`AlterConfigOp.OpType`, with its codes on the wire. The last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """One change of a config, in an IncrementalAlterConfigs request; a deletion has no value.

    `op_type` is an OpType, or another number that a client has sent.
    """

    name: str
    value: str | None
    op_type: int


class ScramMechanism(IntEnum):
    """`org.apache.kafka.clients.admin.ScramMechanism`."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """The name in configurations and in SASL: `SCRAM-SHA-256`."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The hash's name in hashlib."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()


class ElectionType(IntEnum):
    """`org.apache.kafka.common.ElectionType`: which replicas an ElectLeaders request lets lead."""

    PREFERRED = 0
    UNCLEAN = 1


class ResourceType(IntEnum):
    """`org.apache.kafka.common.resource.ResourceType`, with its codes on the wire."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


def encode_topic_id(topic_id: UUID) -> str:
    """The text of a topic id, as in Kafka: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode()[:22]
