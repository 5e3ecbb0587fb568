"""Requests against a real broker in this process: what each API answers, and what bad input gets."""

import asyncio
import random
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from klamm.broker import handlers
from klamm.broker.handlers import APIS
from klamm.broker.requests.security import Operation
from klamm.protocol import messages
from klamm.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnTopic
from klamm.protocol.apis.fetch import EpochEndOffset
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.apis.stop_replica import StopReplicaRequest
from klamm.protocol.apis.update_metadata import UpdateMetadataRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import ResourceType
from support import group_wire, transaction_wire
from support.authorizing import Allows, nothing
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.one_broker import Client, batch, running, until, values

# -- the road of the records


async def test_produced_records_come_back(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        assert (await client.create_topic("t")).error_code == ErrorCode.NONE
        first = await client.produce("t", 0, batch(b"a", b"b"))
        second = await client.produce("t", 0, batch(b"c"), acks=1)
        assert (first.error_code, first.base_offset, second.base_offset) == (ErrorCode.NONE, 0, 2)
        result = await client.fetch("t", 0, 0)
        assert values(result.records) == [b"a", b"b", b"c"]
        assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (3, 3, 0)
        assert values((await client.fetch("t", 0, 2)).records) == [b"c"]
        assert not (await client.fetch("t", 0, 3)).records


@pytest.mark.parametrize("version", range(3, 10))
async def test_every_version_of_produce(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        result = await client.produce("t", 0, batch(b"a"), version=version)
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("version", range(4, 13))
async def test_every_version_of_fetch(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"a"))
        for isolation_level in (0, 1):
            result = await client.fetch("t", 0, 0, version=version, isolation_level=isolation_level)
            assert values(result.records) == [b"a"]
            assert (result.aborted_transactions is None) == (isolation_level == 0)


async def test_acks_none_is_not_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        body = ProduceRequest.of(None, 0, 1000, [("t", [(0, batch(b"a"))])])
        client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 99, "c", body))))
        assert values((await client.fetch("t", 0, 0)).records) == [b"a"]


async def test_an_error_with_acks_none_closes_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        body = ProduceRequest.of(None, 0, 1000, [("absent", [(0, batch(b"a"))])])
        client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 99, "c", body))))
        assert await client.is_closed()


async def test_a_long_poll_ends_when_records_come(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        producer = await cluster.connect()
        waiting = asyncio.ensure_future(client.fetch("t", 0, 0, max_wait_ms=60_000))
        await producer.ask(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
        assert not waiting.done()
        await producer.produce("t", 0, batch(b"a"))
        assert values((await waiting).records) == [b"a"]


async def test_a_long_poll_waits_for_min_bytes(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        producer = await cluster.connect()
        one = batch(b"a")
        waiting = asyncio.ensure_future(client.fetch("t", 0, 0, max_wait_ms=60_000, min_bytes=2 * len(one)))
        await producer.produce("t", 0, batch(b"a"))
        await producer.ask(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
        assert not waiting.done()
        await producer.produce("t", 0, batch(b"b"))
        assert values((await waiting).records) == [b"a", b"b"]


async def test_a_long_poll_ends_with_its_time(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        result = await client.fetch("t", 0, 0, max_wait_ms=10)
        assert (result.error_code, result.records or b"") == (ErrorCode.NONE, b"")


async def test_a_deleted_topic_ends_a_long_poll(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        admin = await cluster.connect()
        waiting = asyncio.ensure_future(client.fetch("t", 0, 0, max_wait_ms=60_000))
        await admin.ask(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
        topics = [messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(name="t", topic_id=None)]
        response = await admin.ask(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=10_000)
        assert response.responses[0].error_code == ErrorCode.NONE
        assert (await waiting).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_clients_that_do_not_know_zstd_read_no_topic_of_that_codec(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        for topic, codec in ("zstd", "zstd"), ("producer", "producer"):
            await client.create_topic(topic, compression_type=codec)
            await client.produce(topic, 0, batch(b"a", codec=CompressionType.ZSTD))
        answers = [
            (topic, version, (await client.fetch(topic, 0, 0, version=version, max_wait_ms=60_000)).error_code)
            for topic in ("zstd", "producer")
            for version in (9, 10)
        ]
        assert answers == [
            ("zstd", 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            ("zstd", 10, ErrorCode.NONE),
            ("producer", 9, ErrorCode.NONE),
            ("producer", 10, ErrorCode.NONE),
        ]


async def test_a_batch_larger_than_the_limits_can_be_fetched(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2)
        big = bytes(100_000)
        for partition in (0, 1):
            await client.produce("t", partition, batch(big))
        wants = [to_fetch(partition, 0, 10) for partition in (0, 1)]
        body = fetch_request(("t", wants), max_bytes=10)
        first, second = (await client.request(ApiKey.FETCH, 12, body)).responses[0].partitions
        assert values(first.records) == [big]
        assert not second.records


async def test_fetch_sessions(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=3)

        async def fetch(session_id: int, epoch: int, *offsets: tuple[int, int]) -> Any:
            wants = [to_fetch(partition, offset, 1000) for partition, offset in offsets]
            topics = [("t", wants)] if wants else []
            body = fetch_request(*topics, session_id=session_id, session_epoch=epoch, max_wait_ms=0)
            return await client.request(ApiKey.FETCH, 12, body)

        full = await fetch(0, 0, (0, 0), (1, 0), (2, 0))
        assert full.session_id > 0
        assert [one.partition_index for one in full.responses[0].partitions] == [0, 1, 2]
        assert (await fetch(full.session_id, 1)).responses == []
        await client.produce("t", 1, batch(b"x"))
        news = await fetch(full.session_id, 2)
        assert [(one.partition_index, values(one.records)) for one in news.responses[0].partitions] == [(1, [b"x"])]
        assert (await fetch(full.session_id, 2)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await fetch(full.session_id + 1, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_offsets_out_of_range(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        for offset in (-1, 1, 2**60):
            assert (await client.fetch("t", 0, offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_leader_epochs_are_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        for epoch, code in ((0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            body = fetch_request(("t", [to_fetch(0, 0, 1000, epoch=epoch)]), max_wait_ms=0)
            response = await client.request(ApiKey.FETCH, 12, body)
            assert result_of(response).error_code == code
        await cluster.begin_leader_epoch(client, "t", 1)
        response = await client.request(ApiKey.FETCH, 12, fetch_request(("t", [to_fetch(0, 0, 9, epoch=0)])))
        assert result_of(response).error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_followers_answer_consumers_and_tools(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"a"))
        await cluster.begin_leader_epoch(client, "t", 1, leader=1, isr=(0, 1), replicas=(0, 1))
        for replica_id in (-1, -2):
            for version, epoch, code, found in (
                (10, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER, []),
                (11, 1, ErrorCode.NONE, [b"a"]),
                (12, 1, ErrorCode.NONE, [b"a"]),
                (12, -1, ErrorCode.NONE, [b"a"]),
                (12, 0, ErrorCode.FENCED_LEADER_EPOCH, []),
            ):
                body = fetch_request(("t", [to_fetch(0, 0, 1000, epoch=epoch)]), replica_id=replica_id, max_wait_ms=0)
                result = result_of(await client.request(ApiKey.FETCH, version, body))
                assert (result.error_code, values(result.records or b"")) == (code, found), (version, epoch)
        request = messages.request_class(ApiKey.LIST_OFFSETS)
        for replica_id, timestamp, epoch, expected in (
            (-1, -1, 1, (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)),
            (-2, -1, 1, (ErrorCode.NONE, 1, 1)),
            (-2, -2, -1, (ErrorCode.NONE, 0, 0)),
            (-2, -1, 0, (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)),
        ):
            wanted = request.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=epoch, timestamp=timestamp
            )
            topics = [request.ListOffsetsTopic(name="t", partitions=[wanted])]
            answer = await client.ask(ApiKey.LIST_OFFSETS, 6, replica_id=replica_id, isolation_level=0, topics=topics)
            found_offset = answer.topics[0].partitions[0]
            assert (found_offset.error_code, found_offset.offset, found_offset.leader_epoch) == expected


async def test_a_reader_learns_where_its_log_differs(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"a", b"b"))
        await cluster.begin_leader_epoch(client, "t", 1)
        await client.produce("t", 0, batch(b"c"))

        async def fetch(offset: int, last_epoch: int) -> Any:
            body = fetch_request(("t", [to_fetch(0, offset, 1000, last_epoch=last_epoch)]))
            return result_of(await client.request(ApiKey.FETCH, 12, body))

        agrees = await fetch(2, 0)
        assert (agrees.diverging_epoch, values(agrees.records)) == (None, [b"c"])
        # Epoch 0 ended at offset 2, so offset 3 cannot be of it.
        differs = await fetch(3, 0)
        assert (differs.error_code, differs.records or b"") == (ErrorCode.NONE, b"")
        assert differs.diverging_epoch == EpochEndOffset(epoch=0, end_offset=2)
        assert (await fetch(3, 7)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- idempotence


async def test_duplicates_are_answered_and_gaps_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1)
        producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

        async def send(value: bytes, sequence: int) -> tuple[int, int]:
            result = await client.produce("t", 0, batch(value, base_sequence=sequence, **producer))
            return result.error_code, result.base_offset

        assert await send(b"a", 0) == (ErrorCode.NONE, 0)
        assert await send(b"b", 1) == (ErrorCode.NONE, 1)
        assert await send(b"a", 0) == (ErrorCode.NONE, 0)
        assert await send(b"d", 3) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        await cluster.restart_broker()
        client = await cluster.connect()
        result = await client.produce("t", 0, batch(b"b", base_sequence=1, **producer))
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 1)
        assert values((await client.fetch("t", 0, 0)).records) == [b"a", b"b"]


async def test_producer_ids_differ(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        ids = []
        for _ in range(1005):  # more than a block
            answer = await client.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1)
            ids.append(answer.producer_id)
        await cluster.restart_broker()
        client = await cluster.connect()
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1)
        assert answer.producer_id not in ids
        assert len(set(ids)) == len(ids)


# -- what is not a proper produce


def flip(data: bytearray, position: int) -> bytearray:
    data[position] ^= 0xFF
    return data


BAD_RECORDS = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "garbage": (b"garbage", ErrorCode.INVALID_RECORD),
    "flipped payload": (flip(batch(b"abc"), 65), ErrorCode.CORRUPT_MESSAGE),
    "flipped CRC": (flip(batch(b"abc"), 18), ErrorCode.CORRUPT_MESSAGE),
    "cut short": (batch(b"abc")[:-3], ErrorCode.INVALID_RECORD),
    "only a header": (batch(b"abc")[:61], ErrorCode.INVALID_RECORD),
    "negative length": (bytearray(8) + struct.pack(">i", -5) + b"\0\0\0\0\x02" + bytes(60), ErrorCode.CORRUPT_MESSAGE),
    "huge length": (
        bytearray(8) + struct.pack(">i", 2**31 - 1) + b"\0\0\0\0\x02" + bytes(60),
        ErrorCode.INVALID_RECORD,
    ),
    "magic 1": (
        bytearray(8) + struct.pack(">i", 20) + b"\0\0\0\0\x01" + bytes(20),
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ),
    "magic 0": (
        bytearray(8) + struct.pack(">i", 20) + b"\0\0\0\0\x00" + bytes(20),
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ),
    "magic 77": (bytearray(8) + struct.pack(">i", 60) + b"\0\0\0\0\x4d" + bytes(60), ErrorCode.CORRUPT_MESSAGE),
    "two batches": (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
    "too large": (batch(bytes(1_100_000)), ErrorCode.MESSAGE_TOO_LARGE),
    "empty": (b"", ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
async def test_bad_records_are_refused_and_nothing_else_suffers(tmp_path: Path, case: str) -> None:
    records, code = BAD_RECORDS[case]
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2)
        body = ProduceRequest.of(None, -1, 1000, [("t", [(0, records), (1, batch(b"fine"))])])
        bad, good = (await client.request(ApiKey.PRODUCE, 9, body)).responses[0].partition_responses
        assert ErrorCode(bad.error_code) is code
        assert (good.error_code, good.base_offset) == (ErrorCode.NONE, 0)
        assert not (await client.fetch("t", 0, 0)).records
        assert (await client.produce("t", 0, batch(b"next"))).base_offset == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_message_sets_are_refused(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        old = bytearray(8) + struct.pack(">i", 20) + b"\0\0\0\0\x01" + bytes(20)
        result = await client.produce("t", 0, old, version=version)
        assert result.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_other_acks_are_refused(tmp_path: Path, acks: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        result = await client.produce("t", 0, batch(b"a"), acks=acks)
        assert result.error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_min_insync_replicas_guards_acks_all_only(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", min_insync_replicas="2")
        assert (await client.produce("t", 0, batch(b"a"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await client.produce("t", 0, batch(b"a"), acks=1)).error_code == ErrorCode.NONE


# -- frames that are no requests


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, client_id: bytes = b"c") -> bytes:
    return struct.pack(">hhih", key, version, 1, len(client_id)) + client_id


BAD_FRAMES = {
    "random": random.Random(7).randbytes(300),
    "negative size": struct.pack(">i", -1),
    "huge size": struct.pack(">i", 2**31 - 1) + header(0, 3),
    "over the API's limit": struct.pack(">i", 50_000_000) + header(19, 5),
    "empty frame": frame(b""),
    "half a header": frame(b"\0\x03\0"),
    "unknown API": frame(header(12345, 0)),
    "an API that is not served": frame(header(28, 0)),
    "unknown version": frame(header(3, 99)),
    "negative version": frame(header(3, -1)),
    "client id beyond the frame": frame(struct.pack(">hhih", 3, 1, 1, 1000) + b"c"),
    "body cut": frame(header(3, 1) + b"\0\0"),
    "huge array": frame(header(3, 1) + struct.pack(">i", 2**31 - 1)),
    "negative array": frame(header(3, 1) + struct.pack(">i", -7)),
    "a million empty names": frame(header(3, 1) + struct.pack(">i", 500_000) + bytes(1_000_000)),
    "null name": frame(header(3, 1) + struct.pack(">ih", 1, -1)),
    "not UTF-8": frame(header(3, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe"),
    "produce cut": frame(header(0, 3) + struct.pack(">hhii", -1, 1, 1000, 1) + b"\0\x01t"),
    "fetch cut": frame(header(1, 11) + bytes(10)),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
async def test_bad_frames_close_their_connection_only(tmp_path: Path, case: str) -> None:
    async with running(tmp_path) as (cluster, client):
        other = await cluster.connect()
        await other.create_topic("t")
        client.send_raw(BAD_FRAMES[case])
        assert await client.is_closed()
        assert (await other.produce("t", 0, batch(b"a"))).error_code == ErrorCode.NONE


async def test_a_frame_cut_by_the_end_of_the_connection_does_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        half = await cluster.connect()
        body = ProduceRequest.of(None, -1, 1000, [("t", [(0, batch(bytes(5000)))])])
        whole = b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body)))
        half.send_raw(whole[:-1])
        half.writer.write_eof()
        assert await half.is_closed()
        assert not (await client.fetch("t", 0, 0)).records


async def test_api_versions_of_the_future(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        client.send_raw(frame(header(18, 99) + b"\0whatever follows"))
        answer = await client.receive()
        assert answer == struct.pack(">ihihhh", 1, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 3)
        assert (await client.ask(ApiKey.METADATA, topics=None)).error_code is not None


# -- metadata and admin


async def test_api_versions_lists_the_registrations(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        for version in range(4):
            answer = await client.ask(
                ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1.0"
            )
            assert answer.error_code == ErrorCode.NONE
            listed = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            assert listed == {
                0: (0, 9), 1: (4, 12), 2: (1, 6), 3: (0, 11), 4: (0, 5), 5: (0, 3), 6: (0, 7), 7: (0, 3), 8: (2, 8),
                9: (1, 7), 10: (0, 3), 11: (0, 7), 12: (0, 4), 13: (0, 4), 14: (0, 5), 15: (0, 5), 16: (0, 4),
                18: (0, 3), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 4), 23: (2, 4), 29: (1, 2),
                24: (0, 3), 25: (0, 3), 26: (0, 3), 27: (0, 1), 28: (0, 3), 61: (0, 0), 65: (0, 0), 66: (0, 1),
                30: (1, 2), 31: (1, 2), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 2),
                37: (0, 3), 43: (0, 2), 44: (0, 1), 45: (0, 0), 46: (0, 0), 56: (0, 0), 57: (0, 0), 60: (0, 0),
                42: (0, 2), 47: (0, 0), 48: (0, 1), 49: (0, 1),
            }  # fmt: skip
        bad = await client.ask(ApiKey.API_VERSIONS, 3, client_software_name="-", client_software_version="1")
        assert bad.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(12))
async def test_every_version_of_metadata(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        created = await client.create_topic("t", partitions=2)
        topic = messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name="t")
        answer = await client.ask(ApiKey.METADATA, version, topics=[topic])
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (0, *cluster.broker.endpoints["PLAINTEXT"])
        (found,) = answer.topics
        assert (found.name, found.error_code, len(found.partitions)) == ("t", ErrorCode.NONE, 2)
        for partition in found.partitions:
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, [0], [0])
        if version >= 1:
            assert answer.controller_id == 0
        if version >= 10:
            assert found.topic_id == created.topic_id


async def test_all_topics_and_no_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("b")
        await client.create_topic("a")
        assert [one.name for one in (await client.ask(ApiKey.METADATA, topics=None)).topics] == ["a", "b"]
        assert (await client.ask(ApiKey.METADATA, topics=[])).topics == []
        assert [one.name for one in (await client.ask(ApiKey.METADATA, 0, topics=[])).topics] == ["a", "b"]


async def metadata_of(client: Client, name: str, **options: Any) -> Any:
    topic = messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name=name)
    return (await client.ask(ApiKey.METADATA, topics=[topic], **options)).topics[0]


async def test_unknown_topics_are_created_when_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, num_partitions=3) as (_, client):
        answer = await metadata_of(client, "new", allow_auto_topic_creation=False)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await metadata_of(client, "new", allow_auto_topic_creation=True)
        assert answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        while (answer := await metadata_of(client, "new")).error_code == ErrorCode.LEADER_NOT_AVAILABLE:
            pass
        assert (answer.error_code, len(answer.partitions)) == (ErrorCode.NONE, 3)
        assert (await metadata_of(client, "no/good")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_auto_creation_can_be_off(tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_topics_enable=False) as (_, client):
        assert (await metadata_of(client, "new")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


CREATE = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic


def new_topic(name: str, partitions: int = 1, factor: int = 1, assignments: Any = (), configs: Any = ()) -> Any:
    return CREATE(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CREATE.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
        configs=[CREATE.CreatableTopicConfig(name=name, value=value) for name, value in configs],
    )


BAD_TOPICS = {
    "exists": (new_topic("old"), ErrorCode.TOPIC_ALREADY_EXISTS),
    "collides": (new_topic("o.d"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "empty name": (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "dot": (new_topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "slash": (new_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "newline": (new_topic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "too long": (new_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "no partitions": (new_topic("n", 0), ErrorCode.INVALID_PARTITIONS),
    "too many replicas": (new_topic("n", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
    "no replicas": (new_topic("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "counts and assignment": (new_topic("n", 1, 1, [(0, [0])]), ErrorCode.INVALID_REQUEST),
    "gap": (new_topic("n", -1, -1, [(0, [0]), (2, [0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "twice": (new_topic("n", -1, -1, [(0, [0, 0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "uneven": (new_topic("n", -1, -1, [(0, [0]), (1, [0, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "unknown config": (new_topic("n", configs=[("no.such.key", "1")]), ErrorCode.INVALID_CONFIG),
    "bad config": (new_topic("n", configs=[("retention.ms", "soon")]), ErrorCode.INVALID_CONFIG),
    "null config": (new_topic("n", configs=[("retention.ms", None)]), ErrorCode.INVALID_REQUEST),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TOPICS)
async def test_bad_topics_are_refused_each_for_itself(tmp_path: Path, case: str) -> None:
    topic, code = BAD_TOPICS[case]
    async with running(tmp_path) as (_, client):
        await client.create_topic("old")
        await client.create_topic("o_d")
        answer = await client.ask(
            ApiKey.CREATE_TOPICS, topics=[topic, new_topic("good")], timeout_ms=10_000, validate_only=False
        )
        bad, good = answer.topics
        assert ErrorCode(bad.error_code) is code
        assert bad.error_message
        assert good.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(2, 8))
async def test_every_version_of_create_topics(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        topics = [new_topic("t", 3, configs=[("retention.ms", "5")])]
        for validate_only in (True, False):
            answer = await client.ask(
                ApiKey.CREATE_TOPICS, version, topics=topics, timeout_ms=10_000, validate_only=validate_only
            )
            (created,) = answer.topics
            assert created.error_code == ErrorCode.NONE
            if version >= 5:
                assert (created.num_partitions, created.replication_factor) == (3, 1)
                assert {one.name: one.value for one in created.configs}["retention.ms"] == "5"
        assert len((await metadata_of(client, "t")).partitions) == 3


async def test_create_topics_defaults_duplicates_and_no_time(tmp_path: Path) -> None:
    async with running(tmp_path, num_partitions=4) as (_, client):
        answer = await client.ask(
            ApiKey.CREATE_TOPICS,
            topics=[new_topic("t", -1, -1), new_topic("twice"), new_topic("twice")],
            timeout_ms=10_000,
            validate_only=False,
        )
        assert [(one.name, one.error_code) for one in answer.topics] == [
            ("t", ErrorCode.NONE),
            ("twice", ErrorCode.INVALID_REQUEST),
        ]
        assert len((await metadata_of(client, "t")).partitions) == 4
        answer = await client.ask(ApiKey.CREATE_TOPICS, topics=[new_topic("u")], timeout_ms=0, validate_only=False)
        assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("version", range(1, 7))
async def test_every_version_of_delete_topics(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        created = await client.create_topic("t")
        await client.produce("t", 0, batch(b"old"))
        if version >= 6:
            state = messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
            wanted = {"topics": [state(name=None, topic_id=created.topic_id), state(name="absent", topic_id=None)]}
        else:
            wanted = {"topic_names": ["t", "absent"]}
        answer = await client.ask(ApiKey.DELETE_TOPICS, version, timeout_ms=10_000, **wanted)
        codes = {one.name: one.error_code for one in answer.responses}
        assert codes == {"t": ErrorCode.NONE, "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await cluster.wait_until_told()
        assert (await client.fetch("t", 0, 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # A new topic of the same name is another one.
        again = await client.create_topic("t")
        assert (again.error_code, again.topic_id != created.topic_id) == (ErrorCode.NONE, True)
        assert (await client.fetch("t", 0, 0)).high_watermark == 0


async def test_deletion_can_be_off(tmp_path: Path) -> None:
    async with running(tmp_path, delete_topic_enable=False) as (_, client):
        await client.create_topic("t")
        for version, code in ((2, ErrorCode.INVALID_REQUEST), (5, ErrorCode.TOPIC_DELETION_DISABLED)):
            answer = await client.ask(ApiKey.DELETE_TOPICS, version, topic_names=["t"], timeout_ms=1000)
            assert answer.responses[0].error_code == code


GROW = messages.request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic


def grow(name: str, count: int, assignments: Any = None) -> Any:
    if assignments is not None:
        assignments = [GROW.CreatePartitionsAssignment(broker_ids=one) for one in assignments]
    return GROW(name=name, count=count, assignments=assignments)


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"kept"))
        topics = [grow("t", 3), grow("absent", 2)]
        answer = await client.ask(
            ApiKey.CREATE_PARTITIONS, version, topics=topics, timeout_ms=10_000, validate_only=False
        )
        assert [one.error_code for one in answer.results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await client.produce("t", 2, batch(b"a"))).base_offset == 0
        assert values((await client.fetch("t", 0, 0)).records) == [b"kept"]
        for topic, code in (
            (grow("t", 3), ErrorCode.INVALID_PARTITIONS),
            (grow("t", 1), ErrorCode.INVALID_PARTITIONS),
            (grow("t", 4, [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (grow("t", 5, [[0]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (grow("t", 4, [[0]]), ErrorCode.NONE),
        ):
            answer = await client.ask(
                ApiKey.CREATE_PARTITIONS, version, topics=[topic], timeout_ms=10_000, validate_only=True
            )
            assert answer.results[0].error_code == code


async def test_describe_configs(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", retention_ms="77")
        resource = messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource

        async def describe(kind: int, name: str, keys: Any = None) -> Any:
            resources = [resource(resource_type=kind, resource_name=name, configuration_keys=keys)]
            answer = await client.ask(
                ApiKey.DESCRIBE_CONFIGS, resources=resources, include_synonyms=True, include_documentation=True
            )
            return answer.results[0]

        found = await describe(2, "t", ["retention.ms"])
        (entry,) = found.configs
        assert (entry.name, entry.value, entry.config_source, entry.read_only) == ("retention.ms", "77", 1, False)
        assert len((await describe(2, "t")).configs) == 26
        broker = await describe(4, "0", ["broker.id", "log.dirs"])
        assert {one.name: one.read_only for one in broker.configs} == {"broker.id": True, "log.dirs": True}
        assert (await describe(2, "absent")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe(4, "7")).error_code == ErrorCode.INVALID_REQUEST
        assert (await describe(8, "0")).error_code == ErrorCode.INVALID_REQUEST


async def test_list_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        for timestamp in (1000, 2000, 3000):
            await client.produce("t", 0, build_batch([Record(key=None, value=b"x", timestamp_ms=timestamp)]))
        request = messages.request_class(ApiKey.LIST_OFFSETS)

        async def offset(timestamp: int, version: int = 6, partition: int = 0) -> Any:
            wanted = request.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
            )
            topics = [request.ListOffsetsTopic(name="t", partitions=[wanted])]
            answer = await client.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics)
            return answer.topics[0].partitions[0]

        for version in range(1, 7):
            assert (await offset(-2, version)).offset == 0
            assert (await offset(-1, version)).offset == 3
            found = await offset(1500, version)
            assert (found.timestamp, found.offset) == (2000, 1)
        assert ((await offset(3001)).error_code, (await offset(3001)).offset) == (ErrorCode.NONE, -1)
        assert (await offset(-1, partition=5)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_isolation_levels_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        fetched = await client.request(ApiKey.FETCH, 12, fetch_request(("t", [to_fetch(0)]), isolation_level=2))
        assert fetched.error_code == ErrorCode.INVALID_REQUEST
        topic = messages.request_class(ApiKey.LIST_OFFSETS).ListOffsetsTopic
        topics = [topic(name="t", partitions=[topic.ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        listed = await client.ask(ApiKey.LIST_OFFSETS, isolation_level=-1, topics=topics)
        assert listed.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST


async def test_offset_for_leader_epoch(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"a", b"b"))
        await cluster.begin_leader_epoch(client, "t", 1)
        await client.produce("t", 0, batch(b"c"))
        request = messages.request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)

        async def end(epoch: int, partition: int = 0) -> Any:
            wanted = request.OffsetForLeaderTopic.OffsetForLeaderPartition(
                partition=partition, current_leader_epoch=-1, leader_epoch=epoch
            )
            topics = [request.OffsetForLeaderTopic(topic="t", partitions=[wanted])]
            answer = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, replica_id=-1, topics=topics)
            one = answer.topics[0].partitions[0]
            return one.error_code, one.leader_epoch, one.end_offset

        assert await end(0) == (ErrorCode.NONE, 0, 2)
        assert await end(1) == (ErrorCode.NONE, 1, 3)
        assert await end(9) == (ErrorCode.NONE, -1, -1)
        assert await end(0, partition=4) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def test_describe_cluster_and_log_dirs(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        await client.produce("t", 1, batch(bytes(1000)))
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
        assert (answer.cluster_id, answer.controller_id) == (cluster.broker.cluster_id, 0)
        assert answer.authorized_operations == {5, 7, 8, 9, 10, 11, 12}
        answer = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
        (directory,) = answer.results
        assert directory.log_dir == str(tmp_path / "data")
        sizes = {one.partition_index: one.partition_size for one in directory.topics[0].partitions}
        assert sizes[0] == 0
        assert sizes[1] > 1000


def records_of(name: str, *offsets: tuple[int, int]) -> Any:
    """To delete: (partition, offset)."""
    topic = messages.request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    partitions = [topic.DeleteRecordsPartition(partition_index=number, offset=offset) for number, offset in offsets]
    return topic(name=name, partitions=partitions)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_delete_records(tmp_path: Path, version: int) -> None:
    async with running(tmp_path, offsets_topic_replication_factor=1, offsets_topic_num_partitions=1) as (_, client):
        await client.create_topic("t", partitions=2)
        await client.create_topic("compacted", cleanup_policy="compact")
        await client.create_topic("both", cleanup_policy="compact,delete")
        await group_wire.find_coordinator(client)  # makes __consumer_offsets
        for topic in ("t", "compacted", "both"):
            await client.produce(topic, 0, build_batch([Record(b"k", value) for value in (b"a", b"b", b"c", b"d")]))
        answer = await client.ask(
            ApiKey.DELETE_RECORDS,
            version,
            topics=[
                records_of("t", (0, 1), (0, 3), (0, 2), (0, 5), (0, -2), (1, 0), (7, 0)),
                records_of("compacted", (0, 1)),
                records_of("both", (0, -1)),
                records_of("__consumer_offsets", (0, 0)),
                records_of("missing", (0, 0)),
            ],
            timeout_ms=10_000,
        )
        found = [
            (topic.name, one.partition_index, one.low_watermark, ErrorCode(one.error_code).name)
            for topic in answer.topics
            for one in topic.partitions
        ]
        assert found == [
            ("t", 0, 3, "NONE"),
            ("t", 0, 3, "NONE"),
            ("t", 0, 3, "NONE"),
            ("t", 0, -1, "OFFSET_OUT_OF_RANGE"),
            ("t", 0, -1, "OFFSET_OUT_OF_RANGE"),
            ("t", 1, 0, "NONE"),
            ("t", 7, -1, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("compacted", 0, -1, "POLICY_VIOLATION"),
            ("both", 0, 4, "NONE"),
            ("__consumer_offsets", 0, -1, "INVALID_TOPIC_EXCEPTION"),
            ("missing", 0, -1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ]
        assert (await client.fetch("t", 0, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        # Batches are stored whole; the client leaves out the records below its offset.
        result = await client.fetch("t", 0, 3)
        assert (result.log_start_offset, values(result.records)) == (3, [b"a", b"b", b"c", b"d"])
        assert (await client.fetch("both", 0, 4)).error_code == ErrorCode.NONE


async def test_deleted_records_stay_deleted_when_the_broker_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"a", b"b", b"c"))
        answer = await client.ask(ApiKey.DELETE_RECORDS, topics=[records_of("t", (0, 2))], timeout_ms=10_000)
        assert answer.topics[0].partitions[0].low_watermark == 2
        # As it is on disk at this moment, whatever happens to the process.
        assert (tmp_path / "data" / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"


def to_directory(path: Path | str, *topics: tuple[str, list[int]]) -> Any:
    directory = messages.request_class(ApiKey.ALTER_REPLICA_LOG_DIRS).AlterReplicaLogDir
    moved = [directory.AlterReplicaLogDirTopic(name=name, partitions=numbers) for name, numbers in topics]
    return directory(path=str(path), topics=moved)


@pytest.mark.parametrize("version", [1, 2])
async def test_replicas_move_to_another_log_directory(tmp_path: Path, version: int) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, log_dirs=f"{one},{two}") as (cluster, client):
        await client.create_topic("t", partitions=2)
        (number,) = [int(path.name[2:]) for path in one.glob("t-*")]
        expected = [b"%d" % value for value in range(20)]
        for value in expected:
            await client.produce("t", number, batch(value))

        async def alter(*dirs: Any) -> dict[tuple[str, int], ErrorCode]:
            answer = await client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=list(dirs))
            return {
                (topic.topic_name, each.partition_index): ErrorCode(each.error_code)
                for topic in answer.results
                for each in topic.partitions
            }

        assert await alter(to_directory(two, ("t", [number, 7]), ("u", [0])), to_directory("/x", ("t", [8]))) == {
            ("t", number): ErrorCode.NONE,
            ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 8): ErrorCode.LOG_DIR_NOT_FOUND,
        }
        await until((two / f"t-{number}").exists)
        found = []
        while len(found) < len(expected):
            found += values((await client.fetch("t", number, len(found))).records)
        assert found == expected
        await cluster.restart_broker()
        client = await cluster.connect()
        answer = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
        held = {
            directory.log_dir: [
                (topic.name, each.partition_index, each.is_future_key, each.offset_lag)
                for topic in directory.topics
                for each in topic.partitions
            ]
            for directory in answer.results
        }
        assert held == {str(one): [], str(two): [("t", 0, False, 0), ("t", 1, False, 0)]}


# -- authorization


def every_request() -> dict[ApiKey, Any]:
    """A request for each API that is served, all about topic `t` or group `g`."""
    request = {key: messages.request_class(key) for key in APIS}
    offsets, epochs = (
        request[ApiKey.LIST_OFFSETS].ListOffsetsTopic,
        request[ApiKey.OFFSET_FOR_LEADER_EPOCH].OffsetForLeaderTopic,
    )
    member = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    producer = {"transactional_id": "tx", "producer_id": 7, "producer_epoch": 0}
    altered = request[ApiKey.ALTER_CONFIGS].AlterConfigsResource
    altered_a_bit = request[ApiKey.INCREMENTAL_ALTER_CONFIGS].AlterConfigsResource
    return {
        ApiKey.LEADER_AND_ISR: LeaderAndIsrRequest(controller_id=0, controller_epoch=1),
        ApiKey.STOP_REPLICA: StopReplicaRequest(controller_id=0, controller_epoch=1),
        ApiKey.UPDATE_METADATA: UpdateMetadataRequest(controller_id=0, controller_epoch=1),
        ApiKey.CONTROLLED_SHUTDOWN: {"broker_id": 0},
        ApiKey.ALTER_ISR: {"broker_id": 0, "topics": []},
        ApiKey.PRODUCE: ProduceRequest.of(None, -1, 1000, [("t", [(0, batch(b"a"))])]),
        ApiKey.FETCH: fetch_request(("t", [to_fetch(0, 0, 1000)]), max_wait_ms=60_000),
        ApiKey.LIST_OFFSETS: {
            "topics": [offsets(name="t", partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        },
        ApiKey.METADATA: {"topics": [request[ApiKey.METADATA].MetadataRequestTopic(name="t")]},
        ApiKey.FIND_COORDINATOR: {"key": "g", "key_type": 0},
        ApiKey.JOIN_GROUP: {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [request[ApiKey.JOIN_GROUP].JoinGroupRequestProtocol(name="range", metadata=b"")],
        },
        ApiKey.SYNC_GROUP: {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []},
        ApiKey.HEARTBEAT: member,
        ApiKey.LEAVE_GROUP: {"group_id": "g", "members": []},
        ApiKey.OFFSET_COMMIT: group_wire.commit_request({("t", 0): 1}),
        ApiKey.OFFSET_FETCH: {"group_id": "g", "topics": None, "require_stable": False},
        ApiKey.LIST_GROUPS: {"states_filter": []},
        ApiKey.DESCRIBE_GROUPS: {"groups": ["g"], "include_authorized_operations": True},
        ApiKey.DELETE_GROUPS: {"groups_names": ["g"]},
        ApiKey.OFFSET_DELETE: {"group_id": "g", "topics": []},
        ApiKey.DELETE_RECORDS: {"topics": [records_of("t", (0, 0))], "timeout_ms": 1000},
        ApiKey.API_VERSIONS: {"client_software_name": "t", "client_software_version": "1"},
        ApiKey.CREATE_TOPICS: {"topics": [new_topic("t")], "timeout_ms": 1000},
        ApiKey.DELETE_TOPICS: {
            "topics": [request[ApiKey.DELETE_TOPICS].DeleteTopicState(name="t", topic_id=None)],
            "timeout_ms": 1000,
        },
        ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout_ms": 1},
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {
            "topics": [epochs(topic="t", partitions=[epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)])]
        },
        ApiKey.DESCRIBE_ACLS: ANY_ACL,
        ApiKey.CREATE_ACLS: {"creations": [request[ApiKey.CREATE_ACLS].AclCreation(**ACL_OF_A)]},
        ApiKey.DELETE_ACLS: {"filters": [request[ApiKey.DELETE_ACLS].DeleteAclsFilter(**ANY_ACL)]},
        ApiKey.DESCRIBE_CONFIGS: {
            "resources": [
                request[ApiKey.DESCRIBE_CONFIGS].DescribeConfigsResource(
                    resource_type=2, resource_name="t", configuration_keys=None
                )
            ]
        },
        ApiKey.ALTER_CONFIGS: {
            "resources": [altered(resource_type=2, resource_name="t", configs=[])],
            "validate_only": False,
        },
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [altered_a_bit(resource_type=4, resource_name="", configs=[])],
            "validate_only": False,
        },
        ApiKey.ALTER_REPLICA_LOG_DIRS: {"dirs": [to_directory("/nowhere", ("t", [0]))]},
        ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
        ApiKey.CREATE_PARTITIONS: {"topics": [grow("t", 2)], "timeout_ms": 1000, "validate_only": False},
        ApiKey.ELECT_LEADERS: {
            "election_type": 0,
            "topic_partitions": [request[ApiKey.ELECT_LEADERS].TopicPartitions(topic="t", partitions=[0])],
            "timeout_ms": 1000,
        },
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {"topics": [], "timeout_ms": 1000},
        ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout_ms": 1000},
        ApiKey.UPDATE_FEATURES: {"feature_updates": [], "timeout_ms": 1000},
        ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": [], "strict": False},
        ApiKey.ALTER_CLIENT_QUOTAS: {"entries": [quota_of_a_client()], "validate_only": False},
        ApiKey.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
        ApiKey.ADD_PARTITIONS_TO_TXN: {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_topics": [AddPartitionsToTxnTopic(name="t", partitions=[0])],
        },
        ApiKey.ADD_OFFSETS_TO_TXN: {**producer, "group_id": "g"},
        ApiKey.END_TXN: {**producer, "committed": True},
        ApiKey.WRITE_TXN_MARKERS: {"markers": [transaction_wire.marker(("t", 0))]},
        ApiKey.TXN_OFFSET_COMMIT: {
            **producer,
            "group_id": "g",
            "topics": [
                transaction_wire.CommittedTopic(
                    name="t",
                    partitions=[
                        transaction_wire.CommittedPartition(
                            partition_index=0, committed_offset=1, committed_metadata=None
                        )
                    ],
                )
            ],
        },
        ApiKey.DESCRIBE_PRODUCERS: {
            "topics": [request[ApiKey.DESCRIBE_PRODUCERS].TopicRequest(name="t", partition_indexes=[0])]
        },
        ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["tx"]},
        ApiKey.LIST_TRANSACTIONS: {"state_filters": [], "producer_id_filters": []},
    }


def quota_of_a_client() -> Any:
    entry = messages.request_class(ApiKey.ALTER_CLIENT_QUOTAS).EntryData
    return entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name="c")],
        ops=[entry.OpData(key="producer_byte_rate", value=1e9, remove=False)],
    )


def error_codes(answer: Any) -> set[int]:
    """Every error code other than NONE in a response, however deep: structs, dataclasses, named tuples."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list) or type(answer) is tuple:
        return set().union(*map(error_codes, answer))
    if isinstance(answer, str | bytes | int | memoryview | set | None):
        return set()
    names = list(getattr(answer, "_fields", None) or answer.__slots__)
    found = {getattr(answer, name) for name in ("error_code", "partition_error_code") if name in names} - {0}
    return found.union(*(error_codes(getattr(answer, name)) for name in names))


# Of any resource (1), with any name, host and principal, and any operation and permission.
ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
# Topic (2) `t`, literally (3): User:a may (3) read it (3) from anywhere.
ACL_OF_A = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@pytest.mark.parametrize("version", [1, 2])
async def test_without_an_authorizer_there_are_no_access_control_lists(tmp_path: Path, version: int) -> None:

    told = "No Authorizer is configured on the broker."
    async with running(tmp_path) as (_, client):
        served = await client.ask(ApiKey.API_VERSIONS, client_software_name="t", client_software_version="1")
        versions = {api.api_key: (api.min_version, api.max_version) for api in served.api_keys}
        assert [versions.get(key) for key in (29, 30, 31)] == [(1, 2)] * 3

        described = await client.ask(ApiKey.DESCRIBE_ACLS, version, **ANY_ACL)
        assert (described.error_code, described.error_message) == (ErrorCode.SECURITY_DISABLED, told)
        assert described.resources == []
        creation = messages.request_class(ApiKey.CREATE_ACLS).AclCreation(**ACL_OF_A)
        created = await client.ask(ApiKey.CREATE_ACLS, version, creations=[creation] * 2)
        assert [(each.error_code, each.error_message) for each in created.results] == [
            (ErrorCode.SECURITY_DISABLED, told)
        ] * 2
        every = messages.request_class(ApiKey.DELETE_ACLS).DeleteAclsFilter(**ANY_ACL)
        deleted = await client.ask(ApiKey.DELETE_ACLS, version, filters=[every] * 2)
        results = [(each.error_code, each.error_message, each.matching_acls) for each in deleted.filter_results]
        assert results == [(ErrorCode.SECURITY_DISABLED, told, [])] * 2


DENIALS = {
    ApiKey.LEADER_AND_ISR: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.STOP_REPLICA: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.UPDATE_METADATA: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.CONTROLLED_SHUTDOWN: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.ALTER_ISR: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.PRODUCE: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.FETCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.LIST_OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.METADATA: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.FIND_COORDINATOR: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.JOIN_GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.SYNC_GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.HEARTBEAT: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.LEAVE_GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_COMMIT: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FETCH: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.LIST_GROUPS: None,  # answered with no group
    ApiKey.DESCRIBE_GROUPS: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.DELETE_GROUPS: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_DELETE: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.DELETE_RECORDS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.API_VERSIONS: None,
    ApiKey.CREATE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DELETE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_ACLS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.CREATE_ACLS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DELETE_ACLS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.ALTER_REPLICA_LOG_DIRS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_LOG_DIRS: None,  # answered with no directory
    ApiKey.CREATE_PARTITIONS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.ELECT_LEADERS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.UPDATE_FEATURES: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.ALTER_CLIENT_QUOTAS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CLUSTER: None,  # answered with no allowed operation
    ApiKey.ADD_PARTITIONS_TO_TXN: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.ADD_OFFSETS_TO_TXN: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.END_TXN: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.WRITE_TXN_MARKERS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.TXN_OFFSET_COMMIT: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_PRODUCERS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_TRANSACTIONS: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.LIST_TRANSACTIONS: None,  # answered with no transaction
}


async def test_every_api_asks_the_authorizer(tmp_path: Path) -> None:
    authorizer = Allows()
    async with running(tmp_path, authorizer=authorizer) as (_, client):
        # Only now: the controller has told the broker of the cluster.
        authorizer.rule = nothing
        requests = every_request()
        assert set(requests) == set(APIS) == set(DENIALS)
        for key, body in requests.items():
            if isinstance(body, dict):
                answer = await client.ask(key, **body)
            else:
                answer = await client.request(key, APIS[key].max_version, body)
            expected = DENIALS[key]
            assert error_codes(answer) == (set() if expected is None else {expected}), key.name
            if key is ApiKey.DESCRIBE_LOG_DIRS:
                assert answer.results == []
            if key is ApiKey.DESCRIBE_CLUSTER:
                assert answer.authorized_operations == set()
        assert (await client.ask(ApiKey.METADATA, topics=None)).topics == []
        # A follower reads by its right to act in the cluster.
        wants = ("t", [to_fetch(0, 0, 1000)])
        answer = await client.request(ApiKey.FETCH, 12, fetch_request(wants, replica_id=1))
        assert error_codes(answer) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert authorizer.principals == {"User:ANONYMOUS"}


async def test_what_is_denied_does_not_disturb_what_is_allowed(tmp_path: Path) -> None:
    def all_but_t(operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (resource_type, name) != (ResourceType.TOPIC, "t")

    async with running(tmp_path, authorizer=Allows(all_but_t)) as (_, client):
        await client.create_topic("u")
        body = ProduceRequest.of(None, -1, 1000, [("t", [(0, batch(b"a"))]), ("u", [(0, batch(b"b"))])])
        answer = await client.request(ApiKey.PRODUCE, 9, body)
        codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
        assert codes == {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "u": ErrorCode.NONE}
        wants = [to_fetch(0, 0, 1000)]
        answer = await client.request(ApiKey.FETCH, 12, fetch_request(("t", wants), ("u", wants)))
        results = {topic.topic: topic.partitions[0] for topic in answer.responses}
        assert results["t"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert values(results["u"].records) == [b"b"]


OWN_ERROR_RESPONSES = [key for key, api in APIS.items() if api.error_response.__module__.startswith(handlers.__name__)]


@pytest.mark.parametrize("key", OWN_ERROR_RESPONSES, ids=lambda key: key.name)
def test_an_error_response_is_the_response_to_its_request(key: ApiKey) -> None:
    """mypy sees which request it answers, but not that the response belongs to it."""
    answer = get_type_hints(APIS[key].error_response)["return"]
    assert (get_args(answer)[-1] if get_origin(answer) is Generator else answer) is messages.response_class(key)
