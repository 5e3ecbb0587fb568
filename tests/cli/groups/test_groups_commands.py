"""klamm groups: wrong calls, and the live view."""

import asyncio
import io
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from klamm.cli import main
from klamm.cli.cluster import live
from klamm.cli.groups.groups import Found, parse_states, positions
from klamm.cli.shared.clients import ClientInThread
from klamm.client.admin.groups import Coordinator, GroupDescription
from klamm.client.consumer.offsets import ListedOffset, OffsetAndMetadata, list_consumer_group_offsets, list_offsets
from klamm.processes.tool_errors import ToolError
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing import Cluster
from support.processes import ManagedProcess
from support.scripted_cluster import ScriptedCluster

RESET = ["reset-offsets", "--group", "g", "--topic", "t"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe"], "Invalid value for --group: give exactly one of --group and --all-groups"),
        (
            ["describe", "--group", "g", "--all-groups"],
            "Invalid value for --group: give exactly one of --group and --all-",
        ),
        (
            ["describe", "--group", "g", "--members", "--state"],
            "Invalid value for describe: give only one of --offsets, --members and --state",
        ),
        (["describe", "--group", "g", "--timeout", "0"], "Invalid value for '--timeout': "),
        (["delete"], "Invalid value for --group: give exactly one of"),
        (["delete", "--group", "g", "--topic", "t"], "No such option: --topic"),
        (
            ["list", "--state", "Stable,Odd"],
            "Invalid value for --state: Invalid state list 'Stable,Odd'. Valid states are: PreparingRebalance, "
            "CompletingRebalance, Stable, Dead, Empty",
        ),
        (["delete-offsets", "--group", "g"], "Missing option '--topic'."),
        (["delete-offsets", "--group", "g", "--topic", "t:x"], "Invalid value for --topic: 't:x' is not a topic or "),
        (["reset-offsets", "--to-earliest"], "Invalid value for --group: give exactly one of"),
        (RESET, "Invalid value for reset scenario: give exactly one of --to-offset, --to-earliest, --to-latest, "),
        ([*RESET, "--to-earliest", "--shift-by", "0"], "Invalid value for reset scenario: give exactly one of "),
        (
            ["reset-offsets", "--group", "g", "--to-earliest"],
            "Invalid value for scope: One of the reset scopes should be defined: --all-topics, --topic.",
        ),
        ([*RESET, "--all-topics", "--to-latest"], "Invalid value for --all-topics: give only one of --topic and"),
        (
            [*RESET, "--to-latest", "--dry-run", "--execute"],
            "Invalid value for --execute: give only one of --dry-run and",
        ),
        (
            [*RESET, "--to-latest", "--export", "--json"],
            "Invalid value for --export: give only one of --export and --json",
        ),
        ([*RESET, "--to-offset", "x"], "Invalid value for '--to-offset': "),
        ([*RESET, "--by-duration", "1D"], "Invalid value for --by-duration: '1D' is not of the form PnDTnHnMnS"),
        ([*RESET, "--to-datetime", "now"], "Invalid value for --to-datetime: 'now' is not of the form YYYY-MM-DDTHH"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main.run(["groups", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"klamm: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or directory"),
        (b"\xff", "is not UTF-8"),
        (b"t,0\n", "line 1: 't,0' is not group,topic,partition,offset"),
    ],
)
def test_a_bad_file_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "plan.csv"
    if content is not None:
        file.write_bytes(content)
    assert main.run(["groups", "reset-offsets", "--group", "g", "--from-file", str(file)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"klamm: {file}") and message in err
    assert err.count("\n") == 1


def test_states_may_be_written_in_any_case() -> None:
    assert parse_states("stable, EMPTY") == ["Stable", "Empty"]
    with pytest.raises(typer.BadParameter):
        parse_states("stable,")


class Committed(ClientInThread):
    """A client: a group's offsets, of which the end of one log is not known."""

    def __init__(self) -> None:
        pass

    def call(self, request: Any, *arguments: Any, **named: Any) -> Any:
        (argument,) = arguments
        if request is list_consumer_group_offsets:
            assert argument == ["g"]
            offsets = {0: OffsetAndMetadata(3), 1: OffsetAndMetadata(4)}
            return {"g": {TopicPartition("t", number): each for number, each in offsets.items()}}
        assert request is list_offsets
        assert list(argument) == [TopicPartition("t", 0), TopicPartition("t", 1)]
        unknown = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return {TopicPartition("t", 0): ListedOffset(5, -1, 0), TopicPartition("t", 1): unknown}


def test_a_partition_without_a_leader_is_shown_without_lag() -> None:
    coordinator = Coordinator(0, "h", 1)
    described = [GroupDescription(name, state, "", coordinator) for name, state in (("g", "Empty"), ("no", "Dead"))]
    of_group, of_none = positions(Committed(), Found(described)).groups
    assert [row.lag for row in of_group.rows] == [2, None]
    assert [each.code for each in of_group.missing.values()] == [ErrorCode.LEADER_NOT_AVAILABLE]
    assert list(of_group.missing) == [TopicPartition("t", 1)]
    assert (of_none.rows, of_none.missing) == ([], {})


@pytest.mark.parametrize("silent", [ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS])
async def test_a_broker_that_does_not_answer_holds_a_command_no_longer_than_its_timeout(
    capsys: pytest.CaptureFixture[str], silent: ApiKey
) -> None:
    arguments = ["list"] if silent is ApiKey.LIST_GROUPS else ["describe", "--group", "g", "--state"]
    async with ScriptedCluster((silent, lambda _: None), (silent, lambda _: None), brokers=1) as cluster:
        host, port = cluster.address(0)
        where = ["--bootstrap-server", f"{host}:{port}", "--timeout", "200"]
        began = time.monotonic()
        assert await asyncio.to_thread(main.run, ["groups", *arguments, *where]) == 1
        assert time.monotonic() - began < 30, "half of retry_timeout_ms, which --timeout replaces"
    told = f"{host}:{port}: no response to {silent.message_name} within 200 ms"
    assert told in capsys.readouterr().err


# -- the live view ----------------------------------------------------------------------------------------------------


class Looks:
    """What is seen, look by look; then somebody presses Ctrl-C."""

    def __init__(self, *seen: Any) -> None:
        self._seen = iter(seen)

    def __call__(self) -> Any:
        for seen in self._seen:
            if isinstance(seen, Exception):
                raise seen
            return seen
        raise KeyboardInterrupt


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REFRESH_EVERY_S", 0)


@pytest.mark.usefixtures("no_waiting")
def test_only_changes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    broken = ToolError("no broker answers")
    with pytest.raises(KeyboardInterrupt):
        live.watch(Looks(1, 1, broken, broken, 2, broken, 2), lambda seen: [f"seen {seen}"], as_json=False)
    out, err = capsys.readouterr()
    assert out == "seen 1\nseen 2\n"
    assert err == "klamm: no broker answers; looking again\n" * 2


@pytest.mark.usefixtures("no_waiting")
def test_changes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        live.watch(Looks([{"a": 1}], [{"a": 2}]), list, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [[{"a": 1}], [{"a": 2}]]


def test_the_first_look_may_fail() -> None:
    with pytest.raises(ToolError):
        live.watch(Looks(ToolError("no")), list, as_json=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("no_waiting")
def test_on_a_terminal_the_view_is_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(time, "strftime", lambda _: "12:34:56")
    with pytest.raises(KeyboardInterrupt):
        live.watch(Looks(["one [b]"], ToolError("no broker"), ["two"]), list, as_json=False)
    shown = terminal.getvalue()
    assert "one [b]" in shown and "two" in shown and "klamm: no broker" in shown and "12:34:56" in shown
    assert shown.index("\x1b[?1049h") < shown.index("one") < shown.index("\x1b[?1049l")


# -- with a cluster ---------------------------------------------------------------------------------------------------


def test_a_life_of_a_group(klamm_cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As JSON; tests/interop has the lines. A live view looks on, until Ctrl-C."""
    klamm_cluster.create_topic("t", partitions=2)
    bootstrap = ["--bootstrap-server", klamm_cluster.bootstrap]

    def run(*arguments: str, code: int = 0) -> Any:
        ended = main.run(["groups", *arguments, "--json", *bootstrap])
        out, err = capsys.readouterr()
        assert ended == code, err
        return json.loads(out)

    reset = ("reset-offsets", "--group", "g", "--topic", "t", "--to-earliest")
    offsets = [{"topic": "t", "partition": number, "new_offset": 0} for number in (0, 1)]
    assert run(*reset, "--dry-run") == [{"group": "g", "executed": False, "offsets": offsets}]
    assert run("list") == []
    command = [sys.executable, "-m", "klamm.cli.main", "groups", "list", "--json", "--watch", *bootstrap]
    view = ManagedProcess("view", command, tmp_path / "view.out")
    try:
        view.wait_for(r"^\[\]$")
        assert run(*reset, "--execute") == [{"group": "g", "executed": True, "offsets": offsets}]
        view.wait_for('^.*"group": "g".*$')
        assert view.stop(number=signal.SIGINT) == 130
    finally:
        view.kill()
    assert run("list", "--state", "empty") == [{"group": "g", "protocol_type": "", "state": "Empty"}]
    assert run("list", "--state", "stable") == []
    (described,) = run("describe", "--group", "g")
    assert [(row["current_offset"], row["lag"]) for row in described["partitions"]] == [(0, 0), (0, 0)]
    deleted = run("delete-offsets", "--group", "g", "--topic", "t:1", "--topic", "nope", code=1)
    assert [(row["topic"], row["partition"], row["error"] is None) for row in deleted["partitions"]] == [
        ("nope", None, False),
        ("t", 1, True),
    ]
    assert run("delete", "--group", "g") == [{"group": "g", "error": None}]
    assert run("describe", "--group", "g", "--state", code=1)[0]["state"] == "Dead"


@pytest.mark.parametrize(
    ("topic", "message"),
    [("nope", "topic nope does not exist"), ("u:0,5", "u has no partition 5, it has 1 partitions")],
)
def test_a_scope_that_does_not_exist(
    klamm_cluster: Cluster, capsys: pytest.CaptureFixture[str], topic: str, message: str
) -> None:
    klamm_cluster.create_topic("u", partitions=1)
    arguments = ["groups", "reset-offsets", "--group", "g", "--topic", topic, "--to-latest", "--execute"]
    assert main.run([*arguments, "--bootstrap-server", klamm_cluster.bootstrap]) == 1
    assert capsys.readouterr() == ("", f"klamm: {message}\n")
