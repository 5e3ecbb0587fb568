"""A client of a whole cluster: finds the brokers, looks up leaders, and retries transient failures.

What must stay true:
- A request that may not be executed twice is never sent twice: after it was written, a disconnection is an error.
- Retries end: no attempt begins after the policy's deadline.
- A broker that is cut off from the cluster does not hold back the client: metadata with an older leader epoch is
  ignored (KIP-320), and each further attempt asks another broker.

`connections.py` has the connections, `metadata.py` the brokers' metadata, `retries.py` the retries.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from klamm.base.environment import Random
from klamm.base.slices import in_slices
from klamm.client.connections import Connections
from klamm.client.metadata import ClusterMetadata, metadata_of, metadata_request, racks_of, topics_metadata
from klamm.client.options import ClientOptions
from klamm.client.read_replicas import ReadReplicas
from klamm.client.retries import RETRIABLE_ERRORS, Attempts, RetryPolicy
from klamm.net.client import (
    Address,
    Avoided,
    BuildRequest,
    ClientError,
    ConnectFailed,
    Connection,
    ConnectionOptions,
    Disconnected,
    HungUp,
    NoAnswer,
    NotSent,
    Response,
    check_sasl,
    connect,
)
from klamm.net.sasl import authenticator
from klamm.net.tls import client_context
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey

T = TypeVar("T")

# After the first answer, the other bootstrap addresses have this time to tell which cluster they belong to.
COMPARE_FOR_S: Final = 0.3


class _LookUp:
    """The requests for a topic's leaders, one at a time: how many have begun, and why the last request has failed."""

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
    leader, or a response in which `errors_of(response)` finds a retriable code. When the policy's time is over, they
    return the last response as it is, or raise the last error: ClientError, or KafkaError if there is no leader. After
    a disconnection only `repeatable` requests are retried. `fan_out.py` sends to many brokers.
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
        # The known coordinators (broker ids) of groups and of transactional ids, unless they were found wrong.
        self.coordinators: dict[str, int] = {}
        self.transaction_coordinators: dict[str, int] = {}
        # The client's rack, in which its consumers read from followers.
        self.read_replicas = ReadReplicas(rack)
        self._bootstrap = list(bootstrap)
        self._options = options or ConnectionOptions()
        self.retry = retry or RetryPolicy()
        self._connections = Connections(self._options)
        self._looking_up: dict[tuple[str, bool], _LookUp] = {}
        # The broker that answered the last metadata request.
        self._informant: Address | None = None
        self._refreshes = 0
        # The open clients that `another` has made.
        self._parent: ClusterClient | None = None
        self._children: dict[ClusterClient, None] = {}

    async def send_to_any(
        self,
        api_key: ApiKey,
        build: BuildRequest[Response],
        *,
        errors_of: Callable[[Response], Iterable[int]] = _no_errors,
    ) -> Response:
        """Sends to any reachable broker."""
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
        """Sends to the leader of a partition. Every further attempt looks up the leader again."""
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
            connection = await self._connections.to(address)
            return await connection.send(api_key, build, timeout_ms=timeout_ms)

        return await self._repeat(attempt, errors_of, repeatable)

    async def reach(self, timeout_ms: int, refused_timeout_ms: int) -> None:
        """Connects to a bootstrap address, and retries for `timeout_ms` while no address answers.

        Gives up after `refused_timeout_ms` if waiting is useless: at each address nothing listens, the host is unknown,
        or another program answers. So a wrong address is reported soon, but a broker may be about to start. Raises
        ConnectFailed, with the reason for each address, AuthenticationFailed, or DifferentClusters.
        """
        loop = asyncio.get_running_loop()
        deadline_s, refused_s = (loop.time() + each_ms / 1000 for each_ms in (timeout_ms, refused_timeout_ms))
        attempts = Attempts(replace(self.retry, deadline_ms=timeout_ms))
        left_ms, told = timeout_ms, list[BaseException]()
        while errors := await self._connect_to_one(left_ms):
            # An attempt that ends early because no time is left says less than the one before it.
            is_cut = bool(told) and left_ms < self._options.connect_timeout_ms
            told = [told[n] if is_cut and isinstance(error, NoAnswer) else error for n, error in enumerate(errors)]
            if final := [error for error in errors if not isinstance(error, NotSent)]:
                raise final[0]
            is_awaited = any(isinstance(error, NoAnswer) for error in errors)
            if attempts.are_over or (not is_awaited and loop.time() >= refused_s):
                raise ConnectFailed("; ".join(map(str, told)))
            await attempts.pause()
            left_ms = max(1, round((deadline_s - loop.time()) * 1000))

    async def _connect_to_one(self, at_most_ms: int) -> list[BaseException]:
        """Connects to all bootstrap addresses at once until one answers. Returns the error of each if none does.

        The other addresses then have `COMPARE_FOR_S` to show that they belong to another cluster. Addresses in the
        cluster's own metadata are not waited for. Raises DifferentClusters.
        """
        settled, compared = asyncio.Event(), asyncio.Event()
        asked = dict.fromkeys(self._bootstrap)
        clusters: dict[Address, str | None] = {}
        known: set[Address] = set()

        async def connect_to(address: Address) -> None:
            connection = await self._connections.to(address, at_most_ms=at_most_ms)
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
        """Asks a broker for the brokers, the controller and the given topics (None: all). Creates no topics.

        `elsewhere` asks another broker than last time, if possible, because the last answer did not help.
        """
        names = None if topics is None else list(topics)
        await self._repeat(lambda: self._refresh(names, elsewhere=elsewhere), _no_errors)
        return self.metadata

    async def refresh_metadata_once(self, topics: Iterable[str] | None = None, *, elsewhere: bool = False) -> None:
        """Like `refresh_metadata`, in one attempt, for callers that retry themselves. Raises ClientError."""
        await self._refresh(None if topics is None else list(topics), elsewhere=elsewhere)

    async def connection_to(self, broker_id: int) -> Connection:
        """The connection to a broker of the metadata, opened if necessary. Raises ConnectFailed, KafkaError."""
        address = self.metadata.brokers.get(broker_id)
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not in the cluster")
        return await self._connections.to(address)

    async def leader_connection(self, topic: str, partition: int) -> Connection:
        """The connection to a partition's leader, opened if necessary, for requests without answers.

        A broker that no longer leads can only close the connection, so the leader is looked up when no connection is
        open. Raises ConnectFailed or KafkaError if there is no leader to connect to within the client's time.
        """
        address = self._leader_address(topic, partition)
        if address is not None and (connection := self._connections.open_to(address)) is not None:
            return connection

        async def attempt() -> Connection:
            await self._refresh([topic], elsewhere=False)
            address = self._leader_address(topic, partition)
            if address is None:
                raise self._no_leader(topic, partition)
            return await self._connections.to(address)

        return await self._repeat(attempt, _no_errors)

    async def own_connection(self, address: Address) -> Connection:
        """A connection for the caller alone, who closes it. Raises ConnectFailed."""
        return await connect(*address, self._options)

    def avoid(self, silent: Mapping[Address, str]) -> None:
        """From now on requests to these brokers fail at once with `Avoided` and this reason, and so do pending
        requests. Requests to any broker go to other brokers."""
        self._connections.avoid(silent)

    def another(self) -> "ClusterClient":
        """A client of the same cluster with its own connections.

        A broker answers the requests of a connection in order, so a request that waits at the broker, such as a Fetch
        or a JoinGroup, would delay those behind it.
        """
        client = ClusterClient(self._bootstrap, self._options, self.retry)
        client._parent, self._children[client] = self, None
        client.metadata = copy.copy(self.metadata)
        client.metadata.topics = dict(self.metadata.topics)
        client.read_replicas = self.read_replicas
        client._connections.avoid(self._connections.avoided)
        return client

    def waits(self, longer_than_s: float) -> dict[Address, str]:
        """The brokers for which this client and those made by `another` have waited, with a sentence about it."""
        found = self._connections.waits(longer_than_s)
        for child in self._children:
            found |= child.waits(longer_than_s)
        return found

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, so that no retry helps."""
        return self._connections.is_closed

    def brokers_to_ask(self) -> list[int]:
        """The brokers of the metadata; brokers with an open connection come first."""
        brokers = self.metadata.brokers
        return sorted(brokers, key=lambda broker_id: self._connections.open_to(brokers[broker_id]) is None)

    @property
    def request_timeout_ms(self) -> int:
        """How long a broker may take to answer."""
        return self._options.request_timeout_ms

    async def close(self) -> None:
        """Closes all connections. Pending requests fail with Disconnected."""
        if self._parent is not None:
            self._parent._children.pop(self, None)
        await self._connections.close()

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
                if attempts.are_over or self._connections.is_closed or isinstance(error, Avoided):
                    raise
            except Disconnected:
                if attempts.are_over or self._connections.is_closed or not repeatable:
                    raise
            await attempts.pause()

    def _addresses(self) -> list[Address]:
        """Addresses with an open connection first, then the known brokers, then the bootstrap addresses."""
        return list(dict.fromkeys([*self._connections.open(), *self.metadata.brokers.values(), *self._bootstrap]))

    async def _send_any(self, api_key: ApiKey, build: BuildRequest[Response], addresses: Sequence[Address]) -> Response:
        """Tries these addresses in turn. Raises the last error."""
        last: ClientError | None = None
        for address in addresses:
            try:
                connection = await self._connections.to(address)
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
        """Refreshes the metadata. With `elsewhere` the last broker's answer did not help."""
        addresses = self._addresses()
        if elsewhere and self._informant in addresses:
            index = addresses.index(self._informant) + 1
            addresses = addresses[index:] + addresses[:index]
        response = await self._send_any(ApiKey.METADATA, lambda version: metadata_request(version, topics), addresses)
        self._connections.forget_closed()
        metadata = self.metadata
        metadata.cluster_id = response.cluster_id
        metadata.controller_id = response.controller_id
        metadata.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        metadata.racks = racks_of(response)
        described, refreshes = {}, -1
        # A newer response may have arrived meanwhile.
        while refreshes != self._refreshes:
            refreshes = self._refreshes
            described = await in_slices(topics_metadata(response.topics, metadata.topics))
        self._refreshes += 1
        if topics is None:
            metadata.topics = described
        else:
            metadata.topics.update(described)

    async def _look_up(self, topic: str, *, elsewhere: bool) -> None:
        """Asks for the leaders of a topic, in a request that begins after this call. Concurrent callers share a
        request: a producer looks up each partition by itself, and an answer has all partitions."""
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
    """A client with these options, on the running loop. SASL draws its nonces from `random`.

    Raises SecurityError when the files of a key store or trust store cannot be used.
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


def _check_one_cluster(clusters: Mapping[Address, str | None]) -> None:
    """Raises DifferentClusters. Brokers before Kafka 0.10.1 do not tell their cluster id."""
    addresses: dict[str, list[str]] = {}
    for (host, port), cluster_id in clusters.items():
        if cluster_id is not None:
            addresses.setdefault(cluster_id, []).append(f"{host}:{port}")
    if len(addresses) > 1:
        told = "; ".join(f"{', '.join(each)} to cluster {cluster_id}" for cluster_id, each in addresses.items())
        raise DifferentClusters(f"the addresses belong to different clusters: {told}")
