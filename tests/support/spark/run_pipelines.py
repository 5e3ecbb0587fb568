"""All pipelines, together or in turn, with stops at the gates of a test; run as a program by test_pipeline_faults.py.

The argument is JSON: `master` (of Spark), `together`, `place` (a `Place`) and `stops`, of each pipeline, with the
address of a gate. `archive` and `replay` stop before the `call`-th call of the function `target` in a task, with
`driver` in the driver; `transform` where `stopping_source` says.
"""

import json
import os
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.replay import replay
from klamm.spark.pipelines.transform import transform
from support.spark.faults import StoppingSession, stop_before, stopping_source

SETTINGS = {
    "ui.enabled": "false",
    "executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "sql.shuffle.partitions": "2",
    "sql.session.timeZone": "UTC",
    # What lies on an executor that is dead is soon given up.
    "shuffle.io.maxRetries": "1",
    "shuffle.io.retryWait": "100ms",
}


@dataclass(frozen=True)
class Place:
    """What the pipelines work on: a cluster, topics, and a directory for everything else.

    `source` is archived; the archive in `finished` has `recorded`, which is replayed to `replayed`; `sales` become
    `totals`, so many in a micro-batch.
    """

    bootstrap: str
    directory: str
    finished: str
    source: str
    recorded: str
    replayed: str
    sales: str
    totals: str
    sales_per_trigger: int

    @property
    def archive(self) -> str:
        return f"{self.directory}/archive"

    @property
    def output(self) -> str:
        return f"{self.directory}/output"

    @property
    def checkpoint(self) -> str:
        return f"{self.directory}/checkpoint"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def run_archive(spark: Any, place: Place) -> None:
    options = {"kafka.bootstrap.servers": place.bootstrap, "subscribe": place.source, "kafka.fetch.max.bytes": "1000"}
    archive(spark, place.archive, options, offsets_per_file=100, ranges_per_commit=2)


def run_replay(spark: Any, place: Place) -> None:
    options = {"kafka.bootstrap.servers": place.bootstrap}
    replay(spark, place.finished, place.output, options, topics={place.recorded: place.replayed})


def run_transform(spark: Any, place: Place) -> None:
    options = {"kafka.bootstrap.servers": place.bootstrap, "maxOffsetsPerTrigger": str(place.sales_per_trigger)}
    transform(spark, options, place.sales, place.totals, place.checkpoint, late="1 minute").awaitTermination()


def main(text: str) -> None:
    given = json.loads(text)
    place, stops = Place(**given["place"]), given["stops"]
    builder = SparkSession.builder.master(given["master"]).config("spark.executor.memory", "512m")
    for key, value in SETTINGS.items():
        builder = builder.config(f"spark.{key}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(stopping_source(**stops["transform"]))

    def run_stopping(pipeline: Any, *, driver: bool = False, **stop: Any) -> None:
        with stop_before(**stop) if driver else nullcontext():
            pipeline(spark if driver else StoppingSession(spark, **stop), place)

    others = (("archive", run_archive), ("replay", run_replay))
    with ThreadPoolExecutor(2) as executor:
        for name, pipeline in others:
            running = executor.submit(run_stopping, pipeline, **stops[name])
            running.add_done_callback(end_if_failed)
            if not given["together"]:
                running.result()
        # Spark finds the format only in the thread whose active session this is.
        run_transform(spark, place)
    spark.stop()


def end_if_failed(done: "Future[None]") -> None:
    if done.exception() is not None:
        traceback.print_exception(done.exception())
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
