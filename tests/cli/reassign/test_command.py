"""`klamm reassign` against klamm's own brokers: whole executions, and some that end early."""

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.cli import main
from klamm.cli.reassign.access import BrokerAccess
from klamm.cli.reassign.execution import Outcome
from klamm.cli.reassign.options import Reached
from klamm.cli.reassign.running import Reporter, begun_by, read_plan, state_of
from klamm.cli.reassign.setting_throttles import NOT_ALIVE
from klamm.cli.reassign.steps import Limits
from klamm.cli.reassign.throttles import ConfigKey
from klamm.cli.shared import interrupts
from klamm.cli.shared.options import ClusterOptions
from klamm.config.throttles import BROKER_THROTTLES, LEADER_RATE, TOPIC_THROTTLES
from klamm.processes.helper import Helper
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing import Cluster
from support.scripted_cluster import ScriptedCluster

KLAMM = [sys.executable, "-m", "klamm.cli.main"]
BROKERS = 4


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(BROKERS, helper=klamm_helper) as running:
        yield running


async def test_a_command_waits_for_the_next_controller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While an execution, which looks again and again, is told at once that there is none."""
    monkeypatch.setattr("klamm.cli.reassign.options.RETRY_TIMEOUT_MS", 1)
    listed = ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, error_message=None, topics=[])
    async with ScriptedCluster((ApiKey.LIST_PARTITION_REASSIGNMENTS, listed), topics={"t": [0]}) as cluster:
        cluster.controllers = [-1, -1, -1, -1, 0]
        host, port = cluster.address(0)
        command = ["reassign", "list", "--bootstrap-server", f"{host}:{port}"]
        assert await asyncio.to_thread(main.run, command) == 0, capsys.readouterr().err
    assert capsys.readouterr().out == "No partition reassignments found.\n"


class Tool:
    """Runs `klamm reassign` for a topic of two partitions, which are on brokers 0,1 and 1,2 at first."""

    def __init__(self, cluster: Cluster, directory: Path, topic: str) -> None:
        self.cluster, self.directory, self.topic = cluster, directory, topic
        cluster.create_topic(topic, 2, 2)
        self.at = ["--bootstrap-server", cluster.bootstrap]
        start = self.plan({0: [0, 1], 1: [1, 2]}, "start.json")
        self.run("execute", "--reassignment-json-file", start, "--yes")

    def plan(self, replicas: dict[int, list[int]], name: str = "plan.json") -> Path:
        file = self.directory / name
        partitions = [{"topic": self.topic, "partition": each, "replicas": ids} for each, ids in replicas.items()]
        file.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return file

    def command(self, action: str, *arguments: str | Path) -> list[str]:
        at = [] if "--zookeeper" in arguments else self.at
        return [*KLAMM, "reassign", action, *map(str, arguments), *at]

    def run(self, action: str, *arguments: str | Path, code: int = 0) -> str:
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            ended = main.run(self.command(action, *arguments)[len(KLAMM) :])
        self.stderr = stderr.getvalue()
        assert ended == code, stdout.getvalue() + self.stderr
        return stdout.getvalue()

    def events(self, *arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*map(str, arguments), "--yes", "--json", code=code).splitlines()]

    def end_after(self, event: str, how: signal.Signals, *arguments: str | Path) -> int:
        """Sends a signal to a command when it reports the event; returns its exit code."""
        action, *options = arguments
        command = self.command(str(action), *options, "--yes", "--json")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == event:
                os.kill(process.pid, how)
                break
        process.stdout.close()
        return process.wait(120)

    def replicas(self) -> dict[int, list[int]]:
        return {number: self.cluster.replicas(self.topic, number) for number in (0, 1)}

    def throttles(self) -> dict[ConfigKey, str]:
        entities: dict[str, tuple[str, ...]] = {
            f"brokers/{broker.id}": BROKER_THROTTLES for broker in self.cluster.brokers if broker.running
        }
        entities[f"topics/{self.topic}"] = TOPIC_THROTTLES
        keys = [ConfigKey(entity, name) for entity, names in entities.items() for name in names]
        found = ClusterOptions(self.cluster.bootstrap).call(lambda client: BrokerAccess(client).read_configs(keys))
        return {key: value for key, value in found.items() if value is not None}

    def set_throttle(self, key: ConfigKey, value: str | None) -> None:
        changes = {key.entity: {key.name: value}}
        ClusterOptions(self.cluster.bootstrap).call(lambda client: BrokerAccess(client).change_configs(changes))
        self.cluster.until(lambda: self.throttles().get(key) == value)


@pytest.fixture
def tool(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Tool:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return Tool(cluster, tmp_path, name)


def test_a_plan_is_executed_verified_and_rolled_back(tool: Tool) -> None:
    topic = tool.topic
    plan = tool.plan({0: [2, 3], 1: [1, 2]})
    tool.run("execute", "--reassignment-json-file", plan, code=1)
    assert f"{topic}-0: 0,1 -> 2,3; copies 0 B to 2,3" in tool.stderr
    assert "say --yes" in tool.stderr
    assert tool.replicas() == {0: [0, 1], 1: [1, 2]}
    printed = tool.run("execute", "--reassignment-json-file", plan, "--yes", "--throttle", "10000000")
    current = f'{{"topic":"{topic}","partition":0,"replicas":[0,1],"log_dirs":["any","any"]}}'
    assert printed.splitlines() == [
        "Current partition replica assignment",
        "",
        f'{{"version":1,"partitions":[{current}]}}',
        "",
        "Save this to use as the --reassignment-json-file option during rollback",
        "The inter-broker throttle limit was set to 10000000 B/s",
        f"Successfully started partition reassignment for {topic}-0",
        f"Reassignment of partition {topic}-0 is complete.",
        "The throttles have their former values again.",
    ]
    assert tool.replicas() == {0: [2, 3], 1: [1, 2]}
    assert tool.throttles() == {}
    assert tool.run("verify", "--reassignment-json-file", plan).splitlines() == [
        "Status of partition reassignment:",
        f"Reassignment of partition {topic}-0 is complete.",
        f"Reassignment of partition {topic}-1 is complete.",
        "",
        "Clearing broker-level throttles on brokers 0,1,2,3",
        f"Clearing topic-level throttles on topic {topic}",
    ]
    assert tool.run("execute", "--reassignment-json-file", plan).count("is complete.") == 2, "nothing to ask"
    tool.run("rollback", plan.with_name("plan.rollback.json"), "--yes")
    assert tool.replicas() == {0: [0, 1], 1: [1, 2]}
    differing = tool.run("verify", "--reassignment-json-file", plan, code=1).splitlines()
    assert differing[1] == (
        f"There is no active reassignment of partition {topic}-0, but replica set is 0,1 rather than 2,3."
    )
    assert tool.run("list") == "No partition reassignments found.\n"
    assert json.loads(tool.run("list", "--json")) == []
    assert tool.run("cancel", "--reassignment-json-file", plan).splitlines()[:2] == [
        "None of the specified partition reassignments are active.",
        "None of the specified partition moves are active.",
    ]


def test_a_generated_plan_is_executed(tool: Tool) -> None:
    topic = tool.topic
    topics = tool.directory / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    printed = tool.run("generate", "--topics-to-move-json-file", topics, "--broker-list", "2,3")
    first, current, empty, second, proposed = printed.splitlines()
    assert (first, empty) == ("Current partition replica assignment", "")
    assert second == "Proposed partition reassignment configuration"
    replicas = [(each["partition"], each["replicas"]) for each in json.loads(current)["partitions"]]
    assert replicas == [(0, [0, 1]), (1, [1, 2])]
    assert all(set(each["replicas"]) == {2, 3} for each in json.loads(proposed)["partitions"])
    assert "between brokers; no plan for this goal copies less than" in tool.stderr
    file = tool.directory / "generated.json"
    found = tool.run("generate", "--topic", topic, "--replication-factor", "3", "--output", file, "--json")
    assert [len(each["after"]) for each in json.loads(found)["moves"]] == [3, 3]
    tool.run("execute", "--reassignment-json-file", file, "--yes")
    assert [len(each) for each in tool.replicas().values()] == [3, 3]
    assert tool.run("generate", "--topic", topic, "--replication-factor", "3") == ""
    assert "Nothing has to move." in tool.stderr
    at = ("--zookeeper", tool.cluster.zookeeper)
    assert topic in tool.run("generate", "--topic", topic, "--remove-brokers", "1", *at)


def test_through_zookeeper(tool: Tool) -> None:
    plan = tool.plan({0: [1, 2], 1: [2, 3]})
    at = ("--zookeeper", tool.cluster.zookeeper)
    events = tool.events("execute", "--reassignment-json-file", plan, "--throttle", "10000000", *at)
    assert events[-1]["complete"] is True
    assert tool.replicas() == {0: [1, 2], 1: [2, 3]}
    assert tool.throttles() == {}
    assert tool.run("verify", "--reassignment-json-file", plan, *at).count("is complete.") == 2
    assert tool.run("list", *at) == "No partition reassignments found.\n"


def test_a_throttle_of_somebody_else_is_restored(tool: Tool) -> None:
    key = ConfigKey("brokers/2", LEADER_RATE)
    tool.set_throttle(key, "123456")
    try:
        plan = tool.plan({0: [2, 3]})
        assert tool.events("execute", "--reassignment-json-file", plan, "--throttle", "10000000")[-1]["complete"]
        assert tool.throttles() == {key: "123456"}
    finally:
        tool.set_throttle(key, None)


@pytest.mark.parametrize("event", ["planned", "throttle_set", "started", "completed"])
def test_after_kill_9_an_execution_is_resumed(tool: Tool, event: str) -> None:
    plan = tool.plan({0: [2, 3], 1: [3, 0]})
    arguments = ("--reassignment-json-file", plan, "--throttle", "10000000")
    assert tool.end_after(event, signal.SIGKILL, "execute", *arguments) == -signal.SIGKILL
    if plan.with_name("plan.state.json").exists():
        tool.run("execute", *arguments, code=1)
        assert "Continue with --resume" in tool.stderr
    assert tool.events("execute", "--resume", *arguments)[-1:] in ([], [
        {"event": "finished", "complete": True, "unfinished": {}, "failed": {}, "throttles_left": {}}
    ])  # fmt: skip
    assert tool.replicas() == {0: [2, 3], 1: [3, 0]}
    assert tool.throttles() == {}
    assert not plan.with_name("plan.state.json").exists()


def test_a_killed_rollback_is_run_again(tool: Tool) -> None:
    plan = tool.plan({0: [2, 3], 1: [3, 0]})
    (tool.directory / "other.state.json").write_text("{}")
    tool.run("execute", "--reassignment-json-file", plan, "--yes")
    rollback = plan.with_name("plan.rollback.json")
    options = ("rollback", rollback, "--throttle", "10000000")
    assert tool.end_after("started", signal.SIGKILL, *options) == -signal.SIGKILL
    tool.run(*map(str, options), "--yes")
    assert tool.replicas() == {0: [0, 1], 1: [1, 2]}
    assert tool.throttles() == {}


def test_a_record_on_another_cluster_is_not_touched(tool: Tool) -> None:
    """The wrong --bootstrap-server: the throttles to take back are not there."""
    plan = tool.plan({0: [2, 3], 1: [3, 0]})
    named = ("--reassignment-json-file", plan)
    tool.events("execute", *named, "--throttle", "10000000", "--no-wait")
    tool.cluster.until(lambda: tool.replicas() == {0: [2, 3], 1: [3, 0]})
    state = plan.with_name("plan.state.json")
    here = state.read_text()
    there = here.replace(json.loads(here)["cluster_id"], "another")
    state.write_text(there)
    throttles = tool.throttles()
    assert throttles
    rollback = ("rollback", plan.with_name("plan.rollback.json"), "--yes")
    throttle = ("throttle", *named, "--rate", "5")
    calls = (("verify", *named), ("cancel", *named, "--yes"), throttle, rollback, ("execute", "--resume", *named))
    for call in calls:
        tool.run(*map(str, call), code=1)
        assert f"{state.name} is of cluster another, and this is cluster" in tool.stderr
        assert (state.read_text(), tool.throttles()) == (there, throttles)
    state.write_text(here)
    tool.run("verify", *map(str, named))
    assert tool.throttles() == {}
    assert tool.events("execute", *named) == [
        {"event": "finished", "complete": True, "unfinished": {}, "failed": {}, "throttles_left": {}}
    ]


def test_a_plan_that_was_changed_is_not_resumed_and_a_cancel_ends_what_it_had_begun(tool: Tool) -> None:
    plan = tool.plan({0: [0, 3], 1: [1, 2]})
    named = ("--reassignment-json-file", plan)
    tool.end_after("planned", signal.SIGKILL, "execute", *named)
    tool.plan({0: [0, 3], 1: [3, 2]})
    tool.run("execute", "--resume", *map(str, named), code=1)
    assert "the plan was changed since its execution began" in tool.stderr
    cluster = Reached(tool.cluster.bootstrap)
    tool.plan({1: [3, 2]})
    begun = begun_by(cluster, read_plan(plan), [state_of(plan)])
    assert [str(key) for key in begun] == [f"{tool.topic}-1", f"{tool.topic}-0"]
    tool.run("cancel", *map(str, named), "--yes")
    assert not state_of(plan).exists()


def test_an_unknown_broker_is_refused_before_anything_is_written(tool: Tool) -> None:
    plan = tool.plan({0: [0, 99], 1: [98, 2]})
    files = sorted(tool.directory.iterdir())
    tool.run("execute", "--reassignment-json-file", plan, "--yes", code=1)
    assert "unknown brokers 98,99 in the plan: not alive, and without a replica of any partition" in tool.stderr
    assert "The live brokers are 0,1,2,3" in tool.stderr
    assert sorted(tool.directory.iterdir()) == files


def test_a_throttle_survives_a_death_right_after_the_plan_is_saved(tool: Tool) -> None:
    """Nothing has begun yet, so the record on disk is all that the next process knows."""
    named = ("--reassignment-json-file", tool.plan({0: [2, 3], 1: [3, 0]}))
    options = ("--throttle", "7000000", "--batch-size", "1", "--batch-bytes", "1000")
    tool.end_after("planned", signal.SIGKILL, "execute", *named, *options)
    record = state_of(tool.directory / "plan.json").load()
    assert (record.throttle, record.limits) == (7_000_000, Limits(1, 1000))
    events = tool.events("execute", *named, "--resume")
    assert next(each for each in events if each["event"] == "throttle_set")["throttle"] == 7_000_000
    assert sum(each["event"] == "started" for each in events) == 2
    assert tool.throttles() == {}


def test_a_dead_broker_holds_up_only_its_own_partition(tool: Tool) -> None:
    """Ctrl-C, another throttle and a rollback meet an execution that waits."""
    cluster = tool.cluster
    dead = next(broker for broker in (3, 0) if broker != cluster.controller_id())
    other = 3 - dead
    tool.run("execute", "--reassignment-json-file", tool.plan({0: [1, 2], 1: [1, 2]}, "first.json"), "--yes")
    cluster.kill(dead)
    try:
        plan = tool.plan({0: [1, dead], 1: [2, other]})
        arguments = ("--reassignment-json-file", plan, "--throttle", "10000000")
        assert tool.end_after("completed", signal.SIGINT, "execute", *arguments) == 130
        tool.run("throttle", "--rate", "7000000", "--reassignment-json-file", plan)
        rates = {value for key, value in tool.throttles().items() if key.name == LEADER_RATE}
        assert rates == {"7000000"}
        ended = tool.events("execute", "--resume", *arguments[:2], "--timeout", "1000", code=1)[-1]
        assert list(ended["unfinished"]) == [str(TopicPartition(tool.topic, 0))]
        assert tool.replicas() == {0: [1, 2], 1: [2, other]}
    finally:
        cluster.start(dead)
    tool.run("rollback", plan.with_name("plan.rollback.json"), "--yes")
    assert tool.replicas() == {0: [1, 2], 1: [1, 2]}
    assert tool.throttles() == {}
    assert sorted(each.name for each in tool.directory.glob("*.state.json")) == []


def test_a_throttle_on_a_dead_broker_comes_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome((), {}, {}, {"brokers/1": NOT_ALIVE})
    interrupts.begin(["reassign", "execute", "--bootstrap-server", "h:1"])
    Reporter(as_json=False).finish(outcome, Path("plan.json"))
    assert capsys.readouterr().err.splitlines() == [
        "The throttle stays on:",
        "  brokers/1: the broker is not alive",
        "If that broker never returns: its configs are restored, except in KRaft mode, by klamm reassign verify"
        " --zookeeper HOST:PORT --reassignment-json-file plan.json",
        "To continue: klamm reassign execute --resume --reassignment-json-file plan.json --bootstrap-server h:1",
    ]


def test_a_wrong_call() -> None:
    done = subprocess.run([*KLAMM, "reassign", "cancel"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "klamm: Invalid value for --all: give exactly one of --reassignment-json-file and --all\n",
    )
