"""Fetches from the replicas on one broker, leaders or not, as Kafka's debugging consumer (replica id -2).

Fetches of many partitions share a request, so that a cluster with many small partitions takes few requests.

What must stay true:
- Every fetch gets an answer, whatever the broker does. An invalid response gives an error that says what is wrong.
- A broker that does not answer costs `request_timeout_ms` once, and later only from time to time.
- A request asks for at most `MAX_REQUEST_BYTES`, and few requests are pending. A single batch may be larger.

Source: kafka.tools.ReplicaFetcher in ReplicaVerificationTool.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from klamm.base.tasks import start_task
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import Asked, list_offsets_of_leader
from klamm.client.fan_out import by_topic
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.client.verification.compare import Window
from klamm.client.verification.partition import Answer, Failed, OutOfRange
from klamm.net.client import AuthenticationFailed, ClientError, Connection, Disconnected
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import (
    DEBUGGING_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    TopicPartition,
)

# Two answers of this size for each broker stay in the processor's cache until they are compared. A klamm broker's
# answer has at most 8 MB.
MAX_REQUEST_BYTES = 2 * 1024 * 1024
REQUESTS_AT_A_TIME = 2
# How long a failed broker is not asked again. Doubles with each further failure.
REST_S, MAX_REST_S = 1.0, 60.0
_NO_REPLICA = -1


@dataclass(slots=True)
class _Want:
    partition: TopicPartition
    offset: int
    max_bytes: int
    is_alone: bool
    answer: "asyncio.Future[Answer]"


class ReplicaFetcher:
    """The fetches from one broker."""

    def __init__(self, client: ClusterClient, broker_id: int, patience_s: float) -> None:
        self.broker_id = broker_id
        self._client = client
        self._wants: list[_Want] = []
        self._requests: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._patience_s = patience_s
        # The last failure of the broker, since when it fails, and when it may be asked again.
        self._failure: Failed | None = None
        self._failing_since_s: float | None = None
        self._began_s = 0.0
        self._asked_again_at_s = 0.0
        self._rest_s = REST_S
        # When each error code first and last came for a partition.
        self._codes: dict[int, tuple[float, float]] = {}

    async def fetch(self, partition: TopicPartition, offset: int, max_bytes: int, *, is_alone: bool = False) -> Answer:
        """The batches of the broker's replica from `offset` on, up to `max_bytes` unless a single batch is larger.

        If the partition is alone in a request, at least one whole batch comes.
        """
        if self._failure is not None and self._loop.time() < self._asked_again_at_s:
            return self._failure
        want = _Want(partition, offset, max_bytes, is_alone, self._loop.create_future())
        self._wants.append(want)
        if len(self._requests) < REQUESTS_AT_A_TIME:
            task = start_task(self._work(), self._fail_all)
            self._requests[task] = None
            task.add_done_callback(lambda done: self._requests.pop(done, None))
        return await want.answer

    def close(self) -> None:
        """Cancels pending requests."""
        for task in self._requests:
            task.cancel()

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        # Fetches in the same turn of the loop share a request.
        await asyncio.sleep(0)
        while wants := self._take():
            answers = await self._ask(wants)
            for want in wants:
                if not want.answer.done():
                    want.answer.set_result(answers[want.partition])

    def _fail_all(self, error: BaseException) -> None:
        for want in self._wants:
            if not want.answer.done():
                want.answer.set_exception(error)
        self._wants.clear()

    def _take(self) -> list[_Want]:
        """The fetches of the next request: one that must be alone, or as many as fit into a request."""
        self._wants = [want for want in self._wants if not want.answer.done()]
        taken = [want for want in self._wants if want.is_alone][:1]
        if not taken:
            sizes = accumulate(want.max_bytes for want in self._wants)
            count = sum(size_bytes <= MAX_REQUEST_BYTES for size_bytes in sizes)
            taken = self._wants[: max(1, count)]
        self._wants = [want for want in self._wants if want not in taken]
        return taken

    async def _ask(self, wants: Sequence[_Want]) -> Mapping[TopicPartition, Answer]:
        """Sends one request. A failure of the broker is the failure of each partition."""
        wanted = {want.partition: want for want in wants}
        if self._failing_since_s is None:
            self._began_s = self._loop.time()
        try:
            connection = await self._client.connection_to(self.broker_id)
            try:
                answers = await self._fetch(connection, wanted)
            except Disconnected as error:
                if len(wanted) == 1:
                    raise
                answers = await self._fetch_singly(wanted, error)
        except (ClientError, KafkaError) as error:
            return dict.fromkeys(wanted, self._failed(error))
        self._failure, self._failing_since_s, self._rest_s = None, None, REST_S
        return answers

    def _failed(self, error: Exception) -> Failed:
        """The failure of the whole broker. It is final once the broker has failed for `patience_s`."""
        now_s = self._loop.time()
        if self._failing_since_s is None:
            self._failing_since_s = self._began_s
        is_final = isinstance(error, AuthenticationFailed) or now_s - self._failing_since_s >= self._patience_s
        reason = error.message if isinstance(error, KafkaError) and error.message else str(error)
        self._failure = Failed(reason, is_final)
        self._asked_again_at_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, MAX_REST_S)
        return self._failure

    def _refused(self, code: int) -> Failed:
        """An error of one partition. It is final once any partitions have got this error for `patience_s`."""
        now_s = self._loop.time()
        first_s, last_s = self._codes.get(code, (now_s, now_s))
        if now_s - last_s > self._patience_s:
            first_s = now_s
        self._codes[code] = first_s, now_s
        is_final = code not in RETRIABLE_ERRORS or code == ErrorCode.KAFKA_STORAGE_ERROR
        reason = f"broker {self.broker_id} answers {error_name(code)}"
        is_corrupt = code == ErrorCode.CORRUPT_MESSAGE
        return Failed(reason, is_final or now_s - first_s >= self._patience_s, is_corrupt)

    async def _fetch(
        self, connection: Connection, wanted: Mapping[TopicPartition, _Want]
    ) -> dict[TopicPartition, Answer]:
        request = _request(wanted)
        response = await connection.send(ApiKey.FETCH, lambda version: request)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), f"{connection} answers {error_name(response.error_code)}")
        found = _answered(connection, wanted, response)
        answers = {partition: self._answer(wanted[partition].offset, data) for partition, data in found.items()}
        outside = [partition for partition, answer in answers.items() if answer is None]
        return {**answers, **(await _log_ends(connection, outside) if outside else {})}  # type: ignore[dict-item]  # None is replaced

    async def _fetch_singly(
        self, wanted: Mapping[TopicPartition, _Want], error: Disconnected
    ) -> dict[TopicPartition, Answer]:
        """Fetches each partition alone: a Kafka broker closes the connection if a segment is too short, so one
        partition could fail all in its request. Raises ClientError if the broker accepts no connection, or all
        partitions fail."""
        answers: dict[TopicPartition, Answer] = {}
        for partition, want in wanted.items():
            connection = await self._client.connection_to(self.broker_id)
            try:
                answers |= await self._fetch(connection, {partition: want})
            except Disconnected as closed:
                answers[partition] = Failed(str(closed))
        if all(isinstance(answer, Failed) for answer in answers.values()):
            raise error
        return answers

    def _answer(self, offset: int, data: PartitionData) -> Answer | None:
        """The answer, or None if the log does not have the offset."""
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if data.error_code != ErrorCode.NONE:
            return self._refused(data.error_code)
        if data.high_watermark < 0:
            return Failed(f"broker {self.broker_id} answers with the high watermark {data.high_watermark}")
        if data.preferred_read_replica != _NO_REPLICA and not data.records:
            return Failed(f"broker {self.broker_id} sends consumers to broker {data.preferred_read_replica}", True)
        return Window(data.records or b"", data.high_watermark, is_complete=data.high_watermark <= offset)


def _request(wanted: Mapping[TopicPartition, _Want]) -> FetchRequest:
    return FetchRequest(
        replica_id=DEBUGGING_REPLICA_ID,
        max_bytes=max(MAX_REQUEST_BYTES, *(want.max_bytes for want in wanted.values())),
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=number,
                        current_leader_epoch=NO_EPOCH,
                        fetch_offset=want.offset,
                        partition_max_bytes=want.max_bytes,
                    )
                    for number in numbers
                    for want in [wanted[TopicPartition(topic, number)]]
                ],
            )
            for topic, numbers in by_topic(wanted).items()
        ],
    )


def _answered(
    connection: Connection, asked: Collection[TopicPartition], response: FetchResponse
) -> dict[TopicPartition, PartitionData]:
    """The answer for each partition. Raises KafkaError for additional, repeated or missing partitions."""
    found: dict[TopicPartition, PartitionData] = {}
    for topic in response.responses:
        for data in topic.partitions:
            partition = TopicPartition(topic.topic, data.partition_index)
            if partition not in asked or partition in found:
                what = "twice" if partition in found else "although it was not asked for it"
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{connection} answers for {partition} {what}")
            found[partition] = data
    for partition in asked:
        if partition not in found:
            what = f"{connection} does not answer for {partition}"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, what)
    return found


async def _log_ends(connection: Connection, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Answer]:
    """The start and end offsets of these replicas' logs."""
    starts = await list_log_offsets(connection, partitions, EARLIEST_TIMESTAMP)
    ends = await list_log_offsets(connection, partitions, LATEST_TIMESTAMP)
    answers: dict[TopicPartition, Answer] = {}
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if isinstance(start, int) and isinstance(end, int):
            answers[partition] = OutOfRange(start, end)
        else:
            answers[partition] = start if isinstance(start, Failed) else end if isinstance(end, Failed) else Failed("")
    return answers


async def list_log_offsets(
    connection: Connection, partitions: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int | Failed]:
    """The start or end offset (EARLIEST or LATEST) of each replica's own log, leader or not. Raises ClientError."""
    asked = {partition: Asked(timestamp, NO_EPOCH) for partition in partitions}
    found = await list_offsets_of_leader(connection, asked, replica_id=DEBUGGING_REPLICA_ID)
    return {partition: _offset(connection, partition, found.get(partition)) for partition in partitions}


def _offset(connection: Connection, partition: TopicPartition, listed: object) -> int | Failed:
    if listed is None:
        return Failed(f"{connection} does not answer for {partition}")
    if isinstance(listed, KafkaError):
        return Failed(f"{connection} answers {error_name(listed.code)}", listed.code not in RETRIABLE_ERRORS)
    offset: int = listed.offset  # type: ignore[attr-defined]  # a ListedOffset
    return offset if offset >= 0 else Failed(f"{connection} answers with the offset {offset}")
