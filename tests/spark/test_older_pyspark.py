"""What a user of another PySpark is told, and how rows and streams of PySpark 4.0 and 4.1 are adapted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import DecimalType, StructField, StructType

from klamm.spark import pyspark_versions as versions
from klamm.spark.options import OptionError, read_options
from klamm.spark.sql_types import TYPES
from support.paths import ROOT

OPTIONS = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}


def test_an_older_pyspark_is_told_in_one_sentence(tmp_path: Path) -> None:
    """And the package that Spark looks for data sources in can still be imported."""
    for package, text in {"pyspark": "__version__ = '3.5.1'\n", "pyspark/sql": ""}.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    program = "import pyspark_klamm, klamm.spark\nklamm.spark.register(None)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: klamm needs PySpark 4.0 or newer, and this is PySpark 3.5.1; pip install 'klamm[spark]'"
    )


class Reader:
    """A stream reader whose log ends 10 offsets later with each question."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.initial = 0

    def initialOffset(self) -> dict[str, int]:
        self.initial += 1
        return {"initial": self.initial}

    def getDefaultReadLimit(self) -> str:
        return "no limit"

    def latestOffset(self, start: dict[str, int], limit: str) -> dict[str, int]:
        self.asked.append((limit, start))
        return {"latest": len(self.asked)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start, end))]


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "HAS_READ_LIMITS", False)
    monkeypatch.setattr(versions, "HAS_STREAM_ARROW_WRITERS", False)


@pytest.mark.usefixtures("old")
def test_a_batch_begins_where_the_last_one_ended() -> None:
    reader = Reader()
    adapted: Any = versions.stream_reader(reader, read_options(OPTIONS, streaming=True))  # type: ignore[arg-type]
    # Spark's order of calls for a new query.
    assert adapted.latestOffset() == {"latest": 1}
    assert adapted.initialOffset() == {"initial": 1}
    assert [each.value for each in adapted.partitions({"initial": 1}, {"latest": 1})] == [
        ({"initial": 1}, {"latest": 1})
    ]
    assert adapted.latestOffset() == {"latest": 2}
    assert reader.asked == [("no limit", {"initial": 1}), ("no limit", {"latest": 1})]


@pytest.mark.usefixtures("old")
def test_a_restarted_query_begins_where_spark_says_first() -> None:
    reader = Reader()
    adapted: Any = versions.stream_reader(reader, read_options(OPTIONS, streaming=True))  # type: ignore[arg-type]
    adapted.partitions({"seen": 7}, {"seen": 7})
    adapted.partitions({"initial": 1}, {"seen": 7})
    adapted.latestOffset()
    assert reader.asked == [("no limit", {"seen": 7})]
    assert reader.initial == 0


@pytest.mark.usefixtures("old")
def test_a_limit_is_refused_where_it_would_leave_records_out() -> None:
    options = read_options({**OPTIONS, "maxOffsetsPerTrigger": "5"}, streaming=True)
    with pytest.raises(
        OptionError, match=r"^option maxOffsetsPerTrigger needs PySpark 4\.2 or newer, because .*; this"
    ):
        versions.stream_reader(Reader(), options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("old")
def test_rows_become_record_batches() -> None:
    schema = StructType([StructField(name, TYPES[name]) for name in ("key", "value", "headers")])
    schema = schema.add("n", DecimalType(9, 2))
    found: list[pa.RecordBatch] = []

    class Writer:
        def write(self, batches: Any) -> str:
            found.extend(batches)
            return "written"

    adapted: Any = versions.stream_writer(Writer(), schema)  # type: ignore[arg-type]
    rows = [Row(key=bytearray(b"k"), value=bytearray(b"v"), headers=[Row(key="h", value=None)], n=None)] * 10_001
    assert adapted.write(iter(rows)) == "written"
    assert [each.num_rows for each in found] == [10_000, 1]
    assert found[1].to_pylist() == [{"key": b"k", "value": b"v", "headers": [{"key": "h", "value": None}], "n": None}]
    assert found[0].schema.field("key").type == pa.binary()
