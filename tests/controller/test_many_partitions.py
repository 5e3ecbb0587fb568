"""Work on very many partitions lets others have the loop: a reassignment, an answer to StopReplica."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.base.slices import CHEAP_SLICE, SLICE
from klamm.config.versions import ApiVersion
from klamm.controller import event_flows
from klamm.controller.bounces import PartitionStateWriter
from klamm.controller.context import ControllerContext
from klamm.controller.events import ControllerRequestSender, TopicDeletionStopReplicaResponseReceived
from klamm.controller.reassignment import api_partition_reassignment, list_partition_reassignments
from klamm.controller.state_change_log import StateChangeLog
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaResponse, StopReplicaTopicState
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.controller_store import ControllerStore
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import ZooKeeperError
from support.controller.state_machines import context_with

TOPICS = [f"t{number}" for number in range(50)]
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(100)]
# A slice asks for the assignment of each of its partitions a few times, at most.
MOST_LOOKS_IN_A_TURN = 4 * SLICE


class Looks:
    """Counts what is looked at between two turns of the loop."""

    def __init__(self) -> None:
        self._now = 0
        self.most = 0

    def add(self, count: int = 1) -> None:
        self._now += count
        self.most = max(self.most, self._now)

    async def of(self, work: Awaitable[Any]) -> Any:
        working = asyncio.ensure_future(work)
        while not working.done():
            self._now = 0
            await asyncio.sleep(0)
        return await working


class Store(ControllerStore):
    """All states are there; all that is written is accepted."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    async def partition_states(
        self, partitions: Iterable[PartitionKey], watch: Callable[[PartitionKey], None] | None = None
    ) -> dict[PartitionKey, LeaderAndIsr | ZnodeError]:
        states: dict[PartitionKey, LeaderAndIsr | ZnodeError] = {
            each: LeaderAndIsr(1, 5, (1,), 1, 7) for each in partitions
        }
        self._looks.add(len(states))
        await asyncio.sleep(0)
        return states

    async def update_partition_states(
        self, states: Mapping[PartitionKey, LeaderAndIsr], guard: int | None = None, *, resend: bool = True
    ) -> dict[PartitionKey, int | ZooKeeperError]:
        self._looks.add(len(states))
        await asyncio.sleep(0)
        return {partition: 8 for partition in states}

    async def update_partition_assignments(self, assignments: Any, guard: int) -> set[str]:
        await asyncio.sleep(0)
        return set()

    async def remove_partition_reassignments(self, is_finished: Any, guard: int) -> None:
        await asyncio.sleep(0)


class Machine:
    async def handle_state_changes(self, *_: Any) -> None:
        await asyncio.sleep(0)


async def test_no_turn_of_the_loop_reassigns_very_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks()
    context = context_with(dict.fromkeys(PARTITIONS, (1,)), 1, 2)
    assignment_of = ControllerContext.partition_full_replica_assignment

    def counted(context: ControllerContext, partition: Any) -> Any:
        looks.add()
        return assignment_of(context, partition)

    told: list[Any] = []
    store: Any = Store(looks)
    parts: Any = SimpleNamespace(
        context=context,
        store=store,
        state_writer=PartitionStateWriter(context, lambda: store, StateChangeLog(lambda: 1), lambda line: None),
        guard=0,
        config=SimpleNamespace(current=SimpleNamespace(inter_broker_protocol_version=ApiVersion.V2_8_IV1)),
        deletions=SimpleNamespace(mark_topics_ineligible_for_deletion=lambda topics, reason: None),
        partitions=Machine(),
        replicas=Machine(),
        batch=SimpleNamespace(
            new_batch=lambda: None,
            add_leader_and_isr_request_for_brokers=lambda ids, key, *_, is_new: told.append((ids, key, is_new)),
            send_requests_to_brokers=lambda epoch: asyncio.sleep(0),
        ),
        state_changes=SimpleNamespace(record=lambda *_: None),
        announce=lambda line: None,
    )
    monkeypatch.setattr(ControllerContext, "partition_full_replica_assignment", counted)
    results = await looks.of(api_partition_reassignment(parts, dict.fromkeys(PARTITIONS, (1, 2))))
    assert results == dict.fromkeys(PARTITIONS)
    listed = await looks.of(list_partition_reassignments(context, None))
    assert list(listed) == sorted(PARTITIONS)
    assert [key for _, key, is_new in told if is_new] == PARTITIONS
    assert looks.most <= MOST_LOOKS_IN_A_TURN


async def test_no_turn_of_the_loop_looks_through_all_of_a_large_answer_to_stop_replica() -> None:
    looks = Looks()

    class Replica:
        def __init__(self, partition: int) -> None:
            self.partition_index = partition

        @property
        def delete_partition(self) -> bool:
            looks.add()
            return True

    topics: Any = [StopReplicaTopicState(name, [Replica(number) for number in range(200)]) for name in TOPICS]  # type: ignore[misc]
    # The last topic's first partition is not named, and its second one has failed.
    answered = [StopReplicaPartitionError(name, number, 0) for name in TOPICS for number in range(200)]
    answered[-200:-198] = [StopReplicaPartitionError(TOPICS[-1], 1, 56)]
    failed: list[Any] = []
    deleted: list[Any] = []

    async def fail(replicas: list[Any]) -> None:
        failed.extend(replicas)

    async def complete(replicas: list[Any]) -> None:
        deleted.extend(replicas)

    parts: Any = SimpleNamespace(
        is_current=lambda sender: True,
        deletions=SimpleNamespace(fail_replica_deletion=fail, complete_replica_deletion=complete),
    )
    event = TopicDeletionStopReplicaResponseReceived(
        ControllerRequestSender(1, 1, 1), StopReplicaResponse(0, answered), topics
    )
    await looks.of(event_flows.flows(parts)[type(event)](event))
    assert failed == [((TOPICS[-1], 0), 1), ((TOPICS[-1], 1), 1)]
    assert len(deleted) == 200 * len(TOPICS) - 2
    assert looks.most <= CHEAP_SLICE
