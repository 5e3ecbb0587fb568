"""Brokers whose disks, clocks, sessions and leaders have trouble at random lose no acknowledged record."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.testing import Cluster, ClusterError, Helper

TROUBLED_S = 20
PARTITIONS = 3


class Writer:
    """Writes numbers until it is stopped; `acknowledged` has the partition and offset of each."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.count = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.size": 5_000,
                "delivery.timeout.ms": 120_000,
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            number = self.count
            self.count += 1

            def delivered(error: object, message: object, number: int = number) -> None:
                if error is None:
                    self.acknowledged[number] = (message.partition(), message.offset())  # type: ignore[attr-defined]

            self._producer.produce("t", str(number), partition=number % PARTITIONS, on_delivery=delivered)
            self._producer.poll(0.002)
        self._producer.flush()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def trouble(c: Cluster, chance: random.Random) -> None:
    """Does one thing at random, and ends an older fault now and then."""
    broker = chance.choice(c.broker_ids)
    operation: Any = chance.choice(["read", "write", "sync", "open", "rename", "remove"])
    partition = chance.randrange(PARTITIONS)
    troubles: list[Callable[[], object]] = [
        lambda: c.disk.slow(broker, chance.choice([1, 20, 300]), operations=operation, topic="t"),
        lambda: c.disk.fail(broker, operations=operation, error="ENOSPC", times=chance.randint(1, 20)),
        lambda: c.disk.fail(broker, operations=operation, error="EMFILE", times=chance.randint(1, 20)),
        lambda: c.disk.fail(broker, operations=operation, error="EIO", on_call=chance.randint(1, 50), times=1),
        lambda: c.disk.full(broker, bytes_left=chance.choice([0, 1_000, 100_000])),
        lambda: c.clock.shift(broker, ms=chance.choice([-1, 1]) * chance.choice([50, 3_600_000, 40 * 86_400_000])),
        lambda: c.elect("t", partition, to=chance.choice(c.isr("t", partition))),
        c.move_controller,
        lambda: c.expire_session(broker),
        lambda: c.faults.active and chance.choice(c.faults.active).remove(),
        lambda: c.faults.active and chance.choice(c.faults.active).remove(),
    ]
    try:
        chance.choice(troubles)()
    except ClusterError as error:
        print(f"refused: {error}")
    running = [other.id for other in c.brokers if other.running]
    for other in c.brokers:
        if not other.running:
            try:
                c.start(other.id)
            except ClusterError as error:
                print(f"does not start: {error}")
                for fault in c.faults.active:
                    fault.remove()
    assert running


def read_all(c: Cluster, count: dict[int, int]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for partition, end in count.items():
        consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": "none", "check.crcs": True})
        consumer.assign([TopicPartition("t", partition, 0)])
        while (partition, end) not in found:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            found[partition, message.offset() or 0] = int(value)
        consumer.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_no_acknowledged_record_is_lost(seed: int, klamm_helper: Helper) -> None:
    chance = random.Random(seed)
    properties = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 1_500, "log.segment.bytes": 20_000}
    with Cluster(3, helper=klamm_helper, properties=properties) as c:
        c.create_topic("t", partitions=PARTITIONS)
        writer = Writer(c.bootstrap)
        try:
            end_s = time.monotonic() + TROUBLED_S
            while time.monotonic() < end_s:
                trouble(c, chance)
                time.sleep(chance.random() / 5)
            c.heal()
        finally:
            writer.stop()
        print(f"{len(writer.acknowledged)} of {writer.count} records are acknowledged")
        assert len(writer.acknowledged) > 100
        ends = {
            partition: max(offset for one, offset in writer.acknowledged.values() if one == partition)
            for partition in range(PARTITIONS)
        }
        found = read_all(c, ends)
        lost = [number for number, place in writer.acknowledged.items() if found.get(place) != number]
        assert not lost
