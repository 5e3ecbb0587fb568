"""UpdateMetadata (key 6): the controller tells every broker which brokers are alive, and which of them leads each
partition.

Versions: 1 several endpoints; 2 rack; 3 listener names; 4 offline replicas; 5 grouped by topic, broker epoch (KIP-380);
6 flexible; 7 topic ids (KIP-516).
"""

from __future__ import annotations

from typing import ClassVar

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import STATE, Int16, Int32, Int64, Kept, Request, Response, String, Struct, Uuid, field

# The leader of a partition whose topic is being deleted (Kafka's `LeaderAndIsr.LeaderDuringDelete`).
LEADER_DURING_DELETE = -2


class UpdateMetadataRequest(
    Request["UpdateMetadataResponse"],
    Kept,
    api=ApiKey.UPDATE_METADATA,
    versions="0-7",
    flexible="6+",
    size=STATE,
):
    """`broker_epoch` is the receiver's, as the controller knows it."""

    kept_behind: ClassVar[str] = "broker_epoch"

    class UpdateMetadataTopicState(Struct, kw_only=False):
        class UpdateMetadataPartitionState(Kept, kw_only=False):
            """One partition as clients see it. `leader` is -1 without a leader, or LEADER_DURING_DELETE."""

            partition_index: Int32
            controller_epoch: Int32
            leader: Int32
            leader_epoch: Int32
            isr: tuple[Int32, ...]
            zk_version: Int32
            replicas: tuple[Int32, ...]
            offline_replicas: tuple[Int32, ...] = field("4+", default=())

        topic_name: String
        topic_id: Uuid = field("7+")
        partition_states: list[UpdateMetadataPartitionState]

    class UpdateMetadataBroker(Struct):
        class UpdateMetadataEndpoint(Struct, kw_only=False):
            """One listener. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL. In versions without
            listener names, the security protocol is the name."""

            port: Int32
            host: String
            listener: String = field("3+")
            security_protocol: Int16

        id: Int32
        v0_host: String = field("0", default="")
        v0_port: Int32 = field("0", default=0)
        endpoints: list[UpdateMetadataEndpoint] = field("1+", default=[])
        rack: String | None = field("2+", default=None)

    controller_id: Int32
    controller_epoch: Int32
    broker_epoch: Int64 = field("5+", default=-1)
    topic_states: list[UpdateMetadataTopicState] = field(default=[], flat="0-4")
    live_brokers: list[UpdateMetadataBroker] = field(default=[])

    def for_broker(self, broker_epoch: int) -> UpdateMetadataRequest:
        """The same request with another broker epoch. Both share topics and brokers: do not change them."""
        request = self.replaced(broker_epoch=broker_epoch)
        request._encoded = self._encoded
        return request


class UpdateMetadataResponse(Response, kw_only=False):
    error_code: Int16 = 0


UpdateMetadataTopicState = UpdateMetadataRequest.UpdateMetadataTopicState
UpdateMetadataPartitionState = UpdateMetadataTopicState.UpdateMetadataPartitionState
UpdateMetadataBroker = UpdateMetadataRequest.UpdateMetadataBroker
UpdateMetadataEndpoint = UpdateMetadataBroker.UpdateMetadataEndpoint
