"""A stream on executors of their own: `dying_stream.py BOOTSTRAP TOPIC DIRECTORY`.

One task kills its Python worker, one its executor, and one is slow once, so that Spark runs it a second time. Prints as
JSON the rows that the micro-batches had, the faults that happened and how many tasks were speculative.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

SCHEMA = "partition INT, offset BIGINT"


def main(bootstrap: str, topic: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[2,2,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.task.maxFailures", "8")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.25")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .getOrCreate()
    )
    rows: dict[int, list[list[int]]] = {}
    faults = str(directory)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            open(f"{faults}/again-{time.time_ns()}", "x").close()
        for batch in batches:
            offsets = batch["offset"].to_pylist()
            for offset, fault in ((10, "worker"), (120, "executor"), (220, "slow")):
                if offset not in offsets or batch["partition"][0].as_py() != 1:
                    continue
                try:
                    open(f"{faults}/fault-{fault}", "x").close()
                except FileExistsError:
                    continue
                if fault == "worker":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif fault == "executor":
                    # The worker's parent is PySpark's daemon, and that one's parent is the executor.
                    with open(f"/proc/{os.getppid()}/stat") as stat:
                        os.kill(int(stat.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
                    time.sleep(30)
                else:
                    time.sleep(20)
            yield batch

    def keep(frame: DataFrame, batch: int) -> None:
        rows[batch] = [[row.partition, row.offset] for row in frame.collect()]

    reader = spark.readStream.format("klamm").schema(SCHEMA).option("kafka.bootstrap.servers", bootstrap)
    frame = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=400).load()
    writer = frame.mapInArrow(fail, SCHEMA).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    if not writer.start().awaitTermination(700):
        raise SystemExit("the query has not ended")
    found = {
        "rows": sorted(row for batch in rows.values() for row in batch),
        "faults": sorted(path.name.removeprefix("fault-") for path in Path(directory).glob("fault-*")),
        "speculative": len(list(Path(directory).glob("again-*"))),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
