"""The offsets that OffsetCommit and TxnOffsetCommit carry: those that may be committed, and why the others may not."""

from klamm.base.slices import Slices
from klamm.broker.requests.registry import Request
from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.group import OffsetAndMetadata
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.errors import ErrorCode
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Refused = dict[PartitionKey, ErrorCode]
Offsets = dict[PartitionKey, OffsetAndMetadata]


def committed_offsets(
    request: Request[OffsetCommitRequest] | Request[TxnOffsetCommitRequest], now_ms: int, expire_ms: int | None = None
) -> Steps[tuple[Refused, Offsets]]:
    """The refused partitions (TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION), and the others' offsets."""
    known_topics = request.services.metadata_cache.snapshot.topics
    refused: Refused = {}
    offsets: Offsets = {}
    slices = Slices()
    for topic in request.body.topics:
        known = known_topics.get(topic.name, ())
        allowed = request.allows(topic.name, Operation.READ, ResourceType.TOPIC)
        for one in topic.partitions:
            key = topic.name, one.partition_index
            if not allowed:
                refused[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif one.partition_index not in known:
                refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets[key] = OffsetAndMetadata(
                    one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "", now_ms, expire_ms
                )
            if slices.is_over():
                yield
    return refused, offsets
