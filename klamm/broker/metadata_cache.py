"""What this broker tells clients about the cluster: brokers, topics, leaders (Kafka's `MetadataCache`).

It is filled only by the controller (UpdateMetadata) and read by every handler. What the controller can no longer tell,
that a topic is gone, `metadata_updates.py` finds out.

What must stay true:
- A snapshot never changes. A reader that took one sees one state of the cluster, also across an `await`.
- An update makes a new snapshot and copies only the topics that it touches.
- Of a topic that was deleted and created anew, nothing of the former topic stays.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from klamm.protocol.primitives import Steps, in_one_go
from klamm.protocol.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from klamm.slices import Slices
from klamm.znodes.brokers import SECURITY_PROTOCOLS
from klamm.znodes.topics import TopicPartition

NO_LEADER = -1

# How long the first clients of a broker that has just started wait until the controller has told it of the cluster.
FIRST_UPDATE_TIMEOUT_MS = 3_000

# What a step of an update takes over: about a millisecond.
PARTITIONS_PER_SLICE = 5000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker can be reached through one listener."""

    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """A live broker and its endpoints by listener name."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster at one moment, each mapping in ascending order. `topics` is topic -> partition -> leadership."""

    controller_id: int = -1
    brokers: Mapping[int, BrokerMetadata] = field(default_factory=dict)
    topics: Mapping[str, Mapping[int, UpdateMetadataPartitionState]] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    def partition(self, topic: str, partition: int) -> UpdateMetadataPartitionState | None:
        partitions = self.topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def has_other_listeners_than(self, broker_id: int) -> bool:
        """Whether a broker has listeners of other names than this one, if this one is alive."""
        own = self.brokers.get(broker_id)
        return own is not None and any(
            broker.endpoints.keys() != own.endpoints.keys() for broker in self.brokers.values()
        )

    def endpoint(self, broker_id: int, listener_name: str) -> Endpoint | None:
        """Where a broker listens under this listener name; None if it is not alive or not there."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener_name)


class MetadataCache:
    """Holds the current snapshot. `is_filled` is set once the controller has told of the cluster."""

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot()
        self.is_filled = asyncio.Event()
        self._given_up_at_s: float | None = None

    async def first_snapshot(self) -> MetadataSnapshot:
        """The snapshot that a client is told, once the controller has told of the cluster.

        A client that learned of no controller would ask again only after seconds. In a cluster that has none, the
        snapshot is given as it is when FIRST_UPDATE_TIMEOUT_MS have passed since the first client asked.
        """
        if not self.is_filled.is_set():
            if self._given_up_at_s is None:
                self._given_up_at_s = asyncio.get_running_loop().time() + FIRST_UPDATE_TIMEOUT_MS / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._given_up_at_s):
                    await self.is_filled.wait()
        return self.snapshot

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Takes over an UpdateMetadata: the brokers and the controller are replaced, the named partitions merged.

        A partition with leader LEADER_DURING_DELETE is removed, and so are all of a topic that has another id now.
        Returns the deleted partitions, whether they were known here or not: a broker that has started since may keep
        more of them than their leaders.
        """
        return in_one_go(self.update_steps(request))

    def update_steps(self, request: UpdateMetadataRequest) -> Steps[list[TopicPartition]]:
        """As `update`, in steps; the last one makes the new snapshot. Nobody else may update between them."""
        old = self.snapshot
        live = {broker.id: _broker(broker) for broker in sorted(request.live_brokers, key=lambda broker: broker.id)}
        if not request.topics:
            self.snapshot = replace(old, controller_id=request.controller_id, brokers=live)
            self.is_filled.set()
            return []
        topics = dict(old.topics)
        ids = dict(old.topic_ids)
        deleted = []
        slices = Slices(PARTITIONS_PER_SLICE)
        for changes in request.topics:
            topic = changes.topic
            if slices.is_over(len(changes.partitions)):
                yield
            merged = dict(topics.get(topic, {}))
            if changes.topic_id is not None and ids.get(topic) not in (None, changes.topic_id):
                deleted += [(topic, partition) for partition in merged]
                merged = {}
            count = len(merged)
            for state in changes.partitions:
                if state.leader != LEADER_DURING_DELETE:
                    merged[state.partition] = state
                else:
                    merged.pop(state.partition, None)
                    deleted.append((topic, state.partition))
            if not merged:
                topics.pop(topic, None)
                ids.pop(topic, None)
                continue
            topics[topic] = merged if len(merged) == count else dict(sorted(merged.items()))
            if changes.topic_id is not None:
                ids[topic] = changes.topic_id
        self.snapshot = MetadataSnapshot(request.controller_id, live, topics, ids)
        self.is_filled.set()
        return deleted

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These do not exist any more."""
        topics = dict(self.snapshot.topics)
        ids = dict(self.snapshot.topic_ids)
        gone: dict[str, set[int]] = {}
        for topic, partition in partitions:
            gone.setdefault(topic, set()).add(partition)
        for topic, numbers in gone.items():
            left = {number: state for number, state in topics.get(topic, {}).items() if number not in numbers}
            if left:
                topics[topic] = left
            else:
                topics.pop(topic, None)
                ids.pop(topic, None)
        self.snapshot = replace(self.snapshot, topics=topics, topic_ids=ids)


def _broker(broker: UpdateMetadataBroker) -> BrokerMetadata:
    endpoints = {
        endpoint.listener: Endpoint(endpoint.host, endpoint.port, SECURITY_PROTOCOLS[endpoint.security_protocol])
        for endpoint in broker.endpoints
        # A protocol from the future is one that no client of ours can speak.
        if 0 <= endpoint.security_protocol < len(SECURITY_PROTOCOLS)
    }
    return BrokerMetadata(broker.id, endpoints, broker.rack)
