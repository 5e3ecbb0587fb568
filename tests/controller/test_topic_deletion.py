"""The deletion of very many partitions lets others have the loop."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.controller.context import ControllerContext
from klamm.controller.states import ReplicaState
from klamm.controller.topic_deletion import TopicDeletionManager
from support.controller.state_machines import context_with

TOPICS = 100
PARTITIONS = 100
REPLICAS = (1, 2, 3)
# Looks at replicas' states: some 3 ms.
MOST_IN_A_TURN = 3 * 2 * 1_000 + 3 * PARTITIONS * 2


class Machine:
    """A state machine that only writes replicas' states down."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def handle_state_changes(self, changed, target) -> None:
        await asyncio.sleep(0)
        for partition, broker_id in changed if isinstance(target, ReplicaState) else ():
            self._context.put_replica_states(broker_id, [partition], target)


async def test_no_turn_of_the_loop_looks_at_very_many_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(TOPICS)]
    context = context_with({(name, number): REPLICAS for name in names for number in range(PARTITIONS)}, *REPLICAS)
    replicas = [replica for name in names for replica in context.replicas_for_topic(name)]
    for partition, broker_id in replicas:
        context.put_replica_states(broker_id, [partition], ReplicaState.ONLINE)
    looks = 0
    state_of = ControllerContext.replica_state

    def counted(context, replica):
        nonlocal looks
        looks += 1
        return state_of(context, replica)

    monkeypatch.setattr(ControllerContext, "replica_state", counted)

    async def nothing(*_: object) -> None:
        await asyncio.sleep(0)

    store: Any = SimpleNamespace(delete_topic_guarded=nothing)
    config: Any = SimpleNamespace(delete_topic_enable=True)
    machine: Any = Machine(context)
    manager = TopicDeletionManager(
        config,
        context,
        lambda: store,
        machine,
        machine,
        nothing,
        lambda line: None,
    )

    async def delete() -> None:
        await manager.enqueue_topics_for_deletion(names)
        assert context.replica_state(replicas[0]) is ReplicaState.DELETION_STARTED
        for broker_id in REPLICAS:
            await manager.complete_replica_deletion([one for one in replicas if one[1] == broker_id])

    async def measured() -> list[int]:
        nonlocal looks
        deleting = asyncio.ensure_future(delete())
        in_turn = []
        while not deleting.done():
            await asyncio.sleep(0)
            in_turn.append(looks)
            looks = 0
        await deleting
        return in_turn

    in_turn = await measured()
    assert not context.topics_to_be_deleted
    assert max(in_turn) <= MOST_IN_A_TURN
