"""What a controller does to one topic, step by step: its writes to ZooKeeper and its requests, in order.

Controllers can be made to die between two of these steps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.znodes.requests import REASSIGN_PARTITIONS_PATH, decode_reassignment
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, partition_state_path, topic_path
from klamm.zookeeper.messages import Create, Delete, MultiOperation, SetData
from support.controller.scene import FakeBroker, FakeChannels, Scene, Sent

EPOCH_DURING_DELETE = -2


def ids(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids)) or "-"


class Journal:
    """The steps of all controllers that concern partition 0 of `topic`.

    `die_after(n)`: the controller does n more steps, of whatever topic, and no other; then `is_dead` is set.
    """

    def __init__(self, topic: str = "t") -> None:
        self.topic = topic
        self.lines: list[str] = []
        self.is_dead = asyncio.Event()
        self._left: int | None = None

    def take(self) -> list[str]:
        """The steps since the last call, equal requests to several brokers in one line."""
        taken, self.lines = self.lines, []
        merged: list[tuple[str, list[str], str]] = []
        for line in taken:
            to, _, what = line.partition(": ")
            name, _, receiver = to.partition(" ")
            if merged and receiver and (merged[-1][0], merged[-1][2]) == (name, what):
                merged[-1][1].append(receiver)
            else:
                merged.append((name, [receiver], what))
        return [f"{name} {','.join(receivers)}".strip() + f": {what}" for name, receivers, what in merged]

    def die_after(self, steps: int) -> None:
        self._left = steps
        self.is_dead.clear()

    def revive(self) -> None:
        self._left = None
        self.is_dead.clear()

    def may_step(self) -> bool:
        if self._left is None:
            return True
        if self._left == 0:
            self.is_dead.set()
            return False
        self._left -= 1
        return True

    def watch(self, broker: FakeBroker) -> None:
        """Notes what this broker's controller writes."""
        multi = broker.client.multi

        async def noted(operations: Sequence[MultiOperation]) -> Any:
            if not self.may_step():
                await asyncio.Event().wait()
            result = await multi(operations)
            for operation in operations:
                self._note_write(operation)
            return result

        broker.client.multi = noted  # type: ignore[method-assign]  # what every write goes through

    def _note_write(self, operation: MultiOperation) -> None:
        if isinstance(operation, Delete):
            if operation.path == REASSIGN_PARTITIONS_PATH:
                self.lines.append("reassign_partitions: gone")
            return
        if not isinstance(operation, Create | SetData) or operation.data is None:
            return
        if operation.path == topic_path(self.topic) and isinstance(operation, SetData):
            found = TopicAssignment.decode(self.topic, operation.data)
            lists = (found.partitions[0], found.adding_replicas.get(0, ()), found.removing_replicas.get(0, ()))
            self.lines.append("topic: RS {} AR {} RR {}".format(*map(ids, lists)))
        elif operation.path == partition_state_path(self.topic, 0) and isinstance(operation, SetData):
            self.lines.append(f"state: {leadership(LeaderAndIsr.decode(self.topic, 0, operation.data))}")
        elif operation.path == REASSIGN_PARTITIONS_PATH:
            left = decode_reassignment(operation.data)
            self.lines.append(f"reassign_partitions: {left or 'gone'}")

    def note_request(self, sent: Sent) -> None:
        if sent.api_key is ApiKey.STOP_REPLICA:
            for state in stopped(sent.body, self.topic):
                delete = " delete" if state.delete_partition else ""
                self.lines.append(f"StopReplica {sent.receiver}: epoch {state.leader_epoch}{delete}")
            return
        for state in told(sent.body, self.topic):
            line = f"{sent.api_key.message_name} {sent.receiver}: {leadership(state)} RS {ids(state.replicas)}"
            if sent.api_key is ApiKey.LEADER_AND_ISR:
                line += f" AR {ids(state.adding_replicas)} RR {ids(state.removing_replicas)}"
                line += " new" if state.is_new else ""
            self.lines.append(line)


def leadership(state: Any) -> str:
    return f"leader {state.leader} epoch {state.leader_epoch} isr {ids(state.isr)}"


def told(body: Any, topic: str) -> list[Any]:
    return [
        state
        for each in body.topic_states
        if each.topic_name == topic
        for state in each.partition_states
        if state.partition_index == 0
    ]


def stopped(body: Any, topic: str) -> list[Any]:
    return [state for each in body.topic_states if each.topic_name == topic for state in each.partition_states]


def hosted(sent: Sequence[Sent], topic: str) -> dict[int, tuple[int, ...]]:
    """The brokers that have the replica, and what each takes for RS. They obey only what has a newer leader epoch."""
    states: dict[int, tuple[int, tuple[int, ...]]] = {}
    for request in sent:
        receiver = request.receiver
        if request.api_key is ApiKey.LEADER_AND_ISR:
            for state in told(request.body, topic):
                if state.leader_epoch > states.get(receiver, (-1,))[0]:
                    states[receiver] = state.leader_epoch, state.replicas
        elif request.api_key is ApiKey.STOP_REPLICA:
            for state in stopped(request.body, topic):
                is_newer = state.leader_epoch > states.get(receiver, (-1,))[0]
                if state.delete_partition and (is_newer or state.leader_epoch == EPOCH_DURING_DELETE):
                    states.pop(receiver, None)
    return {broker_id: replicas for broker_id, (_, replicas) in states.items()}


def hosting(sent: Sequence[Sent], topic: str) -> set[int]:
    return set(hosted(sent, topic))


class NotedChannels(FakeChannels):
    """Tells the journal."""

    def __init__(self, scene: Scene, sender: int, journal: Journal) -> None:
        super().__init__(scene, sender)
        self._journal = journal

    def send_request(self, broker_id: int, api_key: ApiKey, body: Any, on_response: Any) -> None:
        if self._journal.may_step():
            super().send_request(broker_id, api_key, body, on_response)
            self._journal.note_request(Sent(0, broker_id, api_key, body))


class Stage:
    """A scene with brokers 7 and 8, of which one is the controller, and brokers 1 to 6 that only have replicas."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.journal = Journal()

    async def set_up(self) -> "Stage":
        await self.start_controller(7)
        await self.start_controller(8)
        for broker_id in range(1, 7):
            await self.start_replica(broker_id)
        return self

    async def start_controller(self, broker_id: int) -> None:
        scene = self.scene
        broker = scene.brokers[broker_id] = FakeBroker(scene, broker_id, {}, scene.address)
        broker.controller._open_channels = lambda: NotedChannels(scene, broker_id, self.journal)
        await broker.connect()
        self.journal.watch(broker)
        await broker.store.create_persistent_paths()
        await broker.register()
        await broker.controller.startup(broker.store)
        await scene.until(lambda: scene.knows(broker))

    async def start_replica(self, broker_id: int) -> None:
        """A broker whose controller takes part in no election."""
        scene = self.scene
        broker = scene.brokers[broker_id] = FakeBroker(scene, broker_id, {}, scene.address)
        await broker.connect()
        await broker.register()
        await scene.until(lambda: scene.knows(broker))

    async def survive(self, work: Callable[[], Awaitable[None]], deaths: list[int]) -> None:
        """Does the work, and again if the controller dies over it; `deaths` gets the dead."""
        journal, scene = self.journal, self.scene
        while True:
            working = asyncio.ensure_future(work())
            dead = asyncio.ensure_future(journal.is_dead.wait())
            async with asyncio.timeout(120):
                await asyncio.wait({working, dead}, return_when=asyncio.FIRST_COMPLETED)
            if not dead.done():
                dead.cancel()
                journal.revive()
                await working
                return
            victim = scene.active.broker_id
            deaths.append(victim)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            # Nothing more is done by it, and nothing is refused to the next one.
            await scene.brokers[victim].controller.shutdown()
            journal.revive()
            await scene.kill(victim)
            await self.start_controller(victim)

    async def assignment(self, topic: str = "t") -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """RS, AR, RR in ZooKeeper."""
        found = await self.scene.store.topic_assignment(topic)
        assert found is not None
        replicas = found.partitions[0], found.adding_replicas.get(0, ()), found.removing_replicas.get(0, ())
        return tuple(replicas[0]), tuple(replicas[1]), tuple(replicas[2])
