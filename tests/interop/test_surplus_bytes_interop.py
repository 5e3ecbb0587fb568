"""Bytes after the end of requests: Apache Kafka 2.8.2 ignores them, in every API and version.

tests/broker/requests/test_odd_requests.py sends the same to klamm.
"""

import asyncio
from pathlib import Path

import pytest

from klamm.protocol.messages import ApiKey
from support.odd_requests import every_version, refused_surplus
from support.one_broker import Client
from support.oracles import RealKafka, RealZooKeeper

# Kafka has the first two since 3.0. Odd values from a controller can keep it from answering.
LEFT_OUT = (
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
)


@pytest.mark.long
async def test_kafka_ignores_bytes_after_the_end_of_any_request(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path: Path
) -> None:
    kafka = RealKafka(kafka_jars, tmp_path / "kafka", f"{real_zookeeper.address}/surplus")
    requests = [(key, version) for key, version in every_version() if key not in LEFT_OUT]

    async def connect() -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", kafka.port))

    try:
        kafka.start()
        assert await refused_surplus(connect, requests) == []
    finally:
        kafka.kill()
