"""klamm's Spark source and sink beside Spark's own Kafka connector, on this machine, as ratios.

Both run in the same Spark session, on the same topics of the same broker: one of Apache Kafka 2.8.2, then one of klamm.
Rows that are read go to Spark's `noop` sink. Before any rate of a topic counts, the rows that both read there are shown
to be the same ones, by a hash over all columns.

| what        | from                                             | until                                           |
|-------------|--------------------------------------------------|-------------------------------------------------|
| read        | the query is written down                        | its last row has been read; batch, availableNow |
| plain API   | `klamm.spark.arrow.read`, no JVM, one thread     | the last record batch                           |
| within      | a stream's micro-batch begins                    | it has ended: what a query that goes on achieves |
| batches     | a micro-batch of so many records begins          | it has ended: the median                        |
| archive     | the first offset is asked for                    | the last file is in the archive's log           |
| write       | the rows are in the JVM's memory                 | all are acknowledged by all in-sync replicas    |
| first query | a session that has just begun, 1,000 records     | the query's end                                 |
| typed       | as read: 3 of 20 fields of JSON (connector: `from_json`) | its last row has been read              |
| scaling     | as read, for 1 to 8 partitions and for all cores |                                                 |
| width       | a micro-batch over so many partitions begins     | it has ended; ten records in each partition     |
| plan        | a batch query of so many partitions is written   | its tasks are known                             |

A record has a key of 8 bytes; half of its value is the same in all records, half are random hexadecimal digits. Topics
have four partitions and one replica. Options are the defaults, except for the codec, and PYSPARK_PYTHON=klamm-python;
`python` in the name of a row says that it was the ordinary one. In local[1] klamm's source has a
core for Python beside the JVM's, where there are two.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table
from sides import ROOT, Kafka, Klamm, Side, number

from klamm.spark.options import write_options
from klamm.spark.write.writing import record_writer

SESSION = Path(__file__).with_name("spark_session.py")
PARTS = ("read", "archive", "write", "first", "scaling", "batches", "width", "typed")
# Size of a value, and how many records there are of it.
SIZES = {100: 5_000_000, 1000: 1_000_000}
CODECS = ("none", "lz4", "zstd")
PARTITIONS = 4
CONNECTORS = ("kafka", "klamm")
CHOSEN = (["value"], ["key", "value"])
# JSON documents of about 1 KB with twenty fields, of which three are wanted.
TYPED_RECORDS = 1_000_000
SCALING_RECORDS = 2_000_000
SCALING_PARTITIONS = (1, 2, 4, 8)
WIDTHS = (100, 1000, 3000, 10_000)
# Beyond this width Spark's connector takes more than ten minutes for a micro-batch, and only klamm is measured.
CONNECTOR_MAX_WIDTH = 1000
# Of each partition in a micro-batch, and the micro-batches of a query; the first two warm up.
WIDTH_RECORDS, WIDTH_BATCHES = 10, 4
FIRST_RECORDS = 1000
# How many records a micro-batch has.
BATCH_RECORDS = (1000, 100_000, 500_000)
BATCHES = 12
WARM_UP_RECORDS = 200_000
CHUNK_RECORDS = 50_000
SEED = 7
# Of syslog; librdkafka's default, 6, tells of every client that ends.
WARNINGS = 4

READ_TARGET, CHOSEN_TARGET, WRITE_TARGET, FIRST_TARGET, BATCH_TARGET = 2.5, 3.0, 1.0, 0.8, 0.5
# Of the connector's time.
WIDTH_TARGET = 2.0
# Seconds, of the plan alone.
PLAN_TARGET = 1.0
TYPED_TARGET = 3.0
# Of klamm's own read of all columns.
ARCHIVE_TARGET = 0.7

# What was done, by whom (a connector, or the plain API), and on which side's broker: samples in seconds.
Key = tuple[str, str, str]


class SparkSession:
    """A session of bench/spark_session.py in a process of its own."""

    def __init__(self, log: Path, cores: int, *, sooner: bool, environment: dict[str, str]) -> None:
        command = [sys.executable, str(SESSION), "--cores", str(cores), *(["--sooner"] if sooner else [])]
        paths = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "bench")))
        self._log, self._ready = log, False
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": paths} | environment,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        self._answer()
        self._ready = True

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self._in.write(json.dumps({"do": do, **arguments}) + "\n")
        self._in.flush()
        return self._answer()

    def close(self) -> None:
        """Ends it; also its JVM, which would stay if the session has not begun."""
        self._in.close()
        if self._ready:
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def _in(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the Spark session has ended:\n{self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def session(directory: Path, cores: int, *, sooner: bool = True, **environment: str) -> Iterator[SparkSession]:
    made = SparkSession(directory / "session.log", cores, sooner=sooner, environment=environment)
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()


# -- the topics -------------------------------------------------------------------------------------------------------


def create_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": WARNINGS})
    admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=300, request_timeout=300)[name].result(300)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": WARNINGS})
    admin.delete_topics([name])[name].result(30)


def fill(bootstrap: str, name: str, count: int, size_bytes: int, codec: str, partitions: int = PARTITIONS) -> None:
    """A topic of so many records, which are the same each time."""
    create_topic(bootstrap, name, partitions)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": name, "kafka.compression.type": codec}
    random = np.random.default_rng(SEED)
    with record_writer(write_options(options)) as writer:
        for first in range(0, count, CHUNK_RECORDS):
            writer.write(chunk(random, first, min(CHUNK_RECORDS, count - first), size_bytes))
        writer.flush()


def fill_wide(bootstrap: str, name: str, partitions: int) -> None:
    """The records of all micro-batches in each of so many partitions."""
    create_topic(bootstrap, name, partitions)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": name}
    random = np.random.default_rng(SEED)
    with record_writer(write_options(options)) as writer:
        for _ in range(WIDTH_BATCHES):
            for first in range(0, partitions, CHUNK_RECORDS // WIDTH_RECORDS):
                count = min(CHUNK_RECORDS // WIDTH_RECORDS, partitions - first)
                records = chunk(random, first, count * WIDTH_RECORDS, 100)
                numbers = np.repeat(np.arange(first, first + count, dtype=np.int32), WIDTH_RECORDS)
                writer.write(records.append_column("partition", pa.array(numbers)))
            writer.flush()


def chunk(random: np.random.Generator, first: int, count: int, size_bytes: int) -> pa.RecordBatch:
    keys = np.arange(first, first + count, dtype=">i8").view(np.uint8)
    values = np.empty((count, size_bytes), np.uint8)
    digits = size_bytes // 2
    values[:, :digits] = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, (count, digits))]
    values[:, digits:] = np.resize(
        np.frombuffer(b'{"customer": "name", "amount": 12.50}', np.uint8), size_bytes - digits
    )
    return pa.record_batch({"key": binary(keys, 8), "value": binary(values, size_bytes)})


def fill_documents(bootstrap: str, name: str, count: int) -> None:
    """A topic of JSON documents, which are the same each time."""
    create_topic(bootstrap, name)
    random = np.random.default_rng(SEED)
    with record_writer(write_options({"kafka.bootstrap.servers": bootstrap, "topic": name})) as writer:
        for first in range(0, count, CHUNK_RECORDS):
            rows = min(CHUNK_RECORDS, count - first)
            amounts = random.integers(0, 1_000_000, rows).tolist()
            filler = random.bytes(rows * 16).hex()
            documents = [
                document(first + row, amounts[row] / 100, filler[32 * row : 32 * row + 32]) for row in range(rows)
            ]
            writer.write(pa.record_batch({"value": pa.array(documents, pa.binary())}))
        writer.flush()


def document(number: int, amount: float, digits: str) -> bytes:
    """Twenty fields of several types; the wanted ones lie at the beginning, in the middle and at the end."""
    others = {
        f"field{place:02}": [digits + "0123456789abcd", amount * place, place % 2 == 0, [place, {"name": digits[:8]}]][
            0 if place < 13 else place % 4
        ]
        for place in range(17)
    }
    parts = list(others.items())
    fields = [("id", number), *parts[:8], ("customer", f"name {number}"), *parts[8:], ("amount", amount)]
    return json.dumps(dict(fields)).encode()


def binary(data: np.ndarray[Any, Any], size_bytes: int) -> pa.Array:
    """Bytes as an array of values of one size."""
    fixed = pa.Array.from_buffers(pa.binary(size_bytes), data.size // size_bytes, [None, pa.py_buffer(data.tobytes())])
    return fixed.cast(pa.binary())


# -- the measurements -------------------------------------------------------------------------------------------------


class Bench:
    """Measures on one side at a time."""

    def __init__(self, directory: Path, scale: float, rounds: int, widths: list[int], console: Console) -> None:
        self._directory, self._scale, self._rounds, self._console = directory, scale, rounds, console
        self._widths = widths
        self.seconds: dict[Key, list[float]] = {}
        # The most memory that driver and worker have used, in MB, by width, connector and side.
        self.megabytes: dict[tuple[int, str, str], tuple[float, float]] = {}

    def measure(self, side: Side, parts: list[str]) -> None:
        side.launch()
        try:
            side.wait_ready()
            if {"read", "archive", "write"} & set(parts):
                with session(self._directory, os.cpu_count() or 1) as spark:
                    self._warm_up(spark, side, parts)
                    for size_bytes in SIZES:
                        for codec in CODECS:
                            name = f"{size_bytes}-{codec}"
                            self._topic(spark, side, name, size_bytes, codec, parts, self.count(size_bytes))
            if "typed" in parts:
                self._typed(side)
            if "first" in parts:
                self._first(side)
            if "scaling" in parts:
                self._scaling(side)
            if "batches" in parts:
                self._batches(side)
            if "width" in parts:
                for partitions in self._widths:
                    self._width(side, partitions)
        finally:
            side.kill()

    def count(self, size_bytes: int) -> int:
        return int(SIZES[size_bytes] * self._scale)

    def scaling_count(self) -> int:
        return int(SCALING_RECORDS * self._scale)

    def _warm_up(self, spark: SparkSession, side: Side, parts: list[str]) -> None:
        """Everything once, so that no first of its kind is measured; what it takes is forgotten."""
        self._topic(spark, side, "warm-up", 100, "lz4", parts, WARM_UP_RECORDS)
        self.seconds = {key: samples for key, samples in self.seconds.items() if key[2] != side.name}

    def _topic(
        self, spark: SparkSession, side: Side, name: str, size_bytes: int, codec: str, parts: list[str], count: int
    ) -> None:
        fill(side.bootstrap, name, count, size_bytes, codec)
        self._same_rows(spark, side, name, count)
        if "read" in parts:
            for _ in range(self._rounds):
                self._read(spark, side, name, count)
        if "archive" in parts:
            for _ in range(self._rounds):
                place = {"bootstrap": side.bootstrap, "topic": name}
                self._note(f"{name} archived", "klamm", side, spark.ask("archive", **place), count)
                if "read" not in parts:
                    self._note(read_title(name, None), "klamm", side, spark.ask("read", connector="klamm", **place))
        if "write" in parts:
            self._write(spark, side, name, codec, count)
        delete_topic(side.bootstrap, name)

    def _same_rows(self, spark: SparkSession, side: Side, name: str, count: int) -> None:
        theirs, ours = (
            spark.ask("digest", connector=connector, bootstrap=side.bootstrap, topic=name) for connector in CONNECTORS
        )
        if not theirs["rows"] == ours["rows"] == count or theirs["digest"] != ours["digest"]:
            raise SystemExit(f"{name} of {side.name}, {count} records: the connector reads {theirs}, klamm {ours}")
        self._console.print(f"{side.name}, {name}: the same {count} rows, {ours['digest']}")

    def _read(self, spark: SparkSession, side: Side, name: str, count: int) -> None:
        place = {"bootstrap": side.bootstrap, "topic": name}
        for columns in (None, *CHOSEN):
            what = read_title(name, columns)
            for connector in CONNECTORS:
                self._note(what, connector, side, spark.ask("read", connector=connector, columns=columns, **place))
            self._note(f"{what}, plain API", "klamm", side, spark.ask("arrow", columns=columns, **place), count)
        for connector in CONNECTORS:
            answer = spark.ask("stream", connector=connector, **place)
            self._note(f"{name} stream", connector, side, answer, count)
            within = answer | {"seconds": answer["batch_seconds"]}
            self._note(f"{name} stream, within", connector, side, within, count)

    def _write(self, spark: SparkSession, side: Side, name: str, codec: str, count: int) -> None:
        spark.ask("keep", bootstrap=side.bootstrap, topic=name)
        expected = spark.ask(
            "digest", connector="kafka", bootstrap=side.bootstrap, topic=name, columns=["key", "value"]
        )
        for round_ in range(self._rounds):
            for connector in CONNECTORS:
                place = {"bootstrap": side.bootstrap, "topic": f"{name}-{connector}-{round_}"}
                create_topic(side.bootstrap, place["topic"])
                self._note(
                    f"{name} write", connector, side, spark.ask("write", connector=connector, codec=codec, **place)
                )
                found = spark.ask("digest", connector="kafka", columns=["key", "value"], **place)
                if (found["rows"], found["digest"]) != (count, expected["digest"]):
                    raise SystemExit(f"{place['topic']} of {side.name} should have {expected}, but has {found}")
                delete_topic(side.bootstrap, place["topic"])

    def typed_count(self) -> int:
        return int(TYPED_RECORDS * self._scale)

    def _typed(self, side: Side) -> None:
        place = {"bootstrap": side.bootstrap, "topic": "typed"}
        fill_documents(side.bootstrap, "typed", self.typed_count())
        with session(self._directory, os.cpu_count() or 1) as spark:
            theirs, ours = (spark.ask("typed", connector=connector, digest=True, **place) for connector in CONNECTORS)
            if theirs != ours or ours["rows"] != self.typed_count():
                raise SystemExit(f"typed rows of {side.name}: the connector reads {theirs}, klamm {ours}")
            for _ in range(self._rounds):
                for connector in CONNECTORS:
                    self._note("typed", connector, side, spark.ask("typed", connector=connector, **place))
        delete_topic(side.bootstrap, "typed")

    def _first(self, side: Side) -> None:
        fill(side.bootstrap, "first", FIRST_RECORDS, 100, "none")
        place = {"bootstrap": side.bootstrap, "topic": "first"}
        for _ in range(max(3, self._rounds)):
            for connector in CONNECTORS:
                with session(self._directory, os.cpu_count() or 1) as spark:
                    first = spark.ask("read", connector=connector, **place)
                    self._note("first query", connector, side, first)
                    self._note("second query", connector, side, spark.ask("read", connector=connector, **place))
                    if connector == "kafka":
                        # It has no Python that could start sooner.
                        self._note("first query, python", connector, side, first)
            with session(self._directory, os.cpu_count() or 1, sooner=False) as spark:
                answer = spark.ask("read", connector="klamm", **place)
                self._note("first query, python", "klamm", side, answer)
            for sooner, what in ((True, "first query, no rows"), (False, "first query, no rows, python")):
                with session(self._directory, os.cpu_count() or 1, sooner=sooner) as spark:
                    self._note(what, "klamm", side, spark.ask("nothing"))
        with tempfile.TemporaryDirectory(dir=self._directory) as nothing:
            with session(self._directory, os.cpu_count() or 1, NUMBA_CACHE_DIR=nothing) as spark:
                answer = spark.ask("read", connector="klamm", **place)
            self._note("first query, nothing compiled", "klamm", side, answer)

    def _batches(self, side: Side) -> None:
        with session(self._directory, os.cpu_count() or 1) as spark:
            for records in BATCH_RECORDS:
                count = records * BATCHES
                topic = f"batches-{records}"
                fill(side.bootstrap, topic, count, 100, "lz4")
                place = {"bootstrap": side.bootstrap, "topic": topic, "batch_records": records}
                # The first of all is forgotten: processes start, and Java has compiled nothing.
                for round_ in range(self._rounds + 1):
                    for connector in CONNECTORS:
                        answer = spark.ask("stream", connector=connector, **place)
                        if round_:
                            self._note_batch(f"micro-batch of {records}", connector, side, answer, count)
                delete_topic(side.bootstrap, topic)
            for _ in range(self._rounds):
                self._note_batch("micro-batch of no rows", "klamm", side, spark.ask("nothing_stream", batches=BATCHES))

    def _note_batch(self, what: str, who: str, side: Side, answer: dict[str, Any], count: int | None = None) -> None:
        self._note(what, who, side, answer | {"seconds": answer["median_batch_seconds"]}, count)

    def _scaling(self, side: Side) -> None:
        count = self.scaling_count()
        for partitions in SCALING_PARTITIONS:
            fill(side.bootstrap, f"scaling-{partitions}", count, 100, "lz4", partitions)
        for cores in core_counts():
            with session(self._directory, cores) as spark:
                for partitions in SCALING_PARTITIONS:
                    place = {"bootstrap": side.bootstrap, "topic": f"scaling-{partitions}"}
                    if partitions == SCALING_PARTITIONS[0]:
                        self._same_rows(spark, side, place["topic"], count)
                    for _ in range(self._rounds):
                        for connector in CONNECTORS:
                            answer = spark.ask("read", connector=connector, **place)
                            self._note(f"scaling {partitions} {cores}", connector, side, answer)

    def _width(self, side: Side, partitions: int) -> None:
        name = f"width-{partitions}"
        fill_wide(side.bootstrap, name, partitions)
        rows = partitions * WIDTH_RECORDS
        place = {"bootstrap": side.bootstrap, "topic": name}
        # A session each, so that memory is of one connector.
        for connector in CONNECTORS if partitions <= CONNECTOR_MAX_WIDTH else ("klamm",):
            with session(self._directory, os.cpu_count() or 1) as spark:
                for _ in range(self._rounds):
                    answer = spark.ask("stream", connector=connector, batch_records=rows, **place)
                    if answer["rows"] != rows * WIDTH_BATCHES:
                        raise SystemExit(f"{name} of {side.name}: {answer['rows']} rows of {rows * WIDTH_BATCHES}")
                    self._note(name, connector, side, {"seconds": answer["median_batch_seconds"]})
                    self._note(f"{name} plan", connector, side, spark.ask("plan", connector=connector, **place))
                    if connector == "klamm":
                        self._note(f"{name} plan alone", connector, side, spark.ask("plan_alone", **place))
                used = spark.ask("memory")
                self.megabytes[partitions, connector, side.name] = (used["driver_megabytes"], used["worker_megabytes"])
        delete_topic(side.bootstrap, name)

    def _note(self, what: str, who: str, side: Side, answer: dict[str, Any], count: int | None = None) -> None:
        if count is not None and answer["rows"] != count:
            raise SystemExit(f"{what} by {who} on {side.name}: {answer['rows']} rows of {count}")
        self.seconds.setdefault((what, who, side.name), []).append(answer["seconds"])


def read_title(name: str, columns: list[str] | None) -> str:
    return f"{name} {'+'.join(columns) if columns else 'all columns'}"


def core_counts() -> list[int]:
    """1, 2, 4, ... as far as there are cores."""
    cores = os.cpu_count() or 1
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]


# -- the results ------------------------------------------------------------------------------------------------------


class Tables:
    """The medians of all that was measured."""

    def __init__(self, bench: Bench, sides: list[str]) -> None:
        self._bench, self._sides = bench, sides

    def rates(self, parts: list[str]) -> Table:
        made = self._table("records a second, in thousands", "klamm / connector")
        for size_bytes in SIZES:
            count = self._bench.count(size_bytes)
            for codec in CODECS:
                name = f"{size_bytes}-{codec}"
                if "read" in parts:
                    for columns in (None, *CHOSEN):
                        what = read_title(name, columns)
                        self._row(made, what, count, READ_TARGET if columns is None else CHOSEN_TARGET)
                        self._row(made, f"{what}, plain API", count)
                    self._row(made, f"{name} stream", count, READ_TARGET)
                    self._row(made, f"{name} stream, within", count, READ_TARGET)
                if "write" in parts:
                    self._row(made, f"{name} write", count, WRITE_TARGET)
                made.add_section()
        return made

    def scaling(self) -> Table:
        made = self._table("scaling: records of 100 B (lz4) a second, in thousands", "klamm / connector")
        for cores in core_counts():
            for partitions in SCALING_PARTITIONS:
                what = f"scaling {partitions} {cores}"
                title = f"local[{cores}], {partitions} partition{'s'[: partitions > 1]}"
                self._row(made, what, self._bench.scaling_count(), title=title)
            made.add_section()
        return made

    def width(self, widths: list[int]) -> Table:
        made = self._table(
            f"micro-batches of {WIDTH_RECORDS} records from each partition, seconds", "klamm / connector"
        )
        for partitions in widths:
            name, title = f"width-{partitions}", f"{partitions} partitions"
            self._row(made, name, None, WIDTH_TARGET, title=title)
            self._row(made, f"{name} plan", None, title=f"{title}, plan")
            self._row(made, f"{name} plan alone", None, title=f"{title}, plan alone (≤ {PLAN_TARGET:g} s)")
            for place, part in enumerate(("driver", "worker")):
                cells = []
                for side in self._sides:
                    used = [
                        self._bench.megabytes.get((partitions, who, side), (None, None))[place] for who in CONNECTORS
                    ]
                    cells += [*map(number, used), ""]
                made.add_row(f"{title}, MB of {part}", *cells, "")
            made.add_section()
        return made

    def typed(self) -> Table:
        made = self._table("three of twenty fields of JSON, records a second, in thousands", "klamm / connector")
        self._row(made, "typed", self._bench.typed_count(), TYPED_TARGET)
        return made

    def archive(self) -> Table:
        """As `rates`, with klamm's own read in the place of the connector."""
        made = self._table("records a second, in thousands", "archived / read", ("read", "archived"))
        for size_bytes in SIZES:
            for codec in CODECS:
                name, count = f"{size_bytes}-{codec}", self._bench.count(size_bytes)
                pairs = [(read_title(name, None), "klamm"), (f"{name} archived", "klamm")]
                self._compare(made, name, pairs, count, ARCHIVE_TARGET)
        return made

    def first(self) -> Table:
        made = self._table(f"{FIRST_RECORDS} records in a new session, seconds", "klamm / connector")
        self._row(made, "first query", None, FIRST_TARGET)
        # Of PySpark's own doing: a Python data source that has nothing.
        self._row(made, "first query, no rows", None)
        self._row(made, "first query, python", None, FIRST_TARGET)
        self._row(made, "first query, no rows, python", None)
        self._row(made, "second query", None)
        self._row(made, "first query, nothing compiled", None)
        return made

    def batches(self) -> Table:
        made = self._table("a micro-batch of records of 100 B (lz4), seconds", "klamm / connector")
        for records in BATCH_RECORDS:
            self._row(made, f"micro-batch of {records}", None, BATCH_TARGET if records >= 100_000 else None)
        # Of PySpark's own doing.
        self._row(made, "micro-batch of no rows", None)
        return made

    def _table(self, title: str, ratio: str, compared: tuple[str, str] = ("connector", "klamm")) -> Table:
        made = Table(title=f"{title}, this machine ({os.cpu_count()} cores)")
        made.add_column("what", no_wrap=True)
        for side in self._sides:
            for each in compared:
                made.add_column(f"{each} on {side}", justify="right")
            made.add_column(ratio, justify="right")
        made.add_column("target", justify="right")
        return made

    def _row(
        self, table: Table, what: str, count: int | None, target: float | None = None, title: str | None = None
    ) -> None:
        self._compare(table, title or what, [(what, connector) for connector in CONNECTORS], count, target)

    def _compare(
        self, table: Table, title: str, pair: list[tuple[str, str]], count: int | None, target: float | None
    ) -> None:
        """Rates of so many records (more is better), or, without a count, seconds (less is better)."""
        cells = []
        for side in self._sides:
            theirs, ours = (self._value(what, who, side, count) for what, who in pair)
            ratio = ours / theirs if theirs is not None and ours is not None else None
            missed = ratio is not None and target is not None and (ratio < target if count else ratio > target)
            colour = "default" if target is None else "red" if missed else "green"
            cells += [number(theirs), number(ours), f"[{colour}]{number(ratio)}[/]"]
        wanted = "" if target is None else f"{'≥' if count else '≤'} {target:g}"
        table.add_row(title, *cells, wanted)

    def _value(self, what: str, who: str, side: str, count: int | None) -> float | None:
        samples = self._bench.seconds.get((what, who, side))
        if not samples:
            return None
        seconds = statistics.median(samples)
        return count / seconds / 1000 if count else seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1, help="of the numbers of records (default 1: 5 M and 1 M)")
    parser.add_argument("--rounds", type=int, default=1, help="of each query (default 1)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure only these")
    parser.add_argument("--side", choices=["kafka", "klamm", "both"], default="both", help="on one program's broker")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=list(WIDTHS), help="numbers of partitions of the width"
    )
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    console = Console(width=max(140, Console().width))
    with tempfile.TemporaryDirectory(prefix="klamm-bench-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        made = {"kafka": Kafka(directory / "kafka"), "klamm": Klamm(directory / "klamm")}
        sides = [side for name, side in made.items() if arguments.side in (name, "both")]
        bench = Bench(directory, arguments.scale, arguments.rounds, arguments.widths, console)
        with contextlib.suppress(KeyboardInterrupt):  # What has been measured until then is shown.
            for side in sides:
                with console.status(f"on {side.name}"):
                    bench.measure(side, arguments.only)
    tables = Tables(bench, [side.name for side in sides])
    if "read" in arguments.only or "write" in arguments.only:
        console.print(tables.rates(arguments.only))
    if "archive" in arguments.only:
        console.print(tables.archive())
    if "typed" in arguments.only:
        console.print(tables.typed())
    if "scaling" in arguments.only:
        console.print(tables.scaling())
    if "batches" in arguments.only:
        console.print(tables.batches())
    if "width" in arguments.only:
        console.print(tables.width(arguments.widths))
    if "first" in arguments.only:
        console.print(tables.first())
    if arguments.json:
        samples = [{"what": w, "by": by, "on": on, "seconds": s} for (w, by, on), s in bench.seconds.items()]
        memory = [
            {"partitions": n, "by": by, "on": on, "driver_megabytes": driver, "worker_megabytes": worker}
            for (n, by, on), (driver, worker) in bench.megabytes.items()
        ]
        result = {"cores": os.cpu_count(), "scale": arguments.scale, "samples": samples, "memory": memory}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
