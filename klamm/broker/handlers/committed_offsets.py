"""The offsets in OffsetCommit and TxnOffsetCommit: those that may be committed, and the errors of the others."""

from typing import Any

from klamm.base.slices import Steps
from klamm.broker.handlers.by_partition import sorted_out
from klamm.broker.requests.registry import Request
from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Refused = dict[PartitionKey, ErrorCode]
Offsets = dict[PartitionKey, OffsetAndMetadata]


def committed_offsets(
    request: Request[OffsetCommitRequest] | Request[TxnOffsetCommitRequest], now_ms: int, expire_ms: int | None = None
) -> Steps[tuple[Refused, Offsets]]:
    """The refused partitions (TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION), and the others' offsets."""

    def offset(one: Any) -> OffsetAndMetadata:
        return OffsetAndMetadata(
            one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "", now_ms, expire_ms
        )

    def allows(topic: str) -> bool:
        return request.allows(topic, Operation.READ, ResourceType.TOPIC)

    return sorted_out(request, ((topic.name, topic.partitions) for topic in request.body.topics), allows, offset)
