"""`klamm pipeline prewarm`: after it, nothing is compiled; and what the command prints."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from klamm import compiling
from klamm.spark.prewarm import prewarm
from klamm.spark.write.columns import Columns
from klamm.spark.write.encoding import encode, record_sizes
from klamm.spark.write.partitioning import Topic, assign
from klamm.tools import main


@pytest.mark.parametrize("text", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("partitions", [None, pa.array([0, 0], pa.int32())])
def test_no_columns_need_more_than_what_was_prewarmed(
    text: pa.DataType, has_key: bool, partitions: pa.Array | None
) -> None:
    compiled = prewarm().compiled
    texts = pa.array(["a", None]).cast(text)
    columns = Columns.from_arrow(texts if has_key else None, texts, None, np.zeros(2, np.int64))
    sizes = record_sizes(columns)
    chosen = assign([Topic("t", 1, [0], 1000)], np.zeros(2, np.int64), partitions, columns.keys, sizes)
    assert sum(each.record_count for each in encode(columns, chosen.targets, sizes, chosen.limits)) == 2
    assert compiling.compilations().compiled == compiled


def test_the_command_says_where_the_code_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", "prewarm"]) == 0
    text = capsys.readouterr().out
    assert main.run(["pipeline", "prewarm", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert Path(value["directory"]).is_dir()
    assert text == f"Compiled {value['compiled']} functions and found {value['loaded']} in {value['directory']}.\n"


def test_a_directory_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert main.run(["pipeline", "prewarm", "--directory", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"klamm: --directory: {tmp_path / 'file'} cannot be written to\n"
