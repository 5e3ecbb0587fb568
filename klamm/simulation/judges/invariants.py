"""Checks the brokers throughout a run: committed records stay, and the controller's counts are right.

What must be true at every moment, and not only when the cluster has come to rest:
- A log starts at or below its high watermark, which is at or below its end; the last stable offset is between them.
- The high watermark of a leader never goes back within a leader epoch.
- Every follower in the ISR that knows this epoch has all records below the leader's high watermark.
- A replica that is elected or joins the ISR has every record that was below a high watermark of a former leader.
- The controller's gauges, which change with each event, equal a recount. Its state machines make only transitions that
  are in their tables. Each of its events ends once (`event_witness`).
- A broker's knowledge of the cluster does not get older: neither the epoch of the controller that it obeys, nor the
  leader epoch of each partition in its metadata.

Topics with unclean leader election are left out, because they may lose records. Topics that have been deleted once are
left out, because a broker may still have a log from before the deletion.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, NoReturn
from uuid import UUID

from klamm.broker.metadata.metadata_cache import MetadataSnapshot
from klamm.broker.start.broker import Broker
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.replication.partition.partition import Partition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.cluster.witnessed_broker import WitnessedBroker
from klamm.simulation.machine.process import SimulationFailure
from klamm.znodes.topics import LeaderAndIsr

LOOK_INTERVAL_S = 0.05

_Hosted = Mapping[PartitionKey, Partition]


class _Term(NamedTuple):
    """One leadership of a running broker."""

    broker: Broker
    key: PartitionKey
    leader_epoch: int


class _Known(NamedTuple):
    """What a broker knows of the cluster. The leader epochs of a topic count only for its id."""

    controller_epoch: int
    snapshot: MetadataSnapshot
    leader_epochs: dict[tuple[UUID, int], int]


class Invariants:
    """Looks at a cluster from `start` to `stop`. A violation fails the run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._committed: dict[PartitionKey, int] = {}
        self._marks: dict[_Term, int] = {}
        self._known: dict[Broker, _Known] = {}
        self._deleted: dict[str, None] = {}
        self._looking: asyncio.Task[None] | None = None
        self.looks = 0
        cluster.state.on_change = self._state_changed

    def start(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_again_and_again())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                self.look()
            except SimulationFailure as error:
                self._cluster.world.loop.fail(str(error))

    def look(self) -> None:
        """Looks once. SimulationFailure names the violation."""
        self.looks += 1
        states, brokers = self._state.partitions(), self._brokers()
        hosted = {broker_id: _hosted(broker) for broker_id, broker in brokers.items()}
        marks = {}
        known: dict[Broker, _Known] = {}
        for broker_id, broker in brokers.items():
            _check_counts(broker)
            broker.events.look()
            before = self._known.get(broker)
            known[broker] = _known(broker, before)
            _check_is_not_older(broker_id, before, known[broker])
            for key, partition in hosted[broker_id].items():
                log = partition.log
                if not 0 <= log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset:
                    _fail_offsets(broker_id, partition)
                if partition.is_leader and key in states and key[0] not in self._deleted:
                    term = _Term(broker, key, partition.leader_epoch)
                    marks[term] = self._check_leader(term, broker_id, partition, states[key], hosted)
        self._marks, self._known = marks, known

    def _brokers(self) -> dict[int, WitnessedBroker]:
        return {one.broker_id: one.broker for one in self._cluster.brokers.values() if one.broker is not None}

    # -- what is committed --------------------------------------------------------------------------------------------

    def _check_leader(
        self, term: _Term, leader_id: int, partition: Partition, state: LeaderAndIsr, hosted: Mapping[int, _Hosted]
    ) -> int:
        mark = partition.log.high_watermark
        if mark < self._marks.get(term, 0):
            raise SimulationFailure(
                f"{partition}: the high watermark of leader {leader_id} went back from {self._marks[term]} to {mark}"
                f" in epoch {term.leader_epoch}"
            )
        if state.leader == leader_id and state.leader_epoch == term.leader_epoch:
            self._committed[term.key] = max(mark, self._committed.get(term.key, 0))
            for replica in state.isr:
                follower = hosted[replica].get(term.key) if replica in hosted else None
                if (
                    follower is not None
                    and follower.log.log_end_offset < mark
                    and follower.leader_epoch == term.leader_epoch
                ):
                    _fail_follower(replica, follower, mark)
        return mark

    def _state_changed(self, key: PartitionKey, old: LeaderAndIsr | None, state: LeaderAndIsr | None) -> None:
        """Called with each change of a partition's state znode."""
        if state is None:
            self._deleted[key[0]] = None
            self._committed.pop(key, None)
            return
        if old is None or key[0] in self._deleted or self._state.allows_unclean(key[0]):
            return
        if state.leader not in (NO_LEADER, old.leader):
            self._check_has_committed(key, state.leader, f"is elected in epoch {state.leader_epoch}")
        for replica in state.isr:
            if replica not in old.isr:
                self._check_has_committed(key, replica, f"joins the ISR {old.isr}")

    def _check_has_committed(self, key: PartitionKey, broker_id: int, what: str) -> None:
        broker = self._brokers().get(broker_id)
        hosted = None if broker is None else _hosted(broker).get(key)
        committed = self._committed.get(key, 0)
        if hosted is not None and hosted.log.log_end_offset < committed:
            raise SimulationFailure(
                f"{hosted}: broker {broker_id} {what} and ends at {hosted.log.log_end_offset};"
                f" all up to {committed} was committed"
            )


def _hosted(broker: Broker) -> _Hosted:
    return broker.parts.services.replica_manager.partitions


def _known(broker: Broker, before: _Known | None) -> _Known:
    snapshot = broker.parts.metadata_cache.snapshot
    controller_epoch = broker.parts.replica_manager.controller_epoch
    if before is not None and before.snapshot is snapshot:
        return before._replace(controller_epoch=controller_epoch)
    epochs = {
        (topic_id, number): partition.leader_epoch
        for topic, partitions in snapshot.topics.items()
        if (topic_id := snapshot.topic_ids.get(topic)) is not None
        for number, partition in partitions.items()
    }
    return _Known(controller_epoch, snapshot, epochs)


def _check_is_not_older(broker_id: int, before: _Known | None, now: _Known) -> None:
    if before is None:
        return
    if now.controller_epoch < before.controller_epoch:
        raise SimulationFailure(
            f"broker {broker_id} obeys a controller of epoch {now.controller_epoch} after {before.controller_epoch}"
        )
    if now.snapshot is before.snapshot:
        return
    for key, epoch in now.leader_epochs.items():
        if epoch < before.leader_epochs.get(key, -1):
            raise SimulationFailure(
                f"in the metadata of broker {broker_id} partition {key[1]} of topic {key[0]} goes back from leader"
                f" epoch {before.leader_epochs[key]} to {epoch}"
            )


def _fail_follower(broker_id: int, follower: Partition, mark: int) -> NoReturn:
    raise SimulationFailure(
        f"{follower}: broker {broker_id} is in the ISR and ends at {follower.log.log_end_offset}, the leader has"
        f" committed all up to {mark}"
    )


def _fail_offsets(broker_id: int, partition: Partition) -> NoReturn:
    log = partition.log
    raise SimulationFailure(
        f"{partition} of broker {broker_id}: start {log.log_start_offset}, last stable offset {log.last_stable_offset},"
        f" high watermark {log.high_watermark} and end {log.log_end_offset} are not in order"
    )


# -- the controller ---------------------------------------------------------------------------------------------------


def _check_counts(broker: Broker) -> None:
    controller = broker.parts.controller
    if not controller.is_active:
        return
    context = controller.context
    counted = context.offline_partition_count, context.preferred_replica_imbalance_count
    if counted != (true := context.recount()):
        raise SimulationFailure(
            f"controller {broker.parts.services.broker_id} counts (partitions without a leader, partitions not led by"
            f" the preferred replica) as {counted}; a recount gives {true}"
        )
