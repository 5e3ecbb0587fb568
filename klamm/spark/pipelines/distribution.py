"""Spreads a pipeline's work over Spark's executors: as many tasks as the cluster can use, also with Spark Connect.

Small pieces of work share a task, by their weight. The heaviest tasks begin first. A pipeline that commits its work in
rounds has two rounds in progress, so that no slot waits for the last task of a round.

What must stay true:
- A piece of work may be done twice, even at the same time, because Spark repeats tasks and a task may outlive its
  driver. So functions must be idempotent.
- No task waits for another task, so a cluster with a single slot can do all the work.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

# With several tasks for each slot, a slot that is fast takes over the work of one that is slow.
TASKS_PER_SLOT = 4
_ROUNDS_AT_A_TIME = 2
# The most slots that are counted if only a query can tell their number.
_MAX_COUNTED_SLOTS = 4096


def distribute(
    spark: "SparkSession", work: "Sequence[T]", do: "Callable[[T], str]", weight: "Callable[[T], int]" = lambda piece: 1
) -> list[str]:
    """The results of `do`, in the order of the work. Raises Spark's error for a failed task."""
    if not work:
        return []
    tasks = balanced([weight(piece) for piece in work], TASKS_PER_SLOT * slots(spark))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for number in tasks[task]:
                    yield pa.record_batch({"number": [number], "result": [do(work[number])]})

    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, "number long, result string")
    table = frame.toArrow()
    results = dict(zip(table["number"].to_pylist(), table["result"].to_pylist(), strict=True))
    return [results[number] for number in range(len(work))]


def distribute_in_rounds(
    spark: "SparkSession",
    work: "Sequence[T]",
    do: "Callable[[T], str]",
    weight: "Callable[[T], int]" = lambda piece: 1,
    *,
    round_size: int | None = None,
) -> Iterator[list[str]]:
    """The results of `do`, in the order of the work, one round at a time. The next round runs meanwhile.

    A round has `round_size` pieces; by default several for each slot that the cluster has when the round begins. Raises
    Spark's error for a failed task, after the round in progress has ended.
    """
    begun = 0
    rounds: deque[Future[list[str]]] = deque()
    with ThreadPoolExecutor(_ROUNDS_AT_A_TIME, thread_name_prefix="klamm-rounds") as pool:
        while begun < len(work) or rounds:
            while begun < len(work) and len(rounds) < _ROUNDS_AT_A_TIME:
                size = round_size or TASKS_PER_SLOT * slots(spark)
                rounds.append(pool.submit(distribute, spark, work[begun : begun + size], do, weight))
                begun += size
            yield rounds.popleft().result()


def slots(spark: "SparkSession") -> int:
    """How many tasks the cluster can run at the same time now. With dynamic allocation the number grows with the
    work."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:
        # A client of Spark Connect has no SparkContext. The server splits a range into as many parts as it has slots.
        from pyspark.sql.functions import spark_partition_id

        parts = spark.range(0, _MAX_COUNTED_SLOTS).select(spark_partition_id()).toArrow().column(0)
        return len(parts.unique())


def balanced(weights: Sequence[int], count: int) -> list[list[int]]:
    """The indexes of the weights in at most `count` groups of about the same weight, the heaviest group first.

    The indexes of a group are in order, because neighbours often belong to the same partition.
    """
    groups: list[list[int]] = [[] for _ in range(max(1, min(count, len(weights))))]
    lightest = [(0, number) for number in range(len(groups))]
    for place in sorted(range(len(weights)), key=lambda place: -weights[place]):
        weight, number = lightest[0]
        groups[number].append(place)
        # A piece of weight 0 also costs time.
        heapq.heapreplace(lightest, (weight + max(1, weights[place]), number))
    totals = {number: weight for weight, number in lightest}
    return [sorted(groups[number]) for number in sorted(totals, key=lambda number: -totals[number])]
