"""WriteTxnMarkers (key 27): a transaction coordinator tells leaders to write the markers that end a transaction.

Versions: 1 flexible; 2 transaction version (KIP-1228).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int8, Int16, Int32, Int64, Request, Response, String, Struct, field


class WriteTxnMarkersRequest(
    Request["WriteTxnMarkersResponse"],
    api=ApiKey.WRITE_TXN_MARKERS,
    versions="0-1",
    known="0-2",
    flexible="1+",
    size=LIST,
):
    class WritableTxnMarker(Struct):
        class WritableTxnMarkerTopic(Struct):
            name: String
            partition_indexes: list[Int32]

        producer_id: Int64
        producer_epoch: Int16
        transaction_result: Bool
        topics: list[WritableTxnMarkerTopic]
        coordinator_epoch: Int32
        transaction_version: Int8 = field("2+", default=0)

    markers: list[WritableTxnMarker]


class WriteTxnMarkersResponse(Response):
    class WritableTxnMarkerResult(Struct):
        class WritableTxnMarkerTopicResult(Struct):
            class WritableTxnMarkerPartitionResult(Struct):
                partition_index: Int32
                error_code: Int16

            name: String
            partitions: list[WritableTxnMarkerPartitionResult]

        producer_id: Int64
        topics: list[WritableTxnMarkerTopicResult]

    markers: list[WritableTxnMarkerResult]
