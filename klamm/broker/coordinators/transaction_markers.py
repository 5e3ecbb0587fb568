"""Sends transaction markers from a transaction coordinator to partition leaders: the port `MarkerSender` (the network
side of Kafka's `TransactionMarkerChannelManager`).

What must stay true:
- There is one connection to each broker, with one request in flight: the coordinator makes one call at a time for each
  broker. A call is one request, and the coordinator bounds its partitions.
- When a broker is no longer alive, or has moved, requests to its former address end at once (`brokers_changed`).
- Markers for partitions led here go to `MarkerAppends` without a connection.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from klamm.base.slices import CHEAP_SLICE, Slices, Steps, in_slices
from klamm.broker.coordinators.marker_appends import Codes, MarkerAppends
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.request_errors import ITEM_ERRORS, as_kafka_error
from klamm.config.broker import BrokerConfig
from klamm.coordinator.transactions.ports import TransactionMarker
from klamm.net.client import Address, ClientError, Connection, ConnectionOptions, Connector
from klamm.protocol.apis.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.znodes.store import KafkaZooKeeper

_Entry = WriteTxnMarkersRequest.WritableTxnMarker


class TransactionMarkers:
    """The markers of the coordinator on broker `broker_id`. `address_of` returns the address of a live broker for other
    brokers; None if the broker is not alive, or has no such listener. `zookeeper()` is the store of the current
    session."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        metadata_cache: MetadataCache,
        address_of: Callable[[int], Address | None],
        appends: MarkerAppends,
        zookeeper: Callable[[], KafkaZooKeeper],
    ) -> None:
        self._broker_id = broker_id
        self._metadata_cache = metadata_cache
        self._address_of = address_of
        self._appends = appends
        self._zookeeper = zookeeper
        self._version = inter_broker_version(ApiKey.WRITE_TXN_MARKERS, config.inter_broker_protocol_version)
        self._options = ConnectionOptions(
            client_id=f"broker-{broker_id}-txn-marker-sender",
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            max_in_flight=1,
            socket_receive_buffer_bytes=config.socket_receive_buffer_bytes,
            negotiate_versions=False,
        )
        self._max_setup_timeout_ms = config.socket_connection_setup_timeout_max_ms
        self._channels: dict[int, _Channel] = {}

    def leader(self, partition: PartitionKey) -> int | None:
        """Like `MarkerSender.leader`."""
        state = self._metadata_cache.snapshot.partition(*partition)
        return None if state is None else max(state.leader, NO_LEADER)

    async def deleted(self, partitions: Sequence[PartitionKey]) -> list[PartitionKey]:
        """Like `MarkerSender.deleted`. A topic counts as deleted as soon as its deletion has begun, which may wait long
        for a dead broker: the topic is marked, and the controller has removed it from the metadata."""
        store = self._zookeeper()
        try:
            existing = await store.existing_topics(dict.fromkeys(topic for topic, _ in partitions))
            if self._metadata_cache.is_filled.is_set():
                for topic in await store.topic_deletions():
                    if topic not in self._metadata_cache.snapshot.topics:
                        existing.pop(topic, None)
            assignments = await store.topic_assignments(list(existing))
        except ITEM_ERRORS as error:
            raise as_kafka_error(error) from error
        # The assignment of a topic with a malformed znode is not known.
        return [
            (topic, number)
            for topic, number in partitions
            if topic not in existing or (topic in assignments and number not in assignments[topic].partitions)
        ]

    async def write(self, broker_id: int, markers: Sequence[TransactionMarker]) -> list[Codes]:
        """Like `MarkerSender.write`."""
        if broker_id == self._broker_id:
            return [await codes for codes in await self._appends.append(markers)]
        address = self._address_of(broker_id)
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not alive")
        channel = self._channels.get(broker_id)
        if channel is None:
            connector = Connector(self._options, self._max_setup_timeout_ms)
            channel = self._channels[broker_id] = _Channel(connector, self._version)
        request = WriteTxnMarkersRequest(markers=[_entry(marker) for marker in markers])
        found = await in_slices(_codes(await channel.send(address, request)))
        return [
            {key: found.get(one.producer_id, {}).get(key, ErrorCode.NETWORK_EXCEPTION) for key in one.partitions}
            for one in markers
        ]

    def brokers_changed(self) -> None:
        """Ends the connections to brokers that are gone or have moved. Call it after changes of the metadata cache."""
        for broker_id in list(self._channels):
            address = self._address_of(broker_id)
            self._channels[broker_id].move(address)
            if address is None:
                del self._channels[broker_id]

    def stop(self) -> None:
        """Ends all connections. Pending requests fail."""
        for channel in self._channels.values():
            channel.move(None)
        self._channels.clear()


class _Channel:
    """The connection to one broker."""

    def __init__(self, connector: Connector, version: int) -> None:
        self._connector = connector
        self._version = version
        self._connection: Connection | None = None
        self._address: Address | None = None  # of the request that waits
        self._attempt: asyncio.Timeout | None = None

    async def send(self, address: Address, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Raises KafkaError NETWORK_EXCEPTION if there is no answer."""
        self._address = address
        try:
            # Ended by `move`.
            async with asyncio.timeout(None) as self._attempt:
                connection = await self._connected(address)
                return await connection.send(ApiKey.WRITE_TXN_MARKERS, lambda _: request, version=self._version)
        except TimeoutError:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the broker is no longer at {address}") from None
        except ClientError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        finally:
            self._attempt = self._address = None

    def move(self, address: Address | None) -> None:
        """Sets the broker's address; None means that it cannot be reached."""
        if self._address not in (None, address) and self._attempt is not None and not self._attempt.expired():
            self._attempt.reschedule(asyncio.get_running_loop().time())
        if self._connection is not None and self._connection.address != address:
            self._disconnect()

    async def _connected(self, address: Address) -> Connection:
        connection = self._connection
        if connection is None or not connection.connected or connection.address != address:
            self._disconnect()
            connection = self._connection = await self._connector.connect(*address)
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _codes(response: WriteTxnMarkersResponse) -> Steps[Mapping[int, Codes]]:
    """The results by producer id. A request has no partition twice for one producer id."""
    found: dict[int, dict[PartitionKey, ErrorCode]] = {}
    slices = Slices(CHEAP_SLICE)
    for result in response.markers:
        codes = found.setdefault(result.producer_id, {})
        for topic in result.topics:
            for partition in topic.partitions:
                codes[topic.name, partition.partition_index] = ErrorCode(partition.error_code)
                if slices.spend():
                    yield
    return found


def _entry(marker: TransactionMarker) -> _Entry:
    topics: dict[str, list[int]] = {}
    for topic, number in marker.partitions:
        topics.setdefault(topic, []).append(number)
    return _Entry(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        topics=[
            _Entry.WritableTxnMarkerTopic(name=name, partition_indexes=numbers) for name, numbers in topics.items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
    )
