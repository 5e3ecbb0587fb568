"""Produce (key 0), versions 0 to 9: appends one batch to each partition (acks 0, 1, all).

Versions 0 to 2 are served only to answer old clients with a reason: their records are message sets, but klamm stores
only record batches (magic 2), so they get UNSUPPORTED_FOR_MESSAGE_FORMAT. A request with a transactional batch needs a
transactional id that the client is authorized for; otherwise it is refused as a whole, as in Kafka. The log judges each
batch by the producer id in it, so a request may have batches of several producers, and batches inside and outside of
transactions. With acks=0 there is no answer; an error then closes the connection, as in Kafka, so that the client
notices. From version 8 on the answer names the records for which a batch is refused (KIP-467), at most
MAX_NAMED_RECORDS.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from klamm.base.slices import Slices, Steps, each, mapped
from klamm.base.slices import slices as pieces
from klamm.broker.handlers.by_partition import by_partition
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.server.exchange import AnswerOnly, InvalidRequest
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.compiler.counters import is_large
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.record.record_batch import is_partial, is_transactional, is_zstd
from klamm.protocol.record.record_walk import MAX_NAMED_RECORDS
from klamm.protocol.vocabulary import ACKS_ALL, ACKS_NONE, INTERNAL_TOPICS, ResourceType
from klamm.replication.replica_manager import ProduceResult
from klamm.storage.log.batch_inspection import Inspected, LargeBatch
from klamm.storage.log.written_ahead import PIECE_BYTES

ACKS = (ACKS_NONE, 1, ACKS_ALL)
# Versions up to this one have message sets, which have their own rules. Later versions have exactly one record batch.
LAST_VERSION_WITH_MESSAGE_SETS = 2
FIRST_VERSION_WITH_ZSTD = 7
# How many batches a slice appends, in some milliseconds if they are small.
BATCHES_PER_SLICE = 100
# How many partitions a slice checks or answers, in about a millisecond.
CHECKS_PER_SLICE = 1_000
ANSWERS_PER_SLICE = 500
# The client id of Kafka's tools. Only these may write to internal topics.
ADMIN_CLIENT_ID = "__admin_client"

Topic = ProduceResponse.TopicProduceResponse
Partition = Topic.PartitionProduceResponse
RecordError = Partition.BatchIndexAndErrorMessage
Batch = tuple[str, int, memoryview | None]
Appended = Sequence[tuple[str, int, ProduceResult]]


def error_response(request: Request[ProduceRequest], error: KafkaError) -> Steps[ProduceResponse]:
    if request.body.acks == ACKS_NONE:
        raise InvalidRequest(f"produce with acks=0 failed: {error}")
    topics = ((topic.name, topic.partition_data) for topic in request.body.topic_data)
    failed = lambda _, one: Partition(index=one.index, error_code=error.code, error_message=error.message)  # noqa: E731
    return ProduceResponse(responses=(yield from by_partition(Topic, topics, failed)))


@handler(ProduceRequest, Operation.WRITE, ResourceType.TOPIC, error_response=error_response, pipelined=True)
def handle(request: Request[ProduceRequest]) -> object:
    body = request.body
    if is_large(body):
        return _handle_in_steps(request)
    batches = [_checked(request, topic.name, one) for topic in body.topic_data for one in topic.partition_data]
    _check_acks(body)
    appended: list[tuple[str, int, ProduceResult]] = []
    unprepared = request.services.replica_manager.unprepared_logs(batches)
    try:
        slices = Slices(BATCHES_PER_SLICE, asyncio.get_running_loop().time) if len(batches) > 1 else None
        for topic, number, records in batches if not unprepared else ():
            if records is not None and len(records) > PIECE_BYTES:
                break
            result = _append(request, topic, number, records)
            appended.append((topic, number, result))
            if result.has_waited_for_disk:
                request.connection.end_slice()
                break
            if slices is not None and slices.spend():
                break
    except LargeBatch:
        pass
    if len(appended) < len(batches):
        return _append_later(request, batches, appended)
    if body.acks == ACKS_NONE:
        _check_unacknowledged(appended)
        return None
    if body.acks == ACKS_ALL and not request.services.replica_manager.is_replicated(appended):
        return AnswerOnly(partial(_wait_replicated, request, appended))
    topics: dict[str, Topic] = {}
    _add_answers(topics, appended, MAX_NAMED_RECORDS)
    return ProduceResponse(responses=list(topics.values()))


def _handle_in_steps(request: Request[ProduceRequest]) -> Steps[object]:
    batches: list[Batch] = []
    slices = Slices(CHECKS_PER_SLICE)
    for topic in request.body.topic_data:
        batches += yield from mapped(partial(_checked, request, topic.name), topic.partition_data, slices)
    _check_acks(request.body)
    return _append_later(request, batches, [])


def _checked(
    request: Request[ProduceRequest], topic: str, data: ProduceRequest.TopicProduceData.PartitionProduceData
) -> Batch:
    records: Any = data.records
    if records is not None and is_transactional(records):
        _require_transactional_id(request)
    return topic, data.index, records


def _require_transactional_id(request: Request[ProduceRequest]) -> None:
    named = request.body.transactional_id
    if named is None or not request.allows(named, Operation.WRITE, ResourceType.TRANSACTIONAL_ID):
        reason = "no transactional id is named" if named is None else f"no right to write as {named}"
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, f"a transactional batch: {reason}")


def _check_acks(body: ProduceRequest) -> None:
    if body.acks not in ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={body.acks}: allowed are 0, 1 and -1 (all)")


def _append_later(
    request: Request[ProduceRequest], batches: Sequence[Batch], appended: list[tuple[str, int, ProduceResult]]
) -> AnswerOnly[object]:
    """Appends the remaining batches in slices. Later Produce requests of the connection must not overtake this one."""
    release = request.connection.hold_followers()
    return AnswerOnly(partial(_append_with_pauses, request, batches, appended, release))


async def _append_with_pauses(
    request: Request[ProduceRequest],
    batches: Sequence[Batch],
    appended: list[tuple[str, int, ProduceResult]],
    on_appended: Callable[[], None],
) -> object:
    """Appends the remaining batches, each after its log is prepared.

    Batches are inspected one after another, so that each client has one batch at a time in the worker. Other clients'
    batches are appended meanwhile, even to the same partition.
    """
    replica_manager = request.services.replica_manager
    slices = Slices(BATCHES_PER_SLICE, asyncio.get_running_loop().time)
    try:
        async for piece in pieces(batches, CHECKS_PER_SLICE):
            await asyncio.gather(*(log.prepare_append() for log in replica_manager.unprepared_logs(piece)))
        async for topic, number, records in each(batches[len(appended) :], slices):
            # Other requests that have waited at the same time may have appended first.
            for log in replica_manager.unprepared_logs([(topic, number, records)]):
                await log.prepare_append()
            appended.append((topic, number, await _append_inspected(request, topic, number, records)))
            if appended[-1][2].has_waited_for_disk:
                await asyncio.sleep(0)
    finally:
        on_appended()
    acks = request.body.acks
    if acks == ACKS_NONE:
        _check_unacknowledged(appended)
        return None
    return AnswerOnly(partial(_wait_replicated, request, appended)) if acks == ACKS_ALL else await _respond(appended)


async def _append_inspected(
    request: Request[ProduceRequest], topic: str, number: int, records: memoryview | None
) -> ProduceResult:
    replica_manager, inspected = request.services.replica_manager, None
    while True:
        try:
            if inspected is None and (records is None or len(records) <= PIECE_BYTES):
                return _append(request, topic, number, records)
            async with replica_manager.writing_ahead(topic, number, records, inspected):
                return _append(request, topic, number, records, inspected)
        except LargeBatch as large:
            try:
                inspected = await replica_manager.inspect(large)
            except KafkaError as error:
                return ProduceResult(error.code, error_message=error.message)


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
    if not records or is_partial(records, 0):
        message = "there is no whole record batch; exactly one is needed"
        return ProduceResult(ErrorCode.INVALID_RECORD, error_message=message)
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
    return await _respond(appended)


async def _respond(appended: Appended) -> ProduceResponse:
    topics: dict[str, Topic] = {}
    named_left = MAX_NAMED_RECORDS
    async for piece in pieces(appended, ANSWERS_PER_SLICE):
        named_left = _add_answers(topics, piece, named_left)
    return ProduceResponse(responses=list(topics.values()))


def _add_answers(topics: dict[str, Topic], appended: Appended, named_left: int) -> int:
    """Adds the results to the answers of their topics; returns how many more records may be named."""
    for topic, number, result in appended:
        record_errors = result.record_errors[:named_left]
        named_left -= len(record_errors)
        partition = Partition(
            index=number,
            error_code=result.error_code,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
            record_errors=[
                RecordError(batch_index=index, batch_index_error_message=message) for index, message in record_errors
            ],
            error_message=result.error_message,
        )
        answer = topics.get(topic)
        if answer is None:
            topics[topic] = Topic(name=topic, partition_responses=[partition])
        else:
            answer.partition_responses.append(partition)
    return named_left
