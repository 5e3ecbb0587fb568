"""Transactions in a simulated cluster: clients (`transactional_clients.py`), a reader for each partition, and the
checks at the end. `TransactionLedger` says what must stay true.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.fetching import FetchFrom, fetch_request, readable_batches
from klamm.client.consumer.offsets import offset_fetch_request
from klamm.client.fan_out import coordinators, error_of, fan_out
from klamm.client.retries import RetryPolicy
from klamm.net.client import ClientError, Connection
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import decode_records
from klamm.protocol.vocabulary import (
    INVALID_PREFERRED_REPLICA_ID,
    NO_EPOCH,
    READ_COMMITTED,
    PartitionKey,
    TopicPartition,
)
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.judges.agreement import undecided
from klamm.simulation.judges.transaction_ledger import (
    LogHistory,
    Outcome,
    Read,
    TransactionLedger,
    TransactionsHang,
    check_reads,
)
from klamm.simulation.machine.process import ProcessDead
from klamm.simulation.workloads.transactional_clients import (
    ABORT_INTERVAL_S,
    GROUP,
    TRANSACTION_TIMEOUT_S,
    Copier,
    Ender,
    TransactionalClient,
    Writer,
    judged,
)
from klamm.simulation.workloads.verdict import replica_bytes
from klamm.simulation.workloads.workload import FETCH_MAX_BYTES, FETCHES_OF_A_FOLLOWER, PartitionClient, is_intact

# Time for coordinators to load, and for markers to be written.
SETTLING_S = 15.0
# The brokers' configuration.
PROPERTIES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(int(ABORT_INTERVAL_S * 1000)),
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.segment.bytes": "4096",
    "group.min.session.timeout.ms": "1000",
}
RETRY = RetryPolicy(deadline_ms=20_000)
LOOK_INTERVAL_S = 0.5
SHARE_OF_STABLE_LOOKS = 0.2


class CommittedReader:
    """Reads one partition with read_committed. `position` is the next offset to fetch. With a `rack` it reads from the
    follower that the leader names, as `workload.Consumer` does."""

    def __init__(
        self, new_client: Callable[[], ClusterClient], ledger: TransactionLedger, key: PartitionKey, rack: str = ""
    ) -> None:
        self.key = key
        self.rack = rack
        self.position = 0
        self.reads: list[Read] = []
        self.stop_at: int | None = None
        self._ledger = ledger
        self._client = PartitionClient(new_client, key)
        self._follower: int | None = None
        self._left_of_follower = 0

    async def run(self) -> None:
        """Reads up to `stop_at`."""
        while self.stop_at is None or self.position < self.stop_at:
            self.reads += await self.read()

    async def read(self) -> list[Read]:
        """The visible records of one fetch; may be empty."""
        leader_epoch = self._client.leader_epoch if self.rack else NO_EPOCH
        wanted = {TopicPartition(*self.key): FetchFrom(self.position, leader_epoch, FETCH_MAX_BYTES)}
        request = fetch_request(
            wanted,
            max_bytes=FETCH_MAX_BYTES,
            max_wait_ms=500,
            isolation_level=READ_COMMITTED,
            rack_id=self.rack,
        )
        self._left_of_follower -= 1
        if self._left_of_follower <= 0:
            self._follower = None
        # A new reader may ask a former leader, which does not have the offset.
        expected = (ErrorCode.OFFSET_OUT_OF_RANGE,)
        (answer,) = await self._client.attempts(ApiKey.FETCH, [request], expected, self._follower)
        if answer is None or answer[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._follower = None
            await self._client.again()
            return []
        if answer[0].preferred_read_replica != INVALID_PREFERRED_REPLICA_ID:
            self._follower, self._left_of_follower = answer[0].preferred_read_replica, FETCHES_OF_A_FOLLOWER
            return []
        result, _ = answer
        self._ledger.stable_seen(self.key, result.high_watermark, result.last_stable_offset)
        if not is_intact(result.records):
            self._follower = None
            await self._client.again()
            return []
        records, reads = result.records or b"", []
        for position, header, is_readable in readable_batches(records, result.aborted_transactions):
            assert header.last_offset < result.last_stable_offset, (
                f"{self.key}: {header} was fetched, the last stable offset is {result.last_stable_offset}"
            )
            if is_readable:
                reads += [
                    Read(record.offset, record.value or b"", header.partition_leader_epoch)
                    for record in decode_records(records, position, header)
                    if record.offset >= self.position
                ]
            self.position = header.next_offset
        return reads


class TransactionalWorkload:
    """Writers of the `inputs`, a group of copiers from them into the `outputs`, and a reader for each partition."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        inputs: Sequence[PartitionKey],
        outputs: Sequence[PartitionKey],
        *,
        writers: int = 2,
        copiers: int = 2,
        pause_s: float = 0.1,
        has_faults: bool = True,
    ) -> None:
        world = cluster.world
        new_client = partial(cluster.client, RETRY)
        self.ledger = TransactionLedger(has_faults=has_faults)
        self.ender = Ender(world, new_client, self.ledger)
        self._random = random.Random(f"{world.seed}/looks")
        self._world = world
        self._cluster = cluster
        self._node = world.node("transactions")
        self._inputs, self._outputs = inputs, outputs
        self._writers = [
            Writer(world, new_client, self.ledger, f"writer-{number}", inputs, self.ender, pause_s)
            for number in range(writers)
        ]
        self._copiers = [
            Copier(
                *(world, partial(cluster.client, RETRY), self.ledger, f"copier-{number}", outputs, self.ender, pause_s),
                inputs,
                is_static=number % 2 == 1,
            )
            for number in range(copiers)
        ]
        self._clients: list[TransactionalClient] = [*self._writers, *self._copiers]
        self._readers = [
            CommittedReader(cluster.client, self.ledger, key, rack)
            for key, rack in zip((*inputs, *outputs), cycle(cluster.racks), strict=False)
        ]
        self._watching: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self._watching = [
            judged(self._world, f"the reader of {reader.key}", self._node.run(reader.run())) for reader in self._readers
        ]
        judged(self._world, "the look at the offsets", self._node.run(self._look_at_offsets()))
        self.ender.start()
        for client in self._clients:
            client.start()

    async def stop(self) -> None:
        """Kills all producers, in whatever transactions they are."""
        for client in self._clients:
            await client.stop()
        self.ender.node.crash()

    async def check(self) -> str:
        """Lets the copiers copy the rest, waits until all transactions are decided, and makes the checks of
        `TransactionLedger`. The cluster is whole, and the clients have stopped. Returns the counts as text."""
        await self.until_decided()
        self.ender.node.restart()
        self.ender.start()
        visible = {key: self._history(key).visible for key in self._inputs}
        await self._finish({key: reads[-1].offset + 1 if reads else 0 for key, reads in visible.items()})
        self.ender.node.crash()
        await self.until_decided()
        histories = {reader.key: self._history(reader.key) for reader in self._readers}
        for reader in self._readers:
            reader.stop_at = histories[reader.key].end
        await asyncio.gather(*self._watching)
        self.ledger.check_atomicity(histories)
        for reader in self._readers:
            check_reads(reader.key, reader.reads, histories[reader.key])
            self.ledger.check_stable_offsets(reader.key, histories[reader.key])
        copies = [read for key in self._outputs for read in histories[key].visible]
        for key in self._inputs:
            offset = await self._node.run(self._committed_offset(key))
            self.ledger.check_copies(key, offset, histories[key].visible, copies)
            copied = sum(1 for read in histories[key].visible if read.offset < offset)
            assert copied == len(histories[key].visible), f"{key}: only {copied} records are copied"
        self._node.crash()
        outcomes = [each.outcome for each in self.ledger.transactions]
        return f"{outcomes.count(Outcome.COMMITTED)} of {len(outcomes)} transactions committed"

    async def _finish(self, ends: dict[PartitionKey, int]) -> None:
        """Begins instance after instance of one copier until the group has copied all records up to `ends`."""
        copier = self._copiers[0]
        copier.ends = ends
        while True:
            with suppress(ProcessDead):
                await copier.begin_instance()
            await self.until_decided()
            offsets = [(await self._node.run(self._committed_offset(key)), end) for key, end in ends.items()]
            if all(offset >= end for offset, end in offsets):
                return

    def _coordinator_id(self) -> int:
        """The coordinator of the group; -1 while there is none."""
        try:
            return self._cluster.coordinator(GROUP)
        except KeyError:
            return -1

    async def _committed_offset(self, partition: PartitionKey) -> int:
        client = self._cluster.client()
        try:
            return await committed_offset(client, partition, require_stable=True)
        finally:
            await client.close()

    async def _look_at_offsets(self) -> None:
        """Checks the group's committed offsets, mostly like a client that does not wait for pending commits.

        The broker that is the group's coordinator in ZooKeeper has every acknowledged offset. As in Kafka, a former
        coordinator that does not know its successor yet answers with older offsets.
        """
        client = self._cluster.client(RETRY)
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for source in self._inputs:
                least, coordinator_id = self.ledger.acknowledged_offset(source), self._coordinator_id()
                is_stable = self._random.random() < SHARE_OF_STABLE_LOOKS
                with suppress(KafkaError, ClientError):
                    offset = await committed_offset(client, source, require_stable=is_stable)
                    is_newest = client.coordinators.get(GROUP) == coordinator_id == self._coordinator_id()
                    self.ledger.offset_seen(source, offset, least if is_stable and is_newest else -1)
                if is_stable:
                    client.coordinators.pop(GROUP, None)

    async def until_decided(self) -> None:
        """Waits until no transaction is open: all last stable offsets are at the high watermarks. The producers have
        stopped. TransactionsHang, with the open transactions, if that takes too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSACTION_TIMEOUT_S + ABORT_INTERVAL_S + SETTLING_S
        while found := undecided(self._cluster):
            if loop.time() > deadline:
                raise TransactionsHang("transactions hang:\n  " + "\n  ".join(found))
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _history(self, key: PartitionKey) -> LogHistory:
        return LogHistory(replica_bytes(self._cluster.brokers[self._cluster.leader(*key)], key))


async def committed_offset(client: ClusterClient, partition: PartitionKey, *, require_stable: bool) -> int:
    """The group's committed offset; -1 without one. Raises KafkaError and ClientError."""

    async def ask(connection: Connection, groups: Sequence[str]) -> dict[str, int | KafkaError]:
        wanted = [TopicPartition(*partition)]
        request = offset_fetch_request(GROUP, wanted, require_stable=require_stable)
        response = await connection.send(ApiKey.OFFSET_FETCH, lambda version: request)
        error = error_of(response.error_code)
        if error is not None:
            return {GROUP: error}
        found = response.topics[0].partitions[0]
        return {GROUP: error_of(found.error_code) or found.committed_offset}

    result = (await fan_out(client, [GROUP], coordinators(client), ask))[GROUP]
    if isinstance(result, KafkaError):
        raise result
    return result
