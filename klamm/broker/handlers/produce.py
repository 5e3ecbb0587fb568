"""Produce (key 0), versions 0 to 9: appends one batch to each partition (acks 0, 1, all).

Versions 0 to 2 are served only to answer old clients with a reason: their records are message sets, but klamm stores
only record batches (magic 2), so they get UNSUPPORTED_FOR_MESSAGE_FORMAT. A request with a transactional batch is
refused as a whole, whatever its transactional id, because klamm has no transaction coordinator to end the transaction.
With acks=0 there is no answer; an error then closes the connection, as in Kafka, so that the client notices. From
version 8 on the answer names the records for which a batch is refused (KIP-467), at most MAX_NAMED_RECORDS.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from klamm.broker.registry import Request, handler
from klamm.broker.security import Operation
from klamm.net.server import AnswerOnly, InvalidRequest
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.errors import ErrorCode, KafkaError, error_name
from klamm.protocol.messages import ApiKey
from klamm.protocol.record_batch import is_transactional, is_zstd
from klamm.protocol.record_walk import MAX_NAMED_RECORDS
from klamm.protocol.vocabulary import ACKS_ALL, ACKS_NONE, INTERNAL_TOPICS, ResourceType
from klamm.replication.replica_manager import ProduceResult
from klamm.slices import Slices
from klamm.storage.batch_inspection import Inspected, LargeBatch
from klamm.storage.log import Log

ACKS = (ACKS_NONE, 1, ACKS_ALL)
# Versions up to this one carry message sets, which have their own rules; later versions carry exactly one record batch.
LAST_VERSION_WITH_MESSAGE_SETS = 2
FIRST_VERSION_WITH_ZSTD = 7
# The number of batches that are appended in one slice: some milliseconds if the batches are small.
BATCHES_PER_SLICE = 100
# Kafka's tools name themselves so; only they may write to internal topics.
ADMIN_CLIENT_ID = "__admin_client"

Topic = ProduceResponse.TopicProduceResponse
Partition = Topic.PartitionProduceResponse
RecordError = Partition.BatchIndexAndErrorMessage
Batch = tuple[str, int, memoryview | None]
Appended = Sequence[tuple[str, int, ProduceResult]]


def error_response(request: Request[ProduceRequest], error: KafkaError) -> ProduceResponse:
    if request.body.acks == ACKS_NONE:
        raise InvalidRequest(f"produce with acks=0 failed: {error}")
    return ProduceResponse(
        responses=[
            Topic(
                name=topic.name,
                partition_responses=[
                    Partition(index=one.index, error_code=error.code, error_message=error.message)
                    for one in topic.partition_data
                ],
            )
            for topic in request.body.topic_data
        ]
    )


@handler(
    ApiKey.PRODUCE,
    operation=Operation.WRITE,
    resource_type=ResourceType.TOPIC,
    error_response=error_response,
    pipelined=True,
)
def handle(request: Request[ProduceRequest]) -> object:
    body = request.body
    batches = cast(
        list[Batch], [(topic.name, one.index, one.records) for topic in body.topic_data for one in topic.partition_data]
    )
    for _, _, records in batches:
        if records is not None and is_transactional(records):
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this version of klamm has no transaction coordinator"
            )
    if body.acks not in ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={body.acks}: allowed are 0, 1 and -1 (all)")
    appended: list[tuple[str, int, ProduceResult]] = []
    unsynced = request.services.replica_manager.unsynced_logs(batches)
    try:
        slices = Slices(BATCHES_PER_SLICE, asyncio.get_running_loop().time) if len(batches) > 1 else None
        for topic, number, records in batches if not unsynced else ():
            result = _append(request, topic, number, records)
            appended.append((topic, number, result))
            if result.has_waited_for_disk:
                request.connection.end_slice()
                break
            if slices is not None and slices.is_over():
                break
    except LargeBatch:
        pass
    if len(appended) < len(batches):
        # Later produces of the connection must not overtake this one.
        release = request.connection.hold_followers()
        return AnswerOnly(partial(_append_with_pauses, request, batches, appended, unsynced, release))
    return _answer(request, appended)


async def _append_with_pauses(
    request: Request[ProduceRequest],
    batches: Sequence[Batch],
    appended: list[tuple[str, int, ProduceResult]],
    unsynced: Sequence[Log],
    on_appended: Callable[[], None],
) -> object:
    """Appends the remaining batches, after the logs that must be durable first have been synced.

    Batches are inspected one after another, so that a client has one at a time in the worker; other clients' batches
    are appended meanwhile, even to the same partition.
    """
    slices = Slices(BATCHES_PER_SLICE, asyncio.get_running_loop().time)
    try:
        await asyncio.gather(*(log.flush_before_append() for log in unsynced))
        for topic, number, records in batches[len(appended) :]:
            if slices.is_over():
                await asyncio.sleep(0)
            appended.append((topic, number, await _append_inspected(request, topic, number, records)))
            if appended[-1][2].has_waited_for_disk:
                await asyncio.sleep(0)
    finally:
        on_appended()
    return _answer(request, appended)


async def _append_inspected(
    request: Request[ProduceRequest], topic: str, number: int, records: memoryview | None
) -> ProduceResult:
    inspected = None
    while True:
        try:
            return _append(request, topic, number, records, inspected)
        except LargeBatch as large:
            try:
                inspected = await request.services.replica_manager.inspect(large)
            except KafkaError as error:
                return ProduceResult(error.code, error_message=error.message)


def _answer(request: Request[ProduceRequest], appended: Appended) -> object:
    acks = request.body.acks
    if acks == ACKS_NONE:
        _check_unacknowledged(appended)
        return None
    if acks == ACKS_ALL and not request.services.replica_manager.is_replicated(appended):
        return AnswerOnly(partial(_wait_replicated, request, appended))
    return _respond(appended)


def _append(
    request: Request[ProduceRequest],
    topic: str,
    number: int,
    records: memoryview | None,
    inspected: Inspected | None = None,
) -> ProduceResult:
    """Raises LargeBatch like `ReplicaManager.append_records`."""
    if not request.allows(topic):
        return ProduceResult(request.denied)
    if topic in INTERNAL_TOPICS and request.client_id != ADMIN_CLIENT_ID:
        return ProduceResult(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=f"{topic} is an internal topic")
    if request.version <= LAST_VERSION_WITH_MESSAGE_SETS:
        return ProduceResult(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    if not records:
        return ProduceResult(ErrorCode.INVALID_RECORD, error_message="there is no record batch; exactly one is needed")
    if request.version < FIRST_VERSION_WITH_ZSTD and is_zstd(records):
        message = f"zstd needs version {FIRST_VERSION_WITH_ZSTD} of Produce, this is version {request.version}"
        return ProduceResult(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, error_message=message)
    return request.services.replica_manager.append_records(
        topic, number, records, request.body.acks, inspected=inspected
    )


def _check_unacknowledged(appended: Appended) -> None:
    for topic, number, result in appended:
        if result.error_code != ErrorCode.NONE:
            reason = result.error_message or error_name(result.error_code)
            raise InvalidRequest(f"produce with acks=0 to {topic}-{number} failed: {reason}")


async def _wait_replicated(request: Request[ProduceRequest], appended: Appended) -> ProduceResponse:
    await request.services.replica_manager.wait_replicated(appended, request.body.timeout_ms)
    return _respond(appended)


def _respond(appended: Appended) -> ProduceResponse:
    topics: dict[str, list[Partition]] = {}
    named_left = MAX_NAMED_RECORDS
    for topic, number, result in appended:
        record_errors = result.record_errors[:named_left]
        named_left -= len(record_errors)
        topics.setdefault(topic, []).append(
            Partition(
                index=number,
                error_code=result.error_code,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms,
                log_start_offset=result.log_start_offset,
                record_errors=[
                    RecordError(batch_index=index, batch_index_error_message=message)
                    for index, message in record_errors
                ],
                error_message=result.error_message,
            )
        )
    return ProduceResponse(
        responses=[Topic(name=name, partition_responses=partitions) for name, partitions in topics.items()]
    )
