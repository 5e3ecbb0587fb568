"""Batches with valid checksums and every kind of wrong content, produced and then asked about: every request is
answered, and the broker goes on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol import messages
from klamm.protocol.messages import ApiKey
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.record.records import _encode_varint, _varint
from support.hostile_bytes import Hostile, seeds
from support.one_broker import Client, running

ListTopic = messages.request_class(ApiKey.LIST_OFFSETS).ListOffsetsTopic
TOPICS = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "near": {"message_timestamp_difference_max_ms": "1000"},
    "zstd": {"compression_type": "zstd"},
    "append-time": {"message_timestamp_type": "LogAppendTime"},
}


def batch_of(body: bytes, **fields: Any) -> bytearray:
    """One batch with these bytes as its records."""
    header = BatchHeader(0, 49 + len(body), -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)._replace(**fields)
    batch = bytearray(61) + body
    rb.write_header(batch, 0, header)
    return batch


async def lookup(client: Client, topic: str, timestamp_ms: int) -> tuple[int, int, int]:
    """(error, timestamp, offset)"""
    partition = ListTopic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp_ms)
    topics = [ListTopic(name=topic, partitions=[partition])]
    answer = await client.ask(ApiKey.LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset


# The delta as the bytes of a varlong, the base timestamp, and the sum as Java has it.
STRANGE_TIMES = [
    (bytes([0x80] * 9 + [0x02]), 0, 0),  # 2^64, of which 64 bits are 0
    (bytes([0xFF] * 9 + [0x7F]), 0, -(2**63)),  # 70 bits
    (_encode_varint(2**63 - 1), 1, -(2**63)),
    (_encode_varint(-(2**63)), -1, 2**63 - 1),
    (_encode_varint(2**63), 0, 0),
]


@pytest.mark.parametrize(("delta", "base_timestamp", "timestamp_ms"), STRANGE_TIMES)
async def test_a_timestamp_that_no_number_holds_stops_nobody(
    tmp_path: Path, delta: bytes, base_timestamp: int, timestamp_ms: int
) -> None:
    body = b"\0" + delta + b"\0\1\1\0"
    data = batch_of(_varint(len(body)) + body, base_timestamp=base_timestamp, max_timestamp=2**63 - 1)
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        assert (await client.produce("t", 0, data)).error_code == 0
        for asked_ms in (0, 2**63 - 1):
            expected = (0, timestamp_ms, 0) if timestamp_ms >= asked_ms else (0, -1, -1)
            assert await lookup(client, "t", asked_ms) == expected


async def test_hostile_batches(tmp_path: Path) -> None:
    async def play(client: Client, seed: int) -> None:
        hostile = Hostile(seed)
        topic = hostile.chance.choice(list(TOPICS))
        for _ in range(4):
            await client.produce(topic, 0, hostile.batch())
        for timestamp_ms in (0, 1500, hostile.chance.randrange(2**63)):
            await lookup(client, topic, timestamp_ms)
        await client.fetch(topic, 0, hostile.number(64), isolation_level=1)

    async with running(tmp_path, limit_s=7200) as (cluster, client):
        for topic, configs in TOPICS.items():
            await client.create_topic(topic, 1, **configs)
        for seed in seeds(40):
            try:
                async with asyncio.timeout(120):
                    await play(client, seed)
                assert not cluster.broker.failure.done(), cluster.broker.failure
            except BaseException as error:
                error.add_note(f"seed {seed}; {cluster.broker.failure}")
                raise
