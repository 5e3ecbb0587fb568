"""The brokers and partitions of a cluster at one moment, as plain values. The tools make their plans from this view.

A view is read through Kafka's protocol from any cluster, or from the znodes of a cluster with ZooKeeper.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.reassignments import PartitionReassignment
    from klamm.client.cluster import ClusterClient
    from klamm.client.metadata import ClusterMetadata, TopicMetadata
    from klamm.znodes.store import KafkaZooKeeper
    from klamm.znodes.topics import TopicAssignment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A live broker. Clients reach it at `address`."""

    broker_id: int
    address: tuple[str, int]
    rack: str | None = None


class PartitionView(NamedTuple):
    """A partition. `replicas` are all current replicas, including adding and removing replicas.

    `offline` are replicas whose broker or log directory has failed, as far as the source of the view tells. This is a
    tuple for speed: a cluster may have 100,000 partitions, and the cockpit makes their views again and again.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment, if there is one."""
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas without adding replicas. Kafka's tools count these as the replication factor."""
        return tuple(each for each in self.replicas if each not in self.adding)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """`brokers` are the live brokers by ascending id. `partitions` are sorted. `topic_ids` has only known ids.

    `unread` has the topics and brokers that are left out because they could not be read, with the reasons.
    """

    brokers: Mapping[int, BrokerView]
    partitions: Mapping[TopicPartition, PartitionView]
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    controller_id: int = -1
    unread: Mapping[str, str] = field(default_factory=dict)

    def of_topics(self) -> dict[str, dict[int, PartitionView]]:
        """The partitions of each topic."""
        topics: dict[str, dict[int, PartitionView]] = {}
        for (topic, number), partition in self.partitions.items():
            topics.setdefault(topic, {})[number] = partition
        return topics

    def with_reassignments(self, moving: "Mapping[TopicPartition, PartitionReassignment]") -> "ClusterView":
        """The view with the controller's reassignments. Other brokers may not know of a reassignment yet."""
        changed = {
            key: self.partitions[key]._replace(
                replicas=move.replicas,
                adding=move.adding_replicas,
                removing=move.removing_replicas,
            )
            for key, move in moving.items()
            if key in self.partitions
        }
        return replace(self, partitions={**self.partitions, **changed})


def joined(broker_ids: Iterable[int]) -> str:
    """Broker ids as Kafka's tools write them: 1,2,3."""
    return ",".join(map(str, broker_ids))


async def read_cluster(
    client: "ClusterClient",
    topics: Iterable[str] | None = None,
    *,
    needs_reassignments: bool = True,
    reassignments: "Mapping[TopicPartition, PartitionReassignment] | None" = None,
) -> ClusterView:
    """The view of these topics, or of all topics. A topic that does not exist is left out.

    With `reassignments` the controller is not asked, so a cluster without a controller has a view too. Without
    `needs_reassignments`, a client that may not list reassignments gets a view without them. Raises ClientError, and
    KafkaError for a topic that the client may not describe, or if no broker knows the topics.
    """
    from klamm.client.admin.reassignments import list_partition_reassignments
    from klamm.client.admin.topics import describe_topics

    names = None if topics is None else list(topics)
    if names == []:
        await client.refresh_metadata([])
    if names is None and reassignments is not None:
        view = view_of(await client.refresh_metadata())
    else:
        view = _view(client.metadata, await describe_topics(client, names))
    # Brokers before Kafka 2.4 cannot list reassignments, and the tools do not support them.
    try:
        moving = await list_partition_reassignments(client) if reassignments is None else reassignments
    except KafkaError as error:
        if needs_reassignments or error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        moving = {}
    return view.with_reassignments(moving)


def view_of(metadata: "ClusterMetadata") -> ClusterView:
    """The view of all topics in the metadata, without reassignments. Raises KafkaError like `read_cluster`."""
    from klamm.client.admin.topics import described_topics

    return _view(metadata, described_topics(metadata))


def _view(metadata: "ClusterMetadata", described: "Mapping[str, TopicMetadata | KafkaError]") -> ClusterView:
    partitions, topic_ids = {}, {}
    for name, topic in sorted(described.items()):
        if isinstance(topic, KafkaError):
            if topic.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise topic
        if topic.topic_id is not None:
            topic_ids[name] = topic.topic_id
        for number, each in sorted(topic.partitions.items()):
            partitions[TopicPartition(name, number)] = PartitionView(
                each.leader,
                each.leader_epoch,
                tuple(each.replicas),
                tuple(each.isr),
                offline=tuple(each.offline_replicas),
            )
    brokers = {
        broker_id: BrokerView(broker_id, address, metadata.racks.get(broker_id))
        for broker_id, address in sorted(metadata.brokers.items())
    }
    return ClusterView(brokers, partitions, topic_ids, metadata.controller_id)


async def read_znodes(znodes: "KafkaZooKeeper", topics: Iterable[str] | None = None) -> ClusterView:
    """The view from the znodes. A partition without a state has no leader and an empty ISR.

    A topic or broker with an invalid znode is logged and left out. Raises ZooKeeperError, and ZnodeError for a
    malformed partition state.
    """
    live = await znodes.live_brokers()
    names = await znodes.topic_names() if topics is None else sorted(dict.fromkeys(topics))
    malformed: dict[str, str] = {}
    assignments = await znodes.topic_assignments(names, malformed=malformed)
    for name, why in {name: _fault(each) for name, each in assignments.items()}.items():
        if why is not None:
            malformed[name] = why
            del assignments[name]
    for name, why in malformed.items():
        logger.error("topic %s is left out: %s", name, why)
    unread = {f"topic {name}": why for name, why in malformed.items()}
    unread |= {f"broker {broker_id}": why for broker_id, why in znodes.malformed_brokers.items()}
    keys = [
        TopicPartition(name, number)
        for name, assignment in sorted(assignments.items())
        for number in sorted(assignment.partitions)
    ]
    states = await znodes.partition_states(keys)
    partitions = {}
    for key in keys:
        assignment, state = assignments[key.topic], states.get(key)
        if isinstance(state, Exception):
            raise state
        replicas = tuple(assignment.partitions[key.partition])
        partitions[key] = PartitionView(
            NO_LEADER if state is None else state.leader,
            NO_EPOCH if state is None else state.leader_epoch,
            replicas,
            () if state is None else state.isr,
            tuple(assignment.adding_replicas.get(key.partition, ())),
            tuple(assignment.removing_replicas.get(key.partition, ())),
            tuple(each for each in replicas if each not in live),
        )
    brokers = {}
    for broker_id, broker in live.items():
        endpoint = next((each for each in broker.registration.endpoints if each.host), None)
        address = ("", -1) if endpoint is None else (endpoint.host, endpoint.port)
        brokers[broker_id] = BrokerView(broker_id, address, broker.registration.rack)
    controller_id = await znodes.controller_id()
    ids = {name: found.topic_id for name, found in assignments.items() if found.topic_id is not None}
    return ClusterView(brokers, partitions, ids, -1 if controller_id is None else controller_id, unread)


def _fault(assignment: "TopicAssignment") -> str | None:
    """Why a topic is left out although its znode can be read, or None."""
    if not assignment.partitions:
        return "its znode names no partitions"
    empty = next((number for number, replicas in sorted(assignment.partitions.items()) if not replicas), None)
    return None if empty is None else f"its znode names no replicas of partition {empty}"
