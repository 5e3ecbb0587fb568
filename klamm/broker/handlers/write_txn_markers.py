"""WriteTxnMarkers (key 27), versions 0 and 1: a transaction coordinator ends transactions in partitions led here.

`marker_appends.py` does the work. The answer has one result for each producer, as in Kafka, even if the request has two
markers of one producer. The failure of one partition does not affect the marker's other partitions: the coordinator
repeats the marker for failed partitions.
"""

from collections.abc import Sequence

from klamm.base.slices import CHEAP_SLICE, Slices, Steps, each, in_slices
from klamm.broker.coordinators.marker_appends import Codes
from klamm.broker.handlers.by_partition import by_topic, named_partitions
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.transactions.ports import TransactionMarker
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Topic = Result.WritableTxnMarkerTopicResult
Partition = Topic.WritableTxnMarkerPartitionResult


def error_response(request: Request[WriteTxnMarkersRequest], error: KafkaError) -> Steps[WriteTxnMarkersResponse]:
    failed = []
    slices = Slices(CHEAP_SLICE)
    for marker in request.body.markers:
        failed.append(dict.fromkeys((yield from _partitions(marker)), error.code))
        if slices.spend():
            yield
    return (yield from _response(request.body, failed))


@handler(WriteTxnMarkersRequest, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[WriteTxnMarkersRequest]) -> AnswerOnly[WriteTxnMarkersResponse]:
    request.require_cluster()
    markers = [await _checked(marker) async for marker in each(request.body.markers)]
    appended = await request.services.marker_appends.append(markers)

    async def answer() -> WriteTxnMarkersResponse:
        return await in_slices(_response(request.body, [await codes for codes in appended]))

    return AnswerOnly(answer)


async def _checked(marker: WriteTxnMarkersRequest.WritableTxnMarker) -> TransactionMarker:
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        reason = f"producer id {marker.producer_id} with epoch {marker.producer_epoch}: neither may be negative"
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    return TransactionMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        # A partition that is named twice gets one marker.
        list(dict.fromkeys(await in_slices(_partitions(marker)))),
    )


def _partitions(marker: WriteTxnMarkersRequest.WritableTxnMarker) -> Steps[list[PartitionKey]]:
    return named_partitions((topic.name, topic.partition_indexes) for topic in marker.topics)


def _response(body: WriteTxnMarkersRequest, results: Sequence[Codes]) -> Steps[WriteTxnMarkersResponse]:
    by_producer: dict[int, dict[PartitionKey, ErrorCode]] = {}
    slices = Slices(CHEAP_SLICE)
    for marker, codes in zip(body.markers, results, strict=True):
        by_producer.setdefault(marker.producer_id, {}).update(codes)
        if slices.spend(1 + len(codes)):
            yield
    answers = []
    for producer_id, codes in by_producer.items():
        partitions = (
            (topic, Partition(partition_index=number, error_code=code)) for (topic, number), code in codes.items()
        )
        answers.append(Result(producer_id=producer_id, topics=(yield from by_topic(Topic, partitions, slices))))
    return WriteTxnMarkersResponse(markers=answers)
