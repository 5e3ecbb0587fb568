"""Writes into the history what changes in ZooKeeper: brokers, the controller, topics, leaders and ISRs.

The watch has a session of its own. It registers a watch on each znode, reads the znode again when the watch fires, and
compares. Changes of one znode that follow each other within a read are one entry: the leader epoch tells.

What must stay true:
- What any client could read before `catch_up` was called is in the history when `catch_up` returns.
- A lost connection or session loses no state, only steps in between: everything is then read again and compared.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from klamm.environment import Environment
from klamm.faults.entries import (
    BrokerRegistered,
    BrokerUnregistered,
    ControllerElected,
    ControllerGone,
    Entry,
    IsrChanged,
    LeaderElected,
    TopicCreated,
    TopicDeleted,
)
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.tasks import start_task
from klamm.znodes.brokers import BROKER_IDS_PATH, broker_ids, broker_path
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, decode_controller_epoch
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import notice
from klamm.znodes.topics import TOPICS_PATH, LeaderAndIsr, TopicAssignment, partition_state_path, topic_path
from klamm.zookeeper.client import State, ZooKeeperClient, retrying
from klamm.zookeeper.errors import ConnectionLoss, NoNode, SessionExpired
from klamm.zookeeper.messages import Stat

# So many znodes are read at once.
READS = 500

Read = Callable[[], Awaitable[None]]


class MetadataWatch:
    """Watches the cluster at `connect`. `add` appends to the history. All methods belong to one loop."""

    def __init__(
        self,
        environment: Environment,
        connect: str,
        session_timeout_ms: int,
        add: Callable[[Entry], None],
    ) -> None:
        self._new_client = partial(
            ZooKeeperClient, environment, connect, session_timeout_ms=session_timeout_ms, max_in_flight=READS
        )
        self._client: ZooKeeperClient | None = None
        self._add = add
        self._working: asyncio.Task[None] | None = None
        # How each watched znode is read, and those to read now.
        self._reads: dict[str, Read] = {}
        self._changed: dict[str, None] = {}
        self._has_changed = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._failure: BaseException | None = None
        # What is known: the epochs of brokers; controller and epoch; the topics' znodes and numbers of partitions.
        self._brokers: dict[int, int] = {}
        self._controller: tuple[int, int] | None = None
        self._topics: dict[str, tuple[int, int]] = {}
        self._states: dict[PartitionKey, LeaderAndIsr] = {}

    async def start(self) -> None:
        """Returns when the present state is in the history. Raises ZooKeeperError."""
        self._working = start_task(self._work(), self._failed)
        await self._idle()

    async def catch_up(self) -> None:
        """Returns when everything that has been written is in the history. Waits for a ZooKeeper that does not answer.

        Raises ZooKeeperError.
        """
        while self._client is not None:
            try:
                await self._client.sync(TOPICS_PATH)
                break
            except (ConnectionLoss, SessionExpired):
                await asyncio.sleep(0)  # Another session begins.
        await self._idle()

    async def _idle(self) -> None:
        """Returns when no znode is left to read."""
        await self._is_idle.wait()
        if self._failure is not None:
            raise self._failure

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._is_idle.set()

    async def close(self) -> None:
        """Ends the session. Idempotent."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        await self._close_client()

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                async with asyncio.timeout(0.2):
                    await client.close()
            except TimeoutError:
                pass  # The session expires later.

    # -- the work ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            client = self._client = self._new_client()
            client.add_listener(lambda _state: self._has_changed.set())
            self._watch(BROKER_IDS_PATH, self._read_brokers)
            self._watch(CONTROLLER_PATH, self._read_controller)
            self._watch(TOPICS_PATH, self._read_topics)
            for path in list(self._reads):
                self._mark(path)
            try:
                await client.start()
                while client.state is not State.EXPIRED:
                    await self._read_changed()
            except SessionExpired:
                continue

    def _watch(self, path: str, read: Read) -> None:
        """From now on `read` runs when the znode may have changed, and soon for the first time."""
        if path not in self._reads:
            self._reads[path] = read
            self._mark(path)

    def _mark(self, path: str) -> None:
        if path in self._reads:
            self._changed[path] = None
            self._is_idle.clear()
            self._has_changed.set()

    async def _read_changed(self) -> None:
        """Reads all znodes that may have changed, and waits for the next one. Raises SessionExpired."""
        while self._changed:
            paths = list(self._changed)[:READS]
            for path in paths:
                del self._changed[path]
            for result in await asyncio.gather(*map(self._read, paths), return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        self._is_idle.set()
        self._has_changed.clear()
        await self._has_changed.wait()

    async def _read(self, path: str) -> None:
        if (read := self._reads.get(path)) is not None:
            await read()

    async def _get(self, path: str) -> tuple[bytes, Stat] | None:
        """A znode, or None if it does not exist. Its next change is noticed."""
        assert self._client is not None
        watch = notice(self._mark, path)
        while await retrying(self._client.exists, path, watch) is not None:
            try:
                return await retrying(self._client.get, path, watch)
            except NoNode:
                continue
        return None

    async def _children(self, path: str) -> list[str]:
        assert self._client is not None
        try:
            return await retrying(self._client.children, path, notice(self._mark, path))
        except NoNode:
            # Another cluster's ZooKeeper may lose its znodes. They are looked for until they are back.
            await retrying(self._client.exists, path, notice(self._mark, path))
            return []

    # -- what is read -----------------------------------------------------------------------------------------------

    async def _read_brokers(self) -> None:
        for broker_id in broker_ids(await self._children(BROKER_IDS_PATH)):
            self._watch(broker_path(broker_id), partial(self._read_broker, broker_id))

    async def _read_broker(self, broker_id: int) -> None:
        found = await self._get(broker_path(broker_id))
        before = self._brokers.get(broker_id)
        if before is not None and (found is None or found[1].czxid != before):
            del self._brokers[broker_id]
            self._add(BrokerUnregistered(broker_id))
        if found is not None and found[1].czxid != before:
            self._brokers[broker_id] = found[1].czxid
            self._add(BrokerRegistered(broker_id, found[1].czxid))

    async def _read_controller(self) -> None:
        found, epoch = await self._get(CONTROLLER_PATH), await self._get(CONTROLLER_EPOCH_PATH)
        before = self._controller
        try:
            now = None
            if found is not None and epoch is not None:
                now = (Controller.decode(found[0]).broker_id, decode_controller_epoch(epoch[0]))
        except ZnodeError:
            return
        if before is not None and now is None:
            self._add(ControllerGone(before[0]))
        if now is not None and now != before:
            self._add(ControllerElected(*now))
        self._controller = now

    async def _read_topics(self) -> None:
        for topic in await self._children(TOPICS_PATH):
            self._watch(topic_path(topic), partial(self._read_topic, topic))

    async def _read_topic(self, topic: str) -> None:
        found = await self._get(topic_path(topic))
        before = self._topics.get(topic)
        if before is not None and (found is None or found[1].czxid != before[0]):
            self._forget(topic)
            before = None
        if found is None:
            # A topic of that name is found again in the list of topics.
            self._reads.pop(topic_path(topic), None)
            return
        try:
            partitions = len(TopicAssignment.decode(topic, found[0]).partitions)
        except ZnodeError:
            return
        if before is None or before[1] != partitions:
            self._add(TopicCreated(topic, partitions))
        self._topics[topic] = (found[1].czxid, partitions)
        for partition in range(partitions):
            self._watch(partition_state_path(topic, partition), partial(self._read_state, topic, partition))

    def _forget(self, topic: str) -> None:
        _, partitions = self._topics.pop(topic)
        for partition in range(partitions):
            self._reads.pop(partition_state_path(topic, partition), None)
            self._states.pop((topic, partition), None)
        self._add(TopicDeleted(topic))

    async def _read_state(self, topic: str, partition: int) -> None:
        found = await self._get(partition_state_path(topic, partition))
        if found is None:
            return
        try:
            state = LeaderAndIsr.decode(topic, partition, found[0])
        except ZnodeError:
            return
        before = self._states.get((topic, partition))
        self._states[topic, partition] = state
        if before is None or (before.leader, before.leader_epoch) != (state.leader, state.leader_epoch):
            self._add(
                LeaderElected(
                    topic,
                    partition,
                    _leader(state),
                    state.leader_epoch,
                    tuple(state.isr),
                    None if before is None else _leader(before),
                    None if before is None else tuple(before.isr),
                )
            )
        elif before.isr != state.isr:
            self._add(IsrChanged(topic, partition, tuple(state.isr), tuple(before.isr), state.leader_epoch))


def _leader(state: LeaderAndIsr) -> int | None:
    return None if state.leader == NO_LEADER else state.leader
