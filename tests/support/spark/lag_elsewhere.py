"""A program that only speaks Spark Connect: `lag_elsewhere.py URL BOOTSTRAP TOPIC DIRECTORY` prints the maximum lag of
each micro-batch, as [number, lag]."""

import json
import queue
import sys
import threading
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

import klamm.spark
from klamm.spark.lag import Lag, LagListener


class Watching(LagListener):
    """Tells when the query has ended, too."""

    def __init__(self, on_lag: Callable[[Lag], object]) -> None:
        super().__init__(on_lag)
        self.ended = threading.Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        super().onQueryTerminated(event)
        self.ended.set()


def main() -> None:
    url, bootstrap, topic, directory = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    klamm.spark.register(spark)
    found: queue.SimpleQueue[Lag] = queue.SimpleQueue()
    listener = Watching(found.put)
    spark.streams.addListener(listener)
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=20).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination(120)
    lags = [found.get(timeout=120) for _ in range(2)]
    # PySpark's client holds a lock while it removes its last listener and waits for the events that are left, which
    # need that lock. The end of the query is the last event.
    assert listener.ended.wait(120)
    spark.streams.removeListener(listener)
    print(json.dumps([[lag.batch_id, lag.metrics["maxOffsetsBehindLatest"]] for lag in lags]))
    spark.stop()


if __name__ == "__main__":
    main()
