"""Carries the leaders' ISR proposals to the controller (KIP-497).

What must stay true: see `isr_changes.py`. A proposal without a decisive answer is sent again. The controller recognizes
a repeated proposal, so sending it twice does no harm.

Source: kafka.server.DefaultAlterIsrManager.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from klamm.base.tasks import OnFailure
from klamm.net.client import ClientError
from klamm.protocol.apis.alter_isr import AlterIsrRequest, AlterIsrResponse
from klamm.protocol.error_codes import ErrorCode, error_name
from klamm.replication.partition.isr_changes import BatchedIsrChanges
from klamm.replication.ports import IsrChange, WrittenIsr

# After these errors the same proposal never succeeds; the controller sends the leader the true state in a LeaderAndIsr.
_FINAL_ERRORS = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
)

_log = logging.getLogger(__name__)


class AlterIsrManager(BatchedIsrChanges):
    """Implements the port `IsrChanges`.

    `send(request body)` asks the controller once and returns the response's body, or raises ClientError.
    `broker_epoch()` returns the epoch of this broker's current registration.
    """

    def __init__(
        self,
        send: Callable[[AlterIsrRequest], Awaitable[AlterIsrResponse]],
        broker_id: int,
        broker_epoch: Callable[[], int],
        on_failure: OnFailure,
    ) -> None:
        super().__init__(on_failure)
        self._ask = send
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        # A broker whose session has expired asks twenty times a second until it has a new session.
        self._refusal: int = ErrorCode.NONE

    async def _send(self, changes: Sequence[IsrChange]) -> bool:
        request = self._request(changes)
        try:
            response = await self._ask(request)
        except ClientError as error:
            _log.info("AlterIsr goes out again: %s", error)
            return False
        former, self._refusal = self._refusal, response.error_code
        if response.error_code != ErrorCode.NONE:
            _log.log(
                logging.DEBUG if response.error_code == former else logging.WARNING,
                "The controller has refused AlterIsr of broker epoch %d: %s",
                *(request.broker_epoch, error_name(response.error_code)),
            )
            return False
        results = {
            (topic.name, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        return all([self._is_decided(change, results.get(change.topic_partition)) for change in changes])

    def _is_decided(self, change: IsrChange, answer: AlterIsrResponse.TopicData.PartitionData | None) -> bool:
        if not self._is_pending(change):
            return True
        if answer is None:
            _log.warning("The controller has not answered the ISR change of %s-%d", *change.topic_partition)
            return False
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE and code not in _FINAL_ERRORS:
            _log.warning("The ISR change of %s-%d goes out again after %s", *change.topic_partition, code.name)
            return False
        if code is ErrorCode.NONE:
            self._decide(change, WrittenIsr(answer.leader_epoch, tuple(answer.isr), answer.current_isr_version))
        else:
            self._decide(change, code)
        return True

    def _request(self, changes: Sequence[IsrChange]) -> AlterIsrRequest:
        topics: dict[str, list[AlterIsrRequest.TopicData.PartitionData]] = {}
        for change in changes:
            topic, partition = change.topic_partition
            topics.setdefault(topic, []).append(
                AlterIsrRequest.TopicData.PartitionData(
                    partition_index=partition,
                    leader_epoch=change.leader_epoch,
                    new_isr=list(change.isr),
                    current_isr_version=change.zk_version,
                )
            )
        return AlterIsrRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=[AlterIsrRequest.TopicData(name=name, partitions=parts) for name, parts in topics.items()],
        )
