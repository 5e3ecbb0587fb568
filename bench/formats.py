"""klamm's decoders and encoders of typed rows beside libraries for the same formats, on this machine, as ratios.

A library would replace klamm's own code where it makes the same of each record and klamm is at most 1.5 times as fast.
Each one is called as the best replacement could: whole columns where it takes columns; each record by itself where a
bad one would end a block. Times are klamm's own texts where a library has other ones.

| column      | what it is                                                                                    |
|-------------|-----------------------------------------------------------------------------------------------|
| rows/s      | orders (350 bytes as JSON) in a second of CPU of one thread, the best of several rounds in turns |
| klamm / it  | klamm's rows/s by the library's                                                               |
| orders      | in how many per cent of the orders the library makes something else than klamm                |
| odd records | the same of the odd records and rows of tests/support/spark/odd_records.py; a bad one is a null |

For JSON, CSV and Avro klamm makes what Spark makes: the tests in tests/spark compare both, for the same odd records.
Spark's own functions are measured over bytes that are in the JVM's memory, as CPU of the JVM's process; those for Avro
and Protobuf are not in PySpark's jars.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from format_contests import CONTESTS, ODD_RECORDS, Contest, Convert, orders
from rich.console import Console
from rich.table import Table
from sides import number, process_cpu_seconds


def safely(convert: Convert, records: pa.Array) -> list[Any]:
    """What is made of each record; None where nothing can be made of it."""
    made = []
    for at in range(len(records)):
        try:
            (one,) = convert(records[at : at + 1])
            made.append(one.as_py())
        except Exception:  # what a library raises for a bad record is its own affair
            made.append(None)
    return made


def differing_percent(ours: list[Any], theirs: list[Any]) -> float:
    # NaN does not equal itself.
    return 100 * sum(repr(our) != repr(their) for our, their in zip(ours, theirs, strict=True)) / len(ours)


class SparkFunctions:
    """A session with one core, and the CPU that its process takes for a function over a column."""

    def __init__(self) -> None:
        from pyspark.sql import SparkSession

        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        self._session = (
            builder.config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        self._session.sparkContext.setLogLevel("OFF")
        gateway: Any = self._session.sparkContext._gateway
        self._pid: int = gateway.proc.pid
        self._frame: Any = None

    def load(self, records: pa.Array) -> None:
        if self._frame is not None:
            self._frame.unpersist()
        self._frame = self._session.createDataFrame(pa.table({"value": records})).coalesce(1).cache()
        self._frame.count()

    def seconds(self, function: str) -> float:
        began = process_cpu_seconds(self._pid)
        self._frame.selectExpr(f"{function} AS made").write.format("noop").mode("overwrite").save()
        return process_cpu_seconds(self._pid) - began

    def close(self) -> None:
        self._session.stop()


@contextmanager
def spark_functions(wanted: bool) -> Iterator[SparkFunctions | None]:
    functions = SparkFunctions() if wanted else None
    yield functions
    if functions is not None:
        functions.close()


def cpu_seconds(convert: Convert, records: pa.Array) -> float:
    began = time.process_time()
    convert(records)
    return time.process_time() - began


def measured(contest: Contest, rounds: int, spark: SparkFunctions | None, table: Table) -> None:
    best: dict[str, float] = {}

    def note(name: str, seconds: float) -> None:
        best[name] = min(best.get(name, seconds), seconds)

    if spark is not None and contest.spark:
        spark.load(contest.records)
    for _ in range(rounds):
        note("klamm", cpu_seconds(contest.ours, contest.records))
        for name, convert in contest.others.items():
            note(name, cpu_seconds(convert, contest.records))
        if spark is not None and contest.spark:
            note("Spark", spark.seconds(contest.spark))
    odd, odd_ours, odd_others = contest.odd
    few = contest.records[:ODD_RECORDS]
    wanted, odd_wanted = safely(contest.ours, few), safely(odd_ours, odd)
    count = len(contest.records)
    for name, seconds in best.items():
        shares = ["", ""]
        if name in contest.others:
            made, odd_made = safely(contest.others[name], few), safely(odd_others[name], odd)
            shares = [f"{differing_percent(wanted, made):.0f} %", f"{differing_percent(odd_wanted, odd_made):.0f} %"]
        ratio = "" if name == "klamm" else f"{seconds / best['klamm']:.2f}"
        table.add_row(contest.name, name, number(count / seconds), ratio, *shares)
    table.add_section()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=tuple(CONTESTS), default=tuple(CONTESTS), help="the formats")
    parser.add_argument("--without-spark", action="store_true", help="leaves out Spark's own functions, and the JVM")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    rows = orders(arguments.rows)
    table = Table("what", "by", "rows/s", "klamm / it", "orders", "odd records")
    with spark_functions(not arguments.without_spark) as spark:
        for name in arguments.only:
            for contest in CONTESTS[name](rows):
                measured(contest, arguments.rounds, spark, table)
    Console().print(table)


if __name__ == "__main__":
    main()
