"""What operators ask about transactions, against brokers that answer as a test says."""

import pytest

from klamm.client.admin.transaction_admin import (
    Coordinated,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    abort_transaction,
    describe_producers,
    describe_transactions,
    ending_transactions,
    list_transactions,
)
from klamm.net.client import UnsupportedVersion
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.describe_producers import DescribeProducersResponse
from klamm.protocol.apis.describe_transactions import DescribeTransactionsResponse
from klamm.protocol.apis.list_transactions import ListTransactionsResponse
from klamm.protocol.apis.write_txn_markers import WriteTxnMarkersResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from support.scripted_cluster import HANG_UP, ScriptedCluster

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
TOPICS = {"t": [0, 1]}


def listed(*states, code=0):
    struct = ListTransactionsResponse.TransactionState
    return ApiKey.LIST_TRANSACTIONS, ListTransactionsResponse(
        error_code=code,
        unknown_state_filters=[],
        transaction_states=[
            struct(transactional_id=name, producer_id=producer_id, transaction_state=state)
            for name, producer_id, state in states
        ],
    )


def described(name="tx", code=0, state="Ongoing", start_time_ms=5, partitions=(0, 1)):
    struct = DescribeTransactionsResponse.TransactionState
    return ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsResponse(
        transaction_states=[
            struct(
                error_code=code,
                transactional_id=name,
                transaction_state=state,
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=start_time_ms,
                producer_id=7,
                producer_epoch=3,
                topics=[struct.TopicData(topic="t", partitions=list(partitions))],
            )
        ]
    )


def producers(partition, *states, code=0):
    topic = DescribeProducersResponse.TopicResponse
    struct = topic.PartitionResponse
    active = [
        struct.ProducerState(
            producer_id=producer_id,
            producer_epoch=1,
            last_sequence=2,
            last_timestamp=3,
            coordinator_epoch=-1,
            current_txn_start_offset=start,
        )
        for producer_id, start in states
    ]
    response = struct(partition_index=partition, error_code=code, active_producers=active)
    return ApiKey.DESCRIBE_PRODUCERS, DescribeProducersResponse(topics=[topic(name="t", partitions=[response])])


def marked(code=0):
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = result.WritableTxnMarkerTopicResult
    partition = topic.WritableTxnMarkerPartitionResult(partition_index=1, error_code=code)
    return ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersResponse(
        markers=[result(producer_id=7, topics=[topic(name="t", partitions=[partition])])]
    )


async def test_the_transactions_of_all_brokers_are_listed_once_all_are_ready():
    answers = [
        listed(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        listed(),
        (ApiKey.LIST_TRANSACTIONS, HANG_UP),
        listed(),
        listed(("b", 1, "Ongoing")),
        listed(("a", 2, "Empty")),
    ]
    async with ScriptedCluster(*answers) as cluster:
        found = await list_transactions(cluster.client(), producer_ids=[2, 1])
    assert [(each.transactional_id, each.producer_id, each.state) for each in found] == [
        ("a", 2, "Empty"),
        ("b", 1, "Ongoing"),
    ]
    assert sorted(each.coordinator for each in found) == [0, 1]
    assert cluster.requests[0].producer_id_filters == [1, 2]


async def test_a_list_that_may_not_be_read_is_an_error():
    refused = listed(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    async with ScriptedCluster(refused, refused) as cluster:
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await list_transactions(cluster.client())


async def test_older_brokers_do_not_list_by_duration():
    async with ScriptedCluster() as cluster:
        for broker in cluster._brokers:
            broker.versions[ApiKey.LIST_TRANSACTIONS] = (0, 0)
        with pytest.raises(UnsupportedVersion, match=r"before Kafka 3\.8"):
            await list_transactions(cluster.client(), longer_than_ms=5)


async def test_a_transaction_is_described_by_its_coordinator():
    answers = [
        described(code=ErrorCode.NOT_COORDINATOR),
        described(),
        described("no", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    ]
    async with ScriptedCluster(*answers, coordinators=[0, 1]) as cluster:
        client = cluster.client()
        found = await describe_transactions(client, ["tx"])
        unknown = (await describe_transactions(client, ["no"]))["no"]
    assert found == {"tx": TransactionDescription("tx", 1, 7, 3, "Ongoing", 60_000, 5, [ZERO, ONE])}
    assert [broker for _, broker in cluster.asked] == [0, 1, 1]
    assert isinstance(unknown, KafkaError) and unknown.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_a_transaction_that_is_not_open_has_no_start():
    async with ScriptedCluster(described(state="Empty", start_time_ms=-1, partitions=())) as cluster:
        found = (await describe_transactions(cluster.client(), ["tx"]))["tx"]
    assert isinstance(found, TransactionDescription)
    assert (found.start_time_ms, found.partitions) == (None, [])


@pytest.mark.parametrize(("broker_id", "asked"), [(None, [0, 1]), (1, [1])])
async def test_producers_are_described_by_the_leaders_or_by_one_broker(broker_id, asked):
    both = producers(0, (7, 5), (8, -1))[1]
    both.topics += producers(1, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)[1].topics
    answers = [(ApiKey.DESCRIBE_PRODUCERS, both)] * len(asked)
    async with ScriptedCluster(*answers, topics=TOPICS) as cluster:
        found = await describe_producers(cluster.client(), [ZERO, ONE], broker_id=broker_id)
    assert found[ZERO] == [ProducerState(7, 1, -1, 2, 3, 5), ProducerState(8, 1, -1, 2, 3, None)]
    refused = found[ONE]
    assert isinstance(refused, KafkaError) and refused.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert sorted(broker for _, broker in cluster.asked) == asked


async def test_the_marker_goes_to_the_leader_and_its_error_comes_back():
    answers = [marked(ErrorCode.NOT_LEADER_OR_FOLLOWER), marked(), marked(ErrorCode.INVALID_PRODUCER_EPOCH)]
    async with ScriptedCluster(*answers, topics=TOPICS) as cluster:
        client = cluster.client()
        assert await abort_transaction(client, ONE, 7, 3, -1) is None
        error = await abort_transaction(client, ONE, 7, 2, 4)
    assert error is not None and error.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert [broker for _, broker in cluster.asked] == [1, 1, 1]
    (marker,) = cluster.requests[1].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 0)
    assert (marker.transaction_result, cluster.requests[2].markers[0].coordinator_epoch) == (False, 4)
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1])]


def test_a_transaction_hangs_where_its_coordinator_will_write_no_marker():
    def open_on(partition, producer_id):
        return OpenTransaction(partition, ProducerState(producer_id, 0, 0, 0, 0, 5))

    def of(name, partitions):
        return TransactionDescription(name, 0, 1, 0, "Ongoing", 1, 1, partitions)

    listings = [TransactionListing(name, 0, number, "Ongoing") for number, name in enumerate(["a", "b", "gone"], 1)]
    descriptions = {
        "a": of("a", [ZERO, ONE]),
        "b": of("b", [ONE]),
        "gone": KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    }
    candidates = [open_on(ZERO, 1), open_on(ZERO, 2), open_on(ONE, 2), open_on(ONE, 3), open_on(ONE, 4)]
    ending = ending_transactions(candidates, Coordinated(listings, descriptions))
    assert ending == {open_on(ZERO, 1): "a", open_on(ONE, 2): "b"}


def test_a_coordinator_that_does_not_answer_makes_no_transaction_hang():
    candidate = OpenTransaction(ZERO, ProducerState(1, 0, 0, 0, 0, 5))
    listings = [TransactionListing("a", 0, 1, "Ongoing")]
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        ending_transactions([candidate], Coordinated(listings, {"a": KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)}))
