"""The cockpit's pages on Apache Kafka: 2.8.2 with ZooKeeper, 4.3 in KRaft mode. What is not there has its reason."""

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.cockpit_pages import Asker, asker
from support.oracles import RealKafka, RealKraft


def filled(bootstrap: str, topic: str) -> None:
    """A topic with a committed and an aborted record."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": "lz4"})
    producer.init_transactions(120)
    for value, end in (("kept", producer.commit_transaction), ("lost", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, f"{value:<500}", key=b"k", partition=0)
        producer.flush(120)
        end(60)


async def looks(pages: Asker, topic: str) -> dict[str, Any]:
    """What every cluster shows; returns the answer of Why."""
    page = await pages.get("/api/records", topic=topic, partition=0, offset=0)
    assert [
        (each["value"]["text"].strip(), each["mark"]) for each in page["records"] if "control" not in each["mark"]
    ] == [
        ("kept", ""),
        ("lost", "aborted"),
    ]
    assert [each["mark"] for each in page["records"]][1::2] == ["control: COMMIT", "control: ABORT"]
    assert page["batches"][0]["compression"] == "lz4"
    assert (await pages.get("/api/topics", topic=topic))["partitions"][0]["end_offset"] == 4
    configs = {each["name"]: each for each in (await pages.get("/api/configs", topic=topic))["configs"]}
    # Kafka 4 sets min.insync.replicas itself, for all brokers.
    assert configs["retention.ms"]["source"] == "DEFAULT_CONFIG"
    await pages.get("/api/groups")
    why: dict[str, Any] = await pages.get("/api/why", topic=topic, partition=0)
    assert [each["kind"] for each in why["conditions"]] == ["healthy"]
    return why


@pytest.mark.long
async def test_kafka_2_8_2_shows_what_protocol_and_znodes_show(real_kafka: RealKafka) -> None:
    filled(real_kafka.bootstrap, "cockpit")
    zookeeper = str(real_kafka.properties["zookeeper.connect"])
    async with asker(real_kafka.bootstrap, zookeeper, allow_changes=True) as pages:
        why = await looks(pages, "cockpit")
        [entry] = why["story"]["entries"]
        assert why["story"]["source"] == "the znodes, which have only the newest decision"
        assert "--state-change-logs" in why["story"]["why_no_more"]
        assert (entry["leader"], entry["controller_epoch"] >= 1, entry["time_ms"] > 0) == (0, True, True)
        status, planned = await pages.ask("/api/actions/plan", {"action": "move_controller"})
        assert status == 200
        status, done = await pages.ask("/api/actions/run", {"confirmation": planned["confirmation"]})
        assert (status, "The controller is broker 0" in done["done"]) == (200, True), done
    logs = real_kafka.directory
    if list(logs.rglob("*state-change*")):
        async with asker(real_kafka.bootstrap, zookeeper, logs=logs) as pages:
            told = (await pages.get("/api/why", topic="cockpit", partition=0))["story"]
            assert {each["leader"] for each in told["entries"]} >= {0}


@pytest.mark.long
async def test_kafka_4_shows_what_the_protocol_shows(real_kraft: RealKraft) -> None:
    filled(real_kraft.bootstrap, "cockpit")
    async with asker(real_kraft.bootstrap, None, allow_changes=True) as pages:
        why = await looks(pages, "cockpit")
        assert why["story"]["source"] == "the brokers' metadata, which have only the present state"
        assert "ZooKeeper" in why["story"]["why_no_more"]
        assert [each["transactional_id"] for each in (await pages.get("/api/transactions"))["transactions"]] == [
            "cockpit"
        ]
        status, refused = await pages.ask("/api/actions/plan", {"action": "move_controller"})
        assert (status, "ZooKeeper" in refused["error"]) == (400, True)
