"""Verifying replicas whose brokers hang, hang up, or answer nonsense: it ends, and says what was wrong with which."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.retries import RetryPolicy
from klamm.client.verification import verifier
from klamm.client.verification.partition import PartitionCheck
from klamm.client.verification.verifier import VerifyOptions, partitions_to_verify, verify_replicas
from klamm.net.client import ConnectionOptions
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.describe_configs import DescribeConfigsResponse
from klamm.protocol.apis.fetch import FetchableTopic, FetchResponse, PartitionData
from klamm.protocol.apis.list_offsets import ListOffsetsResponse
from klamm.protocol.apis.metadata import MetadataResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import parse_header
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import DEBUGGING_REPLICA_ID, LATEST_TIMESTAMP
from support.scripted_broker import Asked, ScriptedBroker

END = 30
BATCHES = [
    bytes(
        build_batch(
            [Record(None, b"%d" % offset, 1, offset=offset) for offset in range(first, first + 5)], base_offset=first
        )
    )
    for first in range(0, END, 5)
]
Fetched = Callable[[Asked, int, PartitionData], Any]


def honest(_: Asked, offset: int, data: PartitionData) -> FetchResponse:
    return response(data)


def response(*partitions: PartitionData, topic: str = "t") -> FetchResponse:
    return FetchResponse(responses=[FetchableTopic(topic=topic, partitions=list(partitions))])


def records_from(offset: int) -> bytes:
    return b"".join(batch for batch in BATCHES if parse_header(batch).last_offset >= offset)[:200]


class Replicas:
    """Brokers 0, 1 and 2 with a replica each of t-0. `fetched` is what broker 2 makes of an honest answer."""

    def __init__(self, fetched: Fetched) -> None:
        self.fetched = {0: honest, 1: honest, 2: fetched}
        self.brokers = {number: ScriptedBroker(self._script(number)) for number in self.fetched}
        self.metadata_names = ["t"]
        self.log_start, self.log_end = 0, END
        self.topic_id = UUID(int=1)

    async def verify(self, patience_s: float = 0.15, request_timeout_ms: int = 20_000) -> PartitionCheck:
        for broker in self.brokers.values():
            await broker.start()
        client = ClusterClient(
            [self.brokers[0].address],
            ConnectionOptions(request_timeout_ms=request_timeout_ms),
            RetryPolicy(200, 5, 20),
        )
        try:
            async with asyncio.timeout(120):
                planned = await partitions_to_verify(client, lambda name: name == "t")
                options = VerifyOptions(fetch_size_bytes=200, patience_s=patience_s)
                (check,) = await verify_replicas(client, planned.partitions, options)
            return check
        finally:
            await client.close()
            for broker in self.brokers.values():
                broker.stop()

    def _script(self, number: int) -> Callable[[Asked], Any]:
        def answer(asked: Asked) -> Any:
            match asked.header.api_key:
                case ApiKey.METADATA:
                    return self._metadata()
                case ApiKey.DESCRIBE_CONFIGS:
                    result = DescribeConfigsResponse.DescribeConfigsResult
                    entry = result.DescribeConfigsResourceResult(
                        name="cleanup.policy", value="delete", read_only=False, is_sensitive=False
                    )
                    return DescribeConfigsResponse(
                        results=[
                            result(
                                error_code=0, error_message=None, resource_type=2, resource_name="t", configs=[entry]
                            )
                        ]
                    )
                case ApiKey.LIST_OFFSETS:
                    return self._offsets(asked.body)
                case ApiKey.FETCH:
                    assert asked.body.replica_id == DEBUGGING_REPLICA_ID
                    ((wanted,),) = (topic.partitions for topic in asked.body.topics)
                    offset = wanted.fetch_offset
                    data = PartitionData(partition_index=0, high_watermark=END, records=records_from(offset))
                    return self.fetched[number](asked, offset, data)
            raise AssertionError(asked.header)

        return answer

    def _metadata(self) -> MetadataResponse:
        topic, broker = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseBroker
        partition = topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=0, leader_epoch=3, replica_nodes=[0, 1, 2], isr_nodes=[0, 1, 2]
        )
        return MetadataResponse(
            brokers=[broker(node_id=number, host="127.0.0.1", port=each.port) for number, each in self.brokers.items()],
            controller_id=0,
            topics=[
                topic(error_code=0, name="t", topic_id=self.topic_id, partitions=[partition])
                if "t" in self.metadata_names
                else topic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=[])
            ],
        )

    def _offsets(self, request: Any) -> ListOffsetsResponse:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        is_end = request.topics[0].partitions[0].timestamp == LATEST_TIMESTAMP
        offset = self.log_end if is_end else self.log_start
        return ListOffsetsResponse(
            topics=[
                topic(
                    name="t",
                    partitions=[topic.ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=offset)],
                )
            ]
        )


def hangs(asked: Asked, offset: int, data: PartitionData) -> None:
    return None


def hangs_up(asked: Asked, offset: int, data: PartitionData) -> None:
    asked.hang_up()


def hangs_up_in_the_middle(asked: Asked, offset: int, data: PartitionData) -> None:
    asked.connection.transport.write(b"\x00\x00\x10\x00half")
    asked.hang_up()


def garbage(asked: Asked, offset: int, data: PartitionData) -> None:
    asked.connection.transport.write(b"\x00\x00\x00\x08garbage!")


def another_partition(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.partition_index = 7
    return response(data)


def another_topic(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    return response(data, topic="u")


def twice(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    return response(data, data)


def nothing(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    return FetchResponse()


def an_error(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def an_unknown_error(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.error_code = 9999
    return response(data)


def no_replica(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return response(data)


def a_negative_high_watermark(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.high_watermark = -5
    return response(data)


def another_replica_is_preferred(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.preferred_read_replica, data.records = 1, b""
    return response(data)


def always_the_first_batch(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.records = BATCHES[0]
    return response(data)


def half_a_batch(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    assert data.records is not None
    data.records = bytes(data.records)[:50]
    return response(data)


def zeros(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.records = bytes(200)
    return response(data)


def says_that_its_records_are_corrupt(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    return response(PartitionData(partition_index=0, error_code=ErrorCode.CORRUPT_MESSAGE))


def a_high_watermark_that_stays_behind(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
    data.high_watermark, data.records = (10, data.records) if offset < 10 else (10, b"")
    return response(data)


HOSTILE = [
    (hangs, "no response to Fetch within 1000 ms"),
    (hangs_up, "the broker closed the connection"),
    (hangs_up_in_the_middle, "in the middle of a response"),
    (garbage, "a response to request"),
    (another_partition, "answers for t-7 although it was not asked for it"),
    (another_topic, "answers for u-0 although it was not asked for it"),
    (twice, "answers for t-0 twice"),
    (nothing, "does not answer for t-0"),
    (an_error, "answers FETCH_SESSION_ID_NOT_FOUND (70)"),
    (an_unknown_error, "broker 2 answers "),
    (no_replica, "broker 2 answers NOT_LEADER_OR_FOLLOWER (6)"),
    (a_negative_high_watermark, "broker 2 answers with the high watermark -5"),
    (another_replica_is_preferred, "broker 2 sends consumers to broker 1"),
    (always_the_first_batch, "a batch with offsets 0 to 4 comes where offset 5 or a later one belongs"),
    (half_a_batch, "it answered without a whole batch at offset 0"),
    (zeros, "its records cannot be read: batch length 0 is smaller than any message's header"),
    (says_that_its_records_are_corrupt, "its records cannot be read: broker 2 answers CORRUPT_MESSAGE (2)"),
    (a_high_watermark_that_stays_behind, "its high watermark is 10"),
]
# What these replicas have is no log, so that they differ from the others.
BROKEN = (always_the_first_batch, half_a_batch, zeros, says_that_its_records_are_corrupt)


@pytest.mark.parametrize(("fetched", "reason"), HOSTILE, ids=[fetched.__name__ for fetched, _ in HOSTILE])
async def test_a_broker_that_misbehaves_is_named_and_the_others_are_verified(fetched: Fetched, reason: str) -> None:
    # A busy machine may keep the honest brokers from answering for a while, too.
    check = await Replicas(fetched).verify(request_timeout_ms=1_000 if fetched is hangs else 20_000)
    assert list(check.set_aside) == [2]
    assert reason in check.set_aside[2].reason
    assert not check.is_verified
    assert check.has_broken_replica == (fetched in BROKEN)
    assert (check.position, check.active, check.differences.found) == (END, [0, 1], [])


async def test_a_replica_that_claims_to_have_nothing_lacks_what_the_others_have() -> None:
    def empty(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
        data.records = b""
        return response(data)

    check = await Replicas(empty).verify()
    ((difference),) = check.differences.found
    assert (difference.kind.value, difference.first_offset, difference.last_offset) == ("missing", 0, END - 1)
    assert (difference.replica, check.position) == (2, END)


async def test_a_log_that_becomes_shorter_than_what_was_verified_is_named() -> None:
    def shrinks(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
        if offset >= 10:
            replicas.log_end = 7
            return response(PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        return response(data)

    replicas = Replicas(shrinks)
    check = await replicas.verify()
    assert check.set_aside[2].reason.startswith("its log ends at offset 7, before offset 1")
    assert check.position == END


async def test_a_replica_whose_log_begins_later_is_compared_from_there() -> None:
    def begins_later(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
        if offset < 15:
            replicas.log_start = 15
            return response(PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        return response(data)

    replicas = Replicas(begins_later)
    check = await replicas.verify()
    assert (check.start_offset, check.position, check.set_aside) == (0, END, {})
    assert (check.begins_later, check.batches) == ({2: 15}, len(BATCHES))


async def test_a_topic_that_is_created_again_with_fewer_records_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier, "REFRESH_EVERY_S", 0.05)

    def created_again(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
        if offset < 10 and replicas.log_end != 7:
            return response(data)
        replicas.log_end, replicas.topic_id = 7, UUID(int=2)
        return response(PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))

    replicas = Replicas(created_again)
    replicas.fetched = dict.fromkeys(replicas.fetched, created_again)
    check = await replicas.verify(patience_s=10)
    assert (check.gone, check.differences.found) == ("the topic was deleted and created again", [])


async def test_a_topic_that_is_deleted_meanwhile_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "MISSING_S", 0.1)
    monkeypatch.setattr(verifier, "REFRESH_EVERY_S", 0.05)

    def deleted(asked: Asked, offset: int, data: PartitionData) -> FetchResponse:
        replicas.metadata_names = []
        return response(PartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    replicas = Replicas(deleted)
    replicas.fetched = dict.fromkeys(replicas.fetched, deleted)
    check = await replicas.verify(patience_s=10)
    assert (check.gone, check.differences.found) == ("the topic was deleted", [])


async def test_a_replica_that_fails_once_is_asked_again() -> None:
    failed: list[int] = []

    def fails_once(asked: Asked, offset: int, data: PartitionData) -> FetchResponse | None:
        if offset >= 10 and not failed:
            failed.append(offset)
            asked.hang_up()
            return None
        return response(data)

    check = await Replicas(fails_once).verify(patience_s=10)
    assert (check.position, check.set_aside, len(failed)) == (END, {}, 1)
