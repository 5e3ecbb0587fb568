"""Transactions of klamm's producer, against a coordinator and a leader that answer as a test says.

Each error of each request ends the transaction or the producer as it does in Java's client, and a prepared transaction
is ended once.
"""

import asyncio
import json
import pickle
from dataclasses import replace

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.consumer.group_member import Membership
from klamm.client.consumer.offsets import OffsetAndMetadata
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.prepared_transactions import TransactionGone, end_prepared, require_prepared
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import ProducerEnded, ProducerFenced, State, TransactionAborted
from klamm.net.client import ClientError
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnResponse
from klamm.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnResponse, AddPartitionsToTxnTopicResult
from klamm.protocol.apis.end_txn import EndTxnResponse
from klamm.protocol.apis.init_producer_id import InitProducerIdResponse
from klamm.protocol.apis.produce import ProduceResponse
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import parse_header
from klamm.protocol.vocabulary import ACKS_LEADER, TopicPartition
from support.scripted_cluster import HANG_UP, ScriptedCluster

PREPARED = PreparedTransaction("tx", 7, 3)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBER = Membership("g", None, "m", 5)
RETRIED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


def initialized(code=ErrorCode.NONE, producer_id=7, epoch=0):
    return ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(
        error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


def added(*codes):
    """The answer for partitions 0, 1, ... of the topic t; one code is that of each partition that was asked for."""

    def answer(request):
        result = AddPartitionsToTxnTopicResult
        numbers = [number for topic in request.v3_and_below_topics for number in topic.partitions]
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                result(
                    name="t",
                    results_by_partition=[
                        result.AddPartitionsToTxnPartitionResult(
                            partition_index=number,
                            partition_error_code=codes[number] if len(codes) > 1 else codes[0],
                        )
                        for number in numbers
                    ],
                )
            ]
        )

    return ApiKey.ADD_PARTITIONS_TO_TXN, answer


def produced(code=ErrorCode.NONE):
    def answer(request):
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        struct = ProduceResponse.TopicProduceResponse
        result = struct.PartitionProduceResponse(index=partition.index, error_code=code, base_offset=10)
        return ProduceResponse(responses=[struct(name=topic.name, partition_responses=[result])])

    return ApiKey.PRODUCE, answer


def offsets_added(code=ErrorCode.NONE):
    return ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnResponse(error_code=code)


def offsets_committed(*codes):
    struct = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partitions = [
        struct.TxnOffsetCommitResponsePartition(partition_index=number, error_code=code)
        for number, code in enumerate(codes)
    ]
    return ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitResponse(topics=[struct(name="t", partitions=partitions)])


def ended(code=ErrorCode.NONE):
    return ApiKey.END_TXN, EndTxnResponse(error_code=code)


WRITTEN = (added(ErrorCode.NONE), produced())


def against(answers, scenario, *, deadline_ms=60_000, versions=None, coordinators=(0,), **options):
    """Runs `scenario(producer, cluster)` after `init`; returns the cluster, all of whose answers were used."""

    async def main():
        async with ScriptedCluster(*answers, topics={"t": [0, 1]}, coordinators=coordinators) as cluster:
            for broker in cluster._brokers:
                broker.versions |= versions or {}
            changed = ProducerOptions(
                ClientOptions(()),
                CompressionType.NONE,
                **{"transactional_id": "tx", "delivery_timeout_ms": 20_000, **options},
            )
            producer = TransactionalProducer(cluster.client(deadline_ms), changed, SystemEnvironment())
            async with asyncio.timeout(120):
                await scenario(producer, cluster)
            assert not cluster.answers, "an answer was not asked for"
            return cluster

    return asyncio.run(main())


def asked(cluster, api_key):
    return [request for (key, _), request in zip(cluster.asked, cluster.requests, strict=True) if key is api_key]


def apis(cluster):
    return [key for key, _ in cluster.asked]


async def write(producer, *partitions):
    for partition in partitions or (0,):
        await producer.send(ProducerRecord("t", b"v", partition=partition))


async def one_record(producer):
    """A transaction with one record, not ended yet."""
    await producer.init()
    producer.begin()
    await write(producer)


async def cancelled_offsets(producer):
    """A transaction whose offsets are not answered in time, not ended yet."""
    await producer.init()
    producer.begin()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await producer.send_offsets({ZERO: 5}, MEMBER)


def test_records_and_offsets_are_committed_together():
    async def scenario(producer, cluster):
        assert await producer.init() == (7, 4)
        producer.begin()
        await write(producer, 0, 1)
        await producer.send_offsets({ZERO: 5, ONE: OffsetAndMetadata(6, "where", 2)}, MEMBER)
        await producer.commit()
        assert producer.state is State.READY

    answers = [initialized(epoch=4), *WRITTEN, produced(), offsets_added(), offsets_committed(0, 0), ended()]
    cluster = against(answers, scenario)
    (registration,) = asked(cluster, ApiKey.INIT_PRODUCER_ID)
    assert (registration.transactional_id, registration.transaction_timeout_ms) == ("tx", 60_000)
    assert (registration.producer_id, registration.producer_epoch) == (-1, -1)
    (partitions,) = asked(cluster, ApiKey.ADD_PARTITIONS_TO_TXN)
    assert [(topic.name, topic.partitions) for topic in partitions.v3_and_below_topics] == [("t", [0, 1])]
    for request in asked(cluster, ApiKey.PRODUCE):
        header = parse_header(request.topic_data[0].partition_data[0].records)
        assert (request.transactional_id, request.acks) == ("tx", -1)
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 4, 0)
    (committed,) = asked(cluster, ApiKey.TXN_OFFSET_COMMIT)
    assert (committed.group_id, committed.member_id, committed.generation_id) == ("g", "m", 5)
    assert [
        (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata)
        for each in committed.topics[0].partitions
    ] == [(0, 5, -1, ""), (1, 6, 2, "where")]
    (end,) = asked(cluster, ApiKey.END_TXN)
    assert (end.transactional_id, end.producer_id, end.producer_epoch, end.committed) == ("tx", 7, 4, True)


def test_a_second_transaction_continues_the_sequence_numbers_and_adds_its_partitions_again():
    async def scenario(producer, cluster):
        await one_record(producer)
        await producer.commit()
        producer.begin()
        await write(producer)
        await producer.commit()

    cluster = against([initialized(), *WRITTEN, ended(), *WRITTEN, ended()], scenario)
    batches = [request.topic_data[0].partition_data[0].records for request in asked(cluster, ApiKey.PRODUCE)]
    assert [parse_header(batch).base_sequence for batch in batches] == [0, 1]


def test_the_coordinator_hears_nothing_of_an_empty_transaction():
    async def scenario(producer, cluster):
        await producer.init()
        producer.begin()
        await producer.commit()
        producer.begin()
        await producer.abort()
        producer.begin()
        assert await producer.prepare() is None
        await producer.commit()
        assert producer.state is State.READY

    assert apis(against([initialized()], scenario)) == [ApiKey.INIT_PRODUCER_ID]


# -- two phases -------------------------------------------------------------------------------------------------------


def test_a_prepared_transaction_can_be_stored_and_ended_by_another_process():
    async def scenario(producer, cluster):
        await one_record(producer)
        prepared = await producer.prepare()
        assert prepared == ("tx", 7, 3)
        assert PreparedTransaction(*json.loads(json.dumps(prepared))) == prepared
        assert pickle.loads(pickle.dumps(prepared)) == prepared
        with pytest.raises(RuntimeError, match="PREPARED"):
            producer.begin()
        with pytest.raises(RuntimeError, match="PREPARED"):
            await write(producer)
        await producer.close()
        await end_prepared(cluster.client(), prepared, commit=True)

    cluster = against([initialized(epoch=3), *WRITTEN, ended()], scenario)
    (end,) = asked(cluster, ApiKey.END_TXN)
    assert (end.producer_id, end.producer_epoch, end.committed) == (7, 3, True)


@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_that_ends_its_prepared_transaction_continues_in_a_new_epoch(commit):
    """Else the prepared transaction could be mistaken for the next one."""

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer.prepare()
        await (producer.commit() if commit else producer.abort())
        producer.begin()
        await write(producer)
        await producer.commit()

    answers = [initialized(), *WRITTEN, ended(), initialized(epoch=1), *WRITTEN, ended()]
    cluster = against(answers, scenario)
    bump = asked(cluster, ApiKey.INIT_PRODUCER_ID)[1]
    assert (bump.producer_id, bump.producer_epoch) == (7, 0)
    header = parse_header(asked(cluster, ApiKey.PRODUCE)[1].topic_data[0].partition_data[0].records)
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def end(answers, *, commit=True, **options):
    async def main():
        async with ScriptedCluster(*answers) as cluster:
            await end_prepared(cluster.client(**options), PREPARED, commit=commit)
            assert not cluster.answers
            return cluster

    return asyncio.run(main())


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_prepared_transaction_waits_until_the_coordinator_answers(commit):
    cluster = end([*(ended(code) for code in sorted(RETRIED)), (ApiKey.END_TXN, HANG_UP), ended()], commit=commit)
    assert {request.committed for request in cluster.requests} == {commit}


def require(answers):
    async def main():
        async with ScriptedCluster(*answers) as cluster:
            await require_prepared(cluster.client(), PREPARED, ("t", 2))
            return cluster

    return asyncio.run(main())


def test_a_partition_of_a_prepared_transaction_is_added_again_to_see_whether_it_is_open():
    cluster = require([*(added(code) for code in sorted(RETRIED)), added(ErrorCode.NONE)])
    request = cluster.requests[-1]
    assert (request.v3_and_below_transactional_id, request.v3_and_below_producer_id) == ("tx", 7)
    assert request.v3_and_below_producer_epoch == 3
    assert [(topic.name, topic.partitions) for topic in request.v3_and_below_topics] == [("t", [2])]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
)
def test_a_prepared_transaction_that_is_not_open_is_named(code):
    with pytest.raises(TransactionGone, match=r"tx \(producer id 7, epoch 3\) is no longer open") as gone:
        require([added(code)])
    assert gone.value.code is code


def test_a_prepared_transaction_of_which_the_coordinator_says_something_else():
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED") as refused:
        require([added(ErrorCode.TOPIC_AUTHORIZATION_FAILED)])
    assert not isinstance(refused.value, TransactionGone)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
    ],
)
def test_a_prepared_transaction_that_is_gone_is_named(code, commit):
    with pytest.raises(TransactionGone, match=r"the transaction of tx \(producer id 7, epoch 3\)") as gone:
        end([ended(code)], commit=commit)
    assert gone.value.code is code


def test_a_prepared_transaction_that_may_not_be_ended_or_is_not_answered_in_time_is_not_gone():
    with pytest.raises(KafkaError, match="needs Write on the transactional id") as refused:
        end([ended(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)])
    assert not isinstance(refused.value, TransactionGone)
    with pytest.raises(KafkaError, match="CONCURRENT_TRANSACTIONS") as late:
        end([ended(ErrorCode.CONCURRENT_TRANSACTIONS)], deadline_ms=0)
    assert not isinstance(late.value, TransactionGone)
    with pytest.raises(ClientError):
        end([(ApiKey.END_TXN, HANG_UP)], deadline_ms=0)


# -- errors -----------------------------------------------------------------------------------------------------------

FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
FORGOTTEN = {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
EVERY_ERROR = set(ErrorCode) - {ErrorCode.NONE}
# What klamm's client repeats, for any request (Kafka's RetriableException); and, here, the coordinator's.
TRANSIENT = RETRIED | {
    ErrorCode[name]
    for name in [
        "CORRUPT_MESSAGE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "REQUEST_TIMED_OUT",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_CONTROLLER",
        "KAFKA_STORAGE_ERROR",
        "LISTENER_NOT_FOUND",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "UNSTABLE_OFFSET_COMMIT",
        "THROTTLING_QUOTA_EXCEEDED",
    ]
}


def in_order(codes):
    return sorted(codes, key=int)


async def expect(kind, call):
    with pytest.raises(kind) as raised:
        await call
    return raised.value


@pytest.mark.parametrize("api", ["init", "partitions", "offsets", "group", "end"])
def test_what_passes_is_repeated(api):
    async def scenario(producer, cluster):
        await one_record(producer)
        await producer.send_offsets({ZERO: 5}, MEMBER)
        await producer.commit()

    repeated = {
        "init": initialized,
        "partitions": added,
        "offsets": offsets_added,
        "group": offsets_committed,
        "end": ended,
    }[api]
    answers = [initialized(), *WRITTEN, offsets_added(), offsets_committed(0), ended()]
    if api != "init":
        answers.append(initialized(epoch=1))
    key = repeated(ErrorCode.NONE)[0]
    against([(key, HANG_UP), *(repeated(code) for code in in_order(RETRIED)), *answers], scenario)


def test_a_commit_whose_answer_was_lost_cannot_come_late_and_end_the_next_transaction():
    """It may wait in the broker's buffers of the former connection, when the next one is half written."""

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer.commit()
        producer.begin()
        await write(producer)
        await producer.commit()

    cluster = against(
        [initialized(), *WRITTEN, (ApiKey.END_TXN, HANG_UP), ended(), initialized(epoch=1), *WRITTEN, ended()], scenario
    )
    assert [each.producer_epoch for each in asked(cluster, ApiKey.END_TXN)] == [0, 0, 1]


def test_each_error_of_the_registration_ends_the_producer():
    for code in in_order(EVERY_ERROR - TRANSIENT - {ErrorCode.TRANSACTION_ABORTABLE}):

        async def scenario(producer, cluster, code=code):
            error = await expect(ProducerEnded, producer.init())
            assert isinstance(error, ProducerFenced) == (code in FENCED), code
            assert (error.code, producer.state) == (code, State.FATAL_ERROR)
            assert await expect(ProducerEnded, producer.abort()) is error

        against([initialized(code)], scenario)


def test_each_error_of_a_new_partition_ends_the_transaction_or_the_producer():
    fatal = FENCED | {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE}
    for code in in_order(EVERY_ERROR - TRANSIENT):

        async def scenario(producer, cluster, code=code):
            await one_record(producer)
            error = await expect(ProducerEnded if code in fatal else TransactionAborted, producer.commit())
            assert (error.code, isinstance(error, ProducerFenced)) == (code, code in FENCED)
            if code in fatal:
                await expect(ProducerEnded, producer.abort())
            else:
                await producer.abort()
                producer.begin()
                await write(producer)
                await producer.commit()

        after = [] if code in fatal else [ended(), initialized(epoch=1), *WRITTEN, ended()]
        against([initialized(), added(code), *after], scenario)


def test_one_refused_partition_fails_the_transaction_and_is_named():
    async def scenario(producer, cluster):
        await producer.init()
        producer.begin()
        told = []
        for number in (0, 1):
            record = ProducerRecord("t", b"v", partition=number)
            await producer.send(record, lambda metadata, error: told.append(error))
        error = await expect(TransactionAborted, producer.commit())
        assert (error.code, "t-1" in str(error)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True)
        assert [each.code for each in told] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
        await producer.abort()

    codes = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    against([initialized(), added(*codes), ended(ErrorCode.INVALID_TXN_STATE), initialized(epoch=1)], scenario)


def test_each_error_of_a_group_ends_the_transaction_or_the_producer():
    abortable = FORGOTTEN | {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE}
    for code in in_order(EVERY_ERROR - TRANSIENT):

        async def scenario(producer, cluster, code=code):
            await producer.init()
            producer.begin()
            kind = TransactionAborted if code in abortable else ProducerEnded
            error = await expect(kind, producer.send_offsets({ZERO: 5}, MEMBER))
            assert (error.code, isinstance(error, ProducerFenced)) == (code, code in FENCED)
            if code in abortable:
                await producer.abort()

        after = [ended(ErrorCode.INVALID_TXN_STATE)] if code in abortable else []
        after += [initialized(epoch=1)] if code in FORGOTTEN else []
        against([initialized(), offsets_added(code), *after], scenario)


def test_each_error_of_a_committed_offset_ends_the_transaction_or_the_producer():
    abortable = {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
    for code in in_order(EVERY_ERROR - TRANSIENT):

        async def scenario(producer, cluster, code=code):
            await producer.init()
            producer.begin()
            kind = TransactionAborted if code in abortable else ProducerEnded
            error = await expect(kind, producer.send_offsets({ZERO: 5, ONE: 6}, MEMBER))
            assert (error.code, isinstance(error, ProducerFenced)) == (code, code in FENCED)
            if code in abortable:
                await expect(TransactionAborted, producer.commit())
                await producer.abort()

        after = [ended()] if code in abortable else []
        against([initialized(), offsets_added(), offsets_committed(0, code), *after], scenario)


def test_each_error_of_a_commit_ends_the_transaction_or_the_producer():
    abortable = FORGOTTEN | {ErrorCode.TRANSACTION_ABORTABLE}
    for code in in_order(EVERY_ERROR - TRANSIENT):

        async def scenario(producer, cluster, code=code):
            await one_record(producer)
            error = await expect(TransactionAborted if code in abortable else ProducerEnded, producer.commit())
            assert (error.code, isinstance(error, ProducerFenced)) == (code, code in FENCED)
            if code in abortable:
                await producer.abort()
                assert producer.state is State.READY

        after = {True: [ended(code if code in FORGOTTEN else ErrorCode.NONE)], False: []}[code in abortable]
        after += [initialized(epoch=1)] if code in FORGOTTEN else []
        against([initialized(), *WRITTEN, ended(code), *after], scenario)


def test_each_error_of_a_leader_ends_the_transaction_or_the_producer():
    """A leader's INVALID_PRODUCER_EPOCH ends the transaction only: the abort shows whether the producer is fenced."""
    fatal = {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
    for code in in_order(EVERY_ERROR - (TRANSIENT - {ErrorCode.CONCURRENT_TRANSACTIONS})):

        async def scenario(producer, cluster, code=code):
            told = []
            await producer.init()
            producer.begin()
            await producer.send(ProducerRecord("t", b"v", partition=0), lambda metadata, error: told.append(error))
            error = await expect(ProducerEnded if code in fatal else TransactionAborted, producer.commit())
            assert (error.code, [each.code for each in told]) == (code, [code])
            if code in fatal:
                assert isinstance(error, ProducerFenced) == (code is ErrorCode.PRODUCER_FENCED)
                return
            assert await expect(TransactionAborted, write(producer)) is error
            await producer.abort()

        after = [] if code in fatal else [ended(), initialized(epoch=1)]
        against([initialized(), added(0), produced(code), *after], scenario)


def test_a_producer_that_is_fenced_learns_it_from_its_abort():
    async def scenario(producer, cluster):
        await one_record(producer)
        await expect(TransactionAborted, producer.commit())
        await expect(ProducerFenced, producer.abort())

    codes = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
    against([initialized(), added(0), produced(codes[0]), ended(codes[1])], scenario)


def test_after_a_failed_transaction_the_next_one_begins_in_a_new_epoch_at_sequence_zero():
    async def scenario(producer, cluster):
        await one_record(producer)
        await expect(TransactionAborted, producer.commit())
        await producer.abort()
        producer.begin()
        await write(producer)
        await producer.commit()

    answers = [initialized(), added(0), produced(ErrorCode.INVALID_RECORD), ended(), initialized(epoch=1)]
    cluster = against([*answers, *WRITTEN, ended()], scenario)
    header = parse_header(asked(cluster, ApiKey.PRODUCE)[1].topic_data[0].partition_data[0].records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 0)


def test_an_abort_waits_for_what_a_leader_may_still_append():
    """The leader has hung up on the batch: it is sent again before the transaction ends."""
    has_the_batch = asyncio.Event()

    def hang_up(request):
        has_the_batch.set()
        return HANG_UP

    async def scenario(producer, cluster):
        await one_record(producer)
        await has_the_batch.wait()
        await producer.abort()

    cluster = against([initialized(), added(0), (ApiKey.PRODUCE, hang_up), produced(), ended()], scenario)
    assert apis(cluster)[-3:] == [ApiKey.PRODUCE, ApiKey.PRODUCE, ApiKey.END_TXN]


@pytest.mark.parametrize(
    ("answers", "epochs"),
    [
        ([initialized(ErrorCode.CONCURRENT_TRANSACTIONS), initialized(epoch=1)], [0, 0]),
        # Kafka's coordinator has aborted the transaction in the epoch 1, and forgotten for whom.
        (
            [
                initialized(ErrorCode.CONCURRENT_TRANSACTIONS),
                initialized(ErrorCode.PRODUCER_FENCED),
                initialized(epoch=2),
            ],
            [0, 0, 1],
        ),
    ],
)
def test_an_abort_behind_a_batch_that_may_come_late_ends_the_transaction_in_the_next_epoch(answers, epochs):
    async def scenario(producer, cluster):
        await one_record(producer)
        error = await expect(TransactionAborted, producer.commit())
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        await producer.abort()
        producer.begin()
        await write(producer, 1)
        await producer.commit()

    unanswered = ApiKey.PRODUCE, lambda request: None
    answers = [initialized(), added(0), unanswered, *answers, *WRITTEN, ended()]
    cluster = against(answers, scenario, coordinators=(1,), delivery_timeout_ms=1_000)
    assert [each.producer_epoch for each in asked(cluster, ApiKey.INIT_PRODUCER_ID)[1:]] == epochs
    assert [each.committed for each in asked(cluster, ApiKey.END_TXN)] == [True]
    header = parse_header(asked(cluster, ApiKey.PRODUCE)[1].topic_data[0].partition_data[0].records)
    assert (header.producer_epoch, header.base_sequence) == (len(epochs) - 1, 0)


def test_a_producer_that_another_one_has_fenced_does_not_fence_it_by_its_abort():
    async def scenario(producer, cluster):
        await one_record(producer)
        await expect(TransactionAborted, producer.commit())
        await expect(ProducerFenced, producer.abort())

    unanswered = ApiKey.PRODUCE, lambda request: None
    fenced = [initialized(ErrorCode.PRODUCER_FENCED), initialized(ErrorCode.PRODUCER_FENCED)]
    against([initialized(), added(0), unanswered, *fenced], scenario, coordinators=(1,), delivery_timeout_ms=1_000)


def test_a_transaction_that_the_coordinator_may_not_know_is_aborted_in_its_own_epoch():
    """If it was never open, a newer producer may have the next epoch."""

    async def scenario(producer, cluster):
        await cancelled_offsets(producer)
        await expect(ProducerFenced, producer.abort())

    answers = [initialized(), (ApiKey.ADD_OFFSETS_TO_TXN, None), ended(ErrorCode.PRODUCER_FENCED)]
    cluster = against(answers, scenario, coordinators=(1,))
    assert [each.producer_epoch for each in asked(cluster, ApiKey.END_TXN)] == [0]


def test_what_may_come_late_of_an_unknown_transaction_does_not_affect_the_next_one():
    async def scenario(producer, cluster):
        await cancelled_offsets(producer)
        await producer.abort()
        producer.begin()

    answers = [initialized(), (ApiKey.ADD_OFFSETS_TO_TXN, None), ended(ErrorCode.INVALID_TXN_STATE)]
    cluster = against([*answers, initialized(epoch=1)], scenario, coordinators=(1,))
    assert [each.producer_epoch for each in asked(cluster, ApiKey.INIT_PRODUCER_ID)[1:]] == [0]


def test_after_a_cancelled_commit_the_next_transaction_begins_in_a_new_epoch():
    """The cancelled request may come late, and would end it."""

    async def scenario(producer, cluster):
        await one_record(producer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await producer.commit()
        await producer.commit()
        producer.begin()

    answers = [initialized(), *WRITTEN, (ApiKey.END_TXN, None), ended(), initialized(epoch=1)]
    against(answers, scenario, coordinators=(1,))


def test_an_abort_does_not_send_what_was_not_sent():
    async def scenario(producer, cluster):
        told = []
        await producer.init()
        producer.begin()
        for number in (0, 1, 0):
            record = ProducerRecord("t", b"v", partition=number)
            await producer.send(record, lambda metadata, error: told.append(error))
        await producer.abort()
        assert [each.code for each in told] == [ErrorCode.OPERATION_NOT_ATTEMPTED] * 3
        producer.begin()
        await write(producer)
        await producer.commit()

    against([initialized(), *WRITTEN, ended()], scenario)


def test_a_commit_without_an_answer_in_time_can_be_repeated():
    async def scenario(producer, cluster):
        await one_record(producer)
        error = await expect(KafkaError, producer.commit())
        assert (error.code, producer.state) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, State.COMMITTING)
        with pytest.raises(RuntimeError, match="abort: the producer tx is COMMITTING"):
            await producer.abort()
        await producer.commit()
        assert producer.state is State.READY

    answers = [initialized(), *WRITTEN, ended(ErrorCode.COORDINATOR_NOT_AVAILABLE), ended()]
    against(answers, scenario, deadline_ms=0)


def test_a_missing_coordinator_is_explained():
    async def scenario(producer, cluster):
        cluster.coordinator_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = await expect(KafkaError, producer.init())
        assert error.message == (
            "the coordinator of transactional id tx: __transaction_state cannot be created, or no broker leads its"
            " partition; the brokers' logs say why"
        )

    against([], scenario, deadline_ms=0)


def test_calls_in_the_wrong_order_say_what_is_allowed():
    async def scenario(producer, cluster):
        for call in (producer.commit, producer.prepare, producer.abort, lambda: write(producer)):
            with pytest.raises(RuntimeError, match="UNINITIALIZED"):
                await call()
        await producer.init()
        with pytest.raises(RuntimeError, match="init: the producer tx is READY; allowed: UNINITIALIZED"):
            await producer.init()
        with pytest.raises(RuntimeError, match="the producer tx is READY, not in a transaction"):
            await producer.send_offsets({ZERO: 5}, MEMBER)

    against([initialized()], scenario)


def test_a_producer_that_is_closed_aborts_an_open_transaction_but_no_prepared_one():
    async def open_one(producer, cluster):
        await one_record(producer)
        await producer._producer.flush()
        await producer.close()
        await producer.close()

    async def prepared_one(producer, cluster):
        await one_record(producer)
        await producer.prepare()
        await producer.close()

    assert not asked(against([initialized(), *WRITTEN, ended()], open_one), ApiKey.END_TXN)[0].committed
    assert not asked(against([initialized(), *WRITTEN], prepared_one), ApiKey.END_TXN)


def test_a_broker_that_cannot_continue_a_producer_ends_it_after_the_abort():
    async def scenario(producer, cluster):
        await one_record(producer)
        await expect(TransactionAborted, producer.commit())
        error = await expect(ProducerEnded, producer.abort())
        assert "brokers before Kafka 2.5" in str(error)

    answers = [initialized(), added(0), produced(ErrorCode.INVALID_RECORD), ended()]
    against(answers, scenario, versions={ApiKey.INIT_PRODUCER_ID: (0, 2)})


def test_a_transactional_producer_must_be_idempotent():
    for options in ({"transactional_id": ""}, {"acks": ACKS_LEADER}, {"enable_idempotence": False}):
        with pytest.raises(ValueError, match=r"transactional\.id"):
            against([], None, **options)


def test_newer_brokers_are_not_asked_to_raise_the_epoch_with_each_transaction():
    """KIP-890: from these versions on the coordinator may do so, and leaders add partitions by themselves."""

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer.send_offsets({ZERO: 5}, MEMBER)
        await producer.commit()
        sent = {each.header.api_key: each.header.api_version for broker in cluster._brokers for each in broker.asked}
        limits = {
            ApiKey.PRODUCE: 11,
            ApiKey.ADD_PARTITIONS_TO_TXN: 3,
            ApiKey.ADD_OFFSETS_TO_TXN: 3,
            ApiKey.TXN_OFFSET_COMMIT: 4,
            ApiKey.END_TXN: 4,
            ApiKey.INIT_PRODUCER_ID: 5,
        }
        assert {key: sent[key] for key in limits if sent[key] > limits[key]} == {}

    answers = [initialized(), *WRITTEN, offsets_added(), offsets_committed(0), ended()]
    newest = {ApiKey.PRODUCE: (3, 13), ApiKey.END_TXN: (0, 5), ApiKey.TXN_OFFSET_COMMIT: (0, 5)}
    newest |= {ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5), ApiKey.INIT_PRODUCER_ID: (0, 6)}
    against(answers, scenario, versions=newest)


def test_offsets_whose_commit_is_cancelled_fail_the_transaction_which_ends_in_the_next_epoch():
    """Some may be committed with it and others not; and if they come after its end, the group refuses them."""

    async def scenario(producer, cluster):
        await cancelled_offsets(producer)
        error = await expect(TransactionAborted, producer.commit())
        assert "offsets of group g may be missing" in str(error)
        await producer.abort()

    answers = [initialized(), offsets_added(), (ApiKey.TXN_OFFSET_COMMIT, None), initialized(epoch=1)]
    against(answers, scenario, coordinators=[0, 1])


def test_a_record_that_waited_for_room_until_its_transaction_had_ended_fails_alone():
    async def scenario(producer, cluster):
        told = []
        await producer.init()
        producer.begin()
        await producer._producer.send(ProducerRecord("t", b"1", partition=0))
        await producer.commit()
        await producer._producer.send(ProducerRecord("t", b"2", partition=0), lambda _, error: told.append(error))
        await producer._producer.flush()
        assert "the record came too late, the producer is READY" in str(told[0])
        producer.begin()
        await write(producer)
        await producer.commit()

    against([initialized(), *WRITTEN, ended(), *WRITTEN, ended(), initialized(epoch=1)], scenario)


def test_a_producer_that_is_fenced_after_its_commit_learns_it_when_it_begins_again():
    """The prepared transaction is committed, so its commit raises nothing."""

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer.prepare()
        await producer.commit()
        with pytest.raises(ProducerFenced):
            producer.begin()

    against([initialized(), *WRITTEN, ended(), initialized(ErrorCode.PRODUCER_FENCED)], scenario)


# -- what could not be added to a transaction -------------------------------------------------------------------------


class Misused:
    """No value of any use."""


async def cancelled(call):
    async with asyncio.timeout(0.05):
        await call


def no_answer(key):
    return key, None


# Of each way to fail: the answers, and the call with the error that it raises.
UNSENT_OFFSETS = {
    "the transaction's coordinator is late": (
        [offsets_added(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)],
        lambda producer: expect(TransactionAborted, producer.send_offsets({ZERO: 5}, MEMBER)),
    ),
    "the transaction's coordinator hangs up": (
        [(ApiKey.ADD_OFFSETS_TO_TXN, HANG_UP)],
        lambda producer: expect(TransactionAborted, producer.send_offsets({ZERO: 5}, MEMBER)),
    ),
    "cancelled before the offsets": (
        [no_answer(ApiKey.ADD_OFFSETS_TO_TXN)],
        lambda producer: expect(TimeoutError, cancelled(producer.send_offsets({ZERO: 5}, MEMBER))),
    ),
    "the group's coordinator is late": (
        [offsets_added(), offsets_committed(ErrorCode.NOT_COORDINATOR)],
        lambda producer: expect(TransactionAborted, producer.send_offsets({ZERO: 5}, MEMBER)),
    ),
    "the group's coordinator hangs up": (
        [offsets_added(), (ApiKey.TXN_OFFSET_COMMIT, HANG_UP)],
        lambda producer: expect(TransactionAborted, producer.send_offsets({ZERO: 5}, MEMBER)),
    ),
    "cancelled with the offsets": (
        # The connection is of no more use: its second answer comes before the first.
        [offsets_added(), no_answer(ApiKey.TXN_OFFSET_COMMIT), offsets_committed(0)],
        lambda producer: expect(TimeoutError, cancelled(producer.send_offsets({ZERO: 5}, MEMBER))),
    ),
    "offsets of a wrong type": (
        [offsets_added()],
        lambda producer: expect(AttributeError, producer.send_offsets({ZERO: Misused()}, MEMBER)),
    ),
    "no member": ([], lambda producer: expect(TransactionAborted, producer.send_offsets({ZERO: 5}, Membership("g")))),
    "a rebalance": (
        [],
        lambda producer: expect(TransactionAborted, producer.send_offsets({}, replace(MEMBER, interrupted_s=1.0))),
    ),
}


@pytest.mark.parametrize("way", UNSENT_OFFSETS)
def test_a_transaction_whose_offsets_were_not_sent_can_only_be_aborted(way):
    """Its records would be committed without them. The abort fences what may come late, and the next one begins."""
    answers, call = UNSENT_OFFSETS[way]

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer._producer.flush()
        await call(producer)
        assert producer.state is State.ABORTABLE_ERROR
        for refused in (producer.commit, producer.prepare, lambda: write(producer)):
            error = await expect(TransactionAborted, refused())
            assert "offsets of group g may be missing" in str(error)
        await producer.abort()
        producer.begin()
        await producer.send_offsets({ZERO: 5}, replace(MEMBER, interrupted_s=1.0))
        await producer.commit()

    end_of_both = [initialized(epoch=1), offsets_added(), offsets_committed(0), ended()]
    if "cancelled" in way:
        # An answer to the cancelled call ends its connection, and another request with it.
        end_of_both.append(initialized(epoch=2))
    deadline_ms = 60_000 if "cancelled" in way else 0
    against([initialized(), *WRITTEN, *answers, *end_of_both], scenario, deadline_ms=deadline_ms, coordinators=[0, 1])


UNSENT_RECORDS = {
    "no topic": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ProducerRecord("missing", b"v")),
    "no partition": (ErrorCode.INVALID_PARTITIONS, ProducerRecord("t", b"v", partition=9)),
    "too large": (ErrorCode.MESSAGE_TOO_LARGE, ProducerRecord("t", b"v" * 2_000)),
    "a wrong type": (None, ProducerRecord("t", Misused())),  # type: ignore[arg-type]  # the misuse
    "cancelled": (None, ProducerRecord("t", b"v" * 500)),
}


@pytest.mark.parametrize("way", UNSENT_RECORDS)
def test_a_transaction_of_which_a_record_was_not_sent_can_only_be_aborted(way):
    code, record = UNSENT_RECORDS[way]

    async def scenario(producer, cluster):
        await producer.init()
        producer.begin()
        if way == "cancelled":
            await producer.send(ProducerRecord("t", b"v" * 500, partition=0))
            await expect(TimeoutError, cancelled(producer.send(record)))  # There is no room for both.
        else:
            error = await expect(TransactionAborted if code else TypeError, producer.send(record))
            assert code is None or error.code is code
        for refused in (producer.commit, producer.prepare, lambda: producer.send_offsets({ZERO: 5}, MEMBER)):
            assert "a record was not sent" in str(await expect(TransactionAborted, refused()))
        await producer.abort()
        producer.begin()
        await producer.commit()

    answers = [added(0), no_answer(ApiKey.PRODUCE), initialized(epoch=1)] if way == "cancelled" else []
    limits = {"max_request_size_bytes": 1_000, "buffer_memory_bytes": 700, "delivery_timeout_ms": 300}
    against([initialized(), *answers], scenario, deadline_ms=0, coordinators=(1,), **limits)


def test_a_commit_waits_for_offsets_that_are_being_sent():
    """Another task sends them."""

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer._producer.flush()
        sending = asyncio.create_task(producer.send_offsets({ZERO: 5}, MEMBER))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="prepare: send_offsets has not returned"):
            await producer.prepare()
        await producer.commit()
        await sending

    cluster = against([initialized(), *WRITTEN, offsets_added(), offsets_committed(0), ended()], scenario)
    assert apis(cluster)[-2:] == [ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN]


def test_offsets_that_are_cancelled_while_others_are_sent_fail_the_transaction():
    """Nothing of theirs was sent: the records would be committed without them."""

    async def scenario(producer, cluster):
        await one_record(producer)
        await producer._producer.flush()
        sending = asyncio.create_task(producer.send_offsets({ZERO: 5}, MEMBER))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(producer.send_offsets({ZERO: 5}, replace(MEMBER, group_id="h")))
        await asyncio.sleep(0)
        waiting.cancel()
        await expect(asyncio.CancelledError, waiting)
        await sending
        error = await expect(TransactionAborted, producer.commit())
        assert "offsets of group h may be missing" in str(error)
        await producer.abort()

    answers = [initialized(), *WRITTEN, offsets_added(), offsets_committed(0), initialized(epoch=1)]
    against(answers, scenario)


def test_an_abort_waits_for_offsets_that_are_being_sent():
    async def scenario(producer, cluster):
        await one_record(producer)
        await producer._producer.flush()
        sending = asyncio.create_task(producer.send_offsets({ZERO: 5}, MEMBER))
        await asyncio.sleep(0)
        await producer.abort()
        await sending

    cluster = against([initialized(), *WRITTEN, offsets_added(), offsets_committed(0), ended()], scenario)
    assert apis(cluster)[-2:] == [ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN]


def test_only_records_of_the_open_transaction_count_as_interrupted():
    """A consumer's partitions were taken away, and it reads them again. Earlier transactions are not concerned."""

    async def scenario(producer, cluster):
        loop = asyncio.get_running_loop()
        read_s = loop.time()
        await producer.init()
        producer.begin()
        await asyncio.sleep(0.01)
        await producer.send_offsets({ZERO: 5}, MEMBER)
        await producer.send_offsets({ZERO: 6}, replace(MEMBER, generation_id=6, interrupted_s=read_s))
        await producer.commit()
        producer.begin()
        await producer.send_offsets({ZERO: 7}, replace(MEMBER, generation_id=6, interrupted_s=read_s))
        await asyncio.sleep(0.01)
        interrupted = replace(MEMBER, generation_id=7, interrupted_s=loop.time())
        await expect(TransactionAborted, producer.send_offsets({ZERO: 8}, interrupted))
        await producer.abort()
        producer.begin()
        await producer.send_offsets({ZERO: 8}, interrupted)
        other = replace(interrupted, group_id="other", interrupted_s=loop.time() + 0.01)
        await asyncio.sleep(0.02)
        await producer.send_offsets({ZERO: 9}, interrupted)
        await expect(TransactionAborted, producer.send_offsets({ZERO: 1}, other))

    sent = [offsets_added(), offsets_committed(0)]
    answers = [initialized(), *sent, *sent, ended(), *sent, initialized(epoch=1), *sent, *sent]
    against(answers, scenario)
