"""One Spark session that does what bench/spark.py asks for: jobs come in, and answers go out, as a line of JSON each.

    spark_session.py --cores N [--sooner]

A job has the name of a method of `Session` as `do`; its other fields are that method's arguments.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType
from sides import ROOT

import klamm.spark
from support.oracles import spark_kafka_jars

# The name of klamm's format; that of Spark's own connector is `kafka`.
KLAMM = "klamm"
# Three of the twenty fields of bench/spark.py's documents.
TYPED_FIELDS = "id bigint, customer string, amount double"
# So that the smaller topics are several files, too.
ARCHIVE_OFFSETS_PER_FILE = 250_000

Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)


class Nothing(DataSource):
    """A source of no rows in four tasks: what it takes is what PySpark takes to run any Python data source."""

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return NothingReader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NothingStreamReader(int(self.options["batches"]))


class NothingReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(4)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return iter(())


class NothingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, batches: int) -> None:
        self._batches = batches

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(1)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(4)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return iter(())


class Session:
    """The jobs. `connector` is the name of a format; `seconds` go from the first word about a query to its end."""

    def __init__(self, cores: int, directory: str, *, sooner: bool) -> None:
        python = Path(sys.executable)
        if sooner:
            python = python.with_name("klamm-python")
        os.environ |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        self._directory = directory
        self._spark = (
            SparkSession.builder.master(f"local[{cores}]")
            .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
            .config("spark.driver.memory", "4g")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", str(cores))
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .config("spark.local.dir", f"{directory}/local")
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")
        klamm.spark.register(self._spark)
        self._spark.dataSource.register(Nothing)
        self._queries = 0
        self._rows: DataFrame | None = None

    def digest(
        self, connector: str, bootstrap: str, topic: str, columns: Sequence[str] | None = None
    ) -> dict[str, float | str]:
        """How many rows there are, and what their hashes (over all the columns) come to, in any order of the rows."""
        frame = self._read(connector, bootstrap, topic, columns)
        frame.createOrReplaceTempView("rows")
        row_hash = f"xxhash64({', '.join(frame.columns)})"
        query = f"SELECT count(*), sum(CAST({row_hash} AS DECIMAL(38))), bit_xor({row_hash}) FROM rows"
        start = time.perf_counter()
        (found,) = self._spark.sql(query).collect()
        return {"seconds": time.perf_counter() - start, "rows": found[0], "digest": f"{found[1]} {found[2]}"}

    def read(
        self, connector: str, bootstrap: str, topic: str, columns: Sequence[str] | None = None
    ) -> dict[str, float]:
        """A batch query; its rows go nowhere."""
        start = time.perf_counter()
        self._read(connector, bootstrap, topic, columns).write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - start}

    def typed(self, connector: str, bootstrap: str, topic: str, *, digest: bool = False) -> dict[str, float | str]:
        """A batch query of three of the fields of JSON documents; with `digest`, what their hashes come to."""
        start = time.perf_counter()
        reader = self._reader(self._spark.read, connector, bootstrap, topic)
        if connector == KLAMM:
            frame = reader.schema(f"value struct<{TYPED_FIELDS}>").option("value.format", "json").load()
        else:
            frame = reader.load().select(from_json(col("value").cast("string"), TYPED_FIELDS).alias("value"))
        if digest:
            frame.createOrReplaceTempView("rows")
            query = "SELECT count(*), bit_xor(xxhash64(value.id, value.customer, value.amount)) FROM rows"
            (found,) = self._spark.sql(query).collect()
            return {"rows": found[0], "digest": str(found[1])}
        frame.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - start}

    def nothing(self) -> dict[str, float]:
        """A batch query of `Nothing`."""
        start = time.perf_counter()
        self._spark.read.format("Nothing").load().write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - start}

    def stream(self, connector: str, bootstrap: str, topic: str, batch_records: int | None = None) -> dict[str, float]:
        """A query with the trigger availableNow; its rows go nowhere."""
        reader = self._reader(self._spark.readStream, connector, bootstrap, topic)
        if batch_records is not None:
            reader = reader.option("maxOffsetsPerTrigger", batch_records)
        return self._run(reader)

    def nothing_stream(self, batches: int) -> dict[str, float]:
        """As many micro-batches of `Nothing`."""
        return self._run(self._spark.readStream.format("Nothing").option("batches", batches))

    def _run(self, reader: DataStreamReader) -> dict[str, float]:
        self._queries += 1
        start = time.perf_counter()
        frame = reader.load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{self._directory}/checkpoint-{self._queries}").start()
        query.awaitTermination()
        seconds = time.perf_counter() - start
        batches = query.recentProgress
        return {
            "seconds": seconds,
            "batch_seconds": sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000,
            # Without the first two, in which processes start.
            "median_batch_seconds": statistics.median(
                batch.durationMs["triggerExecution"] for batch in batches[2:] or batches
            )
            / 1000,
            "rows": sum(batch.numInputRows for batch in batches),
        }

    def plan(self, connector: str, bootstrap: str, topic: str) -> dict[str, float]:
        """A batch query up to its tasks."""
        start = time.perf_counter()
        self._read(connector, bootstrap, topic, None).rdd.getNumPartitions()
        return {"seconds": time.perf_counter() - start}

    def plan_alone(self, bootstrap: str, topic: str) -> dict[str, float]:
        """klamm's plan of a batch query, without the process that PySpark starts for it."""
        from klamm.spark.options import read_options
        from klamm.spark.read.planning import in_tasks, plan_batch

        options = read_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, streaming=False)
        start = time.perf_counter()
        in_tasks(plan_batch(options), options)
        return {"seconds": time.perf_counter() - start}

    def memory(self) -> dict[str, float]:
        """The most that Spark's JVM (here driver and executor in one) and a Python worker have used so far."""
        used = [process for pid in descendants(os.getpid()) if (process := peak_megabytes(pid)) is not None]
        driver = max(size for name, size in used if name == "java")
        return {
            "driver_megabytes": driver,
            "worker_megabytes": max((size for name, size in used if name != "java"), default=0),
        }

    def archive(self, bootstrap: str, topic: str) -> dict[str, float]:
        """The topic as Parquet files, in a directory that is removed afterwards."""
        from klamm.spark.pipelines.archive import archive

        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            start = time.perf_counter()
            options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
            done = archive(self._spark, directory, options, offsets_per_file=ARCHIVE_OFFSETS_PER_FILE)
            return {"seconds": time.perf_counter() - start, "rows": done.records, "size_bytes": done.size_bytes}

    def arrow(self, bootstrap: str, topic: str, columns: Sequence[str] | None = None) -> dict[str, float]:
        """The plain Python API, in this process, one partition after another."""
        from klamm.spark import arrow

        start = time.perf_counter()
        rows = sum(batch.num_rows for batch in arrow.read(bootstrap, subscribe=topic, columns=columns))
        return {"seconds": time.perf_counter() - start, "rows": rows}

    def keep(self, bootstrap: str, topic: str) -> dict[str, int]:
        """Takes the keys and values of a topic into the JVM's memory, for `write`."""
        if self._rows is not None:
            self._rows.unpersist(blocking=True)
        self._rows = self._read(KLAMM, bootstrap, topic, ["key", "value"]).cache()
        return {"rows": self._rows.count()}

    def write(self, connector: str, bootstrap: str, topic: str, codec: str) -> dict[str, float]:
        """Writes the rows that are kept."""
        assert self._rows is not None
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
        start = time.perf_counter()
        self._rows.write.format(connector).options(**options).mode("append").save()
        return {"seconds": time.perf_counter() - start}

    def _read(self, connector: str, bootstrap: str, topic: str, columns: Sequence[str] | None) -> DataFrame:
        reader = self._reader(self._spark.read, connector, bootstrap, topic)
        if columns and connector == KLAMM:
            reader = reader.schema(", ".join(f"{name} BINARY" for name in columns))
        frame = reader.load()
        return frame.select(*columns) if columns else frame

    @staticmethod
    def _reader(reader: Reader, connector: str, bootstrap: str, topic: str) -> Reader:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return reader.format(connector).options(**options)


def descendants(pid: int) -> list[int]:
    try:
        tasks = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return []  # It has ended, or a thread of it.
    children = [int(child) for task in tasks for child in task]
    return children + [each for child in children for each in descendants(child)]


def peak_megabytes(pid: int) -> tuple[str, float] | None:
    """The process's name and the most memory that it has used; None when it has ended."""
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except FileNotFoundError:
        return None
    # A process that has ended, but that nobody has waited for, has a status without memory.
    return (status["Name"], int(status["VmHWM"].split()[0]) / 1024) if "VmHWM" in status else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--sooner", action="store_true", help="with PYSPARK_PYTHON=klamm-python")
    arguments = parser.parse_args()
    # What the JVM may print is not to come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="klamm-bench-", ignore_cleanup_errors=True) as directory:
        session = Session(arguments.cores, directory, sooner=arguments.sooner)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            job = json.loads(line)
            answer = getattr(session, job.pop("do"))(**job)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
