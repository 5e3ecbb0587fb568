"""Topics read without Spark: by pandas, Polars and DuckDB as the documentation shows, and what wrong arguments say."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from klamm.protocol.error_codes import KafkaError
from klamm.spark import arrow
from klamm.spark.options import OptionError
from klamm.spark.settings import DataLoss
from klamm.testing.cluster import Cluster
from support.spark.producing import numbered, produce


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> str:
    """A topic with two partitions of 5 and 3 records."""
    cluster.create_topic("orders", partitions=2)
    records = numbered(5) + numbered(3, partition=1)
    produce(cluster.bootstrap, "orders", [{**record, "key": b"ab"[:1]} for record in records])
    return "orders"


def examples() -> dict[str, str]:
    """The examples of the module's documentation, by the library they are for."""
    parts = re.split(r"^With (\w+).*:\n", arrow.__doc__ or "", flags=re.MULTILINE)[1:]
    indented = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
    return {
        library: textwrap.dedent(max(indented.findall(text), key=len))
        for library, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize(
    ("library", "printed"),
    [
        ("pandas", r"partition\n0    5\n1    3\n"),
        ("Polars", r"b\"a\" +┆ 8"),
        ("DuckDB", r"\[\(0, 4\), \(1, 3\)\]"),
    ],
)
def test_the_examples(
    cluster: Cluster, orders: str, library: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = examples()[library].replace("127.0.0.1:9092", cluster.bootstrap)
    exec(compile(program, library, "exec"), {})
    assert re.search(printed, capsys.readouterr().out)


def test_the_example_of_the_guide(cluster: Cluster, orders: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    section = guide.partition("## Without Spark")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program.replace("127.0.0.1:9092", cluster.bootstrap), "guide", "exec"), names)
    assert list(names["frame"].columns) == ["partition", "offset", "value"]
    assert len(names["frame"]) == 8


def test_partitions_follow_each_other(cluster: Cluster, orders: str) -> None:
    table = arrow.read(cluster.bootstrap, subscribe=[orders], include_headers=True).read_all()
    assert table.schema.names[-1] == "headers"
    assert table.column("partition").to_pylist() == [0] * 5 + [1] * 3
    assert table.column("value").to_pylist() == [b"0", b"1", b"2", b"3", b"4", b"0", b"1", b"2"]


def test_where_reading_begins_and_ends(cluster: Cluster, orders: str) -> None:
    def read(**arguments: object) -> list[tuple[int, int]]:
        table = arrow.read(cluster.bootstrap, columns=["offset", "partition"], **arguments).read_all()  # type: ignore[arg-type]
        assert table.schema.names == ["offset", "partition"]
        return [(row["partition"], row["offset"]) for row in table.to_pylist()]

    assert read(assign={orders: [1]}, ending_offsets={orders: {1: 2}}) == [(1, 0), (1, 1)]
    assert read(subscribe_pattern="ord.*", starting_offsets={orders: {0: 4, 1: 3}}) == [(0, 4)]
    assert read(subscribe=orders, options={"startingTimestamp": 1002}) == [(0, 2), (0, 3), (0, 4), (1, 2)]
    assert read(subscribe=orders, options={"startingOffsets": '{"orders": {"0": 4, "1": 3}}'}) == [(0, 4)]
    assert read(subscribe=orders, options={"maxRecordsPerPartition": 2})[:3] == [(0, 0), (0, 1), (0, 2)]


def test_an_empty_topic_has_columns(cluster: Cluster, topic: Callable[..., str]) -> None:
    table = arrow.read(cluster.bootstrap, subscribe=topic()).read_all()
    assert table.num_rows == 0
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_wrong_arguments_say_what_is_allowed(cluster: Cluster, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.spark.read.planning.MISSING_TIMEOUT_MS", 100)
    with pytest.raises(ValueError, match="no column 'valeu'; allowed: key, value"):
        arrow.read(cluster.bootstrap, subscribe=orders, columns=["valeu"])
    with pytest.raises(OptionError, match="exactly one of the options"):
        arrow.read(cluster.bootstrap)
    with pytest.raises(OptionError, match="not of the form host:port"):
        arrow.read("localhost", subscribe=orders)
    with pytest.raises(OptionError, match="unknown option"):
        arrow.read(cluster.bootstrap, subscribe=orders, options={"fetchMaximum": 3})
    with pytest.raises(KafkaError, match="there is no topic nothing"):
        arrow.read(cluster.bootstrap, subscribe="nothing")


def test_an_error_while_reading_is_the_readers(
    cluster: Cluster, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.spark.read.partition_reader.GRACE_MS", 100)
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    reader = arrow.read(cluster.bootstrap, subscribe=name)
    cluster.delete_topic(name)
    with pytest.raises(DataLoss, match="no longer exists"):
        reader.read_all()
