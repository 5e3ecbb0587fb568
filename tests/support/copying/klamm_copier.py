"""Copies records in transactions with klamm's own client, under the contract of Kafka's TransactionalMessageCopier.

Its options, the lines of JSON that it prints, and when it ends are those of Kafka's tool without groups. Every second
transaction, by chance, is committed in two phases: it is prepared, and another client ends it.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import time

from klamm.client.cluster import ClusterClient
from klamm.client.consumer import Consumer, ConsumerRecord
from klamm.client.offsets import ListedOffset, list_consumer_group_offsets, list_offsets
from klamm.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from klamm.client.producer import ProducerRecord
from klamm.client.properties import parse_addresses
from klamm.client.transactional_producer import TransactionalProducer
from klamm.client.transactions import (
    PreparedTransaction,
    ProducerEnded,
    ProducerFenced,
    State,
    TransactionAborted,
    end_prepared,
)
from klamm.environment import SystemEnvironment
from klamm.net.client import ClientError
from klamm.protocol.compression import CompressionType
from klamm.protocol.errors import KafkaError
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, READ_COMMITTED, TopicPartition

POLL_MS = 200
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
        self._consumer = Consumer(self._client, ConsumerOptions(isolation_level=READ_COMMITTED))
        self._input = TopicPartition(options.input_topic, options.input_partition)

    async def run(self) -> None:
        """Returns when everything is copied, or SIGTERM has come."""
        # First, so that what an earlier process has left open is aborted, and its offsets are not committed later.
        await self._producer.init()
        start = await self._committed()
        found = (await list_offsets(self._client, {self._input: LATEST_TIMESTAMP}))[self._input]
        assert isinstance(found, ListedOffset), found
        self.remaining = found.offset - start
        self._consumer.assign({self._input: start})
        while self.remaining > 0 and not self.stops:
            self.tell("progress", "ProcessLoop")
            records = await self._consumer.poll(POLL_MS, self.options.transaction_size)
            if records:
                await self._copy(records)
        await self._producer.close()
        await self._consumer.close()

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
        self._consumer.assign({self._input: await self._committed()})

    async def _committed(self) -> int:
        group = self.options.consumer_group
        found = (await list_consumer_group_offsets(self._client, [group]))[group]
        if isinstance(found, KafkaError):
            raise found
        return found[self._input].offset if self._input in found else 0

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
    parser.add_argument("--use-group-metadata", action="store_true")
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
