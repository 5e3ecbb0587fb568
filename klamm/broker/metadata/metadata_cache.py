"""This broker's view of the cluster for its clients: brokers, topics, leaders (Kafka's `MetadataCache`).

Only the controller fills it (UpdateMetadata), and every handler reads it. `metadata_updates.py` finds the deleted
topics that the controller no longer reports.

What must stay true:
- A snapshot never changes. Its reader sees one state of the cluster, even across an `await`.
- An update makes a new snapshot, and copies only the topics that it changes.
- When a topic was deleted and recreated, no partition of the former topic stays.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from klamm.base.slices import Slices, Steps, in_one_go
from klamm.config.listeners import SECURITY_PROTOCOLS
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from klamm.protocol.vocabulary import PartitionKey

# How long the first clients of a starting broker wait for its first metadata from the controller.
FIRST_UPDATE_TIMEOUT_MS = 3_000

# How many partitions a step of an update copies, in about a millisecond.
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
        """Whether any broker's listener names differ from this broker's, if this broker is alive."""
        own = self.brokers.get(broker_id)
        return own is not None and any(
            broker.endpoints.keys() != own.endpoints.keys() for broker in self.brokers.values()
        )

    def endpoint(self, broker_id: int, listener_name: str) -> Endpoint | None:
        """The broker's endpoint for this listener name; None if the broker is not alive or has no such listener."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener_name)


class MetadataCache:
    """Holds the current snapshot. `is_filled` is set by the first update from the controller."""

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot()
        self.is_filled = asyncio.Event()
        self._given_up_at_s: float | None = None

    def begin_with(self, own: BrokerMetadata) -> None:
        """Starts with this broker as alive. librdkafka never recovers from an answer without brokers: it gives up
        brokers that an answer does not have."""
        if not self.is_filled.is_set():
            self.snapshot = replace(self.snapshot, brokers={own.id: own})

    async def first_snapshot(self) -> MetadataSnapshot:
        """The snapshot for a client's answer, after the first update from the controller.

        Waits, because a client that gets metadata without a controller only retries after seconds. In a cluster without
        a controller, returns the snapshot as it is FIRST_UPDATE_TIMEOUT_MS after the first client asked.
        """
        if not self.is_filled.is_set():
            if self._given_up_at_s is None:
                self._given_up_at_s = asyncio.get_running_loop().time() + FIRST_UPDATE_TIMEOUT_MS / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._given_up_at_s):
                    await self.is_filled.wait()
        return self.snapshot

    def update(self, request: UpdateMetadataRequest) -> list[PartitionKey]:
        """Applies an UpdateMetadata: the brokers and the controller are replaced, the named partitions merged.

        A partition with leader LEADER_DURING_DELETE is removed, and so are all partitions of a topic whose id changed.
        Returns the deleted partitions, even if the cache did not have them: after a restart other parts of this broker
        may still hold state of them.
        """
        return in_one_go(self.update_steps(request))

    def update_steps(self, request: UpdateMetadataRequest) -> Steps[list[PartitionKey]]:
        """Like `update`, in steps; the last step makes the new snapshot. No other update may run between them."""
        old = self.snapshot
        live = {broker.id: _broker(broker) for broker in sorted(request.live_brokers, key=lambda broker: broker.id)}
        if not request.topic_states:
            self.snapshot = replace(old, controller_id=request.controller_id, brokers=live)
            self.is_filled.set()
            return []
        topics = dict(old.topics)
        ids = dict(old.topic_ids)
        deleted = []
        slices = Slices(PARTITIONS_PER_SLICE)
        for changes in request.topic_states:
            topic = changes.topic_name
            if slices.spend(len(changes.partition_states)):
                yield
            merged = dict(topics.get(topic, {}))
            if changes.topic_id is not None and ids.get(topic) not in (None, changes.topic_id):
                deleted += [(topic, partition) for partition in merged]
                merged = {}
            count = len(merged)
            for state in changes.partition_states:
                if state.leader != LEADER_DURING_DELETE:
                    merged[state.partition_index] = state
                else:
                    merged.pop(state.partition_index, None)
                    deleted.append((topic, state.partition_index))
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

    def forget(self, partitions: Iterable[PartitionKey]) -> None:
        """Removes partitions that no longer exist."""
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
    endpoints = {}
    if broker.v0_host:
        endpoints["PLAINTEXT"] = Endpoint(broker.v0_host, broker.v0_port)
    for endpoint in broker.endpoints:
        # Skips endpoints with a security protocol that is newer than this broker.
        if 0 <= endpoint.security_protocol < len(SECURITY_PROTOCOLS):
            protocol = SECURITY_PROTOCOLS[endpoint.security_protocol]
            endpoints[endpoint.listener or protocol] = Endpoint(endpoint.host, endpoint.port, protocol)
    return BrokerMetadata(broker.id, endpoints, broker.rack)
