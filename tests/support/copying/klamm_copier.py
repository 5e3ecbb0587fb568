"""Copies records in transactions with klamm's own client, under the contract of Kafka's TransactionalMessageCopier.

Its options, the lines of JSON that it prints, and when it ends are those of Kafka's tool. Every second transaction, by
chance, is committed in two phases: it is prepared, and another client ends it. In group mode it works for a moment on
the records of each transaction, and its session is short.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.consumer import Consumer, ConsumerRecord
from klamm.client.consumer.group_consumer import GroupConsumer
from klamm.client.consumer.offsets import ListedOffset, list_consumer_group_offsets, list_offsets
from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.producer.prepared_transactions import end_prepared
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import ProducerEnded, ProducerFenced, State, TransactionAborted
from klamm.client.properties import parse_addresses
from klamm.net.client import ClientError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, READ_COMMITTED, TopicPartition

POLL_MS = 200
STEPS_OF_WORK, STEP_S = 20, 0.01
# The exit code after the refusal of a new epoch.
FENCED = 3


class Copier:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.processed = 0
        self.remaining = 0
        self.stops = False
        self._transactions = 0
        self._addresses = parse_addresses("--broker-list", options.broker_list)
        self._client = ClusterClient(self._addresses)
        self._producer = TransactionalProducer(
            self._client,
            ProducerOptions(
                ClientOptions(self._addresses),
                CompressionType.NONE,
                # Small batches, so that a transaction has several requests in flight.
                batch_size_bytes=512,
                transactional_id=options.transactional_id,
                transaction_timeout_ms=options.transaction_timeout,
            ),
            SystemEnvironment(),
        )
        self._input = TopicPartition(options.input_topic, options.input_partition)
        self._has_counted = False
        consumer_options = ConsumerOptions(READ_COMMITTED, OffsetReset.EARLIEST)
        self._consumer: Consumer | GroupConsumer
        if options.group_mode:
            group = GroupOptions(
                options.consumer_group,
                session_timeout_ms=2_000,
                heartbeat_interval_ms=400,
                max_poll_interval_ms=20_000,
            )
            self._consumer = GroupConsumer(
                self._client, group, [options.input_topic], consumer_options, on_assigned=self._count
            )
        else:
            self._consumer = Consumer(self._client, consumer_options)

    async def run(self) -> None:
        """Returns when everything is copied, or SIGTERM has come."""
        # First, so that what an earlier process has left open is aborted, and its offsets are not committed later.
        await self._producer.init()
        if isinstance(self._consumer, Consumer):
            await self._count([self._input])
            self._consumer.assign(await self._starts([self._input]))
        while (self.remaining > 0 or not self._has_counted) and not self.stops:
            self.tell("progress", "ProcessLoop")
            records = await self._consumer.poll(POLL_MS, self.options.transaction_size)
            if records:
                await self._copy(records)
        await self._producer.close()
        await self._consumer.close()

    async def _count(self, partitions: list[TopicPartition]) -> None:
        """How many records of these partitions are still to be copied."""
        ends = await list_offsets(self._client, dict.fromkeys(partitions, LATEST_TIMESTAMP))
        self.remaining = 0
        for partition, start in (await self._starts(partitions)).items():
            end = ends[partition]
            assert isinstance(end, ListedOffset), end
            self.remaining += end.offset - start
        self._has_counted = True

    async def _copy(self, records: list[ConsumerRecord]) -> None:
        """One transaction."""
        self._transactions += 1
        unwritten, written = len(records), asyncio.Event()

        def told(*_: object) -> None:
            nonlocal unwritten
            unwritten -= 1
            if unwritten == 0:
                written.set()

        try:
            self._producer.begin()
            for record in records:
                await self._producer.send(
                    ProducerRecord(self.options.output_topic, record.value, record.key, partition=record.partition),
                    told,
                )
            if isinstance(self._consumer, GroupConsumer):
                await self._work()
                await self._producer.send_offsets(self._consumer.positions(), self._consumer.membership)
            else:
                await self._producer.send_offsets({self._input: records[-1].offset + 1}, self.options.consumer_group)
            if self.options.enable_random_aborts and (self._transactions == 2 or random.randrange(3) == 0):
                await written.wait()  # An abort does not send what was not sent.
                await self._abort()
                return
            await self._commit()
        except TransactionAborted as error:
            print(f"aborts the transaction: {error}", file=sys.stderr, flush=True)
            await self._abort()
            return
        self.processed += len(records)
        self.remaining -= len(records)

    async def _work(self) -> None:
        """On the records of a transaction, before their offsets are committed."""
        steps = random.randrange(STEPS_OF_WORK)
        if self._transactions == self.options.stand_still_in:
            print("stands still", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            steps = STEPS_OF_WORK
        for _ in range(steps):
            await asyncio.sleep(STEP_S)

    async def _commit(self) -> None:
        if random.randrange(2):
            await self._producer.commit()
            return
        prepared = await self._producer.prepare()
        assert prepared is not None
        stored = json.dumps(prepared)
        other = ClusterClient(self._addresses)
        await end_prepared(other, PreparedTransaction(*json.loads(stored)), commit=True)
        await end_prepared(other, prepared, commit=True)
        await other.close()
        await self._producer.commit()

    async def _abort(self) -> None:
        await self._producer.abort()
        assert self._producer.state is State.READY
        if isinstance(self._consumer, GroupConsumer):
            self._consumer.seek_to_committed()
        else:
            self._consumer.assign(await self._starts([self._input]))

    async def _starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """What the group has committed, or 0."""
        group = self.options.consumer_group
        found = (await list_consumer_group_offsets(self._client, [group]))[group]
        if isinstance(found, KafkaError):
            raise found
        return {each: found[each].offset if each in found else 0 for each in partitions}

    def tell(self, what: str, stage: str) -> None:
        line = {
            what: self.options.transactional_id,
            "stage": stage,
            "totalProcessed": self.processed,
            "consumed": self.processed,
            "remaining": self.remaining,
            "time": time.strftime("%Y/%m/%d %H:%M:%S:000"),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--input-partition", required=True, type=int)
    parser.add_argument("--output-topic", required=True)
    parser.add_argument("--broker-list", required=True)
    parser.add_argument("--consumer-group", required=True)
    parser.add_argument("--transaction-size", type=int, default=200)
    parser.add_argument("--transaction-timeout", type=int, default=60_000)
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--enable-random-aborts", action="store_true")
    parser.add_argument("--group-mode", action="store_true")
    parser.add_argument("--use-group-metadata", action="store_true")
    # The number of the transaction in which the process stops itself (SIGSTOP), in group mode.
    parser.add_argument("--stand-still-in", type=int)
    return parser.parse_args(arguments)


async def main() -> int:
    copier = Copier(parsed(sys.argv[1:]))

    def stop() -> None:
        copier.stops = True

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        await copier.run()
    except (ProducerEnded, KafkaError, ClientError) as error:
        print(f"cannot go on: {error!r}", file=sys.stderr, flush=True)
        return FENCED if isinstance(error, ProducerFenced) and "the registration of" in str(error) else 1
    copier.tell("shutdown_complete", "")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
