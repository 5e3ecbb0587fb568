"""A client that deletes records while others write them. What must be true in a simulated cluster:

- A record at or above the highest requested offset is not deleted.
- After the answer to a deletion no leader has the records, whatever dies.
- No log starts above its high watermark.
"""

import asyncio
import random

from klamm.client.admin.delete_records import delete_records_request
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import PartitionKey, TopicPartition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import replica_bytes
from klamm.simulation.workloads.workload import ATTEMPT_TIMEOUT_MS, PartitionClient, Producer, records_of

PAUSE_S = 2.0


class Trimming:
    """A producer of one partition, and a client that deletes the producer's records. They have their own machine."""

    def __init__(self, world: World, cluster: SimulatedCluster, key: PartitionKey) -> None:
        self.key = key
        # The highest offset of a deletion request, and of an answered one.
        self.asked = self.answered = 0
        self.producer = Producer(cluster.client, key, world.random, asyncio.Event(), idempotent=False)
        self._cluster = cluster
        self._random: random.Random = world.random
        self._client = PartitionClient(cluster.client, key)
        self._node = world.node("trimmer")
        self._is_stopping = False
        self._answers = asyncio.Event()
        self._running: list[asyncio.Future[None]] = []

    def start(self, pause_s: float) -> None:
        """Starts both, with up to `pause_s` seconds between two batches."""
        self._running = [self._node.run(self.producer.run(None, pause_s)), self._node.run(self._delete_records())]

    async def stop(self) -> None:
        """Returns when the last batch and the last deletion are acknowledged."""
        self.producer.stop.set()
        self._is_stopping = True
        await asyncio.gather(*self._running)

    async def next_answer(self) -> None:
        """Returns when one more deletion is answered."""
        self._answers.clear()
        await self._answers.wait()

    @property
    def end(self) -> int:
        """The offset after the last acknowledged record."""
        last = next(reversed(self.producer.acknowledged), None)
        return 0 if last is None or last.base_offset is None else last.base_offset + len(last.values)

    async def _delete_records(self) -> None:
        while not self._is_stopping:
            await asyncio.sleep(self._random.uniform(0, PAUSE_S))
            self.check()
            if self.end > self.asked:
                self.asked = self._random.randint(self.asked + 1, self.end)
                await self._delete(self.asked)

    async def _delete(self, offset: int) -> None:
        request = delete_records_request({TopicPartition(*self.key): offset}, ATTEMPT_TIMEOUT_MS)
        while True:
            # A new leader may not know the high watermark yet. Then the offset is out of its range.
            expected = (ErrorCode.OFFSET_OUT_OF_RANGE,)
            (answer,) = await self._client.attempts(ApiKey.DELETE_RECORDS, [request], expected)
            self.check()
            if answer is not None and answer[0].error_code == ErrorCode.NONE:
                assert answer[0].low_watermark == offset, f"{self.key}: {answer[0]} for offset {offset}"
                self.answered = offset
                self._answers.set()
                return
            await self._client.again()

    def check(self) -> None:
        """AssertionError unless the start offset of every log is allowed."""
        leader_id = self._cluster.leader(*self.key)
        for one in self._cluster.brokers.values():
            partition = None if one.broker is None else self._cluster.hosted_partition(one.broker_id, self.key)
            if partition is None:
                continue
            start, high_watermark = partition.log.log_start_offset, partition.log.high_watermark
            where = f"{partition} on broker {one.broker_id}"
            assert start <= high_watermark, f"{where} starts at {start}, above the high watermark {high_watermark}"
            assert start <= self.asked, f"{where} starts at {start}, only {self.asked} was asked for"
            if one.broker_id == leader_id and partition.is_leader:
                assert start >= self.answered, f"{where} starts at {start}, {self.answered} was answered"

    def check_records(self) -> None:
        """AssertionError unless every acknowledged record at or above the highest requested offset is there."""
        leader = self._cluster.brokers[self._cluster.leader(*self.key)]
        values = {record.offset: record.value for record in records_of(replica_bytes(leader, self.key))}
        for each in self.producer.acknowledged:
            assert each.base_offset is not None, each
            for offset, value in enumerate(each.values, each.base_offset):
                assert offset < self.asked or values.get(offset) == value, (
                    f"{self.key}: {value!r} was acknowledged at {offset}, the log has {values.get(offset)!r} there"
                )
