"""klamm pipeline: wrong calls, and real processes that are killed."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from klamm.cli import main
from klamm.cli.pipeline.pipeline import reason, session
from klamm.processes.tool_errors import ToolError
from support.spark.archiving import archived, in_topic
from support.spark.producing import numbered, produce

KLAMM = [sys.executable, "-m", "klamm.cli.main", "pipeline"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["archive", "--directory", "d"], "give exactly one of --topic and --pattern"),
        (
            ["archive", "--directory", "d", "--topic", "t", "--pattern", "t"],
            "give exactly one of --topic and --pattern",
        ),
        (["archive", "--topic", "t"], "Missing option '--directory'."),
        (["archive", "--directory", "d", "--topic", "t", "--offsets-per-file", "0"], "--offsets-per-file"),
        (["archive", "--directory", "d", "--topic", "t", "--option", "x"], "'x' is not of the form key=value"),
        (
            ["replay", "--directory", "d", "--output", "o", "--master", "a", "--remote", "b"],
            "give only one of --master and",
        ),
        (["transform", "--source", "s"], "Missing option '--target'."),
    ],
)
def test_a_wrong_call_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, tmp_path: Path
) -> None:
    assert main.run(["pipeline", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("pair", ["hunter2", "=hunter2", " =hunter2"])
def test_a_storage_option_may_be_a_secret(capsys: pytest.CaptureFixture[str], pair: str) -> None:
    assert main.run(["pipeline", "archive", "--directory", "d", "--topic", "t", "--storage-option", pair]) == 2
    shown = capsys.readouterr().err
    assert "one of them is not of the form NAME=VALUE" in shown
    assert "hunter2" not in shown


def test_why_spark_failed() -> None:
    text = (
        "An exception was thrown:\nTraceback (most recent call last):\n  File x\nValueError: the reason\n SQLSTATE: 1"
    )
    assert reason(text) == "ValueError: the reason"
    # Spark puts a worker's error on the line of its own message.
    failed = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed when Python data"
        " source instance invoke method: Traceback (most recent call last):\n  File x\nOSError: refused\n\nDuring"
        " handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        "  File y\nklamm.net.client.ClientError: no broker\n\tat org.apache.spark\n SQLSTATE: XXKST"
    )
    assert reason(failed) == "klamm.net.client.ClientError: no broker"
    assert reason("[A] the first\nthe second") == "[A] the first"
    assert reason("") == "Spark failed"


LOCAL = ("--master", "local[2]")


@pytest.mark.parametrize(
    ("before", "at_its_end"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")),
        (None, Py4JError("x")),
    ],
)
def test_a_jvm_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, before: Exception | None, at_its_end: Exception
) -> None:
    spark = MagicMock()
    builder = spark.builder.master().appName()
    builder.config.return_value = builder
    builder.getOrCreate().stop.side_effect = at_its_end
    monkeypatch.setattr("pyspark.sql.SparkSession", spark)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with pytest.raises(ToolError, match="Spark's JVM no longer answers: "), session("name", None, None):
        if before is not None:
            raise before


def call(*arguments: object) -> list[str]:
    return [*KLAMM, *map(str, arguments), "--json"]


def run(*arguments: object) -> dict:
    done = subprocess.run(call(*arguments), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.usefixtures("spark_environment")
@pytest.mark.long
def test_archive_killed_and_replay(spark_connect, cluster, topic, tmp_path):
    """The driver alone is killed: its JVM and tasks live on for a while, beside the program that goes on."""
    name, target, directory = topic(partitions=2), topic(partitions=2), tmp_path / "archive"
    produce(cluster.bootstrap, name, [*numbered(1600), *numbered(800, partition=1)])
    arguments = ["archive", "--bootstrap-server", cluster.bootstrap, "--directory", directory]
    arguments += ["--topic", name, "--offsets-per-file", 100]
    command = call(*arguments, *LOCAL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: any(directory.glob("data/*/*")), process)
        process.kill()
    rows = archived(str(directory), name)
    assert len(rows) < 2400
    assert len(rows) == len({row[:2] for row in rows})
    run(*arguments, "--remote", spark_connect)
    assert archived(str(directory), name) == in_topic(cluster, name)
    replayed = ["replay", "--bootstrap-server", cluster.bootstrap, "--directory", directory, "--commit-groups"]
    replayed += ["--output", tmp_path / "output", "--topic", f"{name}={target}"]
    done = run(*replayed, "--remote", spark_connect)
    assert done == {"records": 2400, "groups": {}, "refused": {}}
    assert in_topic(cluster, target) == in_topic(cluster, name)


@pytest.mark.usefixtures("spark_environment")
def test_an_error_is_one_line(java, cluster, tmp_path):
    arguments = ["--bootstrap-server", cluster.bootstrap, "--directory", tmp_path, "--topic", "none"]
    done = subprocess.run(call("archive", *arguments, *LOCAL), capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "klamm: UNKNOWN_TOPIC_OR_PARTITION (3): there is no topic none"


def test_on_spark_connect(spark_connect, cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(50))
    where = ["--bootstrap-server", cluster.bootstrap, "--directory", tmp_path, "--topic", name]
    assert run("archive", *where, "--remote", spark_connect)["records"] == 50
    assert archived(str(tmp_path), name) == in_topic(cluster, name)
