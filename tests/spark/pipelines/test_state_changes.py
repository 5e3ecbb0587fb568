"""State-change logs of a fleet as Parquet files."""

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from klamm.spark.pipelines import state_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def line(second: int, broker: int, name: str) -> str:
    return (
        f"[2021-06-01 10:00:{second:02},000] INFO [Broker id={broker}] Leader {name} starts at leader epoch {second}"
        f" from offset 9 with high watermark 9 ISR [{broker},7] addingReplicas [] (state.change.logger)\n"
    )


def test_each_entry_of_all_files_is_a_row_in_the_order_of_time(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_changes, "PART_BYTES", 500)
    (tmp_path / "one").write_text("".join(line(second, 1, "t-0") for second in range(0, 40, 2)))
    (tmp_path / "two").write_bytes(
        gzip.compress("".join(line(second, 2, "t-1") for second in range(1, 40, 2)).encode())
    )
    (tmp_path / "three").write_text("nothing\n")
    paths = [str(tmp_path / name) for name in ("one", "two", "three")]
    output = str(tmp_path / "history")

    done = state_changes.write_history(spark, paths, output, end=b"2021-06-01 10:00:29,000")

    assert done.entries == 30
    assert done.lost == [f"{tmp_path}/three: no line begins with a time of the form yyyy-MM-dd HH:mm:ss,SSS"]
    rows = spark.read.parquet(output).sort("time").collect()
    assert [(row.time.second, row.broker, row.topic, row.partition, row.leader, row.isr) for row in rows] == [
        (second, 1 + second % 2, "t", second % 2, 1 + second % 2, [1 + second % 2, 7]) for second in range(30)
    ]
    (tmp_path / "four").write_text("[2021-99-99 10:00:00,000] INFO [Broker id=1] x (state.change.logger)\n")
    assert [row.time for row in state_changes.history(spark, [str(tmp_path / "four")]).collect()] == [None]
    chosen = state_changes.history(spark, paths[:2], topic="t", partitions=[1])
    assert chosen.count() == 20
    with pytest.raises(ValueError, match="exists already"):
        state_changes.write_history(spark, paths, output)
