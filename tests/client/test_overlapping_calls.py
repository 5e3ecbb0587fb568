"""Calls of one producer that overlap, or are cancelled: a transaction has the records that were sent in it alone."""

import asyncio
import itertools
import random
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.batches import TransactionFailed
from klamm.client.producer.producer import Producer, ProducerRecord
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnResponse, AddPartitionsToTxnTopicResult
from klamm.protocol.apis.end_txn import EndTxnResponse
from klamm.protocol.apis.init_producer_id import InitProducerIdResponse
from klamm.protocol.apis.produce import ProduceResponse
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import parse_header
from klamm.protocol.record.records import decode_records
from support.scripted_cluster import ScriptedCluster

TOPICS = ["other", *(f"topic-{number}" for number in range(60))]


class Coordinator:
    """A transaction coordinator, which is a leader too, and answers the requests of `held` APIs at `release`. `ended`
    has of each transaction whether it was committed, and the values that were written in it."""

    def __init__(self):
        self.held = set()
        self.waiting = []
        self.ended = []
        self.values = []
        self.epoch = -1
        self.came = asyncio.Event()
        # Broker 0 is asked for metadata, which must not hold up the rest.
        self.cluster = ScriptedCluster(topics={"t": [1, 1]} | {topic: [1] for topic in TOPICS}, coordinators=(1,))
        self.scripts = [broker.script for broker in self.cluster._brokers]
        for number, broker in enumerate(self.cluster._brokers):
            broker.script = partial(self.answer, number)

    def answer(self, number, asked):
        asked.connection.number = number
        if asked.header.api_key in self.held:
            self.waiting.append(asked)
            self.came.set()
            return None
        return self.answer_now(asked)

    def release(self, count=None):
        """Answers so many requests that wait, or all, and then the next ones at once."""
        if count is None:
            self.held = set()
        released, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for asked in released:
            asked.answer(self.answer_now(asked))

    async def has(self, count):
        while len(self.waiting) < count:
            self.came.clear()
            await self.came.wait()

    def answer_now(self, asked):
        body = asked.body
        match asked.header.api_key:
            case ApiKey.INIT_PRODUCER_ID:
                self.epoch += 1
                return InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=self.epoch)
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                result = AddPartitionsToTxnTopicResult
                return AddPartitionsToTxnResponse(
                    results_by_topic_v3_and_below=[
                        result(
                            name=topic.name,
                            results_by_partition=[
                                result.AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=0)
                                for each in topic.partitions
                            ],
                        )
                        for topic in body.v3_and_below_topics
                    ]
                )
            case ApiKey.END_TXN:
                self.ended.append((body.committed, self.values))
                self.values = []
                return EndTxnResponse(error_code=0)
            case ApiKey.PRODUCE:
                (topic,) = body.topic_data
                (partition,) = topic.partition_data
                data = bytes(partition.records)
                self.values += [record.value for record in decode_records(data, 0, parse_header(data))]
                produced = ProduceResponse.TopicProduceResponse
                row = produced.PartitionProduceResponse(index=partition.index, error_code=0, base_offset=10)
                return ProduceResponse(responses=[produced(name=topic.name, partition_responses=[row])])
        return self.scripts[asked.connection.number](asked)


def play(scenario, **options):
    async def main():
        coordinator = Coordinator()
        async with coordinator.cluster as cluster, asyncio.timeout(120):
            given: dict[str, Any] = {"transactional_id": "tx", "buffer_memory_bytes": 700} | options
            changed = ProducerOptions(ClientOptions(()), CompressionType.NONE, **given)
            producer: Producer | TransactionalProducer
            if given["transactional_id"]:
                transactional = TransactionalProducer(cluster.client(), changed, SystemEnvironment())
                producer = transactional
                await transactional.init()
                transactional.begin()
            else:
                producer = Producer(cluster.client(), changed, SystemEnvironment())
            try:
                await scenario(producer, coordinator)
            finally:
                await producer.close()

    asyncio.run(main())


def record(value, partition=0, topic="t"):
    return ProducerRecord(topic, value, partition=partition)


async def beginning(call):
    """The call, as a task that waits for a broker or for its turn."""
    task = asyncio.create_task(call)
    for _ in range(10):
        await asyncio.sleep(0)
    return task


def test_a_commit_waits_for_records_that_are_being_sent():
    """The topic of one is still looked up. No more are taken meanwhile."""

    async def scenario(producer, coordinator):
        await producer.send(record(b"1"))
        await producer._producer.flush()
        coordinator.held = {ApiKey.METADATA}
        sending = await beginning(producer.send(record(b"2", topic="other")))
        await coordinator.has(1)
        committing = await beginning(producer.commit())
        for call in (producer.send(record(b"3")), producer.send_offsets({}, "g")):
            with pytest.raises(RuntimeError, match="the transaction of tx is being ended"):
                await call
        coordinator.release()
        assert await asyncio.gather(sending, committing) == [None, None]
        assert coordinator.ended == [(True, [b"1", b"2"])]

    play(scenario)


@pytest.mark.parametrize("begins_again", [True, False])
def test_a_record_of_a_transaction_that_was_aborted_is_in_no_other(begins_again):
    async def scenario(producer, coordinator):
        await producer.send(record(b"1"))
        await producer._producer.flush()
        coordinator.held = {ApiKey.METADATA}
        sending = await beginning(producer.send(record(b"2", topic="other")))
        await coordinator.has(1)
        coordinator.held = set()
        await producer.abort()
        if begins_again:
            producer.begin()
            await producer.send(record(b"3"))
        coordinator.release()
        with pytest.raises(TransactionFailed, match="the record was not sent: its transaction has ended meanwhile"):
            await sending
        if not begins_again:
            producer.begin()
            await producer.send(record(b"3"))
        await producer.commit()
        assert coordinator.ended == [(False, [b"1"]), (True, [b"3"])]

    play(scenario)


def test_two_calls_never_end_a_transaction_together():
    """The answer to the second would count for the next transaction, whose end nobody would ask for then."""

    async def scenario(producer, coordinator):
        await producer.send(record(b"1"))
        coordinator.held = {ApiKey.END_TXN}
        first = await beginning(producer.commit())
        await coordinator.has(1)
        for call in (producer.commit, producer.prepare, producer.abort):
            with pytest.raises(RuntimeError, match="another call of commit, prepare or abort has not returned"):
                await call()
        coordinator.release()
        await first
        producer.begin()
        await producer.send(record(b"2"))
        await producer.commit()
        assert coordinator.ended == [(True, [b"1"]), (True, [b"2"])]

    play(scenario)


def test_a_producer_that_is_closed_while_it_commits_does_not_take_the_commit_for_failed():
    async def scenario(producer, coordinator):
        await producer.send(record(b"1"))
        coordinator.held = {ApiKey.END_TXN}
        committing = await beginning(producer.commit())
        await coordinator.has(1)
        await producer.close()
        coordinator.release()
        await committing
        assert coordinator.ended == [(True, [b"1"])]

    play(scenario)


def test_a_producer_that_is_closed_ends_an_abort_that_was_cancelled():
    async def scenario(producer, coordinator):
        await producer.send(record(b"1"))
        await producer._producer.flush()
        coordinator.held = {ApiKey.END_TXN}
        aborting = await beginning(producer.abort())
        await coordinator.has(1)
        aborting.cancel()
        await asyncio.wait([aborting])
        coordinator.release()
        await producer.close()
        assert coordinator.ended == [(False, [b"1"]), (False, [])]

    play(scenario)


def test_a_flush_does_not_wait_for_records_that_come_after_it():
    async def scenario(producer, coordinator):
        coordinator.held = {ApiKey.PRODUCE}
        await producer.send(record(b"1"))
        flushing = await beginning(producer.flush())
        await coordinator.has(1)
        await producer.send(record(b"2", partition=1))
        await coordinator.has(2)
        coordinator.release(1)
        await flushing
        assert coordinator.values == [b"1"]

    play(scenario, transactional_id=None)


def test_a_callback_that_raises_harms_no_other_record(caplog):
    def fails(*_):
        raise ValueError("the application's fault")

    async def scenario(producer, coordinator):
        told = []
        for callback in (fails, lambda *it: told.append(it)):
            await producer.send(record(b"1"), callback)
        await producer.flush()
        coordinator.held = {ApiKey.PRODUCE}
        for callback in (fails, lambda *it: told.append(it)):
            await producer.send(record(b"2"), callback)
        await producer.close()
        assert [error is None for _, error in told] == [True, False]

    play(scenario, transactional_id=None)
    assert caplog.text.count("Error executing user-provided callback on message for t-0") == 2


def test_a_large_record_is_not_overtaken_while_it_waits_for_room():
    """A constant stream of small ones would leave none for it."""

    async def scenario(producer, coordinator):
        coordinator.held = {ApiKey.PRODUCE}
        await producer.send(record(b"0"))
        sending = [await beginning(producer.send(record(value))) for value in (b"b" * 600, b"1")]
        await coordinator.has(1)
        coordinator.release()
        await asyncio.gather(*sending)
        await producer.flush()
        assert coordinator.values == [b"0", b"b" * 600, b"1"]

    play(scenario, transactional_id=None)


# -- any calls in any order ------------------------------------------------------------------------------------------


class Overlapping:
    """Tasks that send while another one ends transactions and begins the next, now and then with no patience. The
    brokers answer when it pleases them, one of them late, and on each connection in order."""

    def __init__(self, seed, producer, coordinator):
        self.random, self.producer, self.coordinator = random.Random(seed), producer, coordinator
        self.sent = defaultdict(set)
        self.told = []
        self.number = self.late = 0
        self.is_over = False

    async def turns(self, most):
        for _ in range(self.random.randrange(most)):
            await asyncio.sleep(0)

    async def answer(self):
        while True:
            await self.turns(8)
            oldest = {asked.connection.number: asked for asked in reversed(self.coordinator.waiting)}
            if self.random.random() < 0.95:
                oldest.pop(self.late, None)
            if oldest:
                asked = self.random.choice(list(oldest.values()))
                self.coordinator.waiting.remove(asked)
                asked.answer(self.coordinator.answer_now(asked))
            await asyncio.sleep(0)

    async def send(self, name):
        for value in (b"%s/%d" % (name, count) for count in itertools.count()):
            if self.is_over:
                return
            await self.turns(40)
            number, topic = self.number, self.random.choice(TOPICS)
            with suppress(TransactionFailed, RuntimeError):
                await self.producer.send(record(value, topic=topic), lambda _, __, value=value: self.told.append(value))
                self.sent[number].add(value)

    async def patiently(self, call):
        """Calls again what was cancelled."""
        while True:
            calling = asyncio.create_task(call())
            if self.random.random() < 0.4:
                await self.turns(60)
                calling.cancel()
            await asyncio.wait([calling])
            if not calling.cancelled():
                return calling.result()

    async def end(self, count):
        """Returns the values of each committed transaction."""
        committed = []
        for self.number in range(count):
            self.producer.begin()
            self.late = self.random.randrange(2)
            await self.turns(150)
            try:
                if self.random.random() < 0.3:
                    await self.patiently(self.producer.abort)
                else:
                    await self.patiently(self.producer.commit)
                    committed.append(self.number)
            except TransactionFailed:
                await self.patiently(self.producer.abort)
        self.is_over = True
        return [self.sent[number] for number in committed]


@pytest.mark.parametrize("seed", range(8))
def test_overlapping_calls_leave_each_record_in_its_transaction(seed):
    """What `send` has taken in a transaction that is committed is committed with it, and nothing else is."""

    async def scenario(producer, coordinator):
        await producer.commit()
        coordinator.held = set(ApiKey) - {ApiKey.API_VERSIONS}
        calls = Overlapping(seed, producer, coordinator)
        answering = asyncio.create_task(calls.answer())
        senders = [asyncio.create_task(calls.send(name)) for name in (b"a", b"b", b"c")]
        committed = await calls.end(8)
        await asyncio.gather(*senders)
        answering.cancel()
        coordinator.release()
        assert [set(values) for is_committed, values in coordinator.ended if is_committed and values] == [
            values for values in committed if values
        ]
        assert len(calls.told) == len(set(calls.told))
        assert set.union(*calls.sent.values()) <= set(calls.told)

    play(scenario, buffer_memory_bytes=500)
