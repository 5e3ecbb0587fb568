"""A stream with transactions, whose processes die: `dying_transactional_stream.py MASTER BOOTSTRAP TOPIC DIRECTORY`.

It counts rows by key, in two shuffle partitions, and each micro-batch writes every count. The program is started again
until it ends by itself. `DIRECTORY/in` has the input, `DIRECTORY/faults` gets a file for each fault that has happened.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from klamm.client.producer.prepared_transactions import end_prepared
from klamm.spark.options import write_options
from klamm.spark.source import KlammDataSource
from klamm.spark.write import transactions
from klamm.spark.write.sink import KlammStreamWriter
from klamm.spark.write.transaction_log import TransactionLog

KEYS = 40
# By micro-batch: what happens to the first attempt of its task 0, when the rows are written and the transaction is
# prepared. With "twice" it waits until another attempt of the task runs beside it.
TASKS = {0: "worker", 1: "twice", 2: "executor"}
# By micro-batch: the step of `klamm/spark/write/transactions.py` in which the driver dies. Nothing is recorded; all is
# recorded and nothing committed; one transaction is committed; all are, and that is not noted.
DRIVERS = {0: "check", 1: "record", 2: "end", 3: "note"}
BATCHES = 5


class Fault:
    """Something that happens once, in whichever process it comes first."""

    def __init__(self, directory: Path, name: str) -> None:
        self.file = directory / name

    def is_new(self) -> bool:
        try:
            self.file.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def kill_jvm(self) -> None:
        """Kills the executor or the driver that this Python process works for, and this process with it."""
        if self.is_new():
            # The parent is PySpark's daemon, and that one's parent is the JVM.
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def kill_worker(self) -> None:
        if self.is_new():
            os.kill(os.getpid(), signal.SIGKILL)


def disturb_task(directory: Path) -> None:
    """Called by a task that has prepared its transaction."""
    context = TaskContext.get()
    assert context is not None
    kind = TASKS.get(int(context.getLocalProperty("streaming.sql.batchId") or -1))
    if kind is None or context.partitionId() != 0:
        return
    fault = Fault(directory, kind)
    if kind == "worker":
        fault.kill_worker()
    elif kind == "executor":
        fault.kill_jvm()
    elif context.attemptNumber() > 0:
        fault.is_new()
    else:
        while not fault.file.exists():
            time.sleep(0.05)


def arm_driver(directory: Path, batch: int) -> None:
    """Called by the process that commits: from now on it dies in the step of this micro-batch."""
    if batch not in DRIVERS:
        return
    step = DRIVERS[batch]
    fault = Fault(directory, f"driver-{step}")
    record, note_end = TransactionLog.record, TransactionLog.note_end

    def recording(*arguments: Any) -> Any:
        if step == "check":
            fault.kill_jvm()
        recorded = record(*arguments)
        if step == "record":
            fault.kill_jvm()
        return recorded

    async def ending(*arguments: Any, **named: Any) -> None:
        await end_prepared(*arguments, **named)
        if step == "end":
            fault.kill_jvm()

    def noting(*arguments: Any) -> None:
        if step == "note":
            fault.kill_jvm()
        note_end(*arguments)

    TransactionLog.record = recording  # type: ignore[method-assign,assignment]  # dies at it
    TransactionLog.note_end = noting  # type: ignore[method-assign,assignment]  # dies at it
    vars(transactions)["end_prepared"] = ending


def dying(directory: Path) -> type[KlammDataSource]:
    """The data source, whose processes die."""

    class Writer(KlammStreamWriter):
        def write(self, iterator: Any) -> Any:
            written = super().write(iterator)
            if written.prepared is not None:
                disturb_task(directory)
            return written

        def commit(self, messages: Any, batchId: int) -> None:
            arm_driver(directory, batchId)
            super().commit(messages, batchId)

    class Source(KlammDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Writer(write_options(self.options), schema)

    return Source


def main(master: str, bootstrap: str, topic: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        # Each task takes the first free executor, also one that has none of its state.
        .config("spark.locality.wait", "0")
        .config("spark.speculation", "true")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    spark.dataSource.register(dying(Path(directory, "faults")))
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(f"{directory}/in")
    counted = frame.selectExpr(f"id % {KEYS} AS key").groupBy("key").count()
    writer = (
        counted.selectExpr("concat(key, '=', count) AS value")
        .writeStream.format("klamm")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("kafka.transactional.id", topic)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
    )
    if not writer.start().awaitTermination(150):
        raise SystemExit("the query has not ended")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
