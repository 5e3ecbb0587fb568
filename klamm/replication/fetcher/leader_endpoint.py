"""A follower's requests to a leader broker, over one connection: records, offsets, the ends of leader epochs.

What must stay true: one request is in flight at a time. inter.broker.protocol.version implies the request's version,
because brokers do not ask each other for versions. A failed request closes the connection, and the next request opens a
new one.

Source: kafka.server.ReplicaFetcherThread, ReplicaFetcherBlockingSend.
"""

from collections.abc import Mapping
from typing import NamedTuple

from klamm.config.broker import BrokerConfig
from klamm.config.versions import ApiVersion
from klamm.net.client import ClientError, Connection, ConnectionOptions, Connector, Response
from klamm.protocol.apis.fetch import FetchRequest, FetchResponse
from klamm.protocol.apis.list_offsets import ListOffsetsRequest
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.protocol.messages import ApiKey
from klamm.protocol.schema import Answered
from klamm.protocol.vocabulary import READ_UNCOMMITTED, PartitionKey

# A batch may be as large as its topic's max.message.bytes allows, and the follower has to accept it.
_MAX_RESPONSE_BYTES = 2**31 - 1


class LeaderOffset(NamedTuple):
    """An offset of the leader's log. The offset is -1 when there is an error."""

    error_code: int
    offset: int


class EpochEndOffset(NamedTuple):
    """The leader's largest epoch not above the requested epoch, and its end offset. -1 means unknown."""

    error_code: int
    leader_epoch: int
    end_offset: int


class Interrupted(ClientError):
    """The follower itself abandoned the request."""


class LeaderEndpoint:
    """A follower's access to a leader broker. The methods raise ClientError when there is no answer."""

    def __init__(self, config: BrokerConfig, broker_id: int, leader_id: int, host: str, port: int) -> None:
        self.leader_id = leader_id
        self.address = (host, port)
        self._broker_id = broker_id
        version = config.inter_broker_protocol_version
        self.truncates_on_fetch = version >= ApiVersion.V2_7_IV1
        self._fetch_version = inter_broker_version(ApiKey.FETCH, version)
        self._list_offsets_version = inter_broker_version(ApiKey.LIST_OFFSETS, version)
        self._offset_for_leader_epoch_version = inter_broker_version(ApiKey.OFFSET_FOR_LEADER_EPOCH, version)
        options = ConnectionOptions(
            client_id=f"broker-{broker_id}-fetcher-0",
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            request_timeout_ms=config.replica_socket_timeout_ms,
            max_in_flight=1,
            max_response_bytes=_MAX_RESPONSE_BYTES,
            socket_receive_buffer_bytes=config.replica_socket_receive_buffer_bytes,
            negotiate_versions=False,
        )
        max_timeout_ms = min(config.socket_connection_setup_timeout_max_ms, config.replica_socket_timeout_ms)
        self._connector = Connector(options, max_timeout_ms)
        self._connection: Connection | None = None
        self._is_interrupted = False

    def __str__(self) -> str:
        return f"leader {self.leader_id} at {self.address[0]}:{self.address[1]}"

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        response: FetchResponse = await self._send(ApiKey.FETCH, self._fetch_version, request)
        return response

    async def list_offsets(
        self, timestamp: int, leader_epochs: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, LeaderOffset]:
        """The leader's log end offset (LATEST_TIMESTAMP) or log start offset (EARLIEST_TIMESTAMP) of each partition."""
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        topics: dict[str, list[ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition]] = {}
        for (topic, number), leader_epoch in leader_epochs.items():
            topics.setdefault(topic, []).append(
                topic_class.ListOffsetsPartition(
                    partition_index=number, current_leader_epoch=leader_epoch, timestamp=timestamp
                )
            )
        version = self._list_offsets_version
        body = ListOffsetsRequest(
            replica_id=self._broker_id,
            isolation_level=READ_UNCOMMITTED,
            topics=[topic_class(name=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        response = await self._send(ApiKey.LIST_OFFSETS, version, body)
        return {
            (topic.name, answer.partition_index): LeaderOffset(answer.error_code, answer.offset)
            for topic in response.topics
            for answer in topic.partitions
        }

    async def end_offsets(self, epochs: Mapping[PartitionKey, tuple[int, int]]) -> dict[PartitionKey, EpochEndOffset]:
        """The leader's end offset of an epoch. `epochs`: partition -> (current leader epoch, epoch)."""
        topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        topics: dict[str, list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition]] = {}
        for (topic, number), (current_leader_epoch, epoch) in epochs.items():
            topics.setdefault(topic, []).append(
                topic_class.OffsetForLeaderPartition(
                    partition=number, current_leader_epoch=current_leader_epoch, leader_epoch=epoch
                )
            )
        version = self._offset_for_leader_epoch_version
        body = OffsetForLeaderEpochRequest(
            replica_id=self._broker_id,
            topics=[topic_class(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        response = await self._send(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, body)
        return {
            (topic.topic, answer.partition): EpochEndOffset(answer.error_code, answer.leader_epoch, answer.end_offset)
            for topic in response.topics
            for answer in topic.partitions
        }

    def interrupt(self) -> None:
        """Abandons the pending request, if any, which raises Interrupted. The leader drops it with the connection."""
        if self._connection is not None:
            self._is_interrupted = True
            self._connection.close()

    async def close(self) -> None:
        """Closes the connection. Returns when it is closed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await connection.wait_closed()

    async def _send(self, api_key: ApiKey, version: int, body: Answered[Response]) -> Response:
        if self._connection is None:
            self._is_interrupted = False
            self._connection = await self._connector.connect(*self.address)
        try:
            return await self._connection.send(api_key, lambda _: body, version=version)
        except ClientError as error:
            self._connection.close()
            self._connection = None
            if self._is_interrupted:
                raise Interrupted(*error.args) from None
            raise
