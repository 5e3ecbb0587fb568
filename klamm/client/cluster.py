"""A client of a whole cluster: it finds the brokers, looks up leaders, and retries transient failures.

What must stay true:
- A request that may not be executed twice is never sent twice: after it was written, a disconnection is an error.
- Retries end: no attempt begins after the policy's deadline.
- A broker that is cut off from the cluster does not hold the client back: metadata with an older leader epoch is
  ignored (KIP-320), and before a further attempt the client asks another broker.
- There is at most one connection per broker address.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from uuid import UUID

from klamm.base.environment import Random
from klamm.base.slices import Slices, Steps, in_slices
from klamm.client.options import ClientOptions
from klamm.client.read_replicas import ReadReplicas
from klamm.net.client import (
    Address,
    Avoided,
    BuildRequest,
    ClientError,
    ConnectFailed,
    Connection,
    ConnectionOptions,
    Connector,
    Disconnected,
    HungUp,
    NoAnswer,
    NotSent,
    Response,
    check_sasl,
    connect,
)
from klamm.net.framing import ReceiveBuffer
from klamm.net.sasl import authenticator
from klamm.net.tls import client_context
from klamm.protocol.apis.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import PARTITIONS_PER_STEP

T = TypeVar("T")

# Once a broker answers, the other bootstrap addresses have this time to say which cluster they belong to.
COMPARE_FOR_S: Final = 0.3

# Error codes that a retry may resolve (Kafka's RetriableException).
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The replicas of a partition; `leader` is -1 when the partition has no leader.

    `offline_replicas` are those whose broker or log directory has failed.
    """

    error_code: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as a broker described it; `partitions` by index. `topic_id` is None if the response has no id."""

    error_code: int
    partitions: dict[int, PartitionMetadata]
    topic_id: UUID | None = None
    is_internal: bool = False


@dataclass(slots=True)
class ClusterMetadata:
    """The newest metadata of the cluster: brokers by id, topics by name; `racks` of the brokers that have one."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    racks: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a request is retried, and how long to wait between attempts (doubling from the first to the last)."""

    deadline_ms: int = 30_000
    backoff_ms: int = 50
    max_backoff_ms: int = 1_000


class Attempts:
    """The attempts of one call under a policy: waits between them, and says when no time is left for another."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + policy.deadline_ms / 1000
        self._backoff_s = policy.backoff_ms / 1000
        self._max_backoff_s = policy.max_backoff_ms / 1000

    @property
    def are_over(self) -> bool:
        """Whether no time is left for another attempt."""
        return self._loop.time() + self._backoff_s >= self._deadline_s

    async def pause(self) -> None:
        """Waits before the next attempt."""
        await asyncio.sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, self._max_backoff_s)


class _Connecting:
    """The attempts to connect to one address, one at a time, how many have failed and why the last one has.

    `since_s` is the time at which the first attempt since the last connection began; None while one is open.
    """

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.turn = asyncio.Lock()
        self.failures = 0
        self.error: ClientError | None = None
        self.since_s: float | None = None


class _LookUp:
    """The requests for a topic's leaders, one at a time: how many have begun, and why the last one has failed."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.begun = 0
        self.error: ClientError | None = None


class DifferentClusters(ClientError):
    """The bootstrap addresses belong to different clusters. The message has the id of each, and its addresses."""


class _NoLeader(KafkaError):
    """The partition has no leader at the moment."""


def _no_errors(response: Any) -> Iterable[int]:
    return ()


class ClusterClient:
    """A cluster, found through `bootstrap` addresses.

    `send_to_any` and `send_to_leader` retry a request while it fails for a transient reason: no connection, no known
    leader, or a response in which `errors_of(response)` finds a retriable code. When the policy's time is over, the
    last response is returned as it is, or the last error raised: ClientError, or KafkaError when there was no leader. A
    request is retried after a disconnection only if it is `repeatable`. `fan_out.py` sends to many brokers.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        options: ConnectionOptions | None = None,
        retry: RetryPolicy | None = None,
        rack: str = "",
    ) -> None:
        if not bootstrap:
            raise ValueError("no bootstrap address")
        self.metadata = ClusterMetadata()
        # The broker ids of the coordinators of groups and of transactional ids, as far as they were asked for and not
        # found wrong.
        self.coordinators: dict[str, int] = {}
        self.transaction_coordinators: dict[str, int] = {}
        # Consumers of this client read from followers in its rack.
        self.read_replicas = ReadReplicas(rack)
        self._bootstrap = list(bootstrap)
        self._options = options or ConnectionOptions()
        self.retry = retry or RetryPolicy()
        self._receive_buffer = ReceiveBuffer()
        self._connections: dict[Address, Connection] = {}
        self._connecting: dict[Address, _Connecting] = {}
        self._looking_up: dict[tuple[str, bool], _LookUp] = {}
        # The broker that answered the last metadata request.
        self._informant: Address | None = None
        self._closed = False
        self._refreshes = 0
        self._avoided: Mapping[Address, str] = {}
        # Clients made by `another`, until they are closed.
        self._parent: ClusterClient | None = None
        self._children: dict[ClusterClient, None] = {}

    async def send_to_any(
        self,
        api_key: ApiKey,
        build: BuildRequest[Response],
        *,
        errors_of: Callable[[Response], Iterable[int]] = _no_errors,
    ) -> Response:
        """Sends to any broker that can be reached."""
        return await self._repeat(lambda: self._send_any(api_key, build, self._addresses()), errors_of)

    async def send_to_leader(
        self,
        topic: str,
        partition: int,
        api_key: ApiKey,
        build: BuildRequest[Response],
        *,
        errors_of: Callable[[Response], Iterable[int]] = _no_errors,
        repeatable: bool = True,
        timeout_ms: int | None = None,
    ) -> Response:
        """Sends to the leader of a partition, which is looked up again before every further attempt."""
        stale = False

        async def attempt() -> Response:
            nonlocal stale
            address = None if stale else self._leader_address(topic, partition)
            if address is None:
                await self._look_up(topic, elsewhere=stale)
                address = self._leader_address(topic, partition)
            stale = True
            if address is None:
                raise self._no_leader(topic, partition)
            connection = await self._connection(address)
            return await connection.send(api_key, build, timeout_ms=timeout_ms)

        return await self._repeat(attempt, errors_of, repeatable)

    async def reach(self, timeout_ms: int, refused_timeout_ms: int) -> None:
        """Connects to a bootstrap address, and tries again for `timeout_ms` while none answers.

        It ends after `refused_timeout_ms` when there is nothing to wait for: at each address nothing listens, the host
        is unknown, or another program answers. A person who gave a wrong address wants to know soon, but a broker may
        be about to start. Raises ConnectFailed, with the reason for each address, AuthenticationFailed, or
        DifferentClusters.
        """
        loop = asyncio.get_running_loop()
        deadline_s, refused_s = (loop.time() + each_ms / 1000 for each_ms in (timeout_ms, refused_timeout_ms))
        attempts = Attempts(replace(self.retry, deadline_ms=timeout_ms))
        while errors := await self._connect_to_one(max(1, round((deadline_s - loop.time()) * 1000))):
            if final := [error for error in errors if not isinstance(error, NotSent)]:
                raise final[0]
            is_awaited = any(isinstance(error, NoAnswer) for error in errors)
            if attempts.are_over or (not is_awaited and loop.time() >= refused_s):
                raise ConnectFailed("; ".join(map(str, errors)))
            await attempts.pause()

    async def _connect_to_one(self, at_most_ms: int) -> list[BaseException]:
        """Connects to all bootstrap addresses at once, until one answers; else the error of each.

        The others then have `COMPARE_FOR_S` to show that they belong to another cluster. Addresses that the cluster
        itself names are not waited for. Raises DifferentClusters.
        """
        settled, compared = asyncio.Event(), asyncio.Event()
        asked = dict.fromkeys(self._bootstrap)
        clusters: dict[Address, str | None] = {}
        known: set[Address] = set()

        async def connect_to(address: Address) -> None:
            connection = await self._connection(address, at_most_ms=at_most_ms)
            settled.set()
            if len(asked) > 1:
                with suppress(ClientError):
                    metadata = await metadata_of(connection, ())
                    clusters[address] = metadata.cluster_id
                    known.update((address, *metadata.brokers.values()))
            if len(asked) == 1 or known >= asked.keys():
                compared.set()

        attempts = asyncio.gather(*map(connect_to, asked), return_exceptions=True)
        attempts.add_done_callback(lambda _: settled.set())
        attempts.add_done_callback(lambda _: compared.set())
        try:
            await settled.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(COMPARE_FOR_S):
                    await compared.wait()
            outcomes = attempts.result() if attempts.done() else [None]
        finally:
            attempts.cancel()
            await asyncio.gather(attempts, return_exceptions=True)
        _check_one_cluster({address: clusters[address] for address in self._bootstrap if address in clusters})
        errors = [outcome for outcome in outcomes if outcome is not None]
        return errors if len(errors) == len(outcomes) else []

    async def refresh_metadata(
        self, topics: Iterable[str] | None = None, *, elsewhere: bool = False
    ) -> ClusterMetadata:
        """Asks a broker for brokers, controller and the given topics (None: all). This creates no topics.

        `elsewhere` asks another broker than last time, if possible, because the last answer did not help.
        """
        names = None if topics is None else list(topics)
        await self._repeat(lambda: self._refresh(names, elsewhere=elsewhere), _no_errors)
        return self.metadata

    async def refresh_metadata_once(self, topics: Iterable[str] | None = None, *, elsewhere: bool = False) -> None:
        """As `refresh_metadata`, in one attempt, for callers that retry themselves. Raises ClientError."""
        await self._refresh(None if topics is None else list(topics), elsewhere=elsewhere)

    async def connection_to(self, broker_id: int) -> Connection:
        """The connection to a broker of the metadata, opened if necessary. Raises ConnectFailed, KafkaError."""
        address = self.metadata.brokers.get(broker_id)
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not in the cluster")
        return await self._connection(address)

    async def leader_connection(self, topic: str, partition: int) -> Connection:
        """The connection to a partition's leader, opened if necessary, for requests that are not answered.

        A broker that no longer leads can only close the connection; so the leader is looked up when none is open.
        Raises ConnectFailed or KafkaError when there is no leader to connect to within the client's time.
        """
        address = self._leader_address(topic, partition)
        connection = None if address is None else self._connections.get(address)
        if connection is not None and connection.connected:
            return connection

        async def attempt() -> Connection:
            await self._refresh([topic], elsewhere=False)
            address = self._leader_address(topic, partition)
            if address is None:
                raise self._no_leader(topic, partition)
            return await self._connection(address)

        return await self._repeat(attempt, _no_errors)

    async def own_connection(self, address: Address) -> Connection:
        """A connection beside those that requests share, which the caller closes. Raises ConnectFailed."""
        return await connect(*address, self._options)

    def avoid(self, silent: Mapping[Address, str]) -> None:
        """From now on requests to these brokers fail at once with `Avoided`, for the reason given, and those that wait
        for an answer fail as well. A request that any broker may answer goes to another one."""
        self._avoided = dict(silent)
        for address in [each for each in self._connections if each in silent]:
            self._connections.pop(address).close(silent[address])

    def another(self) -> "ClusterClient":
        """A client of the same cluster with connections of its own.

        A broker answers the requests of a connection in order, so a request that waits there, as a Fetch or a JoinGroup
        does, would hold up those behind it.
        """
        client = ClusterClient(self._bootstrap, self._options, self.retry)
        client._parent, self._children[client] = self, None
        client.metadata = copy.copy(self.metadata)
        client.metadata.topics = dict(self.metadata.topics)
        client.read_replicas = self.read_replicas
        client._avoided = self._avoided
        return client

    def waits(self, longer_than_s: float) -> dict[Address, str]:
        """The brokers that this client, and those made by `another`, have waited for, and what for."""
        since_s = asyncio.get_running_loop().time() - longer_than_s
        found = {
            address: f"{address[0]}:{address[1]}: no answer yet" if connecting.error is None else str(connecting.error)
            for address, connecting in self._connecting.items()
            if connecting.since_s is not None and connecting.since_s < since_s and connecting.turn.locked()
        }
        for address, connection in self._connections.items():
            if (api := connection.unanswered(longer_than_s)) is not None:
                found[address] = f"{connection}: no answer to {api} yet"
        for child in self._children:
            found |= child.waits(longer_than_s)
        return found

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; no retry helps then."""
        return self._closed

    def brokers_to_ask(self) -> list[int]:
        """The brokers of the metadata, those with an open connection first."""

        def is_closed(broker_id: int) -> bool:
            connection = self._connections.get(self.metadata.brokers[broker_id])
            return connection is None or not connection.connected

        return sorted(self.metadata.brokers, key=is_closed)

    @property
    def request_timeout_ms(self) -> int:
        """How long a broker may take to answer."""
        return self._options.request_timeout_ms

    async def close(self) -> None:
        """Closes all connections; pending requests fail with Disconnected."""
        self._closed = True
        if self._parent is not None:
            self._parent._children.pop(self, None)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _repeat(
        self, attempt: Callable[[], Awaitable[T]], errors_of: Callable[[T], Iterable[int]], repeatable: bool = True
    ) -> T:
        attempts = Attempts(self.retry)
        while True:
            try:
                result = await attempt()
                if not any(code in RETRIABLE_ERRORS for code in errors_of(result)) or attempts.are_over:
                    return result
            except (NotSent, _NoLeader) as error:
                if attempts.are_over or self._closed or isinstance(error, Avoided):
                    raise
            except Disconnected:
                if attempts.are_over or self._closed or not repeatable:
                    raise
            await attempts.pause()

    async def _connection(self, address: Address, *, at_most_ms: int | None = None) -> Connection:
        if (silence := self._avoided.get(address)) is not None:
            raise Avoided(f"{address[0]}:{address[1]}: {silence}")
        connecting = self._connecting.get(address)
        if connecting is None:
            connector = Connector(self._options, self._options.connect_timeout_max_ms, self._receive_buffer)
            connecting = self._connecting[address] = _Connecting(connector)
        failures = connecting.failures
        async with connecting.turn:
            if self._closed:
                raise ConnectFailed("this client is closed")
            connection = self._connections.get(address)
            if connection is not None and connection.connected:
                return connection
            if connecting.failures > failures and connecting.error is not None:
                # An attempt has failed while this request waited for it. A broker that hangs would let each of many
                # requests wait for its own, one after another.
                raise type(connecting.error)(*connecting.error.args)
            if connecting.since_s is None:
                connecting.since_s = asyncio.get_running_loop().time()
            try:
                connection = await connecting.connector.connect(*address, at_most_ms=at_most_ms)
            except ClientError as error:
                connecting.failures += 1
                connecting.error = error
                raise
            connecting.since_s = None
            if self._closed:
                connection.close()
                raise ConnectFailed("this client is closed")
            self._connections[address] = connection
            return connection

    def _addresses(self) -> list[Address]:
        """Addresses with an open connection first, then the known brokers, then the bootstrap addresses."""
        live = [address for address, connection in self._connections.items() if connection.connected]
        return list(dict.fromkeys([*live, *self.metadata.brokers.values(), *self._bootstrap]))

    async def _send_any(self, api_key: ApiKey, build: BuildRequest[Response], addresses: Sequence[Address]) -> Response:
        """Tries these addresses in turn; raises the last error."""
        last: ClientError | None = None
        for address in addresses:
            try:
                connection = await self._connection(address)
                response = await connection.send(api_key, build)
            except (NotSent, Disconnected) as error:
                if isinstance(error, HungUp):
                    await check_sasl(*address, self._options)
                last = error
            else:
                self._informant = address if api_key is ApiKey.METADATA else self._informant
                return response
        assert last is not None
        raise last

    async def _refresh(self, topics: Sequence[str] | None, *, elsewhere: bool) -> None:
        """`elsewhere`: the last broker's answer did not help."""
        addresses = self._addresses()
        if elsewhere and self._informant in addresses:
            index = addresses.index(self._informant) + 1
            addresses = addresses[index:] + addresses[:index]
        response = await self._send_any(ApiKey.METADATA, lambda version: _metadata_request(version, topics), addresses)
        for address, connection in list(self._connections.items()):
            if not connection.connected:
                del self._connections[address]
        metadata = self.metadata
        metadata.cluster_id = response.cluster_id
        metadata.controller_id = response.controller_id
        metadata.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        metadata.racks = _racks(response)
        described, refreshes = {}, -1
        # Another response may have arrived meanwhile and be newer than this one.
        while refreshes != self._refreshes:
            refreshes = self._refreshes
            described = await in_slices(_topics_metadata(response.topics, metadata.topics))
        self._refreshes += 1
        if topics is None:
            metadata.topics = described
        else:
            metadata.topics.update(described)

    async def _look_up(self, topic: str, *, elsewhere: bool) -> None:
        """Asks for the leaders of a topic, after this call. Callers at the same time share a request: a producer looks
        up each partition by itself, and the answer has all of them."""
        look_up = self._looking_up.setdefault((topic, elsewhere), _LookUp())
        begun = look_up.begun
        async with look_up.turn:
            if look_up.begun > begun:
                if look_up.error is not None:
                    raise type(look_up.error)(*look_up.error.args)
                return
            look_up.begun += 1
            look_up.error = None
            try:
                await self._refresh((topic,), elsewhere=elsewhere)
            except ClientError as error:
                look_up.error = error
                raise
            except asyncio.CancelledError:
                # The others ask for themselves.
                look_up.begun -= 1
                raise

    def _leader_address(self, topic: str, partition: int) -> Address | None:
        described = self.metadata.topics.get(topic)
        state = described.partitions.get(partition) if described else None
        return self.metadata.brokers.get(state.leader) if state else None

    def _no_leader(self, topic: str, partition: int) -> KafkaError:
        described = self.metadata.topics.get(topic)
        if described is None or described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return _NoLeader(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        if described.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            return KafkaError(ErrorCode(described.error_code), f"topic {topic}")
        if partition not in described.partitions and described.partitions:
            count = len(described.partitions)
            return _NoLeader(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has {count} partitions, not {partition}"
            )
        return _NoLeader(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic}-{partition} has no leader")


def make_client(options: ClientOptions, random: Random) -> ClusterClient:
    """A client with these options, on the running loop; SASL draws its nonces from `random`.

    Raises SecurityError when the files of a key store or trust store are of no use.
    """
    tls, sasl = options.security.tls, options.security.sasl
    return ClusterClient(
        options.bootstrap,
        ConnectionOptions(
            client_id=options.client_id,
            connect_timeout_ms=options.connect_timeout_ms,
            connect_timeout_max_ms=options.connect_timeout_max_ms,
            request_timeout_ms=options.request_timeout_ms,
            ssl_context=None if tls is None else client_context(tls),
            authenticate=None if sasl is None else authenticator(sasl, random),
        ),
        RetryPolicy(options.retry_timeout_ms, options.retry_backoff_ms, options.retry_backoff_max_ms),
        options.client_rack,
    )


async def metadata_of(
    connection: Connection, topics: Sequence[str] | None = None, *, timeout_ms: int | None = None
) -> ClusterMetadata:
    """What one broker knows of the cluster and of these topics (None: all), which may be old. Raises ClientError."""
    response = await connection.send(
        ApiKey.METADATA, lambda version: _metadata_request(version, topics), timeout_ms=timeout_ms
    )
    return ClusterMetadata(
        response.cluster_id,
        response.controller_id,
        {broker.node_id: (broker.host, broker.port) for broker in response.brokers},
        await in_slices(_topics_metadata(response.topics, {})),
        _racks(response),
    )


def _check_one_cluster(clusters: Mapping[Address, str | None]) -> None:
    """Raises DifferentClusters. A broker of a Kafka before 0.10.1 does not say the id of its cluster."""
    addresses: dict[str, list[str]] = {}
    for (host, port), cluster_id in clusters.items():
        if cluster_id is not None:
            addresses.setdefault(cluster_id, []).append(f"{host}:{port}")
    if len(addresses) > 1:
        told = "; ".join(f"{', '.join(each)} to cluster {cluster_id}" for cluster_id, each in addresses.items())
        raise DifferentClusters(f"the addresses belong to different clusters: {told}")


def _racks(response: MetadataResponse) -> dict[int, str]:
    return {broker.node_id: broker.rack for broker in response.brokers if broker.rack is not None}


def _topics_metadata(
    topics: Iterable[MetadataResponse.MetadataResponseTopic], known: Mapping[str, TopicMetadata]
) -> Steps[dict[str, TopicMetadata]]:
    described: dict[str, TopicMetadata] = {}
    slices = Slices(PARTITIONS_PER_STEP)
    for topic in topics:
        if topic.name is None:
            continue  # In the requested versions every topic has a name.
        described[topic.name] = _topic_metadata(topic, known.get(topic.name))
        if slices.spend(len(topic.partitions)):
            yield
    return described


def _topic_metadata(topic: MetadataResponse.MetadataResponseTopic, known: TopicMetadata | None) -> TopicMetadata:
    """The topic of the response, but partitions `known` in a newer leader epoch stay as known."""
    partitions = {
        partition.partition_index: PartitionMetadata(
            partition.error_code,
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.offline_replicas,
        )
        for partition in topic.partitions
    }
    # A deleted and recreated topic restarts at epoch 0: only the topic id tells the two apart.
    if known is not None and topic.topic_id is not None and topic.topic_id == known.topic_id:
        for number, state in partitions.items():
            before = known.partitions.get(number)
            if before is not None and before.leader_epoch > state.leader_epoch:
                partitions[number] = before
    return TopicMetadata(topic.error_code, partitions, topic.topic_id, topic.is_internal)


def _metadata_request(version: int, names: Sequence[str] | None) -> MetadataRequest:
    topics: list[MetadataRequest.MetadataRequestTopic] | None
    if names is None:
        # Version 0 has no null; there an empty list means all topics.
        topics = [] if version == 0 else None
    else:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)
