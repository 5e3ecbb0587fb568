"""The requests of transactional producers and of tools for transactions, against a real broker in this process."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.requests.security import Operation
from klamm.coordinator.transactions import marker_manager
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType
from support.authorizing import Allows, Rule
from support.one_broker import Client, OneBroker, batch, running, until
from support.present import present
from support.transaction_wire import (
    ONE_COORDINATOR,
    Producer,
    init,
    marker,
    produce,
    repeated,
    retried,
    transactional,
    write_markers,
)


async def read(client: Client, topic: str = "t", partition: int = 0) -> tuple[list[int], int]:
    """For read_committed: the producer ids of aborted transactions, and the last stable offset."""
    fetched = await client.fetch(topic, partition, 0, isolation_level=1)
    return [one.producer_id for one in present(fetched.aborted_transactions)], fetched.last_stable_offset


async def stable(client: Client, offset: int, partition: int = 0) -> list[int]:
    """Waits for the last stable offset; the producer ids of aborted transactions."""
    aborted, _ = await repeated(lambda: read(client, partition=partition), lambda found: found[1] == offset)
    return aborted


async def state(client: Client, id: str = "tx") -> Any:
    answer = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[id])
    return answer.transaction_states[0]


# -- the life of a transaction


@pytest.mark.parametrize("version", range(4))
async def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(tmp_path: Path, version: int) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (_, client):
        await client.create_topic("t", partitions=2)
        producer = await Producer.begin(client, version=version)
        assert await producer.add(("t", 0), ("t", 1), version=version) == {("t", 0): 0, ("t", 1): 0}
        for number in 0, 1:
            assert (await producer.produce(b"a", partition=number)).error_code == 0
        assert await read(client) == ([], 0)
        assert await producer.end(commits=True, version=version) == 0
        assert [await stable(client, 2, number) for number in (0, 1)] == [[], []]

        assert await producer.add(("t", 0), version=version) == {("t", 0): 0}
        assert (await producer.produce(b"b", sequence=1)).error_code == 0
        assert await producer.end(commits=False, version=version) == 0
        assert await stable(client, 4) == [producer.producer_id]


async def test_the_offsets_of_a_group_are_committed_with_the_transaction(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (_, client):
        await client.create_topic("t")

        async def committed() -> int:
            topics = [
                messages.request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic(name="t", partition_indexes=[0])
            ]
            answer = await retried(
                lambda: client.ask(ApiKey.OFFSET_FETCH, group_id="g", topics=topics, require_stable=False)
            )
            return int(answer.topics[0].partitions[0].committed_offset)

        producer = await Producer.begin(client)
        # The first to name a group: the topic of groups is created.
        assert await producer.add_offsets() == 0
        assert await producer.commit_offsets({("t", 0): 5}) == {("t", 0): 0}
        assert await committed() == -1
        described = await state(client)
        assert [(one.topic, one.partitions) for one in described.topics] == [("__consumer_offsets", [0])]
        assert await producer.end(commits=True) == 0
        assert await repeated(committed, lambda offset: offset != -1) == 5

        assert await producer.add_offsets() == 0
        assert await producer.commit_offsets({("t", 0): 9}) == {("t", 0): 0}
        assert await producer.end(commits=False) == 0
        await repeated(lambda: state(client), lambda found: found.transaction_state == "CompleteAbort")
        assert await committed() == 5


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)])
async def test_a_second_producer_of_the_id_fences_the_first(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (_, client):
        await client.create_topic("t")
        first = await Producer.begin(client)
        await first.add(("t", 0))
        await first.produce(b"lost")
        second = await Producer.begin(client)
        assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 2)
        assert await stable(client, 2) == [first.producer_id]
        old = version == 3
        fenced, older = (ErrorCode.INVALID_PRODUCER_EPOCH, 1) if old else (ErrorCode.PRODUCER_FENCED, 3)
        assert await first.add(("t", 0), version=older) == {("t", 0): fenced}
        assert await first.add_offsets(version=older) in (fenced, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert await first.end(commits=True, version=older) == fenced
        assert (await first.produce(b"late", sequence=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        current: dict[str, Any] = {"producer_id": first.producer_id, "producer_epoch": first.epoch}
        assert (await init(client, version=version, **current)).error_code == code
        await second.add(("t", 0))
        assert (await second.produce(b"kept")).error_code == 0
        assert await second.end(commits=True) == 0
        assert await stable(client, 4) == [first.producer_id]


async def test_an_open_transaction_outlives_a_restart_of_its_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (cluster, client):
        await client.create_topic("t")
        producer = await Producer.begin(client)
        await producer.add(("t", 0))
        await producer.produce(b"a")
        await cluster.restart_broker()
        producer.client = client = await cluster.connect()
        assert await read(client) == ([], 0)
        assert await producer.end(commits=True) == 0
        assert await stable(client, 2) == []


async def test_a_transaction_that_its_producer_leaves_open_is_aborted(tmp_path: Path) -> None:
    interval: dict[str, Any] = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 20}
    async with running(tmp_path, **ONE_COORDINATOR, **interval) as (_, client):
        await client.create_topic("t")
        producer = await Producer.begin(client, timeout_ms=50)
        await producer.add(("t", 0))
        await producer.produce(b"a")
        assert await stable(client, 2) == [producer.producer_id]
        assert await producer.end(commits=True) == ErrorCode.PRODUCER_FENCED


async def test_a_transaction_ends_although_one_of_its_topics_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (_, client):
        for topic in "t", "doomed":
            await client.create_topic(topic)
        producer = await Producer.begin(client)
        await producer.add(("t", 0), ("doomed", 0))
        for topic in "t", "doomed":
            assert (await producer.produce(b"a", topic=topic)).error_code == 0
        doomed = messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(name="doomed", topic_id=None)
        deleted = await client.ask(ApiKey.DELETE_TOPICS, topics=[doomed], timeout_ms=10_000)
        assert deleted.responses[0].error_code == 0
        assert await producer.end(commits=True) == 0
        await repeated(lambda: state(client), lambda found: found.transaction_state == "CompleteCommit")
        assert await stable(client, 2) == []


async def test_a_new_leader_gets_the_marker_when_the_controller_names_it(tmp_path: Path) -> None:
    """Long before the coordinator would ask the former one again."""
    async with running(tmp_path, **ONE_COORDINATOR) as (cluster, client):
        await client.create_topic("t")
        producer = await Producer.begin(client)
        await producer.add(("t", 0))
        await producer.produce(b"a")
        markers = cluster.broker.parts.transaction_coordinator.markers
        told = partial(tell, cluster, await cluster.connect())
        # Broker 7 is not alive.
        await told(leader=7, leader_epoch=1)
        assert await producer.end(commits=True) == 0
        await until(lambda: len(markers._retries) == 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(marker_manager, "RETRY_BACKOFF_MS", 3_600_000)
            patch.setattr(marker_manager, "MAX_RETRY_BACKOFF_MS", 3_600_000)
            (retry,) = markers._retries
            await until(lambda: retry not in markers._retries and len(markers._retries) == 1)
            await cluster.begin_leader_epoch(client, "t", 2)
            await told(leader=0, leader_epoch=2)
            assert await stable(client, 2) == []


async def tell(cluster: OneBroker, controller: Client, leader: int, leader_epoch: int) -> None:
    """The broker's controller says who leads partition 0 of `t`."""
    snapshot = cluster.broker.parts.metadata_cache.snapshot
    epoch = cluster.controller_epoch
    state = UpdateMetadataPartitionState(0, epoch, leader, leader_epoch, (0,), 0, (0,))
    host, port = cluster.broker.endpoints["PLAINTEXT"]
    live = [UpdateMetadataBroker(id=0, endpoints=[UpdateMetadataEndpoint(port, host, "PLAINTEXT", 0)])]
    topics = [UpdateMetadataTopicState("t", snapshot.topic_ids.get("t"), [state])]
    body = UpdateMetadataRequest(
        controller_id=0,
        controller_epoch=epoch,
        broker_epoch=cluster.broker_epoch,
        topic_states=topics,
        live_brokers=live,
    )
    assert (await controller.request(ApiKey.UPDATE_METADATA, 7, body)).error_code == 0


# -- what is refused


async def test_partitions_are_added_together_or_not_at_all(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (_, client):
        await client.create_topic("t")
        producer = await Producer.begin(client)
        codes = await producer.add(("t", 0), ("t", 1), ("absent", 0), ("__transaction_state", 0))
        assert codes == {
            ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("__transaction_state", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
        assert (await state(client)).transaction_state == "Empty"


async def test_ids_and_timeouts_are_checked(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR, transaction_max_timeout_ms=1000) as (_, client):
        producer = await Producer.begin(client, timeout_ms=1000)
        for id, timeout_ms, current, code in (
            ("", 1000, {}, ErrorCode.INVALID_REQUEST),
            ("tx", 0, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("tx", -1, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("tx", 1001, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("tx", 1000, {"producer_id": 5, "producer_epoch": -1}, ErrorCode.INVALID_REQUEST),
            ("tx", 1000, {"producer_id": -1, "producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
            ("tx", 1000, {"producer_id": 2**63 - 1, "producer_epoch": 2**15 - 1}, ErrorCode.PRODUCER_FENCED),
        ):
            answer = await init(client, id, timeout_ms, **current)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)
        assert await producer.end(commits=True) == ErrorCode.INVALID_TXN_STATE
        producer.producer_id += 1
        assert await producer.end(commits=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        producer.id = "unknown"
        assert await producer.end(commits=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_a_transactional_batch_needs_a_transactional_id(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        refused = await produce(client, transactional(b"a"), id=None)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert "no transactional id" in refused.error_message
        assert (await produce(client, transactional(b"a"))).error_code == 0


async def test_each_batch_of_a_request_is_judged_by_its_own_producer(tmp_path: Path) -> None:
    """As in Kafka: the transactional id of the request is only what the client must be authorized for."""
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=5)
        await produce(client, transactional(b"x", producer_id=9, epoch=3), partition=3)
        batches = [
            transactional(b"a", producer_id=7),
            batch(b"b", producer_id=8, producer_epoch=0, base_sequence=0),
            batch(b"c"),
            transactional(b"d", producer_id=9, epoch=2),
            transactional(b"e", producer_id=10),
        ]
        body = ProduceRequest.of("tx", -1, 10_000, [("t", list(enumerate(batches)))])
        answers = (await client.request(ApiKey.PRODUCE, 9, body)).responses[0].partition_responses
        assert [one.error_code for one in answers] == [0, 0, 0, ErrorCode.INVALID_PRODUCER_EPOCH, 0]
        assert [(await read(client, partition=number))[1] for number in range(5)] == [0, 1, 1, 0, 0]


async def test_a_transactional_batch_that_is_not_acknowledged_is_a_part_of_its_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        for sequence, acks in enumerate((1, 0)):
            body = ProduceRequest.of("tx", acks, 10_000, [("t", [(0, transactional(b"a", sequence=sequence))])])
            client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, acks, "c", body))))
        await client.receive()
        await stable(client, 0)
        assert await write_markers(client, marker(("t", 0))) == {7: {("t", 0): 0}}
        assert await stable(client, 3) == []


# -- tools


async def test_transactions_are_listed_and_described(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (_, client):
        await client.create_topic("t", partitions=3)
        open_one, other = await Producer.begin(client, "open"), await Producer.begin(client, "other")
        await open_one.add(("t", 2), ("t", 0))

        async def listed(version: int = 1, **filters: Any) -> Any:
            fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": []} | filters
            answer = await client.ask(ApiKey.LIST_TRANSACTIONS, version, **fields)
            assert answer.error_code == 0
            return {one.transactional_id: one.transaction_state for one in answer.transaction_states}

        assert await listed(0) == await listed() == {"open": "Ongoing", "other": "Empty"}
        assert await listed(state_filters=["Ongoing", "Nonsense"]) == {"open": "Ongoing"}
        assert await listed(producer_id_filters=[other.producer_id, -1]) == {"other": "Empty"}
        # As in Kafka, an id without a transaction began for ever ago.
        assert await listed(duration_filter=60_000) == {"other": "Empty"}
        answer = await client.ask(ApiKey.LIST_TRANSACTIONS, state_filters=["Odd"], producer_id_filters=[])
        assert (answer.unknown_state_filters, answer.transaction_states) == (["Odd"], [])

        answer = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["open", "absent", "open", ""])
        found = {one.transactional_id: one for one in answer.transaction_states}
        assert {id: one.error_code for id, one in found.items()} == {
            "open": 0,
            "absent": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            "": ErrorCode.INVALID_REQUEST,
        }
        assert len(answer.transaction_states) == 3
        described = found["open"]
        assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", 60_000)
        assert (described.producer_id, described.producer_epoch) == (open_one.producer_id, 0)
        assert described.transaction_start_time_ms > 0
        assert [(one.topic, one.partitions) for one in described.topics] == [("t", [2, 0])]


async def test_a_broker_that_coordinates_nothing_refers_to_others(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        asked = {"transactional_id": "tx", "transaction_timeout_ms": 1}
        assert (await client.ask(ApiKey.INIT_PRODUCER_ID, **asked)).error_code == ErrorCode.NOT_COORDINATOR
        assert (await state(client)).error_code == ErrorCode.NOT_COORDINATOR


async def test_the_first_question_for_a_coordinator_creates_the_topic(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (cluster, client):
        first = await client.ask(ApiKey.FIND_COORDINATOR, key="tx", key_type=1)
        assert first.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = await retried(lambda: client.ask(ApiKey.FIND_COORDINATOR, key="tx", key_type=1))
        assert (found.node_id, found.port) == (0, cluster.broker.endpoints["PLAINTEXT"][1])
        described = await client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            resources=[
                messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource(
                    resource_type=2, resource_name="__transaction_state", configuration_keys=None
                )
            ],
        )
        own = {one.name: one.value for one in described.results[0].configs if one.config_source == 1}
        assert own == {
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": "1",
            "segment.bytes": "104857600",
        }


async def test_a_new_leader_epoch_of_its_partition_makes_the_coordinator_load_again(tmp_path: Path) -> None:
    async with running(tmp_path, **ONE_COORDINATOR) as (cluster, client):
        await client.create_topic("t")
        producer = await Producer.begin(client)
        await producer.add(("t", 0))
        await cluster.begin_leader_epoch(client, "__transaction_state", 1, leader=1, isr=(0, 1), replicas=(0, 1))
        answer = await client.ask(
            ApiKey.END_TXN, transactional_id="tx", producer_id=producer.producer_id, producer_epoch=0, committed=True
        )
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        await cluster.begin_leader_epoch(client, "__transaction_state", 2)
        assert await producer.end(commits=True) == 0
        coordinators = cluster.broker.parts.transaction_coordinator

        def is_complete() -> bool:
            return str(coordinators.describe_transaction("tx").state) == "CompleteCommit"

        await until(is_complete)


# -- what clients must be authorized for


def all_but(denied_type: ResourceType, denied: Operation, denied_name: str | None) -> Rule:
    """All but one operation on one kind of resource, or on one resource of it."""

    def rule(operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (resource_type, operation) != (denied_type, denied) or denied_name not in (None, name)

    return rule


ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
# What is denied, and which requests are refused with which code.
NEEDS: dict[tuple[ResourceType, Operation, str | None], dict[str, Any]] = {
    (ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE, None): {
        "find": ID_DENIED,
        "describe": ID_DENIED,
        "list": [],
    },
    (ResourceType.TRANSACTIONAL_ID, Operation.WRITE, None): {
        "init": ID_DENIED,
        "produce": ID_DENIED,
        "add": {("t", 0): ID_DENIED, ("u", 0): ID_DENIED},
        "add offsets": ID_DENIED,
        "commit offsets": {("t", 0): ID_DENIED, ("u", 0): ID_DENIED},
        "end": ID_DENIED,
    },
    (ResourceType.GROUP, Operation.READ, None): {
        "add offsets": GROUP_DENIED,
        "commit offsets": {("t", 0): GROUP_DENIED, ("u", 0): GROUP_DENIED},
    },
    (ResourceType.TOPIC, Operation.WRITE, "t"): {
        "produce": TOPIC_DENIED,
        "add": {("t", 0): TOPIC_DENIED, ("u", 0): ErrorCode.OPERATION_NOT_ATTEMPTED},
    },
    (ResourceType.TOPIC, Operation.READ, "t"): {
        "commit offsets": {("t", 0): TOPIC_DENIED, ("u", 0): 0},
        "producers": TOPIC_DENIED,
    },
    (ResourceType.TOPIC, Operation.DESCRIBE, "t"): {"topics": ["__consumer_offsets", "u"]},
    (ResourceType.CLUSTER, Operation.CLUSTER_ACTION, None): {"markers": ErrorCode.CLUSTER_AUTHORIZATION_FAILED},
    # A transactional producer needs no right on the cluster.
    (ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE, None): {},
}
ALLOWED: dict[str, Any] = {
    "find": 0,
    "describe": 0,
    "list": ["tx"],
    "add": {("t", 0): 0, ("u", 0): 0},
    "add offsets": 0,
    "commit offsets": {("t", 0): 0, ("u", 0): 0},
    "produce": 0,
    "producers": 0,
    "markers": 0,
    "topics": ["__consumer_offsets", "t", "u"],
    "end": 0,
    "init": 0,
}


async def outcomes(client: Client, producer: Producer) -> dict[str, Any]:
    """What each request of a transaction gets."""
    found: dict[str, Any] = {}
    found["find"] = (await client.ask(ApiKey.FIND_COORDINATOR, key="tx", key_type=1)).error_code
    found["describe"] = (await state(client)).error_code
    listed = await client.ask(ApiKey.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[])
    found["list"] = [one.transactional_id for one in listed.transaction_states]
    found["add"] = await producer.add(("t", 0), ("u", 0))
    found["add offsets"] = await producer.add_offsets()
    found["commit offsets"] = await producer.commit_offsets({("t", 0): 1, ("u", 0): 1})
    found["produce"] = (await producer.produce(b"a")).error_code
    described = await client.ask(
        ApiKey.DESCRIBE_PRODUCERS,
        topics=[messages.request_class(ApiKey.DESCRIBE_PRODUCERS).TopicRequest(name="t", partition_indexes=[0])],
    )
    found["producers"] = described.topics[0].partitions[0].error_code
    found["markers"] = (await write_markers(client, marker(("u", 0), producer_id=99)))[99]["u", 0]
    found["topics"] = sorted(topic.topic for topic in (await state(client)).topics)
    found["end"] = await producer.end(commits=True)
    found["init"] = (await init(client)).error_code
    return found


async def test_each_request_needs_its_rights_and_no_others(tmp_path: Path) -> None:
    authorizer = Allows()
    allows_all = authorizer.rule
    async with running(tmp_path, authorizer=authorizer, **ONE_COORDINATOR) as (_, client):
        for topic in "t", "u":
            await client.create_topic(topic)
        assert await outcomes(client, await Producer.begin(client)) == ALLOWED
        for denied, refused in NEEDS.items():
            # Ongoing already, so that requests after a refused one do what they do otherwise.
            producer = await Producer.begin(client)
            await producer.add(("u", 0), ("t", 0))
            await producer.add_offsets()
            authorizer.rule = all_but(*denied)
            found = await outcomes(client, producer)
            authorizer.rule = allows_all
            expected = ALLOWED | refused
            if refused.get("describe"):
                expected["topics"] = []
            assert found == expected, denied
