"""Streaming queries: the end of each micro-batch, and the positions in Spark's checkpoint.

One `KlammStreamReader` lives in a process of the driver as long as its query, and plans every micro-batch. Its copies
in the workers only read. Positions are passed as JSON (`planning.Position`).

What must stay true:
- A micro-batch can be planned again, because its ranges depend only on its end.
- Without new records the position that Spark gave is returned unchanged. Otherwise Spark would run an empty batch.
- With the trigger availableNow no record that was appended after the first batch began is read, and every batch gets
  closer to that end.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient
from klamm.client.threads import call
from klamm.spark.offset_commits import commit_offsets
from klamm.spark.options import ReadOptions
from klamm.spark.pyspark_versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from klamm.spark.read.batch import read_partition
from klamm.spark.read.planning import (
    Offsets,
    Position,
    count_offsets,
    in_tasks,
    initial_position,
    latest_position,
    limit_position,
    plan_micro_batch,
    with_begin,
)
from klamm.spark.readable_errors import sentences_first
from klamm.spark.sql_types import check_columns

if TYPE_CHECKING:
    import pyarrow as pa


@sentences_first
class KlammStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_columns(schema, options.typed)
        self._options = options
        self._schema = schema
        self._is_available_now = False
        # Where an availableNow query ends, from its first batch on.
        self._target: Position | None = None
        self._latest: Position | None = None
        # The last committed position.
        self._committed: Offsets | None = None
        # When the last batch with records was planned, by the loop's clock; None before the first one.
        self._triggered_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        return initial_position(self._options).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position = Position.from_json(start)
        if not position.is_initial:
            # A batch begins where a finished batch ended. Spark calls `commit` for the query's last batch too late.
            self._commit(position)
        self._latest = self._target or latest_position(self._options, position)
        if self._is_available_now:
            self._target = self._latest
        end = with_begin(self._options, position, self._latest, SystemEnvironment().now_ms())
        if (end.offsets, end.topic_ids) == (position.offsets, position.topic_ids):
            return start
        # A query that ends by itself might wait forever for enough records.
        if not self._is_available_now and self._is_too_early(count_offsets(position, end)):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limit_position(position, end, limit.max_rows)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = plan_micro_batch(self._options, Position.from_json(start), Position.from_json(end))
        return [InputPartition(together) for together in in_tasks(ranges, self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(Position.from_json(end))

    def _commit(self, position: Position) -> None:
        """Commits the query's position to the group, if `commitOffsets` is set and the position is new."""
        group = self._options.commit_to_group
        if group is not None and position.offsets != self._committed:
            self._committed = position.offsets
            commit_offsets(self._options.client, group, position.offsets)

    def _is_too_early(self, count: int) -> bool:
        """Whether to wait for minOffsetsPerTrigger. The wait is at most maxTriggerDelay."""
        minimum = self._options.min_offsets_per_trigger
        if minimum is None:
            return False
        now_s = call(self._options.client, _now_s)
        if count < minimum and self._triggered_s is not None:
            waited_ms = (now_s - self._triggered_s) * 1000
            if waited_ms < self._options.max_trigger_delay_ms:
                return True
        self._triggered_s = now_s
        return False


async def _now_s(_: ClusterClient) -> float:
    return asyncio.get_running_loop().time()
