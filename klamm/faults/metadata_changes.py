"""Writes changes in ZooKeeper into the history: of brokers, the controller, topics, leaders and ISRs.

`MetadataChanges` compares each version of a znode with the version that it has seen before. Versions that follow each
other faster than the znode is read make one entry.
"""

from collections.abc import Callable

from klamm.faults.entries import (
    BrokerRegistered,
    BrokerUnregistered,
    ChronicleEntry,
    ControllerElected,
    ControllerGone,
    IsrChanged,
    LeaderElected,
    TopicCreated,
    TopicDeleted,
)
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.znodes.brokers import BROKER_IDS_PATH, broker_ids
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, decode_controller_epoch
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import TOPICS_PATH, LeaderAndIsr, TopicAssignment
from klamm.znodes.watch import Znode, child_of_path, partition_of_state_path


class MetadataChanges:
    """Makes entries from the versions of znodes. `add` appends to the history."""

    def __init__(self, add: Callable[[ChronicleEntry], None]) -> None:
        self._add = add
        # The last known values: the brokers' epochs, the controller and its epoch, the topics' partition counts.
        self._brokers: dict[int, int] = {}
        self._controller: tuple[int, int] | None = None
        self._controller_epoch = 0
        self._topics: dict[str, int] = {}
        self._states: dict[str, dict[int, LeaderAndIsr]] = {}

    def seen(self, znode: Znode) -> None:
        """Takes a version of a znode. A version that Kafka does not write is ignored."""
        try:
            if (key := partition_of_state_path(znode.path)) is not None:
                self._state(key, znode)
            elif znode.path == CONTROLLER_EPOCH_PATH and znode.data is not None:
                self._controller_epoch = decode_controller_epoch(znode.data)
            elif znode.path == CONTROLLER_PATH:
                self._elected(znode)
            elif (child := child_of_path(znode.path)) is not None and child[0] == TOPICS_PATH:
                self._topic(child[1], znode)
            elif child is not None and child[0] == BROKER_IDS_PATH:
                for broker_id in broker_ids([child[1]]):
                    self._broker(broker_id, znode)
        except ZnodeError:
            return

    def _broker(self, broker_id: int, znode: Znode) -> None:
        before = self._brokers.get(broker_id)
        if before is not None and znode.data is None:
            del self._brokers[broker_id]
            self._add(BrokerUnregistered(broker_id))
        if znode.data is not None and znode.czxid != before:
            self._brokers[broker_id] = znode.czxid
            self._add(BrokerRegistered(broker_id, znode.czxid))

    def _elected(self, znode: Znode) -> None:
        before, now = self._controller, None
        if znode.data is not None:
            now = (Controller.decode(znode.data).broker_id, self._controller_epoch)
        self._controller = now
        if before is not None and now is None:
            self._add(ControllerGone(before[0]))
        if now is not None and now != before:
            self._add(ControllerElected(*now))

    def _topic(self, topic: str, znode: Znode) -> None:
        if znode.data is None:
            self._states.pop(topic, None)
            if self._topics.pop(topic, None) is not None:
                self._add(TopicDeleted(topic))
            return
        partitions = len(TopicAssignment.decode(topic, znode.data).partitions)
        if self._topics.get(topic) != partitions:
            self._topics[topic] = partitions
            self._add(TopicCreated(topic, partitions))

    def _state(self, key: PartitionKey, znode: Znode) -> None:
        if znode.data is None:
            return
        topic, partition = key
        states = self._states.setdefault(topic, {})
        before, states[partition] = states.get(partition), LeaderAndIsr.decode(*key, znode.data)
        entry = partition_change(key, before, states[partition])
        if entry is not None:
            self._add(entry)


def partition_change(key: PartitionKey, before: LeaderAndIsr | None, now: LeaderAndIsr) -> ChronicleEntry | None:
    """The entry for a partition whose state was `before`; None if leader, leader epoch and ISR are the same."""
    if before is None or (before.leader, before.leader_epoch) != (now.leader, now.leader_epoch):
        return LeaderElected(
            *key,
            _leader(now),
            now.leader_epoch,
            tuple(now.isr),
            None if before is None else _leader(before),
            None if before is None else tuple(before.isr),
        )
    if before.isr != now.isr:
        return IsrChanged(*key, tuple(now.isr), tuple(before.isr), now.leader_epoch)
    return None


def _leader(state: LeaderAndIsr) -> int | None:
    return None if state.leader == NO_LEADER else state.leader
