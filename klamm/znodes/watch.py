"""Follows the znodes of a cluster's state: brokers, controller, topics, partitions and topics to be deleted.

A `ZnodeWatch` has a session of its own. It registers a watch on each znode, reads the znode again when the watch fires,
and reports a new version to `seen`. Versions that follow each other within a read are reported as one.

What must stay true:
- When `catch_up` returns, every version that any client could read before the call has been reported.
- A lost connection or session loses no state, only versions in between: all znodes are then read again and compared.
- A topic is reported before its partitions. After a topic was created anew, its partitions' states are reported again.
- Only the znodes of `is_cluster_state` are read: neither configurations nor credentials.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple

from klamm.base.environment import Environment
from klamm.base.tasks import start_task
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.access import notice
from klamm.znodes.brokers import BROKER_IDS_PATH, broker_ids, broker_path
from klamm.znodes.cluster import CLUSTER_ID_PATH, CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
from klamm.znodes.fields import ZnodeError
from klamm.znodes.requests import DELETE_TOPICS_PATH, delete_topic_path
from klamm.znodes.topics import TOPICS_PATH, TopicAssignment, partition_state_path, topic_path
from klamm.zookeeper.client import State, ZooKeeperClient, retrying
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, NoNode, SessionExpired
from klamm.zookeeper.messages import Stat

# This many znodes are read at once.
READS = 500

_SINGLE_PATHS = (CONTROLLER_PATH, CONTROLLER_EPOCH_PATH, CLUSTER_ID_PATH)
_STATE_PATH = re.compile(rf"{TOPICS_PATH}/([^/]+)/partitions/([0-9]{{1,10}})/state")
_CHILD_PATH = re.compile(rf"({BROKER_IDS_PATH}|{TOPICS_PATH}|{DELETE_TOPICS_PATH})/([^/]+)")

Read = Callable[[], Awaitable[None]]


class Znode(NamedTuple):
    """One version of a znode. `data` is None when the znode was deleted."""

    path: str
    data: bytes | None
    czxid: int = -1
    mzxid: int = -1
    version: int = -1


def partition_of_state_path(path: str) -> PartitionKey | None:
    """The partition whose state is at this path; None for other paths."""
    match = _STATE_PATH.fullmatch(path)
    return None if match is None else (match[1], int(match[2]))


def child_of_path(path: str) -> tuple[str, str] | None:
    """(parent, name) of a broker's, topic's or deletion's path; None for other paths."""
    match = _CHILD_PATH.fullmatch(path)
    return None if match is None else (match[1], match[2])


def is_cluster_state(path: str) -> bool:
    """Whether a `ZnodeWatch` follows this znode."""
    return path in _SINGLE_PATHS or child_of_path(path) is not None or partition_of_state_path(path) is not None


class ZnodeWatch:
    """Watches the cluster at `connect`, and calls `seen` for each version. All methods belong to one loop."""

    def __init__(
        self,
        environment: Environment,
        connect: str,
        session_timeout_ms: int,
        seen: Callable[[Znode], None],
    ) -> None:
        self._new_client = partial(
            ZooKeeperClient, environment, connect, session_timeout_ms=session_timeout_ms, max_in_flight=READS
        )
        self._client: ZooKeeperClient | None = None
        self._seen = seen
        self._working: asyncio.Task[None] | None = None
        # How each watched znode is read, and the znodes to read now.
        self._reads: dict[str, Read] = {}
        self._changed: dict[str, None] = {}
        self._has_changed = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._failure: BaseException | None = None
        # (czxid, mzxid) of the last reported version of each existing znode; the number of each topic's partitions.
        self._reported: dict[str, tuple[int, int]] = {}
        self._partitions: dict[str, int] = {}

    async def start(self) -> None:
        """Returns when the present state has been reported. Raises ZooKeeperError."""
        self._working = start_task(self._work(), self._failed)
        await self._idle()

    async def catch_up(self) -> None:
        """Returns when all earlier writes have been reported. Waits for a ZooKeeper that does not answer.

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
            self._watch(CLUSTER_ID_PATH, partial(self._read_one, CLUSTER_ID_PATH))
            self._watch(BROKER_IDS_PATH, self._read_brokers)
            self._watch(CONTROLLER_PATH, self._read_controller)
            self._watch(TOPICS_PATH, self._read_topics)
            self._watch(DELETE_TOPICS_PATH, self._read_deletions)
            for path in list(self._reads):
                self._mark(path)
            try:
                await client.start()
                while client.state is not State.EXPIRED:
                    await self._read_changed()
            except SessionExpired:
                continue

    def _watch(self, path: str, read: Read) -> None:
        """Watches a znode: `read` runs soon, and again whenever the znode may have changed."""
        if path not in self._reads:
            self._reads[path] = read
            self._mark(path)

    def _mark(self, path: str) -> None:
        if path in self._reads:
            self._changed[path] = None
            self._is_idle.clear()
            self._has_changed.set()

    async def _read_changed(self) -> None:
        """Reads all znodes that may have changed, and waits for the next change. Raises SessionExpired."""
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
        """A znode, or None if it does not exist. Leaves a watch for its next change."""
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
            # Another cluster's ZooKeeper may lose its znodes. The watch fires when they are back.
            await retrying(self._client.exists, path, notice(self._mark, path))
            return []

    def _tell(self, path: str, found: tuple[bytes, Stat] | None) -> None:
        """Reports a version, unless it was the last one reported."""
        before = self._reported.get(path)
        if found is None:
            if before is not None:
                del self._reported[path]
                self._seen(Znode(path, None))
            return
        data, stat = found
        if before == (stat.czxid, stat.mzxid):
            return
        if before is not None and before[0] != stat.czxid:
            self._seen(Znode(path, None))  # The znode was deleted and created anew between two reads.
        self._reported[path] = (stat.czxid, stat.mzxid)
        self._seen(Znode(path, data, stat.czxid, stat.mzxid, stat.version))

    # -- reads ------------------------------------------------------------------------------------------------------

    async def _read_one(self, path: str) -> None:
        self._tell(path, await self._get(path))

    async def _read_controller(self) -> None:
        # An elected controller writes both in one transaction. The epoch is read last, so it is never the older of
        # both.
        controller, epoch = await self._get(CONTROLLER_PATH), await self._get(CONTROLLER_EPOCH_PATH)
        self._tell(CONTROLLER_EPOCH_PATH, epoch)
        self._tell(CONTROLLER_PATH, controller)

    async def _read_brokers(self) -> None:
        self._watch_each(broker_path(each) for each in broker_ids(await self._children(BROKER_IDS_PATH)))

    async def _read_deletions(self) -> None:
        self._watch_each(delete_topic_path(topic) for topic in await self._children(DELETE_TOPICS_PATH))

    def _watch_each(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._watch(path, partial(self._read_child, path))

    async def _read_child(self, path: str) -> None:
        found = await self._get(path)
        self._tell(path, found)
        if found is None:
            # The list of children shows when a znode of that name exists again.
            self._reads.pop(path, None)

    async def _read_topics(self) -> None:
        for topic in await self._children(TOPICS_PATH):
            self._watch(topic_path(topic), partial(self._read_topic, topic))

    async def _read_topic(self, topic: str) -> None:
        path = topic_path(topic)
        found = await self._get(path)
        before = self._reported.get(path)
        if before is not None and (found is None or found[1].czxid != before[0]):
            self._forget_partitions(topic)
        self._tell(path, found)
        if found is None:
            self._reads.pop(path, None)
            return
        try:
            partitions = len(TopicAssignment.decode(topic, found[0]).partitions)
        except ZnodeError:
            return
        self._partitions[topic] = partitions
        for partition in range(partitions):
            state_path = partition_state_path(topic, partition)
            self._watch(state_path, partial(self._read_one, state_path))

    def _forget_partitions(self, topic: str) -> None:
        for partition in range(self._partitions.pop(topic, 0)):
            path = partition_state_path(topic, partition)
            self._reads.pop(path, None)
            self._reported.pop(path, None)
