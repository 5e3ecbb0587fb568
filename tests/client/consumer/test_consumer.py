"""The consumer in a simulated cluster under faults, and against a leader with a log that a test makes.

Every record is handed out once and in its order, and missing records are never skipped in silence.
"""

import asyncio
import logging
from collections import defaultdict
from functools import partial
from uuid import uuid4

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.consumer import Consumer, NoOffset
from klamm.client.consumer.offsets import OffsetAndMetadata
from klamm.client.options import ConsumerOptions, OffsetReset, ProducerOptions
from klamm.client.producer.producer import Producer, ProducerRecord, RecordMetadata
from klamm.client.retries import RetryPolicy
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.fetch import AbortedTransaction, FetchResponse
from klamm.protocol.apis.list_offsets import ListOffsetsResponse
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import parse_header
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
)
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import RandomFaults
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.workload import create_topic
from support.scripted_broker import ScriptedBroker

TOPIC = "events"
PARTITIONS = 3
# The administrator elects unclean leaders of this topic only.
UNCLEAN = "unclean"
T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
EARLIEST, LATEST, NONE = OffsetReset.EARLIEST, OffsetReset.LATEST, OffsetReset.NONE


# -- in a cluster ----------------------------------------------------------------------------------------------------


async def consume_under_faults(world: World, *, rounds: int = 60, steps: int = 8) -> None:
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    node = world.node("client")
    for topic in (TOPIC, UNCLEAN):
        await node.run(create_topic(client, topic, partitions=PARTITIONS, replication_factor=3))
    written: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    read: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    is_over = asyncio.Event()

    async def produce() -> None:
        options = ProducerOptions(
            client_options(), CompressionType.GZIP, batch_size_bytes=500, delivery_timeout_ms=600_000
        )
        producer = Producer(client, options, node.environment)

        def note(value: bytes, done: RecordMetadata | None, _: object) -> None:
            assert done is not None
            written[done.partition].append((done.offset, value))

        for number in range(rounds):
            for other in range(world.random.randrange(12)):
                value = b"%d/%d" % (number, other)
                await producer.send(ProducerRecord(TOPIC, value), partial(note, value))
            await asyncio.sleep(world.random.choice((0.0, 0.0, 1.0, 2.0)))
        await producer.flush()
        is_over.set()

    async def consume() -> None:
        options = ConsumerOptions(
            READ_COMMITTED, NONE, fetch_max_bytes=2_000, max_partition_fetch_bytes=700, max_poll_records=7
        )
        consumer = Consumer(client, options)
        consumer.assign({TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)})
        while not is_over.is_set() or sum(map(len, read.values())) < sum(map(len, written.values())):
            for record in await consumer.poll(500):
                assert record.value is not None
                read[record.partition].append((record.offset, record.value))
                position = consumer.position(TopicPartition(TOPIC, record.partition))
                assert position is not None and position > record.offset
        await consumer.close()

    working = [node.run(produce()), node.run(consume())]
    administrator = Administrator(cluster, UNCLEAN, min_insync_replicas=2)
    await RandomFaults(cluster, administrator, None, logs_flush=False).run(steps)
    await cluster.heal()
    await asyncio.gather(*working)
    await administrator.finish()
    assert read == written
    await node.run(administrator.close())
    await cluster.close()


def client_options():
    from klamm.client.options import ClientOptions

    return ClientOptions((("unused", 1),))


@pytest.mark.parametrize("seed", range(4))
def test_each_record_is_read_once_in_its_order_under_faults(seed):
    world = World(seed)
    world.run(consume_under_faults(world), time_limit_s=3_600)


# -- against a log ---------------------------------------------------------------------------------------------------


class Log:
    """A broker that leads two partitions. Each has batches of records, and a response has as many as were asked for."""

    address: tuple[str, int]

    def __init__(self):
        self.batches = {0: [], 1: []}
        self.start = {0: 0, 1: 0}
        self.epoch = 0
        self.epoch_ends = {}
        self.aborted = []
        # Error codes of the next fetches of partition 0.
        self.errors = []
        self.fetches = []
        self.exists = True
        self.topic_id = None

    def end(self, partition=0):
        batches = self.batches[partition]
        return parse_header(batches[-1]).next_offset if batches else 0

    def add(self, *values, partition=0, **fields):
        self.batches[partition].append(
            bytes(
                build_batch(
                    [Record(None, value, 1000, *fields.pop("headers", [])) for value in values],
                    base_offset=self.end(partition),
                    partition_leader_epoch=self.epoch,
                    **fields,
                )
            )
        )
        return self

    def add_marker(self, kind, producer_id):
        marker = EndTransactionMarker(kind, 0)
        fields = {"producer_id": producer_id, "producer_epoch": 0, "timestamp_ms": 1}
        self.batches[0].append(
            bytes(
                build_end_transaction_marker(
                    marker, base_offset=self.end(), partition_leader_epoch=self.epoch, **fields
                )
            )
        )
        return self

    def answer(self, header, body):
        if header.api_key is ApiKey.METADATA:
            return self._metadata(body)
        if header.api_key is ApiKey.LIST_OFFSETS:
            return ListOffsetsResponse(topics=[self._offsets(topic) for topic in body.topics])
        if header.api_key is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return OffsetForLeaderEpochResponse(topics=[self._epoch_ends(topic) for topic in body.topics])
        assert header.api_key is ApiKey.FETCH
        self.fetches.append(body)
        left = [body.max_bytes]
        topic = FetchResponse.FetchableTopicResponse
        return FetchResponse(
            responses=[
                topic(topic=each.topic, partitions=[self._records(body, wanted, left) for wanted in each.partitions])
                for each in body.topics
            ]
        )

    def _records(self, body, wanted, left):
        answer = FetchResponse.FetchableTopicResponse.PartitionData
        number, offset = wanted.partition, wanted.fetch_offset
        code = self.errors.pop(0) if self.errors and number == 0 else ErrorCode.NONE
        if code is ErrorCode.NONE and wanted.current_leader_epoch != self.epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        if code is ErrorCode.NONE and not self.start[number] <= offset <= self.end(number):
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        records = b""
        for batch in self.batches[number] if code is ErrorCode.NONE else ():
            if parse_header(batch).next_offset <= offset:
                continue
            if left[0] != body.max_bytes and len(batch) > left[0]:
                break
            if records and len(records) + len(batch) > wanted.partition_max_bytes:
                break
            records += batch
            left[0] -= len(batch)
        return answer(
            partition_index=number,
            error_code=code,
            high_watermark=self.end(number),
            last_stable_offset=self.end(number),
            aborted_transactions=self.aborted if body.isolation_level == READ_COMMITTED else None,
            records=records,
        )

    def _offsets(self, topic):
        answer = ListOffsetsResponse.ListOffsetsTopicResponse
        return answer(
            name=topic.name,
            partitions=[
                answer.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index,
                    error_code=0,
                    offset=self.start[each.partition_index]
                    if each.timestamp == EARLIEST_TIMESTAMP
                    else self.end(each.partition_index),
                )
                for each in topic.partitions
            ],
        )

    def _epoch_ends(self, topic):
        answer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        return answer(
            topic=topic.topic,
            partitions=[
                answer.EpochEndOffset(
                    error_code=0,
                    partition=each.partition,
                    leader_epoch=each.leader_epoch,
                    end_offset=self.epoch_ends.get(each.leader_epoch, self.end(each.partition)),
                )
                for each in topic.partitions
            ],
        )

    def _metadata(self, body):
        response = messages.response_class(ApiKey.METADATA)
        topic = response.MetadataResponseTopic
        error = ErrorCode.NONE if self.exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partitions = [
            topic.MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=0,
                leader_epoch=self.epoch,
                replica_nodes=[0],
                isr_nodes=[0],
            )
            for index in self.batches
        ]
        return response(
            cluster_id="c",
            controller_id=0,
            brokers=[response.MetadataResponseBroker(node_id=0, host=self.address[0], port=self.address[1])],
            topics=[
                topic(
                    error_code=error,
                    name=each.name,
                    topic_id=self.topic_id,
                    is_internal=False,
                    partitions=partitions if self.exists else [],
                )
                for each in body.topics
            ],
        )


def against(log, scenario, **options):
    """Runs `scenario(consumer)` against the log."""

    async def main():
        async with ScriptedBroker(lambda asked: log.answer(asked.header, asked.body)) as broker, asyncio.timeout(120):
            log.address = ("127.0.0.1", broker.port)
            client = ClusterClient([log.address], retry=RetryPolicy(500, 1, 5))
            consumer = Consumer(client, ConsumerOptions(**{"fetch_max_wait_ms": 1} | options))
            try:
                return await scenario(consumer)
            finally:
                await consumer.close()
                await client.close()

    return asyncio.run(main())


async def read(consumer, count, **arguments):
    """The values of the next `count` records."""
    values = []
    while len(values) < count:
        values += [record.value for record in await consumer.poll(5_000, **arguments)]
    assert len(values) == count
    return values


async def until(holds):
    while not holds():  # noqa: ASYNC110  # there is no event for what it waits for
        await asyncio.sleep(0)


def numbers(*range_):
    return [b"%d" % number for number in range(*range_)]


def test_records_are_handed_out_as_they_were_written():
    log = Log().add(b"a", b"b").add(b"c", codec=CompressionType.ZSTD, headers=[(("h", b"1"), ("g", None))])

    async def scenario(consumer):
        consumer.assign({T0: 1})
        return await consumer.poll(5_000) + await consumer.poll(100), consumer.position(T0)

    records, position = against(log, scenario)
    assert [(*record[:5], record.value, record.headers, record.leader_epoch) for record in records] == [
        (TOPIC, 0, 1, 1000, False, b"b", (), 0),
        (TOPIC, 0, 2, 1000, False, b"c", (("h", b"1"), ("g", None)), 0),
    ]
    assert position == 3


@pytest.mark.parametrize(("reset", "expected"), [(EARLIEST, numbers(3, 8)), (LATEST, numbers(6, 8))])
def test_without_a_position_reading_begins_at_an_end_of_the_log(reset, expected):
    log = Log().add(*numbers(3)).add(*numbers(3, 6))
    log.batches[0].pop(0)
    log.start[0] = 3

    async def scenario(consumer):
        consumer.assign({T0: None})
        values = []
        while consumer.position(T0) is None:
            values += [record.value for record in await consumer.poll(1)]
        log.add(*numbers(6, 8))
        return values + await read(consumer, len(expected) - len(values))

    assert against(log, scenario, auto_offset_reset=reset, max_poll_records=1) == expected


@pytest.mark.parametrize("position", [None, 1, 9])
def test_a_missing_offset_without_a_reset_is_an_error_that_names_the_log(position):
    log = Log().add(*numbers(3)).add(*numbers(3, 6))
    log.batches[0].pop(0)
    log.start[0] = 3

    async def scenario(consumer):
        consumer.assign({T0: position})
        for _ in range(2):
            with pytest.raises(NoOffset) as error:
                await consumer.poll(5_000)
        consumer.seek(T0, 4)
        assert await read(consumer, 2) == numbers(4, 6)
        return str(error.value)

    expected = "events-0 has no offset to begin at" if position is None else (
        f"events-0 does not have offset {position}, its log has 3 to 6"
    )  # fmt: skip
    assert expected in against(log, scenario, auto_offset_reset=NONE)


def test_removed_records_are_told_and_passed_over_with_a_reset(caplog):
    log = Log().add(*numbers(3)).add(*numbers(3, 6))

    async def scenario(consumer):
        consumer.assign({T0: 0})
        first = await read(consumer, 2, max_records=2)
        log.batches[0].pop(0)
        log.start[0] = 3
        consumer.seek(T0, 2)
        return first + await read(consumer, 3)

    with caplog.at_level(logging.WARNING):
        assert against(log, scenario, auto_offset_reset=EARLIEST) == numbers(2) + numbers(3, 6)
    assert (
        "events-0: the log no longer has offset 2; reading continues at 3 (auto.offset.reset=earliest)" in caplog.text
    )


def test_no_more_records_than_wanted_are_handed_out_and_the_position_is_behind_them():
    log = Log().add(*numbers(10)).add(*numbers(10, 14))

    async def scenario(consumer):
        consumer.assign({T0: 0})
        seen = []
        for _ in range(5):
            records = await consumer.poll(5_000, max_records=3)
            seen.append((len(records), consumer.position(T0)))
        return seen

    assert against(log, scenario) == [(3, 3), (3, 6), (3, 9), (3, 12), (2, 14)]


def test_aborted_transactions_and_control_records_are_passed_over():
    log = Log().add(b"before")
    log.add(b"aborted", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.add(b"committed", producer_id=6, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.add(b"between").add_marker(ControlRecordType.ABORT, 5).add_marker(ControlRecordType.COMMIT, 6)
    log.add(b"later", producer_id=5, producer_epoch=0, base_sequence=1, is_transactional=True)
    log.add_marker(ControlRecordType.COMMIT, 5)
    log.aborted = [AbortedTransaction(producer_id=5, first_offset=1)]

    async def scenario(consumer):
        consumer.assign({T0: 0})
        values = []
        while consumer.position(T0) != log.end():
            values += [record.value for record in await consumer.poll(100)]
        return values

    everything = [b"before", b"aborted", b"committed", b"between", b"later"]
    assert against(log, scenario, isolation_level=READ_UNCOMMITTED) == everything
    everything.remove(b"aborted")
    assert against(log, scenario, isolation_level=READ_COMMITTED) == everything


@pytest.mark.parametrize("limits", [{"fetch_max_bytes": 300}, {"max_partition_fetch_bytes": 100}])
def test_memory_is_bounded_and_partitions_take_turns(limits):
    log = Log()
    for number in numbers(20):
        log.add(number).add(number, partition=1)
    size = len(log.batches[0][0])

    async def scenario(consumer):
        consumer.assign({T0: 0, T1: 0})
        await consumer.poll(5_000, max_records=1)
        await asyncio.sleep(0.1)
        held = consumer._held_bytes
        fetched = sum(fetch.max_bytes for fetch in log.fetches)
        values = [record[:3] for record in await consumer.poll(100)]
        while len(values) < 39:
            values += [record[:3] for record in await consumer.poll(5_000)]
        return held, fetched, values

    held, _, values = against(log, scenario, **limits)
    assert held <= 4 * size + limits.get("fetch_max_bytes", 0)
    assert sorted(values) == [(TOPIC, partition, n) for partition in (0, 1) for n in range(20)][1:]
    assert {partition for _, partition, _ in values[:8]} == {0, 1}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
def test_a_passing_error_is_passed(error):
    log = Log().add(*numbers(5))
    log.errors = [error, error]

    async def scenario(consumer):
        consumer.assign({T0: 0})
        return await read(consumer, 5)

    assert against(log, scenario) == numbers(5)


@pytest.mark.parametrize("error", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE])
def test_an_error_for_good_names_the_partition_and_comes_after_the_records(error):
    log = Log().add(*numbers(5)).add(*numbers(5), partition=1)
    log.errors = [error] * 100

    async def scenario(consumer):
        consumer.assign({T0: 0, T1: 0})
        assert await read(consumer, 5) == numbers(5)
        with pytest.raises(KafkaError) as refused:
            await consumer.poll(5_000)
        return str(refused.value)

    assert against(log, scenario).startswith(f"{error.name} ({error:d}): events-0: ")


def test_corrupt_records_are_an_error_and_those_before_them_are_not():
    log = Log().add(*numbers(3)).add(*numbers(3, 6)).add(*numbers(6, 9))
    log.batches[0][1] = log.batches[0][1][:-1] + b"x"

    async def scenario(consumer):
        consumer.assign({T0: 0})
        assert await read(consumer, 3) == numbers(3)
        with pytest.raises(KafkaError, match=r"CORRUPT_MESSAGE .* events-0 from offset 3 on: .* checksum"):
            await consumer.poll(5_000)
        consumer.seek(T0, 6)
        return await read(consumer, 3)

    assert against(log, scenario) == numbers(6, 9)


@pytest.mark.parametrize("reset", [EARLIEST, NONE])
def test_what_a_new_leader_does_not_have_is_told(reset, caplog):
    """The log was truncated to offset 3 and other records took the place of those that were read."""
    log = Log().add(*numbers(3)).add(*numbers(3, 6))

    async def scenario(consumer):
        consumer.assign({T0: 0})
        await read(consumer, 5, max_records=5)
        log.batches[0].pop()
        log.epoch, log.epoch_ends = 1, {0: 3}
        log.add(b"new 3", b"new 4", b"new 5", b"new 6")
        if reset is NONE:
            with pytest.raises(NoOffset, match="events-0 was truncated: the records from offset 3 to"):
                await read(consumer, 2)
            return None
        values = []
        while b"new 6" not in values:
            values += [record.value for record in await consumer.poll(5_000)]
        return values

    with caplog.at_level(logging.WARNING):
        values = against(log, scenario, auto_offset_reset=reset)
    if reset is EARLIEST:
        assert values[-4:] == [b"new 3", b"new 4", b"new 5", b"new 6"]
        assert "events-0 was truncated: the records from offset 3 to" in caplog.text


@pytest.mark.parametrize("how", ["by the leader epoch", "by the topic id"])
@pytest.mark.parametrize("reset", [EARLIEST, NONE])
def test_the_log_of_a_new_topic_of_the_same_name_is_not_taken_for_the_old_one(reset, how, caplog):
    """It has more records than were read of the old one, so the position is in its range."""
    log = Log().add(*numbers(5))
    log.topic_id = uuid4()
    log.epoch = epoch = 7 if how == "by the leader epoch" else 0
    log.batches[0].clear()
    log.add(*numbers(5))

    async def scenario(consumer):
        consumer.assign({T0: 0})
        await read(consumer, 5)
        log.batches[0].clear()
        if how == "by the leader epoch":
            log.epoch, log.epoch_ends, log.topic_id = 0, {epoch: -1}, None
        else:
            log.errors, log.topic_id = [ErrorCode.NOT_LEADER_OR_FOLLOWER], uuid4()
        log.add(*numbers(10, 19))
        if reset is NONE:
            with pytest.raises(NoOffset, match=reason):
                await read(consumer, 9)
        else:
            assert await read(consumer, 9) == numbers(10, 19)

    reason = "the records of leader epoch 7" if how == "by the leader epoch" else "deleted and created again"
    with caplog.at_level(logging.WARNING):
        against(log, scenario, auto_offset_reset=reset)
    assert reset is NONE or reason in caplog.text


def test_a_committed_offset_with_its_leader_epoch_is_checked_before_the_log_is_read(caplog):
    """Another member has read 6 records, and then the log was truncated to 3."""
    log = Log().add(*numbers(3))
    log.epoch, log.epoch_ends = 1, {0: 3}
    log.add(*numbers(10, 19))

    async def scenario(consumer):
        consumer.assign({T0: OffsetAndMetadata(6, leader_epoch=0), T1: OffsetAndMetadata(0)})
        assert await read(consumer, 9) == numbers(10, 19)
        assert consumer.offsets() == {T0: OffsetAndMetadata(12, leader_epoch=1), T1: OffsetAndMetadata(0)}

    with caplog.at_level(logging.WARNING):
        against(log, scenario)
    assert "events-0 was truncated: the records from offset 3 to 5" in caplog.text


def test_an_answer_that_comes_when_another_broker_has_answered_is_dropped():
    """The leader of a partition has changed while a fetch was on its way."""

    class Leader(Log):
        leader, brokers = 1, ()

        def _metadata(self, body):
            response = super()._metadata(body)
            broker = messages.response_class(ApiKey.METADATA).MetadataResponseBroker
            response.brokers = [
                broker(node_id=number, host="127.0.0.1", port=each.port) for number, each in enumerate(self.brokers)
            ]
            for partition in response.topics[0].partitions:
                partition.leader_id = self.leader
            return response

    log = Leader().add(*numbers(5))

    async def main():
        held = asyncio.Queue()

        def hold(asked):
            held.put_nowait(asked)

        def answer(asked):
            return log.answer(asked.header, asked.body)

        async with (
            ScriptedBroker(answer) as informant,
            ScriptedBroker(hold) as former,
            ScriptedBroker(answer) as leader,
            asyncio.timeout(120),
        ):
            log.brokers, log.address = (informant, former, leader), ("127.0.0.1", informant.port)
            client = ClusterClient([log.address], retry=RetryPolicy(500, 1, 5))
            consumer = Consumer(client, ConsumerOptions(fetch_max_wait_ms=1))
            consumer.assign({T0: 0})
            asked = await held.get()
            log.leader = 2
            consumer.add({T1: 0})  # Now it looks at the metadata again.
            assert await read(consumer, 5) == numbers(5)
            asked.answer(answer(asked))
            await until(lambda: 1 not in consumer._fetches)
            log.add(*numbers(5, 8))
            assert await read(consumer, 3) == numbers(5, 8)
            await consumer.close()
            await client.close()

    asyncio.run(main())


def test_paused_partitions_leave_room_for_others():
    log = Log()
    for number in range(3):
        log.add(b"%d" % number * 300).add(b"other", partition=1)

    async def scenario(consumer):
        consumer.assign({T0: 0})
        await read(consumer, 1, max_records=1)
        await until(lambda: consumer._held_bytes >= 500)
        consumer.pause([T0])
        consumer.add({T1: 0})
        assert await read(consumer, 3) == [b"other"] * 3
        consumer.resume([T0])
        assert [value[:1] for value in await read(consumer, 2)] == [b"1", b"2"]

    against(log, scenario, fetch_max_bytes=500)


async def closed_while_it_polls(consumer):
    polling = asyncio.create_task(consumer.poll(10_000))
    await until(lambda: consumer._fetches)
    await consumer.close()
    for poll in (polling, consumer.poll(10_000)):
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            await poll


def test_a_poll_of_a_closed_consumer_is_an_error():
    """A program that polls on would wait for records for ever, and a poll that waits for its timeout."""

    async def scenario(consumer):
        consumer.assign({T0: 0})
        await closed_while_it_polls(consumer)

    against(Log(), scenario, fetch_max_wait_ms=10_000)


def test_a_new_leader_with_the_same_log_changes_nothing():
    log = Log().add(*numbers(3))

    async def scenario(consumer):
        consumer.assign({T0: 0})
        first = await read(consumer, 3)
        log.epoch, log.epoch_ends = 1, {0: 3}
        log.add(*numbers(3, 6))
        return first + await read(consumer, 3)

    assert against(log, scenario, auto_offset_reset=NONE) == numbers(6)


def test_a_topic_that_is_gone_is_an_error(monkeypatch):
    monkeypatch.setattr("klamm.client.consumer.consumer.MISSING_TIMEOUT_S", 0.2)
    log = Log().add(*numbers(3))

    async def scenario(consumer):
        consumer.assign({T0: 0})
        await read(consumer, 3)
        log.exists = False
        log.errors = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        with pytest.raises(KafkaError, match=r"UNKNOWN_TOPIC_OR_PARTITION \(3\): partition events-0 does not exist"):
            await consumer.poll(5_000)

    against(log, scenario)


def test_seek_pause_and_resume():
    log = Log().add(*numbers(6)).add(*numbers(10, 12), partition=1)

    async def scenario(consumer):
        consumer.assign({T0: 0, T1: 2})
        seen = [await read(consumer, 2, max_records=2)]
        consumer.pause([T0])
        seen.append([record.value for record in await consumer.poll(50)])
        consumer.seek(T1, 0)
        seen.append(await read(consumer, 2))
        consumer.resume([T0])
        seen.append(await read(consumer, 4))
        consumer.seek(T0, LATEST)
        consumer.seek(T1, EARLIEST)
        seen.append(await read(consumer, 2))
        consumer.assign({T0: 5})
        seen.append(await read(consumer, 1))
        return seen, consumer.positions()

    assert against(log, scenario) == (
        [numbers(2), [], numbers(10, 12), numbers(2, 6), numbers(10, 12), numbers(5, 6)],
        {T0: 6},
    )
