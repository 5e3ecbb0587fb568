"""`klamm pipeline run`: against a cluster, as a command and as the printed program; stopped and begun again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from klamm.cli import main
from klamm.testing.cluster import Cluster
from support.spark.producing import produce
from support.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KLAMM = [sys.executable, "-m", "klamm.cli.main", "pipeline", "run"]
MakeTopic = Callable[..., str]

FILE = """\
cluster:
  kafka.bootstrap.servers: ${{BROKERS}}
source:
  stream: true
  options:
    subscribe: {source}
    startingOffsets: earliest
    includeHeaders: true
    maxOffsetsPerTrigger: 20
decode: SELECT *, from_json(string(value), 'product STRING, amount DOUBLE') AS sale FROM source
errors:
  topic: {errors}
  where: sale.product IS NULL
  reason: "concat('not a sale: ', length(value), ' bytes')"
steps:
  - name: sales
    sql: SELECT key, sale.product, sale.amount, offset FROM records
  - name: doubled
    sql: SELECT string(offset) AS key, to_json(struct(product, 2 * amount AS amount)) AS value FROM sales
sink:
  options:
    topic: {target}
checkpoint: {checkpoint}
{trigger}
"""


def sales(first: int, last: int) -> list[dict[str, Any]]:
    """Every seventh is not a sale."""
    return [
        {
            "key": b"k",
            "value": b"no sale" if n % 7 == 0 else json.dumps({"product": f"p{n}", "amount": n}).encode(),
            "headers": [("till", b"1")],
        }
        for n in range(first, last)
    ]


def expected(first: int, last: int) -> list[tuple[bytes, bytes]]:
    return [
        (str(n).encode(), json.dumps({"product": f"p{n}", "amount": 2.0 * n}, separators=(",", ":")).encode())
        for n in range(first, last)
        if n % 7
    ]


class Place:
    """A pipeline's file, and its topics."""

    def __init__(self, cluster: Cluster, topic: MakeTopic, directory: Path, trigger: str) -> None:
        self.cluster, self.directory = cluster, directory
        self.source, self.target, self.errors = topic(), topic(), topic()
        self.file = directory / "pipeline.yaml"
        self.file.write_text(
            FILE.format(
                source=self.source,
                target=self.target,
                errors=self.errors,
                checkpoint=directory / "checkpoint",
                trigger=trigger,
            )
        )
        self.environment = {**os.environ, "BROKERS": cluster.bootstrap}

    def written(self) -> list[tuple[bytes, bytes]]:
        return [(each.key(), each.value()) for each in read(self.cluster, self.target)[0]]

    def bad(self) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
        return [(each.key(), each.value(), dict(each.headers())) for each in read(self.cluster, self.errors)[0]]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*KLAMM, str(self.file), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


def bad_row(source: str, offset: int) -> tuple[bytes, bytes, dict[str, bytes]]:
    headers = {
        "till": b"1",
        "__klamm.errors.reason": b"not a sale: 7 bytes",
        "__klamm.errors.topic": source.encode(),
        "__klamm.errors.partition": b"0",
        "__klamm.errors.offset": str(offset).encode(),
    }
    return b"k", b"no sale", headers


def test_a_stream_as_a_command_and_then_as_a_program(
    spark_connect: str, cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """The program continues from the checkpoint of the command."""
    place = Place(cluster, topic, tmp_path, "trigger: availableNow")
    produce(cluster.bootstrap, place.source, sales(0, 50))
    done = place.run("--remote", spark_connect, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1] == {"ended": True, "records": {"errors": 50, "sink": 50}}
    batches = [(each["batch"], each["records"], each["behind"]) for each in lines[:-1] if each["query"] == "sink"]
    assert batches == [(0, 20, 30), (1, 20, 10), (2, 10, 0)]
    assert place.written() == expected(0, 50)
    assert place.bad() == [bad_row(place.source, n) for n in range(0, 50, 7)]
    produce(cluster.bootstrap, place.source, sales(50, 80))
    text = place.run("--print")
    assert text.returncode == 0
    assert cluster.bootstrap not in text.stdout
    (tmp_path / "program.py").write_text(text.stdout)
    environment = {**place.environment, "SPARK_REMOTE": spark_connect}
    program = [sys.executable, str(tmp_path / "program.py")]
    ended = subprocess.run(program, env=environment, timeout=200, check=False, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    assert place.written() == expected(0, 80)
    assert place.bad() == [bad_row(place.source, n) for n in range(0, 80, 7)]


def test_a_stream_that_is_stopped(spark_connect: str, cluster: Cluster, topic: MakeTopic, tmp_path: Path) -> None:
    """SIGTERM in the middle, and again: no row is lost, and a stream without an end ends with 0."""
    place = Place(cluster, topic, tmp_path, "")
    command = [*KLAMM, str(place.file), "--remote", spark_connect, "--json"]
    for number, first in (signal.SIGTERM, 0), (signal.SIGINT, 100):
        produce(cluster.bootstrap, place.source, sales(first, first + 100))
        with subprocess.Popen(command, env=place.environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = json.loads(process.stdout.readline())
            # The first run is stopped in the middle, the second one when it has read everything.
            while first and (line["query"], line.get("behind")) != ("sink", 0):
                line = json.loads(process.stdout.readline())
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(120) == 0
        assert json.loads(rest.splitlines()[-1])["ended"]
    assert sorted(set(place.written())) == sorted(expected(0, 200))


def test_a_batch_in_this_session(spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path) -> None:
    """Bad rows are written before the others, and files are partitioned."""
    from klamm.spark.pipelines.files.parsing import parse
    from klamm.spark.pipelines.files.program import program

    place = Place(cluster, topic, tmp_path, "")
    produce(cluster.bootstrap, place.source, sales(0, 20))
    lines = place.file.read_text().replace("  stream: true\n", "").replace("    maxOffsetsPerTrigger: 20\n", "")
    text = (
        lines[: lines.index("sink:")]
        + f"sink: {{format: json, mode: overwrite, partitionBy: [key], options: {{path: {tmp_path}/out}}}}\n"
    )
    names: dict[str, Any] = {"__name__": "x"}
    os.environ["BROKERS"] = cluster.bootstrap
    try:
        for _ in range(2):
            exec(compile(program(parse(text.encode(), "f")), "f", "exec"), names)
            assert names["start"](spark) == {}
    finally:
        del os.environ["BROKERS"]
    found = spark.read.schema("key STRING, value STRING").json(f"{tmp_path}/out").orderBy("key").collect()
    assert sorted((row.key.encode(), row.value.encode()) for row in found) == sorted(expected(0, 20))
    assert place.bad() == 2 * [bad_row(place.source, n) for n in range(0, 20, 7)]


TYPED = """\
cluster:
  kafka.bootstrap.servers: {brokers}
source:
  schema: >-
    key BINARY, value STRUCT<product STRING, amount DOUBLE>, topic STRING, partition INT, offset BIGINT,
    headers ARRAY<STRUCT<key STRING, value BINARY>>, _corrupt_record BINARY
  options:
    subscribe: {source}
    value.format: json
    includeHeaders: true
errors:
  topic: {errors}
{where}
steps:
  - name: sales
    sql: SELECT value.product AS key, to_json(struct(value.amount AS amount)) AS value FROM records
sink:
  options:
    topic: {target}
"""


def test_records_that_are_decoded_in_the_source(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """A corrupt record goes to the errors as it was read; one that another condition refuses, as JSON of its fields."""
    from klamm.spark.pipelines.files.parsing import parse
    from klamm.spark.pipelines.files.program import program

    source = topic()
    values = [b'{"product": "tea", "amount": 1}', b'{"amount": "x"}', b"\xff{", None, b'{"amount": 9, "more": 1}']
    produce(cluster.bootstrap, source, [{"key": b"k", "value": value, "headers": [("h", b"1")]} for value in values])
    corrupt = [(b"k", values[1], b"1", b"1"), (b"k", values[2], b"1", b"2")]
    refused = [(b"k", b'{"amount":9.0}', b"1", b"4")]
    good = [(b"tea", b'{"amount":1.0}'), (None, b"{}"), (None, b'{"amount":9.0}')]
    for where, bad, rows in (
        ("", corrupt, good),
        ("  where: _corrupt_record IS NOT NULL OR value.amount > 5", corrupt + refused, good[:2]),
    ):
        target, errors = topic(), topic()
        text = TYPED.format(brokers=cluster.bootstrap, source=source, target=target, errors=errors, where=where)
        names: dict[str, Any] = {"__name__": "x"}
        exec(compile(program(parse(text.encode(), "f")), "f", "exec"), names)
        names["start"](spark)
        found = [(each.key(), each.value(), dict(each.headers())) for each in read(cluster, errors)[0]]
        assert [(key, value, of["h"], of["__klamm.errors.offset"]) for key, value, of in found] == bad
        assert [(each.key(), each.value()) for each in read(cluster, target)[0]] == rows


@pytest.mark.parametrize(
    ("text", "environment", "told"),
    [
        ("source: {}\nsink: {}\n", {}, "FILE:1:1: source.options is missing"),
        (
            "source: {options: {subscribe: a, failOnDataLoss: '${P}', kafka.bootstrap.servers: 'b:1'}}\n"
            "sink: {format: csv}\n",
            {"P": "hunter2"},
            "FILE:1:34: option failOnDataLoss is '${P}'; allowed: true, false",
        ),
    ],
)
def test_a_wrong_file_ends_with_1(
    text: str,
    environment: dict[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "f.yaml"
    file.write_text(text)
    assert main.run(["pipeline", "run", str(file), "--check"]) == 1
    assert told.replace("FILE", str(file)) in capsys.readouterr().err


def test_each_problem_of_a_file_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "source: {options: {subscribe: a, kafka.bootstrap.servers: 'b:1'}}\nsink: {format: csv}\n\"x\\n\": 1\ny: 2\n"
    )
    assert main.run(["pipeline", "run", str(file), "--check"]) == 1
    told = [line.partition("; allowed")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == [f"klamm: {file}:3:1: unknown key x\\u000a", f"{file}:4:1: unknown key y"]


def test_checks_and_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", "run", str(tmp_path / "none.yaml"), "--check"]) == 1
    assert "none.yaml" in capsys.readouterr().err
    file = tmp_path / "f.yaml"
    file.write_text("source: {format: csv, options: {path: a}}\nsink: {format: console}\n")
    assert main.run(["pipeline", "run", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file} is a pipeline.\n"
    assert main.run(["pipeline", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["source"]["type"] == "object"


@pytest.mark.usefixtures("spark_environment")
def test_a_query_that_fails_is_one_line_without_secrets(
    spark_connect: str, cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        f"source: {{options: {{subscribe: {topic()}, kafka.bootstrap.servers: '${{BROKERS}}'}}}}\n"
        "steps: [{name: a, sql: \"SELECT raise_error('broken') AS value FROM records\"}]\n"
        "decode: SELECT nothing FROM source\n"
        "sink: {format: noop, mode: overwrite}\n"
    )
    done = subprocess.run(
        [*KLAMM, str(file), "--remote", spark_connect],
        env={**os.environ, "BROKERS": cluster.bootstrap},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("klamm: [UNRESOLVED_COLUMN")
    assert cluster.bootstrap not in done.stderr
