"""A ZooKeeper ensemble in one simulated server: its leader, and a member that lags behind and serves some clients.

A client of the lagging member gets exactly ZooKeeper's guarantees, and no more:

| operation           | done by                             | guarantee                                             |
|---------------------|-------------------------------------|-------------------------------------------------------|
| a read              | the member, on its own tree         | may be old, but never older than this client's reads  |
| a write, `sync`     | the leader                          | the member has caught up with it before the answer    |
| a watch             | the member                          | fires when the member learns of a change, in order    |
| a new session       | the leader, as a write              |                                                       |
| a reconnection      | the member                          | refused while it knows less than this client has seen |

What must stay true: the member applies the leader's transactions in their order, each at most `MAX_LAG_S` late unless
it is held. Like those of ZooKeeper 3.9, both name the transaction's zxid in their notifications.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from klamm.base.environment import Environment
from klamm.base.slices import in_one_go
from klamm.zookeeper import jute, messages
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.server.access_control import Caller
from klamm.zookeeper.server.cnxn import ServerCnxn
from klamm.zookeeper.server.long_work import LongSteps
from klamm.zookeeper.server.requests import Requests, encode_event
from klamm.zookeeper.server.sessions import Session
from klamm.zookeeper.server.transactions import Txn
from klamm.zookeeper.server.tree import Applied, Event, ZnodeTree
from klamm.zookeeper.server.watches import Watches

USUAL_LAG_S = 0.002
MAX_LAG_S = 3.0
LONG_LAG_CHANCE = 0.02
# Small enough that every run has several snapshots, and transaction logs that the snapshots make superfluous.
SNAPSHOT_EVERY = 50

READS = (
    messages.GetData,
    messages.Exists,
    messages.GetChildren,
    messages.GetAcl,
    messages.SetWatches,
    messages.CheckWatches,
    messages.RemoveWatches,
)


class Lag:
    """How far the member is behind. `clients` are the IP addresses that it serves; without clients there is no lag."""

    def __init__(self, chance: random.Random) -> None:
        self.clients: set[str] = set()
        self.is_held = False
        """Whether the member learns of new transactions only by the writes and syncs of its own clients."""
        self._chance = chance

    def seconds(self) -> float:
        """How much later than the leader the member learns of the next transaction."""
        longest_s = MAX_LAG_S if self._chance.random() < LONG_LAG_CHANCE else USUAL_LAG_S
        return self._chance.uniform(0, longest_s)


class _Arriving(NamedTuple):
    """A transaction that the member does not know yet."""

    due_s: float
    zxid: int
    time_ms: int
    txn: Txn


class _Member:
    """The lagging member's tree and watches, and the transactions on their way to it."""

    def __init__(self, tree: ZnodeTree, lag: Lag, send: Callable[[ServerCnxn, bytes], None]) -> None:
        self.tree = _copy_of(tree)
        self.watches: Watches[ServerCnxn] = Watches()
        self.requests = Requests(self.tree, self.watches, _refuse, send)
        self._lag = lag
        self._send = send
        self._arriving: deque[_Arriving] = deque()

    def receive(self, zxid: int, time_ms: int, txn: Txn) -> None:
        loop = asyncio.get_running_loop()
        due_s = max(loop.time() + self._lag.seconds(), self._arriving[-1].due_s if self._arriving else 0)
        self._arriving.append(_Arriving(due_s, zxid, time_ms, txn))
        loop.call_at(due_s, self._arrive)

    def catch_up(self) -> None:
        """Applies all transactions of the leader."""
        while self._arriving:
            _, zxid, time_ms, txn = self._arriving.popleft()
            for connection, event in self.watches.fire(self.tree.apply(txn, zxid, time_ms).events):
                self._send(connection, encode_event(event, zxid))

    def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._lag.is_held:
            loop.call_later(USUAL_LAG_S, self._arrive)
        elif self._arriving and self._arriving[0].due_s <= now_s:
            later = [each for each in self._arriving if each.due_s > now_s]
            for _ in later:
                self._arriving.pop()
            self.catch_up()
            self._arriving.extend(later)


class EnsembleServer(ZooKeeperServer):
    """See the module."""

    def __init__(
        self,
        environment: Environment,
        directory: str,
        host: str,
        port: int,
        lag: Lag,
        on_transaction: Callable[[int, str], None],
    ) -> None:
        super().__init__(
            environment, directory, host, port, snapshot_every=SNAPSHOT_EVERY, on_transaction=on_transaction
        )
        self._lag = lag
        self._known_member: _Member | None = None
        # Whether the current operation belongs to a client of the member.
        self._is_for_member = False
        # The session whose request is being executed; None for the server's own transactions.
        self.writer: int | None = None

    @property
    def _member(self) -> _Member:
        if self._known_member is None:
            self._known_member = _Member(self.tree, self._lag, self._outbox.send)
        return self._known_member

    def _is_members(self, connection: ServerCnxn) -> bool:
        return connection.peer.rpartition(":")[0] in self._lag.clients

    def connect(self, connection: ServerCnxn, request: messages.ConnectRequest) -> None:
        if not self._is_members(connection):
            super().connect(connection, request)
        elif request.session_id and request.last_zxid_seen > self._member.tree.zxid:
            connection.close(f"it has seen zxid 0x{request.last_zxid_seen:x}, ours is 0x{self._member.tree.zxid:x}")
        else:
            self._for_member(lambda: super(EnsembleServer, self).connect(connection, request))

    def execute(self, connection: ServerCnxn, session: Session, xid: int, request: Any) -> None:
        self.writer = session.id
        try:
            self._execute(connection, session, xid, request)
        finally:
            self.writer = None

    def _execute(self, connection: ServerCnxn, session: Session, xid: int, request: Any) -> None:
        if not self._is_members(connection):
            super().execute(connection, session, xid, request)
        elif isinstance(request, READS):
            self._member.requests.execute(connection, Caller(session.id, connection.identities), xid, request)
        elif isinstance(request, messages.Ping):
            super().execute(connection, session, xid, request)
        else:
            self._member.catch_up()
            self._for_member(lambda: super(EnsembleServer, self).execute(connection, session, xid, request))

    def execute_in_steps(self, connection: ServerCnxn, session: Session, frame: bytes) -> None:
        if self._is_members(connection):
            self.execute(connection, session, *jute.decode_request(frame))
        else:
            super().execute_in_steps(connection, session, frame)

    def _frame_steps(self, connection: ServerCnxn, session: Session, frame: bytes) -> LongSteps[None]:
        steps = super()._frame_steps(connection, session, frame)
        while True:
            self.writer = session.id
            try:
                open_to = next(steps)
            except StopIteration:
                return
            finally:
                self.writer = None
            yield open_to

    def closed(self, connection: ServerCnxn) -> None:
        super().closed(connection)
        if self._known_member is not None:
            in_one_go(self._known_member.watches.forget(connection))

    def _for_member(self, do: Callable[[], None]) -> None:
        self._is_for_member = True
        try:
            do()
        finally:
            self._is_for_member = False

    def _commit_steps(self, txn: Txn) -> LongSteps[Applied]:
        if not self._lag.clients:
            self._known_member = None
            return (yield from super()._commit_steps(txn))
        member, time_ms, is_for_member = self._member, self._environment.now_ms(), self._is_for_member
        applied = yield from super()._commit_steps(txn)
        member.receive(self.tree.zxid, time_ms, txn)
        if is_for_member:
            member.catch_up()
        return applied

    def _notify(self, fired: Iterable[tuple[ServerCnxn, Event]]) -> None:
        for connection, event in fired:
            self._outbox.send(connection, encode_event(event, self.tree.zxid))


def _copy_of(tree: ZnodeTree) -> ZnodeTree:
    capture = tree.capture()
    images = capture.take(len(tree) + 1)
    tree.release_capture()
    return ZnodeTree.restore(capture.zxid, capture.last_session_id, capture.sessions, images)


def _refuse(txn: Txn) -> LongSteps[Applied]:
    raise AssertionError(f"the member writes nothing by itself: {txn}")
