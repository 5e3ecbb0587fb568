"""Carries the leaders' ISR proposals to the controller (KIP-497).

What must stay true:
- One AlterIsr is under way at a time; it carries everything that is pending then.
- A proposal is sent until the controller has decided it or it has become void. What ends without an answer, or with
  one that decides nothing, is sent again; the controller takes a repeated proposal for what it is.
- An answer reaches the proposal that was sent, never a later one of the same partition.

Source: kafka.server.DefaultAlterIsrManager.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from klamm.net.client import ClientError
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.replication.ports import IsrChange, WrittenIsr
from klamm.tasks import OnFailure, start_task
from klamm.znodes.topics import TopicPartition

RETRY_BACKOFF_MS = 50

# After these the same proposal will never succeed; the controller tells the leader what is true in a LeaderAndIsr.
_FINAL_ERRORS = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
)

_log = logging.getLogger(__name__)


class AlterIsrManager:
    """Implements the port `IsrChanges`.

    `send(request body)` asks the controller once and returns the response's body, or raises ClientError.
    `broker_epoch()` is that of this broker's registration at the moment.
    """

    def __init__(
        self,
        send: Callable[[Any], Awaitable[Any]],
        broker_id: int,
        broker_epoch: Callable[[], int],
        on_failure: OnFailure,
    ) -> None:
        self._send = send
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._on_failure = on_failure
        self._pending: dict[TopicPartition, IsrChange] = {}
        self._sender: asyncio.Task[None] | None = None
        self._is_stopped = False

    def submit(self, change: IsrChange) -> None:
        """Sends it until it is decided. RuntimeError when one of the partition's is pending."""
        if change.topic_partition in self._pending:
            raise RuntimeError(f"{change.topic_partition} has two ISR changes in flight")
        if self._is_stopped:
            return
        self._pending[change.topic_partition] = change
        if self._sender is None:
            self._sender = start_task(self._run(), self._on_failure)

    def clear_pending(self, topic_partition: TopicPartition) -> None:
        self._pending.pop(topic_partition, None)

    async def stop(self) -> None:
        """Sends nothing more; what is pending is forgotten."""
        self._is_stopped = True
        self._pending.clear()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    async def _run(self) -> None:
        # Everything that is proposed in the same step of the loop goes together.
        await asyncio.sleep(0)
        while self._pending:
            if not await self._send_pending():
                await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
        self._sender = None

    async def _send_pending(self) -> bool:
        """Whether every proposal that was sent has been decided."""
        changes = list(self._pending.values())
        request = self._request(changes)
        try:
            response = await self._send(request)
        except ClientError as error:
            _log.info("AlterIsr goes out again: %s", error)
            return False
        if response.error_code != ErrorCode.NONE:
            _log.warning(
                "The controller has refused AlterIsr of broker epoch %d: %s",
                *(request.broker_epoch, ErrorCode(response.error_code).name),
            )
            return False
        results = {
            (topic.name, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        return all([self._decide(change, results.get(change.topic_partition)) for change in changes])

    def _decide(self, change: IsrChange, answer: Any) -> bool:
        if self._pending.get(change.topic_partition) is not change:
            return True  # void
        if answer is None:
            _log.warning("The controller has not answered the ISR change of %s-%d", *change.topic_partition)
            return False
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE and code not in _FINAL_ERRORS:
            _log.warning("The ISR change of %s-%d goes out again after %s", *change.topic_partition, code.name)
            return False
        # Gone before the leader hears of it: it may propose the next change at once.
        del self._pending[change.topic_partition]
        if code is ErrorCode.NONE:
            change.on_result(WrittenIsr(answer.leader_epoch, tuple(answer.isr), answer.current_isr_version))
        else:
            change.on_result(code)
        return True

    def _request(self, changes: Sequence[IsrChange]) -> Any:
        request_class = messages.request_class(ApiKey.ALTER_ISR)
        topics: dict[str, list[Any]] = {}
        for change in changes:
            topic, partition = change.topic_partition
            topics.setdefault(topic, []).append(
                request_class.TopicData.PartitionData(
                    partition_index=partition,
                    leader_epoch=change.leader_epoch,
                    new_isr=list(change.isr),
                    current_isr_version=change.zk_version,
                )
            )
        return request_class(
            version=0,
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=[request_class.TopicData(name=name, partitions=parts) for name, parts in topics.items()],
        )
