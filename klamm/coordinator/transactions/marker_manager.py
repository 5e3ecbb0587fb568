"""Has transaction markers written to the partitions of prepared transactions (the decisions of Kafka's
`TransactionMarkerChannelManager`).

A prepared transaction is *ending* until each of its partitions has a marker and the Complete record is written:

    PrepareCommit in the log ──▶ markers, to the leader of each partition ──▶ CompleteCommit in the log
                                   ▲                           │
                                   └── after a backoff, or at ──┘  errors, no answer, no leader
                                       once to another leader

What must stay true:
- Each partition of a prepared transaction gets its marker, however often leaders, brokers or this coordinator change.
  A partition is left out only if it certainly no longer exists.
- A marker may be written twice, but never with another outcome: markers follow a prepared record that is on all
  in-sync replicas.
- Once another broker coordinates the transaction, this broker has no effect on it.
- A broker has one request in flight. Later markers for the broker go together in its next request. No broker waits for
  another.
- After any answer the coordinator either tries the partition again or is done with it.

| answer of a leader                                   | the partition                                               |
|------------------------------------------------------|-------------------------------------------------------------|
| NONE                                                 | has its marker                                              |
| UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_VERSION  | is done: it can have no transactional records               |
| INVALID_PRODUCER_EPOCH                               | is done: it has records of a later epoch, which the         |
|                                                      | producer got after this transaction had ended               |
| every other error, or no answer                      | is tried again                                              |

Differences from Kafka: a partition that this broker's metadata lacks counts as deleted only if ZooKeeper confirms it (a
coordinator that has just started knows no partitions yet); TRANSACTION_COORDINATOR_FENCED and
INVALID_PRODUCER_EPOCH do not leave the transaction prepared until another coordinator loads it; a marker has the newest
leader epoch, even if the leader stayed the same; an unexpected error does not end the thread that sends the markers of
all transactions; the time of the last update is the time at which the last marker was written.

Source: kafka.coordinator.transaction.TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from klamm.base.environment import Environment
from klamm.base.slices import Slices, Steps, each
from klamm.base.tasks import OnFailure, start_task
from klamm.coordinator.transactions.ports import MarkerSender, TransactionMarker
from klamm.coordinator.transactions.state_manager import OwnedPartition
from klamm.coordinator.transactions.states import TransactionState
from klamm.coordinator.transactions.transaction import TransactionMetadata, complete
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey

RETRY_BACKOFF_MS = 100
MAX_RETRY_BACKOFF_MS = 1_000
# How many partitions a request has. Handling its answer takes a few milliseconds. A marker may take several requests.
PARTITIONS_PER_SLICE = 1_000
# A warning is logged when an ending has failed this many times.
LOGGED_ATTEMPT = 4

_log = logging.getLogger(__name__)

# The partition has its marker, or needs no marker.
_DONE = (
    ErrorCode.NONE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)

# Writes the record that completes the transaction, and retries until the write succeeds.
WriteCompletion = Callable[[OwnedPartition, str, TransactionMetadata], None]


class _Ending:
    """A prepared transaction. `unmarked` are the partitions without a marker, shared with `OwnedPartition`."""

    __slots__ = ("attempts", "metadata", "owned", "transactional_id", "unmarked")

    def __init__(self, owned: OwnedPartition, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.owned: Final = owned
        self.transactional_id: Final = transactional_id
        self.metadata: Final = metadata
        self.unmarked: Final = dict(metadata.partitions)
        self.attempts = 0

    def marker(self, partitions: Sequence[PartitionKey]) -> TransactionMarker:
        return TransactionMarker(
            *self.metadata.producer,
            committed=self.metadata.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=self.owned.coordinator_epoch,
            partitions=partitions,
        )


# Partitions of one ending transaction that have the same leader.
_Part = tuple[_Ending, Sequence[PartitionKey]]


class _Retry:
    """Partitions that wait for their next attempt. `leader` is the leader of the last attempt."""

    __slots__ = ("ending", "leader", "partitions", "timer")

    def __init__(self, ending: _Ending, partitions: Sequence[PartitionKey], leader: int | None) -> None:
        self.ending: Final = ending
        self.partitions: Final = partitions
        self.leader: Final = leader
        self.timer: asyncio.TimerHandle | None = None


class TransactionMarkerManager:
    """Create it while the loop runs."""

    def __init__(
        self,
        sender: MarkerSender,
        write_completion: WriteCompletion,
        environment: Environment,
        on_failure: OnFailure,
    ) -> None:
        self._sender = sender
        self._write_completion = write_completion
        self._environment = environment
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        # Queued partitions by their leader's broker id. None has the partitions that the metadata lacks. A leader is
        # here while its task runs.
        self._queues: dict[int | None, deque[_Part]] = {}
        self._tasks: dict[int | None, asyncio.Task[None]] = {}
        self._retries: dict[_Retry, None] = {}

    def begin(self, owned: OwnedPartition, transactional_id: str, metadata: TransactionMetadata) -> None:
        """Has the markers of a prepared transaction written, and then the record that completes it."""
        ending = _Ending(owned, transactional_id, metadata)
        owned.unmarked[transactional_id] = ending.unmarked
        if ending.unmarked:
            self._send_in_slices(ending, list(ending.unmarked))
        else:
            self._complete(ending)

    @property
    def without_leader_count(self) -> int:
        """How many partitions had no known leader in their last attempt and wait for the next attempt."""
        return sum(len(retry.partitions) for retry in self._retries if retry.leader in (None, NO_LEADER))

    async def stop(self) -> None:
        """Ends all requests. Call it when all owned partitions are over (`is_over`). Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_in_slices(self, ending: _Ending, partitions: Sequence[PartitionKey], start: int = 0) -> None:
        """Sends one slice now, and one more in each turn of the loop."""
        if ending.owned.is_over:
            return
        end = start + PARTITIONS_PER_SLICE
        self._send(ending, partitions[start:end])
        if end < len(partitions):
            self._loop.call_soon(self._send_in_slices, ending, partitions, end)

    def _send(self, ending: _Ending, partitions: Sequence[PartitionKey]) -> None:
        """Queues at most one slice of partitions for their current leaders."""
        by_leader: dict[int | None, list[PartitionKey]] = {}
        for partition in partitions:
            by_leader.setdefault(self._sender.leader(partition), []).append(partition)
        without_leader = by_leader.pop(NO_LEADER, None)
        if without_leader:
            self._retry(ending, without_leader, NO_LEADER, "no leader")
        for leader, led in by_leader.items():
            queue = self._queues.get(leader)
            if queue is None:
                queue = self._queues[leader] = deque()
                self._tasks[leader] = start_task(self._serve(leader, queue), self._on_failure)
            queue.append((ending, led))

    async def _serve(self, leader: int | None, queue: deque[_Part]) -> None:
        """Sends one request after the other until the leader's queue is empty."""
        while parts := _next_parts(queue):
            try:
                if leader is None:
                    await self._look_for_deleted(parts)
                else:
                    await self._write(leader, parts)
            except (KafkaError, OSError) as error:
                for ending, partitions in parts:
                    self._retry(ending, partitions, leader, str(error) or type(error).__name__)
        del self._queues[leader], self._tasks[leader]

    async def _write(self, leader: int, parts: Sequence[_Part]) -> None:
        markers = [ending.marker(partitions) for ending, partitions in parts]
        results = await self._sender.write(leader, markers)
        async for (ending, partitions), errors in each(zip(parts, results, strict=True)):
            self._answered(ending, partitions, leader, errors)

    async def _look_for_deleted(self, parts: Sequence[_Part]) -> None:
        unknown = dict.fromkeys(partition for _, partitions in parts for partition in partitions)
        deleted = dict.fromkeys(await self._sender.deleted(list(unknown)), ErrorCode.NONE)
        for ending, partitions in parts:
            self._answered(ending, partitions, None, deleted)

    def _answered(
        self,
        ending: _Ending,
        partitions: Sequence[PartitionKey],
        leader: int | None,
        errors: Mapping[PartitionKey, ErrorCode],
    ) -> None:
        """Partitions without a result are tried again."""
        if ending.owned.is_over:
            return
        again: list[PartitionKey] = []
        for partition in partitions:
            if errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) in _DONE:
                ending.unmarked.pop(partition, None)
            else:
                again.append(partition)
        if again:
            error_code = errors.get(again[0])
            reason = "no result" if error_code is None else error_name(error_code)
            self._retry(ending, again, leader, reason)
        elif not ending.unmarked:
            self._complete(ending)

    # -- after a failure ----------------------------------------------------------------------------------------------

    def leaders_changed(self) -> Steps[None]:
        """Call it after a metadata update. Partitions with a new leader are tried again at once."""
        looked_at = Slices(PARTITIONS_PER_SLICE)
        for retry in list(self._retries):
            for partition in retry.partitions:
                if looked_at.spend():
                    yield
                if self._sender.leader(partition) != retry.leader:
                    if retry in self._retries:
                        self._send_again(retry)
                    break

    def _retry(self, ending: _Ending, partitions: Sequence[PartitionKey], leader: int | None, reason: str) -> None:
        ending.attempts += 1
        if ending.attempts == LOGGED_ATTEMPT and not ending.owned.is_over:
            topic, number = partitions[0]
            _log.warning(
                "the end of the transaction of %s cannot be written to %s-%d (%d partitions are left); retrying: %s",
                *(ending.transactional_id, topic, number, len(ending.unmarked), reason),
            )
        backoff_ms = min(RETRY_BACKOFF_MS * 2 ** min(ending.attempts - 1, 10), MAX_RETRY_BACKOFF_MS)
        # Jitter: transactions that failed together are not all retried together.
        backoff_ms *= self._environment.random.uniform(0.5, 1)
        retry = _Retry(ending, partitions, leader)
        retry.timer = self._loop.call_later(backoff_ms / 1000, self._send_again, retry)
        self._retries[retry] = None

    def _send_again(self, retry: _Retry) -> None:
        del self._retries[retry]
        if retry.timer is not None:
            retry.timer.cancel()
        if not retry.ending.owned.is_over:
            self._send(retry.ending, retry.partitions)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _complete(self, ending: _Ending) -> None:
        del ending.owned.unmarked[ending.transactional_id]
        completed = complete(ending.metadata, self._environment.now_ms())
        self._write_completion(ending.owned, ending.transactional_id, completed)


def _next_parts(queue: deque[_Part]) -> list[_Part]:
    """Takes the parts for the next request, without transactions that another broker coordinates now."""
    parts: list[_Part] = []
    count = 0
    while queue and (not parts or count + len(queue[0][1]) <= PARTITIONS_PER_SLICE):
        part = queue.popleft()
        if not part[0].owned.is_over:
            parts.append(part)
            count += len(part[1])
    return parts
