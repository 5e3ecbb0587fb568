"""The controller's connections: a queue of requests for each broker, sent one after another (Kafka's
`ControllerChannelManager`, `RequestSendThread`).

What must stay true:
- A broker gets its requests in the order in which they were queued, each one after the response to the last. A failed
  request is sent again, on a new connection, until there is a response or the broker is removed. So a broker may get a
  request twice; its epochs show that. A request is left out only when later ones in the queue replace it
  (`coalescing`).
- Every added broker has a queue, also a broker without the controller's listener. When the broker registers this
  listener, or another address for it, the requests go to that address.
- The queue of a broker that does not answer takes at most about twice the memory of the broker's full state.
- After `remove_broker` and `shutdown` no response reaches its callback.
- A callback only queues an event. An exception in it is a fault of the program.
- A large request is encoded in steps, so that the loop serves others in between.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from klamm.base.metrics import Histogram
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.controller.channels.send_queue import SendQueue
from klamm.controller.coalescing import QueuedRequest, coalesce
from klamm.controller.coalescing import size as size_of
from klamm.controller.turns import LoopTurns
from klamm.net.client import Address, ClientError, Connection, ConnectionOptions, Connector
from klamm.net.framing import ReceiveBuffer
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.protocol.messages import encode_request_body_steps
from klamm.protocol.primitives import Buffer
from klamm.znodes.brokers import BrokerRegistration

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100
# The most requests that wait for a broker that answers.
FEW = 10
# Requests and partition states that may be added before the queue is coalesced.
COALESCE_FROM = 10_000

OnResponse = Callable[[Any], None]


class ControllerChannelManager:
    """The channels of the controller `broker_id` to the brokers that are alive or shutting down."""

    def __init__(self, config: BrokerConfig, broker_id: int, on_failure: OnFailure) -> None:
        self._protocol = config.inter_broker_protocol_version
        self._listener_name = config.control_listener_name
        self._options = ConnectionOptions(
            client_id=str(broker_id),
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            max_in_flight=1,
            negotiate_versions=False,
        )
        self._max_setup_timeout_ms = min(
            config.socket_connection_setup_timeout_max_ms, config.controller_socket_timeout_ms
        )
        self._on_failure = on_failure
        self._receive_buffer = ReceiveBuffer()
        self._channels: dict[int, _Channel] = {}
        self._turns = LoopTurns()
        self._encoding = asyncio.Lock()

    def add_broker(self, broker: BrokerRegistration) -> None:
        """Opens a channel to the broker, unless it has one."""
        if broker.broker_id in self._channels:
            return
        connector = Connector(self._options, self._max_setup_timeout_ms, self._receive_buffer)
        channel = _Channel(broker.broker_id, connector, self._turns, self._encoding)
        self._channels[broker.broker_id] = channel
        self.update_broker(broker)
        channel.start(self._on_failure)

    def update_broker(self, broker: BrokerRegistration) -> None:
        """Sends waiting requests, and the one in flight, to the broker's new address. No request is lost."""
        channel = self._channels.get(broker.broker_id)
        if channel is None:
            return
        found = [each for each in broker.endpoints if each.listener_name == self._listener_name]
        channel.move((found[0].host, found[0].port) if found else None)
        if not found:
            logger.error(
                "broker %d gets no requests of the controller until it has a listener %s: it has only %s",
                broker.broker_id,
                self._listener_name,
                ", ".join(endpoint.listener_name for endpoint in broker.endpoints),
            )

    def remove_broker(self, broker_id: int) -> None:
        """Closes the channel to the broker, if there is one, and drops unanswered requests."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.stop()

    def send_request(self, broker_id: int, api_key: ApiKey, body: Any, on_response: OnResponse | None = None) -> None:
        """Queues a request; it is dropped, with a warning, if the broker has no channel.

        `on_response` gets the response, later and at most once.
        """
        channel = self._channels.get(broker_id)
        if channel is None:
            logger.warning("%s for broker %d is not sent: it is offline", api_key.message_name, broker_id)
            return
        version = inter_broker_version(api_key, self._protocol)
        put_at = asyncio.get_running_loop().time()
        channel.put(QueuedRequest(api_key, version, body, on_response, put_at))

    def send_queues(self) -> dict[int, SendQueue]:
        """The current channels, by broker."""
        return {broker_id: channel.described() for broker_id, channel in sorted(self._channels.items())}

    def queue_size(self, broker_id: int) -> int:
        """The number of requests that wait behind the one being sent to this broker."""
        channel = self._channels.get(broker_id)
        return 0 if channel is None else channel.size

    async def shutdown(self) -> None:
        """Closes all channels. Returns when all of them have ended."""
        channels = list(self._channels.values())
        for channel in channels:
            self.remove_broker(channel.broker_id)
        await asyncio.gather(*(channel.task for channel in channels), return_exceptions=True)


class _Channel:
    """One broker's queue and connection, and the task that sends. Cancelling the task ends it."""

    task: "asyncio.Task[None]"

    def __init__(self, broker_id: int, connector: Connector, turns: LoopTurns, encoding: asyncio.Lock) -> None:
        self.broker_id = broker_id
        self._connector = connector
        self._turns = turns
        self._encoding = encoding
        self._waiting: deque[QueuedRequest] = deque()
        self._has_waiting = asyncio.Event()
        # Held while the queue is coalesced.
        self._queue_lock = asyncio.Lock()
        self._coalescing: asyncio.Task[None] | None = None
        # The number of requests that are being coalesced. They are not in `_waiting`.
        self._taken = 0
        # The size of the requests added since the queue was last coalesced, and its limit.
        self._grown, self._too_much = 0, COALESCE_FROM
        self._address: Address | None = None
        self._has_address = asyncio.Event()
        self._attempt: asyncio.Timeout | None = None
        self._connection: Connection | None = None
        self._time_ms = Histogram()
        self._sending: QueuedRequest | None = None
        self._sending_since = 0.0
        self._trouble = ""

    @property
    def size(self) -> int:
        """The number of requests that wait behind the one being sent."""
        return len(self._waiting) + self._taken

    def described(self) -> SendQueue:
        sending, now = self._sending, asyncio.get_running_loop().time()
        return SendQueue(
            self.size,
            None if sending is None else sending.api_key.message_name,
            0.0 if sending is None else (now - self._sending_since) * 1000,
            self._trouble,
            self._time_ms,
        )

    def start(self, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self.task = start_task(self._send_all(), on_failure)

    def stop(self) -> None:
        self.task.cancel()
        if self._coalescing is not None:
            self._coalescing.cancel()

    def move(self, address: Address | None) -> None:
        """Sets the broker's address; None means that it has none."""
        former, self._address = self._address, address
        if address is None:
            self._has_address.clear()
        else:
            self._has_address.set()
        if former in (None, address):
            return
        if self._attempt is None:
            self._disconnect()
        elif not self._attempt.expired():  # Otherwise the task is about to connect again, with the latest address.
            self._attempt.reschedule(asyncio.get_running_loop().time())

    # -- the queue --------------------------------------------------------------------------------------------------

    def put(self, request: QueuedRequest) -> None:
        self._waiting.append(request)
        self._has_waiting.set()
        # The queue of a broker that answers is short and needs no count.
        if len(self._waiting) <= FEW:
            return
        self._grown += size_of(request)
        if self._grown > self._too_much and self._coalescing is None:
            self._coalescing = start_task(self._coalesce(), self._on_failure)

    async def _next(self) -> QueuedRequest:
        while True:
            await self._has_waiting.wait()
            async with self._queue_lock:
                if self._waiting:
                    request = self._waiting.popleft()
                    break
            self._has_waiting.clear()
        if not self._waiting:
            self._has_waiting.clear()
            self._grown, self._too_much = 0, COALESCE_FROM
        return request

    async def _coalesce(self) -> None:
        """Replaces the waiting requests by the requests that the broker still needs."""
        async with self._queue_lock:
            taken = list(self._waiting)
            self._waiting.clear()
            self._taken, self._grown = len(taken), 0
            left = await self._turns.take(coalesce(taken))
            self._waiting.extendleft(reversed(left))
            self._taken = 0
            self._too_much = max(COALESCE_FROM, sum(map(size_of, left)))
        self._coalescing = None
        logger.info("%d requests that wait for broker %d became %d", len(taken), self.broker_id, len(left))

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while True:
                request = self._sending = await self._next()
                self._sending_since = asyncio.get_running_loop().time()
                self._time_ms.update(round((self._sending_since - request.put_at) * 1000, 3))
                body = await self._encoded(request)
                await self._turns.wait()
                response = await self._send(request, body)
                if self._trouble:
                    logger.info("broker %d has answered %s", self.broker_id, request.api_key.message_name)
                self._sending, self._trouble = None, ""
                if request.on_response is not None:
                    request.on_response(response)
                # The next request may be hours away, and this one may hold the states of all partitions.
                del request, body, response
        finally:
            self._disconnect()

    async def _encoded(self, request: QueuedRequest) -> Sequence[Buffer] | None:
        """The body of a large request. Bodies are encoded one after another. If they were encoded at the same time,
        each broker would get its own copy of the states that all requests share."""
        steps = encode_request_body_steps(request.api_key, request.version, request.body)
        if steps is None:
            return None
        async with self._encoding:
            return await self._turns.take(steps)

    async def _send(self, request: QueuedRequest, body: Sequence[Buffer] | None) -> Any:
        """Sends the request until there is a response, and returns it. `body`: see `Connection.send`."""
        while True:
            try:
                async with asyncio.timeout(None) as self._attempt:
                    connection = await self._connected()
                    return await connection.send(
                        request.api_key, lambda _: request.body, version=request.version, body=body
                    )
            except TimeoutError:
                # The broker has moved.
                self._disconnect()
                continue
            except ClientError as error:
                # A repeated reason is logged once.
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    name = request.api_key.message_name
                    logger.warning("%s for broker %d is sent again: %s", name, self.broker_id, error)
            finally:
                self._attempt = None
            self._disconnect()
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _connected(self) -> Connection:
        while self._connection is None or not self._connection.connected:
            self._connection = None
            await self._has_address.wait()
            assert self._address is not None
            self._connection = await self._connector.connect(*self._address)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
