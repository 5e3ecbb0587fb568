"""Which batches of producers are accepted: the table that Apache Kafka answers too, in tests/interop."""

import asyncio
from pathlib import Path

import pytest

from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey, decode_response, encode_request
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import crc_matches, iterate_batches
from klamm.protocol.record.records import Record, build_batch
from klamm.storage.log.durability import Durability
from support.one_broker import batch, running
from support.present import present
from support.produced_batches import HEADERS, NOT_AUTHORIZED, RECORDS, Case, changed, keyed, send_all, topic_of


async def answers_of(
    tmp_path: Path, cases: dict[str, Case]
) -> dict[str, ProduceResponse.TopicProduceResponse.PartitionProduceResponse]:
    async with running(tmp_path) as (cluster, client):
        for name, case in cases.items():
            configs = {key.replace(".", "_"): value for key, value in case.configs.items()}
            await client.create_topic(topic_of(name), 1, **configs)
        host, port = cluster.broker.endpoints["PLAINTEXT"]
        return await send_all(f"{host}:{port}", cases, cluster.environment.now_ms())


async def test_what_a_header_may_say(tmp_path: Path) -> None:
    answers = await answers_of(tmp_path, HEADERS)
    assert {name: ErrorCode(answer.error_code) for name, answer in answers.items()} == {
        name: case.answer_of_klamm for name, case in HEADERS.items()
    }


async def test_what_a_topic_asks_of_single_records(tmp_path: Path) -> None:
    answers = await answers_of(tmp_path, RECORDS)
    assert {name: (ErrorCode(answer.error_code), indexes(answer)) for name, answer in answers.items()} == {
        name: (case.answer_of_klamm, list(case.refused)) for name, case in RECORDS.items()
    }


def indexes(answer: ProduceResponse.TopicProduceResponse.PartitionProduceResponse) -> list[int]:
    return [one.batch_index for one in answer.record_errors]


@pytest.mark.parametrize("version", [3, 7, 8, 9])
async def test_refused_records_say_why_in_versions_with_room_for_it(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic(
            "t", cleanup_policy="compact", message_timestamp_difference_max_ms="10000", segment_bytes="1000000"
        )
        now_ms = cluster.environment.now_ms()
        (records,) = keyed(True, False, True, late=(2,))(now_ms)
        answer = await client.produce("t", 0, records, version=version)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        if version < 8:
            assert (answer.record_errors, answer.error_message) == ([], None)
            return
        ((keyless, no_key), (late, out_of_range)) = (
            (one.batch_index, one.batch_index_error_message) for one in answer.record_errors
        )
        assert (keyless, no_key) == (1, "a record has no key, which cleanup.policy=compact needs")
        assert late == 2
        assert f"timestamp {now_ms + 50_000} is not from" in present(out_of_range)
        assert answer.error_message == (
            "1 records have a timestamp that is out of range, 1 records have no key, which cleanup.policy=compact needs"
        )


async def test_a_refusal_names_the_log_start_offset_where_kafka_does(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", cleanup_policy="compact", max_message_bytes="200")
        keyless, large, broken = batch(b"a"), batch(b"a" * 200), batch(b"a")
        broken[-1] ^= 1
        answers = [await client.produce("t", 0, records) for records in (keyless, large, broken)]
        assert [(answer.error_code, answer.log_start_offset) for answer in answers] == [
            (ErrorCode.INVALID_RECORD, 0),
            (ErrorCode.MESSAGE_TOO_LARGE, -1),
            (ErrorCode.CORRUPT_MESSAGE, -1),
        ]


async def test_the_largest_timestamp_is_that_of_the_records_wherever_they_are_looked_at(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        now_ms = cluster.environment.now_ms()
        configs = [
            ({"cleanup_policy": "compact"}, CompressionType.NONE),
            ({"cleanup_policy": "compact"}, CompressionType.ZSTD),
            ({"message_timestamp_difference_max_ms": "10000"}, CompressionType.NONE),
            ({"compression_type": "gzip"}, CompressionType.NONE),
        ]
        for number, (config, codec) in enumerate(configs):
            await client.create_topic(f"t{number}", 1, **config)
            data = build_batch([Record(b"k", b"v", now_ms + at) for at in (0, 7, 3)], codec=codec)
            changed(data, 35, ">q", 2**62)
            assert (await client.produce(f"t{number}", 0, data)).error_code == 0
            fetched = (await client.fetch(f"t{number}", 0, 0)).records or b""
            ((position, header),) = iterate_batches(fetched)
            assert (header.max_timestamp, header.base_timestamp) == (now_ms + 7, now_ms)
            assert crc_matches(fetched, position, header)


async def test_more_refused_records_than_an_answer_names(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2, cleanup_policy="compact")
        data = build_batch([Record(None, b"")] * 7_000, codec=CompressionType.ZSTD)
        body = ProduceRequest.of(None, -1, 10_000, [("t", [(0, data), (1, bytearray(data))])])
        answers = (await client.request(ApiKey.PRODUCE, 9, body)).responses[0].partition_responses
        assert [(answer.error_code, len(answer.record_errors)) for answer in answers] == [
            (ErrorCode.INVALID_RECORD, 7_000),
            (ErrorCode.INVALID_RECORD, 3_000),
        ]


async def test_the_first_records_after_an_unclean_start_wait_for_the_disk_off_the_loop_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced_on_the_loop = []
    monkeypatch.setattr(Durability, "flush_now", lambda *_, **__: synced_on_the_loop.append(True))
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        for log in cluster.broker.parts.log_manager.logs.values():
            log.durability.is_truncation_unsynced = log.must_prepare = True
        for number in range(5):
            batch = build_batch([Record(None, b"%d" % number, cluster.environment.now_ms())])
            body = ProduceRequest.of(None, -1, 10_000, [("t", [(0, batch), (1, bytearray(batch))])])
            client.send_raw(b"".join(encode_request(ApiKey.PRODUCE, 9, number, "c", body)))
        for number in range(5):
            response = decode_response(ApiKey.PRODUCE, 9, await client.receive())
            assert [answer.base_offset for answer in response.responses[0].partition_responses] == [number, number]
    assert not synced_on_the_loop


async def test_a_transactional_batch_without_a_transactional_id_refuses_its_request_and_holds_no_reader_up(
    tmp_path: Path,
) -> None:
    plain = build_batch([Record(None, b"plain")])
    opening = build_batch([Record(None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2)
        body = ProduceRequest.of(None, -1, 1000, [("t", [(0, plain), (1, opening)])])
        answers = (await client.request(ApiKey.PRODUCE, 9, body)).responses[0].partition_responses
        assert {ErrorCode(answer.error_code) for answer in answers} == {NOT_AUTHORIZED}
        fetched = await client.fetch("t", 0, 0, isolation_level=1)
        assert (fetched.high_watermark, fetched.last_stable_offset) == (0, 0)
        assert (await client.produce("t", 1, build_batch([Record(None, b"plain")]))).base_offset == 0
        fetched = await client.fetch("t", 1, 0, isolation_level=1)
        assert (fetched.high_watermark, fetched.last_stable_offset) == (1, 1)


async def test_a_transactional_batch_that_nobody_waits_for_closes_the_connection(tmp_path: Path) -> None:
    opening = build_batch([Record(None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        asking = asyncio.create_task(client.produce("t", 0, opening, acks=0))
        with pytest.raises(asyncio.IncompleteReadError):
            await asking
        other = await cluster.connect()
        assert (await other.fetch("t", 0, 0)).high_watermark == 0
