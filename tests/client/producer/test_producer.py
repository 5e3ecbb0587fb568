"""The producer of single records, in a simulated cluster under faults and against a leader that answers as a test says.

Every record ends with its offset or its error, and what is in the log is what was acknowledged, once and in its order.
"""

import asyncio
import gc
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as java_murmur2

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.partitioner import StickyPartitions, murmur2, partition_of_key
from klamm.client.producer.producer import Producer, ProducerRecord, _ProducerBatch
from klamm.client.retries import RetryPolicy
from klamm.net.client import ConnectionOptions
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import parse_header
from klamm.protocol.vocabulary import ACKS_LEADER, ACKS_NONE
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import RandomFaults
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.workload import Consumer, create_topic
from support.partition_leader import Leader
from support.scripted_broker import ScriptedBroker

TOPIC = "events"
PARTITIONS = 3
# The administrator elects unclean leaders of this topic only.
UNCLEAN = "unclean"
CLIENT = ClientOptions((("unused", 1),))


def options(**changes):
    return ProducerOptions(CLIENT, **{"compression": CompressionType.NONE, "delivery_timeout_ms": 600_000} | changes)


class Ledger:
    """The outcome of each record, by its value."""

    def __init__(self):
        self.offsets, self.errors, self.sent = {}, {}, []

    async def send(self, producer, value, **fields):
        def completed(metadata, error):
            assert (metadata is None) != (error is None)
            assert value not in self.offsets and value not in self.errors, "told twice"
            if error is None:
                self.offsets[value] = (metadata.partition, metadata.offset)
            else:
                self.errors[value] = error

        await producer.send(ProducerRecord(TOPIC, value, **fields), completed)
        self.sent.append(value)


# -- in a cluster ----------------------------------------------------------------------------------------------------


async def produce_under_faults(world: World, *, rounds: int = 60, steps: int = 8) -> None:
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    node = world.node("client")
    for topic in (TOPIC, UNCLEAN):
        await node.run(create_topic(client, topic, partitions=PARTITIONS, replication_factor=3))
    ledger = Ledger()

    async def produce() -> None:
        limits = {"batch_size_bytes": 600, "buffer_memory_bytes": 10_000}
        producer = Producer(client, options(linger_ms=world.random.choice((0, 20)), **limits), node.environment)
        for number in range(rounds):
            for other in range(world.random.randrange(12)):
                key = world.random.choice((None, b"k%d" % other))
                await ledger.send(producer, b"%d/%d" % (number, other), key=key)
            await asyncio.sleep(world.random.choice((0.0, 0.0, 1.0, 2.0)))
        await producer.flush()

    producing = node.run(produce())
    administrator = Administrator(cluster, UNCLEAN, min_insync_replicas=2)
    await RandomFaults(cluster, administrator, None, logs_flush=False).run(steps)
    await cluster.heal()
    await producing
    await administrator.finish()
    assert not ledger.errors
    written = defaultdict(list)
    for value in ledger.sent:
        partition, offset = ledger.offsets[value]
        written[partition].append((offset, value))
    for partition, records in written.items():
        consumer = Consumer(cluster.client, (TOPIC, partition))
        consumer.stop_at = len(records)
        await node.run(consumer.run())
        assert [(offset, value) for offset, value, _leader_epoch in consumer.records] == records
    await node.run(administrator.close())
    await cluster.close()


@pytest.mark.parametrize("seed", range(4))
def test_each_record_is_written_once_in_its_order_under_faults(seed):
    world = World(seed)
    world.run(produce_under_faults(world), time_limit_s=3_600)


# -- against answers -------------------------------------------------------------------------------------------------


def against(leader, scenario, *, request_timeout_ms=30_000, **changes):
    """Runs `scenario(producer, ledger)` against the leader; returns the ledger."""

    async def main():
        async with ScriptedBroker(leader.answer) as broker:
            leader.node_address = ("127.0.0.1", broker.port)
            connection = ConnectionOptions(request_timeout_ms=request_timeout_ms)
            client = ClusterClient([leader.node_address], connection, RetryPolicy(500, 1, 5))
            ledger = Ledger()
            try:
                async with asyncio.timeout(120):
                    await scenario(Producer(client, options(**changes), SystemEnvironment()), ledger)
            finally:
                await client.close()
            return ledger

    return asyncio.run(main())


def values(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


async def one_by_one(producer, ledger, count=20):
    """Each record in a batch of its own, many of which are on their way at a time."""
    await ledger.send(producer, b"first")
    await producer.flush()
    for value in values(count):
        await ledger.send(producer, value)
    await producer.flush()


ONE_A_BATCH = {"batch_size_bytes": 1}


def test_records_are_collected_in_batches_and_each_is_told_its_offset():
    leader = Leader()

    async def scenario(producer, ledger):
        for value in values(1000):
            await ledger.send(producer, value)
        await producer.flush()

    ledger = against(leader, scenario, batch_size_bytes=10_000)
    assert leader.values == values(1000)
    assert ledger.offsets == {value: (0, offset) for offset, value in enumerate(values(1000))}
    assert leader.answered < 5


def test_a_batch_waits_for_more_records_as_long_as_it_should():
    leader = Leader()

    async def scenario(producer, ledger):
        for value in values(5):
            await ledger.send(producer, value)
            await asyncio.sleep(0.001)
        await leader.asked(1)

    against(leader, scenario, linger_ms=200)
    assert (leader.answered, leader.values) == (1, values(5))


def test_a_flush_and_a_full_memory_wait_for_no_more_records():
    leader = Leader()

    async def scenario(producer, ledger):
        for value in values(30):
            await ledger.send(producer, value)
        await producer.flush()

    against(leader, scenario, linger_ms=600_000, buffer_memory_bytes=1_000)
    assert leader.values == values(30)
    assert leader.answered > 3


@pytest.mark.parametrize("error", [ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_refused_record_takes_no_other_with_it(error):
    """Behind it records are on their way whose sequence numbers then do not follow."""
    leader = Leader()
    leader.refuses = lambda values: error if b"3" in values or b"7" in values else ErrorCode.NONE
    ledger = against(leader, one_by_one, **ONE_A_BATCH)
    assert leader.values == [b"first", *(value for value in values(20) if value not in (b"3", b"7"))]
    assert {value: refused.code for value, refused in ledger.errors.items()} == {b"3": error, b"7": error}
    assert list(ledger.offsets) == leader.values
    assert leader.producer_ids == 1, "the sequence numbers of a batch that never was appended are free"


def test_what_may_be_in_the_log_is_never_written_again():
    """The leader appends three batches without an answer, and then refuses the first when it is sent again."""
    leader = Leader()

    async def scenario(producer, ledger):
        await ledger.send(producer, b"first")
        await producer.flush()
        leader.swallows_an_answer = True
        leader.refuses = lambda batch: (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED if batch == [b"0"] and b"0" in leader.values else ErrorCode.NONE
        )
        for value in values(3):
            await ledger.send(producer, value)
        await producer.flush()
        await ledger.send(producer, b"after")
        await producer.flush()

    ledger = against(leader, scenario, **ONE_A_BATCH)
    assert leader.values == [b"first", *values(3), b"after"]
    assert list(ledger.offsets) == [b"first", b"after"]
    assert list(ledger.errors) == values(3)
    assert "perhaps in the log" in str(ledger.errors[b"2"])
    assert leader.producer_ids == 2


def test_a_record_that_is_not_acknowledged_in_time_is_an_error_and_later_ones_go_on():
    leader = Leader()

    async def scenario(producer, ledger):
        await ledger.send(producer, b"before")
        await producer.flush()
        leader.errors = [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND] * 10_000
        for value in values(3):
            await ledger.send(producer, value)
        await producer.flush()
        leader.errors = []
        await ledger.send(producer, b"after")
        await producer.flush()

    ledger = against(leader, scenario, delivery_timeout_ms=300, **ONE_A_BATCH)
    assert leader.values == [b"before", b"after"]
    assert {error.code for error in ledger.errors.values()} == {ErrorCode.REQUEST_TIMED_OUT}
    assert list(ledger.errors) == values(3)
    assert list(ledger.offsets) == [b"before", b"after"]
    assert leader.producer_ids == 2, "a sequence number that may be in the log is given to no other record"


def test_a_batch_that_failed_before_it_was_sent_takes_no_more_records():
    leader = Leader()
    leader.has_producer_ids = False

    async def scenario(producer, ledger):
        await ledger.send(producer, b"early")
        await producer.flush()
        leader.has_producer_ids = True
        await ledger.send(producer, b"late")
        async with asyncio.timeout(120):
            await producer.flush()

    ledger = against(leader, scenario, delivery_timeout_ms=300)
    assert (list(ledger.errors), list(ledger.offsets), leader.values) == ([b"early"], [b"late"], [b"late"])


def test_a_producer_keeps_nothing_of_what_is_acknowledged():
    leader = Leader()
    kept = []

    async def scenario(producer, ledger):
        await ledger.send(producer, bytes(300_000))
        await producer.flush()
        gc.collect()
        kept.extend(each for each in gc.get_objects() if isinstance(each, _ProducerBatch) and each.data is not None)

    against(leader, scenario)
    assert not kept


def test_a_leader_that_has_lost_the_producer_gets_the_records_under_a_new_id():
    leader = Leader()

    async def scenario(producer, ledger):
        for value in values(3):
            await ledger.send(producer, value)
        await producer.flush()
        del leader.values[1:]
        leader.expected[7] = 1
        await one_by_one(producer, ledger, 0)
        await ledger.send(producer, b"last")
        await producer.flush()

    ledger = against(leader, scenario)
    assert leader.values == [b"0", b"first", b"last"]
    assert not ledger.errors
    assert leader.producer_ids == 2


@pytest.mark.parametrize("skipped", range(0, 12, 3))
@pytest.mark.parametrize("appended", [False, True])
def test_an_answer_that_never_comes(skipped, appended):
    leader = Leader()

    async def scenario(producer, ledger):
        sending = asyncio.create_task(one_by_one(producer, ledger))
        await leader.asked(1 + skipped)
        if appended:
            leader.swallows_an_answer = True
        else:
            leader.errors = [None]
        await sending

    ledger = against(leader, scenario, request_timeout_ms=200, **ONE_A_BATCH)
    assert leader.values == [b"first", *values(20)] == list(ledger.offsets)


@pytest.mark.parametrize("codec", CompressionType)
def test_a_batch_that_is_too_large_is_divided_and_each_record_is_told_its_own_offset(codec):
    leader = Leader()
    leader.max_batch_bytes = 500
    large = random.Random(5).randbytes(1_000)

    async def scenario(producer, ledger):
        for value in [*values(500), large, *values(500, 500)]:
            await ledger.send(producer, value)
        await producer.flush()

    ledger = against(leader, scenario, compression=codec)
    assert leader.values == values(1000)
    assert ledger.offsets == {value: (0, offset) for offset, value in enumerate(values(1000))}
    assert [error.code for error in ledger.errors.values()] == [ErrorCode.MESSAGE_TOO_LARGE]
    assert list(ledger.errors) == [large]


@pytest.mark.parametrize(("acks", "offsets"), [(ACKS_LEADER, range(20)), (ACKS_NONE, [-1] * 20)])
def test_fewer_acknowledgements(acks, offsets):
    leader = Leader()

    async def scenario(producer, ledger):
        for value in values(20):
            await ledger.send(producer, value)
        await producer.flush()
        # A program may end now, also one that waits for no acknowledgement.
        assert len(leader.requests) == 20

    ledger = against(leader, scenario, acks=acks, **ONE_A_BATCH)
    assert leader.values == values(20)
    assert [offset for _, offset in ledger.offsets.values()] == list(offsets)
    assert {request.acks for request in leader.requests} == {acks}
    assert leader.producer_ids == 0


def test_without_idempotence_no_batch_overtakes_another():
    leader = Leader(*[ErrorCode.NONE] * 3, ErrorCode.NOT_ENOUGH_REPLICAS)
    against(leader, one_by_one, enable_idempotence=False, **ONE_A_BATCH)
    assert leader.values == [b"first", *values(20)]
    headers = [parse_header(request.topic_data[0].partition_data[0].records or b"") for request in leader.requests]
    assert {(header.producer_id, header.base_sequence) for header in headers} == {(-1, -1)}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"partition": 1}, "INVALID_PARTITIONS .* events has no partition 1, it has 1 partitions"),
        ({"value": bytes(2_000)}, "MESSAGE_TOO_LARGE .* a record needs 2097 bytes, max.request.size allows 2000"),
    ],
)
def test_a_record_that_cannot_be_written_is_an_error_at_once(fields, error):
    leader = Leader()

    async def scenario(producer, ledger):
        with pytest.raises(KafkaError, match=error):
            await ledger.send(producer, **{"value": b""} | fields)
        await ledger.send(producer, b"fine")
        await producer.flush()

    against(leader, scenario, max_request_size_bytes=2_000)
    assert leader.values == [b"fine"]


def test_a_wrong_type_is_an_error_and_leaves_nothing_behind():
    leader = Leader()

    async def scenario(producer, ledger):
        with pytest.raises(TypeError):
            await ledger.send(producer, "text")
        await producer.flush()
        await ledger.send(producer, b"fine")
        await producer.flush()

    against(leader, scenario)
    assert leader.values == [b"fine"]


def test_closing_fails_what_is_not_acknowledged():
    leader = Leader(*[None] * 100)

    async def scenario(producer, ledger):
        await ledger.send(producer, b"1")
        await leader.asked(1)
        await producer.close()
        with pytest.raises(KafkaError, match="the producer is closed"):
            await ledger.send(producer, b"2")

    ledger = against(leader, scenario)
    assert "the producer is closed" in str(ledger.errors[b"1"])


# -- partitions ------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=20))
def test_keys_have_the_hash_that_they_have_in_kafka(key):
    assert murmur2(key) == java_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_own_tests(key, value):
    assert murmur2(key) == value & 0xFFFFFFFF
    assert partition_of_key(key, 10) == (value & 0x7FFFFFFF) % 10


def test_records_without_keys_stay_with_a_partition_until_it_changes():
    sticky = StickyPartitions(random.Random(1))
    available = [0, 2, 3]
    first = sticky.partition("t", available)
    assert {sticky.partition("t", available) for _ in range(10)} == {first}
    chosen = Counter()
    for _ in range(300):
        before = sticky.partition("t", available)
        after = sticky.next_partition("t", available)
        assert after != before
        assert sticky.partition("t", available) == after
        chosen[after] += 1
    assert set(chosen) == {0, 2, 3}
    assert min(chosen.values()) > 50
    assert StickyPartitions(random.Random(1)).next_partition("t", [4]) == 4
