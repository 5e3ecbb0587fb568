"""Reports when a broker's partitions become leaders or followers, and when they truncate their logs.

What must stay true: a witnessed partition behaves like any other, and reports an event after it has happened.
"""

from collections.abc import Callable
from typing import Any

from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.replication.partition.partition import Partition
from klamm.storage.log.truncation import Truncation

Tell = Callable[..., None]
"""`Agent.tell`: the name of an event and its fields."""


class WitnessedPartition(Partition):
    """A partition that reports to the cluster's owner."""

    def __init__(self, *arguments: Any, tell: Tell, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._report = tell

    def _tell(self, event: str, **details: Any) -> None:
        self._report(event, topic=self.topic, partition=self.partition, leader_epoch=self.leader_epoch, **details)

    def make_leader(self, state: LeaderAndIsrPartitionState) -> bool:
        is_new_leader = super().make_leader(state)
        self._tell("became_leader", start_offset=self.leader_epoch_start_offset, high_watermark=self.log.high_watermark)
        return is_new_leader

    def make_follower(self, state: LeaderAndIsrPartitionState) -> bool:
        is_changed = super().make_follower(state)
        if is_changed:
            self._tell(
                "became_follower",
                leader=self.leader_id,
                log_end_offset=self.log.log_end_offset,
                high_watermark=self.log.high_watermark,
            )
        return is_changed

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> bool:
        end = self.log.log_end_offset
        is_truncated = super().truncate_to(offset, prepared)
        if is_truncated:
            self._tell("truncated", from_offset=end, to_offset=self.log.log_end_offset)
        return is_truncated

    def truncate_fully_and_start_at(self, offset: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        super().truncate_fully_and_start_at(offset)
        if end > start:
            self._tell("truncated", from_offset=end, to_offset=self.log.log_end_offset)
