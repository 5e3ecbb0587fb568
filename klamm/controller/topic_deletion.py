"""Deletes topics (Kafka's `TopicDeletionManager`).

A topic is *queued* from the mark in /admin/delete_topics until it is deleted completely. The steps, for a topic of two
replicas, on brokers 1 and 2:

| step                                                      | partition   | replica on 1        | replica on 2        |
|-----------------------------------------------------------|-------------|---------------------|---------------------|
| D1 queued                                                 | ONLINE      | ONLINE              | ONLINE              |
| D2 clients are told (leader -2)                           | NON_EXISTENT| ONLINE              | ONLINE              |
| D3 replicas stop, and delete their data                   | NON_EXISTENT| DELETION_STARTED    | DELETION_STARTED    |
| D4 broker 1 answers, broker 2 dies: topic is ineligible   | NON_EXISTENT| DELETION_SUCCESSFUL | DELETION_INELIGIBLE |
| D5 the replica that failed is made ready for another try  | NON_EXISTENT| DELETION_SUCCESSFUL | OFFLINE             |
| D6 broker 2 starts: D3 again, for those that are left     | NON_EXISTENT| DELETION_SUCCESSFUL | DELETION_STARTED    |
| D7 the last one answers: the znodes go, with the mark     | (forgotten) | (forgotten)         | (forgotten)         |

What must stay true:
- The deletion of an *ineligible* topic (a broker or disk of a replica is dead, or a partition is being reassigned) is
  not tried again before that has changed. Its mark stays in ZooKeeper for the next controller.
- A topic's znodes are removed only after the broker of every replica has confirmed that the data is deleted.
- With delete.topic.enable=false no topic is ever queued.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator

from klamm.base.slices import CHEAP_SLICE, SLICE, in_slices, slices
from klamm.config.broker import BrokerConfig
from klamm.controller.context import ControllerContext, PartitionAndReplica
from klamm.controller.partition_state_machine import PartitionStateMachine
from klamm.controller.replica_state_machine import ReplicaStateMachine
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.controller_store import ControllerStore

# How many items one slice has. A slice takes a few milliseconds.
PARTITIONS_IN_PIECE = 2 * SLICE
TOPICS_IN_PIECE = 50

SendUpdateMetadata = Callable[[Iterable[int], Collection[PartitionKey]], Awaitable[None]]


class TopicDeletionManager:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        context: ControllerContext,
        store: Callable[[], ControllerStore],
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        send_update_metadata: SendUpdateMetadata,
        announce: Callable[[str], None],
    ) -> None:
        self._context = context
        self._store = store
        self._partitions = partitions
        self._replicas = replicas
        self._send_update_metadata = send_update_metadata
        self._announce = announce
        self.is_delete_topic_enabled = config.delete_topic_enable

    async def init(self, topics_to_be_deleted: Collection[str], ineligible: Collection[str]) -> None:
        """Queues the deletions that a former controller has left; `try_topic_deletion` continues them."""
        if not self.is_delete_topic_enabled:
            await self._store().delete_topic_deletions(topics_to_be_deleted, self._context.epoch_zk_version)
            return
        await self._queue(topics_to_be_deleted)
        self._context.topics_ineligible_for_deletion |= self._context.topics_to_be_deleted & set(ineligible)

    async def try_topic_deletion(self) -> None:
        await self._resume_deletions()

    async def enqueue_topics_for_deletion(self, topics: Collection[str]) -> None:
        """Queues topics that were marked for deletion (D1). Some may be queued already."""
        if self.is_delete_topic_enabled:
            await self._queue(topics)
            reassigned = {topic for topic, _ in self._context.partitions_being_reassigned}
            self.mark_topics_ineligible_for_deletion(reassigned.intersection(topics), "reassignment in progress")
            await self._resume_deletions()

    async def _queue(self, topics: Collection[str]) -> None:
        for piece in self._pieces(topics):
            self._context.queue_topic_deletion(piece)
            await asyncio.sleep(0)

    async def resume_deletion_for_topics(self, topics: Iterable[str]) -> None:
        """Resumes deletions whose obstacle is gone. Topics that are being reassigned still wait."""
        reassigned = {topic for topic, _ in self._context.partitions_being_reassigned}
        queued = self._context.topics_to_be_deleted.intersection(topics) - reassigned
        if queued:
            self._context.topics_ineligible_for_deletion -= queued
            await self._resume_deletions()

    async def fail_replica_deletion(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """These replicas cannot be deleted now (D4). Ignores deleted replicas and topics that are not queued."""
        failed = await self._left(replicas)
        if failed:
            await self._make_ineligible(failed, "replica deletion failure")
            await self._resume_deletions()

    async def complete_replica_deletion(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """The brokers of these replicas have deleted them."""
        # The response of a broker that has died since does not count: its replica is deleted again.
        deleted = [
            replica
            for replica, state in await self._left_with_states(replicas)
            if state is ReplicaState.DELETION_STARTED
        ]
        await self._replicas.handle_state_changes(deleted, ReplicaState.DELETION_SUCCESSFUL)
        await self._resume_deletions()

    def mark_topics_ineligible_for_deletion(self, topics: Iterable[str], reason: str) -> None:
        """Marks queued topics as ineligible; ignores other topics."""
        halted = self._context.topics_to_be_deleted.intersection(topics)
        self._context.topics_ineligible_for_deletion |= halted
        if halted:
            self._announce(f"Halted deletion of topics {','.join(sorted(halted))} due to {reason}")

    def is_topic_queued_up_for_deletion(self, topic: str) -> bool:
        return self._context.is_topic_queued_up_for_deletion(topic)

    async def _left(self, replicas: Iterable[PartitionAndReplica]) -> list[PartitionAndReplica]:
        """The replicas of queued topics that are not deleted yet."""
        return [replica for replica, _ in await self._left_with_states(replicas)]

    async def _left_with_states(
        self, replicas: Iterable[PartitionAndReplica]
    ) -> list[tuple[PartitionAndReplica, ReplicaState]]:
        left: list[tuple[PartitionAndReplica, ReplicaState]] = []
        state_of = self._context.replica_state
        async for piece in slices(replicas, CHEAP_SLICE):
            for replica in piece:
                if self.is_topic_queued_up_for_deletion(replica[0][0]):
                    state = state_of(replica)
                    if state is not ReplicaState.DELETION_SUCCESSFUL:
                        left.append((replica, state))
        return left

    def _pieces(self, topics: Iterable[str]) -> Iterator[list[str]]:
        """The topics in pieces of a few partitions or topics; the loop gets a turn after each."""
        piece: list[str] = []
        partitions = 0
        for topic in topics:
            piece.append(topic)
            partitions += len(self._context.partition_assignments.get(topic, ()))
            if partitions >= PARTITIONS_IN_PIECE or len(piece) == TOPICS_IN_PIECE:
                yield piece
                piece, partitions = [], 0
        if piece:
            yield piece

    async def _make_ineligible(self, replicas: Collection[PartitionAndReplica], reason: str) -> None:
        """Changes replicas to DELETION_INELIGIBLE from any state."""
        state = self._context.replica_state
        stopped = [replica for replica in replicas if state(replica) in (ReplicaState.NEW, ReplicaState.ONLINE)]
        await self._replicas.handle_state_changes(stopped, ReplicaState.OFFLINE)
        # An unknown replica was never on its broker and needs no change.
        changed = [r for r in replicas if state(r) in (ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED)]
        await self._replicas.handle_state_changes(changed, ReplicaState.DELETION_INELIGIBLE)
        self.mark_topics_ineligible_for_deletion({topic for (topic, _), _ in replicas}, reason)

    # -- the steps --------------------------------------------------------------------------------------------------

    async def _resume_deletions(self) -> None:
        """Takes the possible steps for every queued topic."""
        context = self._context
        to_retry: list[PartitionAndReplica] = []
        eligible = []
        deleted = []
        for piece in self._pieces(sorted(context.topics_to_be_deleted)):
            for topic in piece:
                states = await in_slices(context.replicas_by_state(topic))
                if states.keys() <= {ReplicaState.DELETION_SUCCESSFUL}:  # A topic may have no replicas.
                    deleted.append(topic)
                elif ReplicaState.DELETION_STARTED not in states:
                    to_retry += states.get(ReplicaState.DELETION_INELIGIBLE, ())
                    if context.is_topic_eligible_for_deletion(topic):
                        eligible.append(topic)
            await asyncio.sleep(0)
        for piece in self._pieces(deleted):
            await self._complete_delete_topics(piece)
        if to_retry:
            # D5
            await self._replicas.handle_state_changes(to_retry, ReplicaState.OFFLINE)
        if eligible:
            for topic in eligible:
                self._announce(f"Deletion of topic {topic} (re)started")
            await self._on_topic_deletion(eligible)

    async def _on_topic_deletion(self, topics: list[str]) -> None:
        context = self._context
        partitions = [partition for topic in topics for partition in context.partitions_for_topic(topic)]
        unseen = [topic for topic in topics if not context.is_topic_deletion_in_progress(topic)]
        if unseen:
            unseen_partitions = [partition for topic in unseen for partition in context.partitions_for_topic(topic)]
            await self._partitions.handle_state_changes(unseen_partitions, PartitionState.OFFLINE)
            await self._partitions.handle_state_changes(unseen_partitions, PartitionState.NON_EXISTENT)
            # The deletion begins only now. Until now the partitions counted as offline.
            for piece in self._pieces(unseen):
                context.begin_topic_deletion(piece)
                await asyncio.sleep(0)
        # D2
        await self._send_update_metadata(context.live_or_shutting_down_broker_ids, partitions)
        await self._on_partition_deletion(topics)

    async def _on_partition_deletion(self, topics: list[str]) -> None:
        context = self._context
        dead: list[PartitionAndReplica] = []
        alive: list[PartitionAndReplica] = []
        for piece in self._pieces(topics):
            for replica in await self._left([one for topic in piece for one in context.replicas_for_topic(topic)]):
                (alive if context.is_replica_online(replica[1], replica[0]) else dead).append(replica)
            await asyncio.sleep(0)
        await self._make_ineligible(dead, "offline replicas")
        # D3: first all replicas stop following, then their data is deleted.
        await self._replicas.handle_state_changes(alive, ReplicaState.OFFLINE)
        await self._replicas.handle_state_changes(alive, ReplicaState.DELETION_STARTED)

    async def _complete_delete_topics(self, topics: list[str]) -> None:
        # D7
        context, store = self._context, self._store()
        replicas: list[PartitionAndReplica] = []
        for topic in topics:
            states = await in_slices(context.replicas_by_state(topic))
            replicas += states.get(ReplicaState.DELETION_SUCCESSFUL, ())
        await self._replicas.handle_state_changes(replicas, ReplicaState.NON_EXISTENT)
        results = await asyncio.gather(
            *(store.delete_topic_guarded(topic, context.epoch_zk_version) for topic in topics), return_exceptions=True
        )
        # Errors are raised only when no deletion is in progress any longer.
        for result in results:
            if isinstance(result, BaseException):
                raise result
        for topic in topics:
            await in_slices(context.remove_topic(topic))
            self._announce(f"Deletion of topic {topic} successfully completed")
