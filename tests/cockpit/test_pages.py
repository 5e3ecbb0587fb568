"""The pages of topics, records, groups, configurations and actions on a klamm cluster, with hostile content."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.access.clients import command_options
from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.cluster import make_client
from klamm.client.consumer.offsets import (
    ListedOffset,
    OffsetAndMetadata,
    alter_consumer_group_offsets,
    list_replica_offsets,
)
from klamm.cockpit import map_lags
from klamm.cockpit.map_lags import UNKNOWN
from klamm.cockpit.partition_map import PartitionMap
from klamm.diagnosis.cluster_view import PartitionView
from klamm.processes.helper import Helper
from klamm.protocol import vocabulary
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from klamm.testing import Cluster
from support.cockpit_pages import Asker, asker
from support.command_lines import called

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[2J\u2028"
# As long as Kafka allows, and with all characters that it allows.
LONGEST = ("<script>".replace("<", "-").replace(">", ".") + "_" * 249)[:249]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=2, helper=klamm_helper) as running:
        running.create_topic("plain", partitions=2, replication_factor=2)
        running.create_topic("transactions", partitions=1, replication_factor=1)
        running.create_topic(LONGEST, partitions=1, replication_factor=1)
        yield running


def produce(cluster: Cluster, topic: str, records: list[dict[str, Any]], **config: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **config})
    for each in records:
        producer.produce(topic, partition=0, **each)
    producer.flush(120)


async def read(pages: Asker, topic: str, **query: object) -> dict[str, Any]:
    found: dict[str, Any] = await pages.get("/api/records", topic=topic, partition=0, **query)
    return found


def offsets(page: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in page["records"]]


# -- records --------------------------------------------------------------------------------------------------------


async def test_records_are_shown_as_what_they_are_whatever_they_hold(cluster: Cluster) -> None:
    produce(
        cluster,
        LONGEST,
        [
            {
                "key": HOSTILE,
                "value": json.dumps({"a": [1, 2.50]}),
                "headers": [(HOSTILE, HOSTILE.encode()), ("n", None)],
            },
            {"key": b"\x00\x00\x00\x07", "value": b"\xff\x00", "timestamp": 1_600_000_000_000},
            {"key": "gone", "value": None},
        ],
        **{"compression.type": "zstd"},
    )
    async with asker(cluster.bootstrap, None) as pages:
        page = await read(pages, LONGEST)
        first, second, third = page["records"]
        assert first["key"]["text"] == "<img src=x onerror=alert(1)>\\u202e\\u001b[2J\\u2028"
        assert first["headers"][0]["name"] == first["key"]["text"] == first["headers"][0]["value"]["text"]
        assert first["headers"][1]["value"]["kind"] == "null"
        assert first["value"] == {
            "kind": "json",
            "size_bytes": 15,
            "text": '{\n  "a": [\n    1,\n    2.5\n  ]\n}',
            "is_cut": False,
        }
        assert (second["key"]["kind"], second["key"]["note"]) == ("bytes", "as a number of 32 bits: 7")
        assert second["timestamp_ms"] == 1_600_000_000_000
        assert (third["mark"], third["value"]["kind"]) == ("tombstone", "null")
        assert {each["compression"] for each in page["batches"]} == {"zstd"}
        assert sum(each["records"] for each in page["batches"]) == 3


async def test_integers_that_a_script_would_round_are_texts(cluster: Cluster) -> None:
    most, odd = 2**63 - 1, 2**53 + 1
    cluster.create_topic("integers", partitions=2, replication_factor=1)
    batch = build_batch([Record(b"k", b"v", most)], producer_id=odd, producer_epoch=0, base_sequence=0)
    client = make_client(command_options(cluster.bootstrap, None), SystemEnvironment().random)
    try:
        await client.refresh_metadata(["integers"])
        connection = await client.connection_to(client.metadata.topics["integers"].partitions[0].leader)
        produced = ProduceRequest.of(None, -1, 10_000, [("integers", [(0, batch)])])
        answer = await connection.send(ApiKey.PRODUCE, lambda version: produced)
        assert answer.responses[0].partition_responses[0].error_code == 0
        # A group commits what it likes.
        offsets = {vocabulary.TopicPartition("integers", 0): OffsetAndMetadata(most)}
        await alter_consumer_group_offsets(client, "integers", offsets)
    finally:
        await client.close()
    async with asker(cluster.bootstrap, None) as pages:
        page = await read(pages, "integers")
        assert page["records"][0]["timestamp_ms"] == str(most)
        assert page["batches"][0]["producer_id"] == str(odd)
        assert (page["records"][0]["offset"], page["end_offset"]) == (0, 1)
        found = await pages.get("/api/groups", group="integers")
        assert [each["current_offset"] for each in found["partitions"]] == [str(most)]


async def test_pages_go_forward_and_backward_and_to_a_time(cluster: Cluster) -> None:
    begin = 1_700_000_000_000
    produce(cluster, "plain", [{"value": f"{n}", "timestamp": begin + n} for n in range(300)])
    async with asker(cluster.bootstrap, None) as pages:
        assert offsets(await read(pages, "plain")) == list(range(250, 300))
        page = await read(pages, "plain", offset=0, limit=120)
        assert (offsets(page), page["next_offset"]) == (list(range(120)), 120)
        assert offsets(await read(pages, "plain", offset=page["next_offset"], limit=120)) == list(range(120, 240))
        assert offsets(await read(pages, "plain", before=20, limit=5)) == list(range(15, 20))
        assert offsets(await read(pages, "plain", before=0)) == []
        assert offsets(await read(pages, "plain", offset=300)) == []
        assert offsets(await read(pages, "plain", timestamp=begin + 290)) == list(range(290, 300))
        assert offsets(await read(pages, "plain", timestamp=begin + 10**9)) == []
        for query, why in (
            ({"offset": 301}, "Offset 301 is not in the log of plain-0, which has 0 to 300."),
            ({"offset": -1}, "offset='-1' is not a number from 0 to 9223372036854775807."),
            ({"limit": 10**6}, "limit='1000000' is not a number from 1 to 500."),
            ({"offset": 1, "before": 2}, "Give one of offset, before and timestamp."),
        ):
            assert await pages.ask("/api/records", topic="plain", partition=0, **query) == (400, {"error": why})
        status, _ = await pages.ask("/api/records", topic="missing", partition=0)
        assert status == 404
        status, value = await pages.ask("/api/records", topic="a\u202eb", partition=0)
        assert (status, "\u202e" in json.dumps(value, ensure_ascii=False)) == (400, False)


async def test_large_values_are_cut_and_loaded_whole_on_demand(cluster: Cluster) -> None:
    produce(cluster, "plain", [{"value": b"x" * 900_000} for _ in range(8)])
    async with asker(cluster.bootstrap, None) as pages:
        page = await read(pages, "plain", limit=8)
        # Eight of them are more than a request reads: those directly before the end are shown.
        end = page["end_offset"]
        assert offsets(page) == list(range(end - len(page["records"]), end))
        assert 1 <= len(page["records"]) < 8
        value = page["records"][-1]["value"]
        assert (len(value["text"]), value["size_bytes"], value["is_cut"]) == (4096, 900_000, True)
        whole = (await read(pages, "plain", offset=end - 1, whole=1))["records"][0]["value"]
        assert (len(whole["text"]), whole["is_cut"]) == (900_000, False)
        forward = await read(pages, "plain", offset=end - 8, limit=8)
        assert forward["stop"].startswith("after ")
        assert forward["next_offset"] == end - 8 + len(forward["records"])


@pytest.mark.parametrize(("at", "is_named"), [(80, True), (16, False)], ids=["a record", "the header"])
async def test_a_corrupt_batch_does_not_end_the_way_through_the_log(cluster: Cluster, at: int, is_named: bool) -> None:
    topic = f"corrupt-{at}"
    cluster.create_topic(topic, partitions=1, replication_factor=1)
    for number in range(3):
        produce(cluster, topic, [{"value": b"x" * 100 + str(number).encode()}])
    [segment] = Path(cluster.brokers[0].data_directory).parent.glob(f"*/{topic}-0/*.log")
    size_bytes = segment.stat().st_size // 3
    with segment.open("r+b") as file:
        file.seek(size_bytes + at)
        file.write(b"\x7f\x7f")
    async with asker(cluster.bootstrap, None) as pages:
        page = await read(pages, topic, offset=0)
        if is_named:
            assert [(each["base_offset"], each["error"] is not None) for each in page["batches"]] == [
                (0, False),
                (1, True),
                (2, False),
            ]
            assert offsets(page) == [0, 2]
            assert offsets(await read(pages, topic, before=3)) == [0, 2]
        else:
            assert (offsets(page), page["next_offset"]) == ([0], 2)
            assert page["stop"].startswith("at offset 1: ")


async def test_transactions_are_marked(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": HOSTILE})
    producer.init_transactions(120)
    for value, end in (("committed", producer.commit_transaction), ("aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("transactions", value=value, partition=0)
        producer.flush(120)
        end(20)
    producer.begin_transaction()
    producer.produce("transactions", value="open", partition=0)
    producer.flush(120)
    async with asker(cluster.bootstrap, None) as pages:
        page = await read(pages, "transactions", offset=0)
        assert [(each["value"]["text"], each["mark"]) for each in page["records"] if "control" not in each["mark"]] == [
            ("committed", ""),
            ("aborted", "aborted"),
            ("open", "open transaction"),
        ]
        assert [each["mark"] for each in page["records"] if "control" in each["mark"]] == [
            "control: COMMIT",
            "control: ABORT",
        ]
        assert page["last_stable_offset"] == 4
        listed = (await pages.get("/api/transactions"))["transactions"]
        assert [each["transactional_id"] for each in listed] == [HOSTILE]
        one = await pages.get("/api/transactions", id=HOSTILE)
        assert one["partitions"] == [{"topic": "transactions", "partition": 0}]
    producer.abort_transaction(20)


async def test_records_of_groups_are_decoded(cluster: Cluster) -> None:
    async with asker(cluster.bootstrap, None) as pages:
        commit(cluster, "decoded").close()
        texts = []
        for number in range(50):
            page = await pages.get("/api/records", topic="__consumer_offsets", partition=number)
            texts += [record["key"]["text"] for record in page["records"]]
        assert "offset_commit::group=decoded,partition=plain-1" in texts


# -- topics, groups, configurations -----------------------------------------------------------------------------------


async def test_topics_have_partitions_offsets_and_sizes(cluster: Cluster) -> None:
    produce(cluster, LONGEST, [{"value": b"1"}])
    async with asker(cluster.bootstrap, None) as pages:
        listed = {each["topic"]: each for each in (await pages.get("/api/topics"))["topics"]}
        assert (listed["plain"]["partitions"], listed["plain"]["replication_factor"]) == (2, 2)
        assert [each["topic"] for each in (await pages.get("/api/topics", filter="script"))["topics"]] == [LONGEST]
        one = await pages.get("/api/topics", topic=LONGEST)
        [partition] = one["partitions"]
        assert partition["end_offset"] >= 1
        [size_bytes] = partition["sizes"].values()
        assert size_bytes > 0
        status, _ = await pages.ask("/api/topics", topic="missing")
        assert status == 404


def commit(cluster: Cluster, group: str) -> Consumer:
    """A member of the group that has committed offset 1 of plain-1."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "client.id": HOSTILE,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["plain"])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("plain", 1, 1)], asynchronous=False)
    return consumer


async def test_groups_have_members_assignment_and_lag(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(5):
        producer.produce("plain", b"x", partition=1)
    producer.flush(120)
    consumer = commit(cluster, HOSTILE)
    async with asker(cluster.bootstrap, None) as pages:
        assert HOSTILE in [each["group"] for each in (await pages.get("/api/groups"))["groups"]]
        group = await pages.get("/api/groups", group=HOSTILE)
        assert (group["state"], len(group["members"])) == ("Stable", 1)
        assert group["members"][0]["assignment"] == [
            {"topic": "plain", "partition": 0},
            {"topic": "plain", "partition": 1},
        ]
        [row] = [each for each in group["partitions"] if each["partition"] == 1]
        assert (row["current_offset"], row["lag"]) == (1, row["log_end_offset"] - 1)
        status, _ = await pages.ask("/api/groups", group="no such group")
        assert status == 404
    consumer.close()


async def test_followers_that_are_behind_have_their_lag(cluster: Cluster) -> None:
    cluster.create_topic("behind", partitions=3, replication_factor=2)
    leader = cluster.leader("behind", 0)
    assert leader is not None
    follower = 1 - leader
    async with asker(cluster.bootstrap, None) as pages:
        cluster.pause(follower)
        try:
            produce(cluster, "behind", [{"value": "x"}] * 5, acks=1)
        finally:
            cluster.resume(follower)
        cluster.until(lambda: follower in cluster.isr("behind", 0))

        async def lags(**query: object) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await pages.get("/api/lags", topic="behind", **query))["partitions"]
            return found

        while (found := await lags(count=1)) and found[0]["lags"] != [[follower, 0]]:
            assert 0 < found[0]["lags"][0][1] <= 5
        assert found == [
            {"partition": 0, "leader": leader, "end": 5, "lags": [[follower, 0]], "why_not": []},
        ]
        assert [each["partition"] for each in await lags(first=1)] == [1, 2]
        status, answer = await pages.ask("/api/lags", topic=HOSTILE)
        assert (status, "error" in answer) == (400, True) or status == 404
        assert (await pages.ask("/api/lags", topic="behind", count=201))[0] == 400


async def test_pieces_of_the_map_have_the_lag_of_each_replica(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("pieces", partitions=3, replication_factor=2)
    leader = cluster.leader("pieces", 1)
    assert leader is not None
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1})
    reads = []
    read = list_replica_offsets

    async def counted(client: Any, replicas: list[Any], **options: Any) -> Any:
        reads.append(len(replicas))
        found = await read(client, replicas, **options)
        key = TopicPartitionReplica("pieces", 1, 1 - leader)
        # As if the follower had not fetched four of the records, and another one's broker did not answer.
        end = found[key]
        assert isinstance(end, ListedOffset)
        found[key] = end._replace(offset=end.offset - 4)
        found[TopicPartitionReplica("pieces", 2, 0)] = KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return found

    monkeypatch.setattr(map_lags, "list_replica_offsets", counted)
    for _ in range(5):
        producer.produce("pieces", b"x", partition=1)
    producer.flush(120)
    cluster.until(lambda: len(cluster.isr("pieces", 1)) == 2)
    made = PartitionMap()
    led = {number: cluster.leader("pieces", number) for number in range(3)}
    states = {number: PartitionView(each, -1, (0, 1), (0, 1)) for number, each in led.items() if each is not None}
    for _ in made.look({"pieces": states, "other": {0: PartitionView(0, -1, (0,), (0,))}}, [0, 1]):
        pass
    client = make_client(command_options(cluster.bootstrap, None), SystemEnvironment().random)
    shared = map_lags.MapLags()
    try:
        await client.refresh_metadata(["pieces"])
        answers = await asyncio.gather(*(shared.read(client, made, 0) for _ in range(10)))
        empty = json.loads(await shared.read(client, made, 1))
    finally:
        await client.close()
    assert reads == [7]
    assert len(set(answers)) == 1
    found = json.loads(answers[0])
    assert (found["version"], found["first"], empty) == (1, 0, {"version": 1, "first": map_lags.PIECE_ROWS, "lags": []})
    # The topic "other" comes first, and does not exist.
    follower = [0 if each == leader else 4 for each in (0, 1)]
    second = [UNKNOWN, UNKNOWN] if led[2] == 0 else [UNKNOWN, 0]
    assert found["lags"] == [UNKNOWN, UNKNOWN, 0, 0, *follower, *second]


async def test_configurations_have_their_sources(cluster: Cluster) -> None:
    async with asker(cluster.bootstrap, None) as pages:
        of_topic = await pages.get("/api/configs", topic="plain")
        by_name = {each["name"]: each for each in of_topic["configs"]}
        assert by_name["retention.ms"]["source"] == "DEFAULT_CONFIG"
        assert by_name["min.insync.replicas"]["synonyms"][-1] == {
            "name": "min.insync.replicas",
            "value": "1",
            "source": "DEFAULT_CONFIG",
        }
        of_broker = await pages.get("/api/configs", broker=0)
        by_name = {each["name"]: each for each in of_broker["configs"]}
        assert by_name["broker.id"]["source"] == "STATIC_BROKER_CONFIG"
        status, value = await pages.ask("/api/configs")
        assert (status, value) == (400, {"error": "Give one of topic and broker."})


# -- actions ----------------------------------------------------------------------------------------------------------


async def test_without_allow_changes_the_page_says_why_and_changes_nothing(cluster: Cluster) -> None:
    async with asker(cluster.bootstrap, cluster.zookeeper) as pages:
        _, planned = await pages.ask("/api/actions/plan", {"action": "move_controller"})
        assert planned["confirmation"] is None
        assert "without --allow-changes" in planned["why_not"]
        assert called(planned["command"]) == "klamm controller move"
        status, _ = await pages.ask("/api/actions/run", {"confirmation": "anything"})
        assert status == 403


async def test_a_confirmation_moves_the_controller_once(cluster: Cluster) -> None:
    async with asker(cluster.bootstrap, cluster.zookeeper, allow_changes=True) as pages:
        _, planned = await pages.ask("/api/actions/plan", {"action": "move_controller"})
        _, outdated = await pages.ask("/api/actions/plan", {"action": "move_controller"})
        assert "resigns" in planned["what"][0]
        status, first = await pages.ask("/api/actions/run", {"confirmation": planned["confirmation"]})
        assert (status, first["is_repeated"]) == (200, False), first
        status, again = await pages.ask("/api/actions/run", {"confirmation": planned["confirmation"]})
        assert (status, again) == (200, {"done": first["done"], "is_repeated": True})
        # Another one was elected since: what was shown is no longer so.
        status, refused = await pages.ask("/api/actions/run", {"confirmation": outdated["confirmation"]})
        assert status == 502
        assert "now" in refused["error"]


async def test_a_preferred_election_is_confirmed(cluster: Cluster) -> None:
    preferred = cluster.replicas("plain", 0)[0]
    cluster.restart(preferred)
    cluster.until(lambda: len(cluster.isr("plain", 0)) == 2 and cluster.leader("plain", 0) != preferred)
    (asked,) = {0, 1} - {cluster.controller_id()}
    async with asker(cluster.bootstrap.split(",")[asked], cluster.zookeeper, allow_changes=True) as pages:
        body = {"action": "elect_preferred", "topic": "plain", "partition": 0}
        status, planned = await pages.ask("/api/actions/plan", body)
        assert status == 200, planned
        assert f"-> {preferred}" in planned["what"][0]
        assert called(planned["command"]) == "klamm elect preferred"
        assert cluster.leader("plain", 0) != preferred
        # The broker that the page asks hears of the election late.
        late = cluster.delay(api="UpdateMetadata", delay_ms=300, broker=asked)
        status, done = await pages.ask("/api/actions/run", {"confirmation": planned["confirmation"]})
        assert (status, done["done"]) == (200, f"Broker {preferred} leads plain-0.")
        assert cluster.leader("plain", 0) == preferred
        status, value = await pages.ask("/api/actions/plan", body)
        assert (status, value) == (400, {"error": "The preferred leader leads plain-0 already."})
    late.remove()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"action": "delete_everything"},
        {"action": "elect_preferred", "topic": 1, "partition": 0},
        {"action": "elect_preferred", "topic": "plain", "partition": "0"},
        {"action": "cancel_reassignment", "topic": "plain", "partition": 0},
        {"action": "elect_preferred", "topic": HOSTILE, "partition": 0},
        [],
    ],
)
async def test_an_action_that_is_not_possible_is_refused_with_its_reason(cluster: Cluster, body: Any) -> None:
    async with asker(cluster.bootstrap, cluster.zookeeper, allow_changes=True) as pages:
        status, value = await pages.ask("/api/actions/plan", body)
        assert status == 400
        assert value["error"].isprintable()
        status, _ = await pages.ask("/api/actions/run", body)
        assert status == 400
