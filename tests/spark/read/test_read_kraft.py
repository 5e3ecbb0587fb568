"""Brokers of Apache Kafka 4.3, which know topics by their ids."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.net.client import Connection
from klamm.protocol.messages import ApiKey
from klamm.spark.options import read_options
from klamm.spark.read import partition_reader
from klamm.spark.read.partition_reader import read_range
from klamm.spark.read.planning import plan_batch
from klamm.spark.read.task_reader import read_ranges
from klamm.spark.settings import DataLoss
from support.oracles import RealKraft
from support.spark.producing import numbered, produce

PARTITIONS = 50


@pytest.fixture(scope="module")
def kraft(kafka4_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminClient]:
    cluster = RealKraft(kafka4_jars, tmp_path_factory.mktemp("kraft"))
    try:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.bootstrap = cluster.bootstrap
        yield admin
    finally:
        cluster.kill()


def create(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(120)
    produce(admin.bootstrap, name, [each for number in range(PARTITIONS) for each in numbered(4, number)])


@pytest.mark.long
def test_topics_are_read_by_their_ids(kraft: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[ApiKey, int | None]] = []
    send = Connection.send

    async def counting(connection: Connection, api_key: ApiKey, build: Any, **named: Any) -> Any:
        sent.append((api_key, named.get("version")))
        return await send(connection, api_key, build, **named)

    create(kraft, "by-id")
    given = {"kafka.bootstrap.servers": kraft.bootstrap, "subscribe": "by-id"}
    strict = read_options(given, streaming=False)
    tolerant = read_options({**given, "failOnDataLoss": "false"}, streaming=False)
    ranges = plan_batch(strict)
    monkeypatch.setattr(Connection, "send", counting)
    for options in (strict.fetch, tolerant.fetch):
        assert sum(batch.num_rows for batch in read_ranges(options, ranges, ("offset",))) == 4 * PARTITIONS
        assert sum(batch.num_rows for batch in read_range(options, ranges[7], ("offset",))) == 4
    # The metadata is that of the plan.
    assert sent == [(ApiKey.FETCH, 13)] * 4

    monkeypatch.setattr(partition_reader, "GRACE_MS", 300)
    kraft.delete_topics(["by-id"])["by-id"].result(120)
    create(kraft, "by-id")
    for records in (ranges, ranges[:1]):
        with pytest.raises(DataLoss, match=r"topic by-id was deleted and created again|no longer exists"):
            list(read_ranges(strict.fetch, records, ("offset",)))
        assert list(read_ranges(tolerant.fetch, records, ("offset",))) == []
    again = plan_batch(strict)
    assert sum(batch.num_rows for batch in read_ranges(strict.fetch, again, ("offset",))) == 4 * PARTITIONS
