"""Copies records in transactions with librdkafka, under the contract of Kafka's TransactionalMessageCopier.

Its options, the lines of JSON that it prints, and when it ends are those of Kafka's tool: each transaction holds the
records of one poll and their offsets; an aborted transaction begins again at the group's committed offsets; the program
ends when it has copied the input up to its end offset at the start (in a group: at the last rebalance). The exit code
is 0 then and after SIGTERM, and 1 after an error that the client cannot recover from.
"""

import argparse
import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

T = TypeVar("T")

POLL_S = 0.2
FLUSH_S = 10
CALL_S = 30.0
RETRY_S = 0.1


class Copier:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.processed = 0
        self.since_rebalance = 0
        self.remaining = 0 if options.max_messages < 0 else options.max_messages
        self.assigned = False
        self.stops = False
        self.transactions = 0
        self.producer = Producer(
            {
                "bootstrap.servers": options.broker_list,
                "transactional.id": options.transactional_id,
                "transaction.timeout.ms": options.transaction_timeout,
                # Small batches, so that a transaction has several requests in flight.
                "batch.size": 512,
                "max.in.flight": 5,
                "linger.ms": 0,
                # See `_until_done`.
                "connections.max.idle.ms": 2_000,
            }
        )
        self.consumer = Consumer(
            {
                "bootstrap.servers": options.broker_list,
                "group.id": options.consumer_group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 3_000,
                "max.poll.interval.ms": 180_000,
            }
        )

    def run(self) -> None:
        """Returns when everything is copied, or SIGTERM has come."""
        # First, so that what an earlier process has left open is aborted: until then its offsets are not stable.
        self.producer.init_transactions()
        if self.options.group_mode:
            self.consumer.subscribe([self.options.input_topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        else:
            partition = TopicPartition(self.options.input_topic, self.options.input_partition)
            self._assign([partition])
        while not self.stops and (self.remaining > 0 or not self.assigned):
            self.tell("ProcessLoop")
            records = [self._checked(record) for record in self._consume()]
            records = [record for record in records if record is not None]
            if records:
                self._copy(records)

    def _consume(self) -> list[Any]:
        messages: list[Any] = self.consumer.consume(self.options.transaction_size, POLL_S)
        return messages

    @staticmethod
    def _checked(record: Any) -> Any | None:
        """The record; None for an error, which librdkafka recovers from unless it is fatal."""
        error = record.error()
        if error is None:
            return record
        if error.fatal():
            raise KafkaException(error)
        print(error, file=sys.stderr, flush=True)
        return None

    def _copy(self, records: list[Any]) -> None:
        """One transaction."""
        self.transactions += 1
        producer = self.producer
        try:
            producer.begin_transaction()
            for record in records:
                producer.produce(self.options.output_topic, record.value(), record.key(), partition=record.partition())
                producer.poll(0)
            # librdkafka's own positions outlive the return to older offsets after an abort.
            ends = {(record.topic(), record.partition()): record.offset() + 1 for record in records}
            positions = [TopicPartition(*partition, end) for partition, end in ends.items()]
            self._until_done(
                lambda: producer.send_offsets_to_transaction(positions, self.consumer.consumer_group_metadata())
            )
            if self.options.enable_random_aborts and (self.transactions == 2 or random.randrange(3) == 0):
                producer.flush(FLUSH_S)  # An abort does not send what was not sent.
                self._abort()
                return
            self._until_done(producer.commit_transaction)
        except KafkaException as failed:
            error = failed.args[0]
            if not error.txn_requires_abort():
                raise
            print(f"aborts the transaction: {error}", file=sys.stderr, flush=True)
            self._abort()
            return
        self.processed += len(records)
        self.since_rebalance += len(records)
        self.remaining -= len(records)

    def _abort(self) -> None:
        self._until_done(self.producer.abort_transaction)
        if assigned := self.consumer.assignment():
            self.consumer.assign(self._starts(assigned))

    def _until_done(self, call: Callable[[], T]) -> T:
        """Repeats a call that may be repeated.

        A producer may wait for a coordinator that is gone until any of its connections changes
        (confluentinc/librdkafka#5511). One without connections opens one when it is asked for topics.
        """
        while True:
            try:
                return call()
            except KafkaException as failed:
                error = failed.args[0]
                if not error.retriable() or error.txn_requires_abort():
                    raise
                print(f"tries again: {error}", file=sys.stderr, flush=True)
                time.sleep(RETRY_S)
                with contextlib.suppress(KafkaException):
                    self.producer.list_topics(self.options.output_topic, CALL_S)

    def _starts(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the group goes on: its committed offsets, and the beginning of what it has never committed."""
        committed = self._until_known(lambda: self.consumer.committed(partitions, CALL_S))
        return [
            TopicPartition(place.topic, place.partition, place.offset if place.offset >= 0 else OFFSET_BEGINNING)
            for place in committed
        ]

    def _assign(self, partitions: list[TopicPartition]) -> None:
        starts = self._starts(partitions)
        left = 0
        for place in starts:
            _, end = self._until_known(partial(self.consumer.get_watermark_offsets, place, CALL_S))
            left += end - max(place.offset, 0)
        limit = self.options.max_messages
        self.remaining = left if self.options.group_mode or limit < 0 else min(left, limit)
        self.since_rebalance = 0
        self.assigned = True
        self.consumer.assign(starts)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._assign(partitions)
        self.tell("RebalanceComplete")

    def _on_revoke(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        consumer.unassign()

    def _until_known(self, call: Callable[[], T]) -> T:
        """Repeats a question until a broker answers it."""
        while True:
            try:
                return call()
            except KafkaException as failed:
                error: KafkaError = failed.args[0]
                if error.fatal():
                    raise
                print(f"asks again: {error}", file=sys.stderr, flush=True)
                time.sleep(RETRY_S)
                # What librdkafka knows of a topic may be wrong for minutes, unless it is asked to look again.
                with contextlib.suppress(KafkaException):
                    self.consumer.list_topics(self.options.input_topic, CALL_S)

    def tell(self, stage: str) -> None:
        self._print({"progress": self.options.transactional_id, "stage": stage})

    def tell_shutdown(self) -> None:
        self._print({"shutdown_complete": self.options.transactional_id})

    def _print(self, what: dict[str, str]) -> None:
        counts = {"totalProcessed": self.processed, "consumed": self.since_rebalance, "remaining": self.remaining}
        now = time.strftime("%Y/%m/%d %H:%M:%S:000")
        sys.stdout.write(json.dumps({**what, **counts, "time": now}) + "\n")
        sys.stdout.flush()


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--input-partition", required=True, type=int)
    parser.add_argument("--output-topic", required=True)
    parser.add_argument("--broker-list", required=True)
    parser.add_argument("--max-messages", type=int, default=-1)
    parser.add_argument("--consumer-group", default="-1")
    parser.add_argument("--transaction-size", type=int, default=200)
    parser.add_argument("--transaction-timeout", type=int, default=60_000)
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--enable-random-aborts", action="store_true")
    parser.add_argument("--group-mode", action="store_true")
    # librdkafka always sends the group's metadata.
    parser.add_argument("--use-group-metadata", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    copier = Copier(parsed(sys.argv[1:]))

    def stop(*_: object) -> None:
        copier.stops = True

    signal.signal(signal.SIGTERM, stop)
    try:
        copier.run()
    except KafkaException as failed:
        print(f"cannot go on: {failed.args[0]}", file=sys.stderr, flush=True)
        sys.exit(1)
    copier.consumer.close()
    copier.tell_shutdown()


if __name__ == "__main__":
    main()
