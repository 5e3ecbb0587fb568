"""`ZooKeeperServer`: connections, sessions, and the way of a request through the server's parts.

What must stay true:
- No response that shows a write leaves before the write is durable (`Outbox`). No write waits for the disk before it is
  checked: requests are checked against the tree with all earlier writes in it.
- A session belongs to at most one connection; a client that attaches to it from a new connection ends the old one.
- When the disk fails the server stops: everything held is dropped, all connections are cut, `wait_closed` raises.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from klamm.base.environment import Environment
from klamm.base.slices import Slices, Steps, in_one_go
from klamm.zookeeper import jute, messages
from klamm.zookeeper.keeper_exceptions import JuteError
from klamm.zookeeper.messages import OpCode
from klamm.zookeeper.server import four_letter_words
from klamm.zookeeper.server.access_control import Caller
from klamm.zookeeper.server.cnxn import ServerCnxn
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.long_work import LongSteps, LongWork, OpenTo, while_open_to
from klamm.zookeeper.server.outbox import Outbox
from klamm.zookeeper.server.requests import Requests, encode_event
from klamm.zookeeper.server.sessions import Session, SessionTracker
from klamm.zookeeper.server.transactions import CloseSessionTxn, CreateSessionTxn, Txn
from klamm.zookeeper.server.tree import Applied, Event, ZnodeTree
from klamm.zookeeper.server.watches import Watches

CONTAINER_CHECK_S: Final = 60.0  # znode.container.checkIntervalMs
# A znode with more children is listed in steps.
MANY_CHILDREN = 1_000
EVENTS_PER_SLICE = 1_000
_WRITES: Final = (
    OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL, OpCode.DELETE, OpCode.SET_DATA,
    OpCode.SET_ACL, OpCode.MULTI, OpCode.CLOSE_SESSION,
)  # fmt: skip
_OVER: Final = object()

_log = logging.getLogger(__name__)


class ZooKeeperServer:
    """A ZooKeeper ensemble of one, in this process.

    `directory` (absolute) belongs to this server alone. A session's timeout is what the client asks for, within
    `min_session_timeout_ms` and `max_session_timeout_ms` (2 and 20 ticks unless given). A snapshot is written every
    `snapshot_every` operations, or earlier when the log grows large. `on_transaction(zxid, description)` is called for
    every applied transaction.
    """

    def __init__(
        self,
        environment: Environment,
        directory: str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tick_time_ms: int = 2000,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int | None = None,
        snapshot_every: int = 100_000,
        on_transaction: Callable[[int, str], None] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._environment = environment
        self._directory = directory
        self._tick_time_ms = tick_time_ms
        self._min_session_timeout_ms = 2 * tick_time_ms if min_session_timeout_ms is None else min_session_timeout_ms
        self._max_session_timeout_ms = 20 * tick_time_ms if max_session_timeout_ms is None else max_session_timeout_ms
        self._on_transaction = on_transaction
        self._database = Database(environment, directory, snapshot_every, self._durable, self._fail)
        self._watches: Watches[ServerCnxn] = Watches()
        self._connections: dict[ServerCnxn, None] = {}
        self._attached: dict[int, ServerCnxn] = {}  # the connection of each session that has one, by the session's id
        self._received = 0  # by connections that are closed
        self._sent = 0
        self._listener: Any = None  # asyncio.Server, uvloop's or the simulator's
        self._container_timer: asyncio.TimerHandle | None = None
        # The connections whose next request waits for long work.
        self._waiting: dict[ServerCnxn, None] = {}
        self._abandoned: asyncio.Task[None] | None = None  # kept, because the loop itself keeps no task

    @property
    def tree(self) -> ZnodeTree:
        """The current znodes, once the server has started. Read only."""
        return self._tree

    # -- life

    async def start(self) -> None:
        """Recovers from the directory, then listens; port 0 becomes the one that the system chose.

        The port is bound before the directory is touched, so that a port in use leaves nothing behind.

        Raises CorruptDataError when acknowledged writes are missing in the directory, BlockingIOError when another
        server has it, OSError when the disk or the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._listener = await loop.create_server(lambda: ServerCnxn(self), self.host, self.port, start_serving=False)
        if self.port == 0:
            self.port = self._listener.sockets[0].getsockname()[1]
        try:
            await self._database.open()
        except BaseException:
            self._listener.close()
            raise
        self._tree: ZnodeTree = self._database.tree
        self._outbox = Outbox(self._tree)
        self._long_work = LongWork(self._open_again, self._fail)
        self._requests = Requests(self._tree, self._watches, self._commit_steps, self._outbox.send)
        self._sessions = SessionTracker(self._expire, self._is_held_up)
        for session_id, state in self._tree.sessions.items():
            self._sessions.add(Session(session_id, state.timeout_ms, state.password))
        try:
            await self._listener.start_serving()
        except BaseException:
            self._listener.close()
            self._sessions.stop()
            await self._database.close()
            raise
        self._container_timer = loop.call_later(CONTAINER_CHECK_S, self._delete_containers)
        _log.info("ZooKeeper at %s:%d is ready, zxid 0x%x", self.host, self.port, self._tree.zxid)

    async def stop(self) -> None:
        """Takes no further request, sends the responses to earlier requests, and closes. Idempotent."""
        if not self._closed.done():
            self._stop_taking()
        if not self._closed.done():
            await self._long_work.finish()
        await self._database.close()
        if not self._closed.done():  # else the last sync failed
            for connection in list(self._connections):
                connection.finish()
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        """Returns when the server has been stopped; raises the error that made it stop by itself."""
        await asyncio.shield(self._closed)

    def _stop_taking(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._container_timer is not None:
            self._container_timer.cancel()
        self._sessions.stop()
        for connection in self._connections:
            connection.refuse_requests()

    def _fail(self, error: Exception) -> None:
        """Stops the server: applied transactions may never become durable, so no response may show them."""
        if self._closed.done():
            return
        _log.critical("%s: the server stops, it cannot keep what it is given: %r", self._directory, error)
        self._stop_taking()
        self._long_work.clear()
        self._outbox.clear()
        for connection in list(self._connections):
            connection.close("the server has failed")
        self._abandoned = asyncio.ensure_future(self._database.close())
        self._closed.set_exception(error)

    # -- connections and sessions

    def opened(self, connection: ServerCnxn) -> None:
        self._connections[connection] = None

    def closed(self, connection: ServerCnxn) -> None:
        del self._connections[connection]
        self._waiting.pop(connection, None)
        self._forget_watches(self._watches.forget(connection))
        if connection.session is not None and self._attached.get(connection.session.id) is connection:
            del self._attached[connection.session.id]
        self._received += connection.received
        self._sent += connection.sent

    def _forget_watches(self, steps: Steps[None]) -> None:
        """Takes one step now, and one in each later turn of the loop."""
        if next(steps, _OVER) is not _OVER:
            asyncio.get_running_loop().call_soon(self._forget_watches, steps)

    def connect(self, connection: ServerCnxn, request: messages.ConnectRequest) -> None:
        """The first frame of a connection: begins a session or attaches to one."""
        if request.last_zxid_seen > self._tree.zxid:
            # As in ZooKeeper: this server lacks transactions that the client has already seen.
            connection.close(f"it has seen zxid 0x{request.last_zxid_seen:x}, ours is 0x{self._tree.zxid:x}")
            return
        timeout_ms = min(max(request.timeout_ms, self._min_session_timeout_ms), self._max_session_timeout_ms)
        session = self._attach(connection, request, timeout_ms) if request.session_id else self._begin(timeout_ms)
        read_only = None if request.read_only is None else False
        if session is None:
            expired = messages.ConnectResponse(0, 0, bytes(16), read_only)
            self._outbox.send(connection, jute.encode_connect_response(expired))
            self._outbox.finish(connection)
            return
        self._attached[session.id] = connection
        connection.session = session
        response = messages.ConnectResponse(session.timeout_ms, session.id, session.password, read_only)
        self._outbox.send(connection, jute.encode_connect_response(response))

    def _begin(self, timeout_ms: int) -> Session:
        # As in ZooKeeper, an id comes from the clock, but not from the clock alone: a clock can be set back.
        session_id = max((self._environment.now_ms() << 16) & (2**56 - 1), self._tree.last_session_id + 1)
        password = self._environment.random.randbytes(16)
        self._commit(CreateSessionTxn(session_id, timeout_ms, password))
        session = Session(session_id, timeout_ms, password)
        self._sessions.add(session)
        return session

    def _attach(self, connection: ServerCnxn, request: messages.ConnectRequest, timeout_ms: int) -> Session | None:
        session = self._sessions.get(request.session_id)
        if session is None or session.password != request.password:
            why = "unknown or expired" if session is None else "the password is wrong"
            _log.info("%s: session 0x%x is refused: %s", connection, request.session_id, why)
            return None
        earlier = self._attached.get(session.id)
        if earlier is not None:
            earlier.close("its session has moved to another connection")
        self._sessions.change_timeout(session, timeout_ms)
        return session

    def _expire(self, session: Session) -> None:
        _log.info("session 0x%x has expired: nothing heard for %d ms", session.id, session.timeout_ms)
        self._sessions.remove(session)
        self._long_work.begin(self._expired(session))

    def _expired(self, session: Session) -> LongSteps[None]:
        yield from self._commit_steps(CloseSessionTxn(session.id))
        connection = self._attached.get(session.id)
        if connection is not None:
            self._outbox.finish(connection)

    def _is_held_up(self, session: Session) -> bool:
        connection = self._attached.get(session.id)
        return connection is not None and connection.held > 0

    # -- requests

    def execute(self, connection: ServerCnxn, session: Session, xid: int, request: Any) -> None:
        """Executes one request of a session; its reply leaves when it may."""
        if isinstance(request, messages.CloseSession):
            connection.refuse_requests()
            self._sessions.remove(session)
            self._long_work.begin(self._close_session(connection, session, xid, request))
            return
        if isinstance(request, messages.GetChildren) and self._tree.child_count(request.path) > MANY_CHILDREN:
            caller = Caller(session.id, connection.identities)
            self._begin_long(connection, self._requests.steps(connection, caller, xid, request))
            return
        self._requests.execute(connection, Caller(session.id, connection.identities), xid, request)
        if connection.is_closing:
            self._outbox.finish(connection)

    def _close_session(
        self, connection: ServerCnxn, session: Session, xid: int, request: messages.CloseSession
    ) -> LongSteps[None]:
        yield from self._commit_steps(CloseSessionTxn(session.id))
        self._requests.execute(connection, Caller(session.id, connection.identities), xid, request)
        self._outbox.finish(connection)

    # -- long requests

    def is_open_to(self, connection: ServerCnxn, op: int | None) -> bool:
        """Whether the connection's next request may be executed while long work is in progress."""
        open_to = self._long_work.open_to
        if open_to is OpenTo.EVERYTHING or (open_to is OpenTo.READS and op is not None and op not in _WRITES):
            return True
        self._waiting[connection] = None
        return False

    def _open_again(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in self._waiting:
            loop.call_soon(connection.execute)
        self._waiting.clear()

    def execute_in_steps(self, connection: ServerCnxn, session: Session, frame: bytes) -> None:
        """Executes a request that may concern thousands of znodes or watches."""
        self._begin_long(connection, self._frame_steps(connection, session, frame))

    def _begin_long(self, connection: ServerCnxn, steps: LongSteps[None]) -> None:
        """The next request of the connection waits for the end of these steps."""

        def busy() -> LongSteps[None]:
            connection.is_busy = True
            try:
                yield from steps
            finally:
                connection.is_busy = False
            if connection in self._connections:
                connection.execute()
            else:  # These steps may have set watches after the closed connection's were forgotten.
                self._forget_watches(self._watches.forget(connection))

        connection.is_busy = True
        self._long_work.begin(busy())

    def _frame_steps(self, connection: ServerCnxn, session: Session, frame: bytes) -> LongSteps[None]:
        try:
            xid, request = yield from while_open_to(OpenTo.EVERYTHING, jute.decode_request_steps(frame))
        except JuteError as error:
            connection.refuse(frame, error)
            return
        # The client may have gone, and its session may have ended.
        if not connection.is_closing:
            caller = Caller(session.id, connection.identities)
            yield from self._requests.steps(connection, caller, xid, request)

    def _commit_steps(self, txn: Txn) -> LongSteps[Applied]:
        """Like `_commit`, in steps."""
        applied = yield from self._database.commit_steps(txn)
        if self._on_transaction is not None:
            self._on_transaction(self._tree.zxid, repr(txn))
        fired = yield from while_open_to(OpenTo.NOTHING, self._watches.fire_steps(applied.events))
        for start in range(0, len(fired), EVENTS_PER_SLICE):
            if start:
                yield OpenTo.NOTHING
            self._notify(fired[start : start + EVENTS_PER_SLICE])
        return applied

    def four_letter_word(self, connection: ServerCnxn, word: str) -> None:
        """Answers an operator's question and closes."""
        connection.send(four_letter_words.answer(word, self._figures()))
        connection.finish()

    def _commit(self, txn: Txn) -> Applied:
        return in_one_go(self._commit_steps(txn))

    def _notify(self, fired: Iterable[tuple[ServerCnxn, Event]]) -> None:
        encoded, payload = None, b""
        for connection, event in fired:
            if event is not encoded:
                encoded, payload = event, encode_event(event)
            self._outbox.send(connection, payload)

    def _durable(self, zxid: int) -> None:
        self._outbox.release(zxid)

    def _delete_containers(self) -> None:
        self._long_work.begin(self._delete_empty_containers())
        self._container_timer = asyncio.get_running_loop().call_later(CONTAINER_CHECK_S, self._delete_containers)

    def _delete_empty_containers(self) -> LongSteps[None]:
        slices = Slices()
        for path in self._tree.containers():
            txn = self._tree.prepare_delete_container(path)
            if txn is not None:
                self._commit(txn)
            if slices.spend():
                yield OpenTo.EVERYTHING

    def _figures(self) -> four_letter_words.Figures:
        latency = self._outbox.latency
        return four_letter_words.Figures(
            clients=[
                four_letter_words.ClientFigures(connection.peer, connection.held, connection.received, connection.sent)
                for connection in self._connections
            ],
            latency_ms=(round(latency.least_ms), latency.sum_ms / max(latency.count, 1), round(latency.most_ms)),
            received=self._received + sum(connection.received for connection in self._connections),
            sent=self._sent + sum(connection.sent for connection in self._connections),
            outstanding=len(self._outbox),
            zxid=self._tree.zxid,
            node_count=len(self._tree) + 1,  # ZooKeeper counts the root twice
            watch_count=len(self._watches),
            ephemeral_count=self._tree.ephemeral_count,
            data_size_bytes=self._tree.data_size_bytes,
            configuration=(
                ("clientPort", self.port),
                ("dataDir", self._directory),
                ("dataLogDir", self._directory),
                ("tickTime", self._tick_time_ms),
                ("maxClientCnxns", 0),
                ("minSessionTimeout", self._min_session_timeout_ms),
                ("maxSessionTimeout", self._max_session_timeout_ms),
                ("serverId", 0),
            ),
        )
