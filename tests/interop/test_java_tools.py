"""One process for many calls of Kafka's tools: a call knows nothing of the one before."""

import pytest

from support.oracles import JavaTools
from support.processes import ProcessFailed

TOPICS = "kafka.admin.TopicCommand"


def test_each_call_has_its_own_output_and_exit_code(kafka_tools: JavaTools) -> None:
    code, out, err = kafka_tools.outcome(TOPICS, "--list")
    assert code == 1 and b"--bootstrap-server" in out + err
    code, out, err = kafka_tools.outcome(TOPICS, "--version")
    assert (code, out.split()[0], err) == (0, b"2.8.2", b"")
    with pytest.raises(ProcessFailed, match="exited with 1"):
        kafka_tools.run(TOPICS, "--list")


def test_a_tool_that_ends_the_process_ends_only_its_own_call(kafka_tools: JavaTools) -> None:
    with pytest.raises(ProcessFailed, match=r"Version.* has ended the process of the tools"):
        kafka_tools.run("org.apache.zookeeper.Version")
    assert kafka_tools.run(TOPICS, "--version").startswith(b"2.8.2")


class GivenUp:
    def readline(self) -> bytes:
        raise KeyboardInterrupt


def test_a_call_that_is_given_up_answers_no_later_one(kafka_tools: JavaTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tools._process, "stdout", GivenUp())
    with pytest.raises(KeyboardInterrupt):
        kafka_tools.run(TOPICS, "--list")
    assert kafka_tools.run(TOPICS, "--version").startswith(b"2.8.2")
