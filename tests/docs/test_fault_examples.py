"""The programs of docs/faults.md in other languages are run as they stand there."""

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.testing import Cluster, Helper
from support.go_programs import built
from support.oracles import CACHE, SMALL_HEAP

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
GO_MODULE = Path(__file__).parents[1] / "support" / "fault_examples"
KAFKAJS = "2.2.4"


def example(language: str) -> str:
    (program,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return str(program)


def in_go(directory: Path, request: pytest.FixtureRequest) -> list[str | Path]:
    request.getfixturevalue("go")
    for file in ("go.mod", "go.sum"):
        shutil.copy(GO_MODULE / file, directory)
    (directory / "main.go").write_text(example("go"), encoding="utf-8")
    return [built(directory, "franz-lost-answer")]


def in_java(directory: Path, request: pytest.FixtureRequest) -> list[str | Path]:
    jars = request.getfixturevalue("kafka_clients4_jars")
    file = directory / "LostAnswer.java"
    file.write_text(example("java"), encoding="utf-8")
    return ["java", *SMALL_HEAP, "-cp", f"{jars}/*", file]


def in_node(directory: Path, request: pytest.FixtureRequest) -> list[str | Path]:
    if shutil.which("npm") is None:
        pytest.skip("no Node on this machine")
    library = CACHE / f"kafkajs-{KAFKAJS}"
    library.mkdir(parents=True, exist_ok=True)
    with (library / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (library / "node_modules").exists():
            command = ["npm", "install", "--no-audit", "--no-fund", f"kafkajs@{KAFKAJS}"]
            subprocess.run(command, cwd=library, check=True, capture_output=True, timeout=120)
    (directory / "node_modules").symlink_to(library / "node_modules")
    file = directory / "lost-answer.mjs"
    file.write_text(example("js"), encoding="utf-8")
    return ["node", file]


@pytest.mark.parametrize(
    "program",
    [
        in_node,
        pytest.param(in_go, marks=pytest.mark.long),
        pytest.param(in_java, marks=(pytest.mark.long, pytest.mark.java)),
    ],
)
def test_a_program_in_another_language_loses_an_answer_and_repeats_the_append(
    program: object, tmp_path: Path, klamm_helper: Helper, request: pytest.FixtureRequest
) -> None:
    assert callable(program)
    command = program(tmp_path, request)
    with Cluster(1, control=True, helper=klamm_helper) as c:
        c.create_topic("orders")
        environment = {"KLAMM_CONTROL_URL": c.control_url, "KLAMM_CONTROL_TOKEN": c.control_token}
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout) == (0, "acknowledged after 1 lost answers\n"), done.stderr
        consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=120) == (0, 1)
        consumer.close()
