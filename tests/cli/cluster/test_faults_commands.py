"""`klamm faults` against the control port of `klamm up`, and what it makes of its arguments."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Producer

from klamm.cli import main
from klamm.cli.cluster.faults import Port, parse_command
from klamm.faults.commands import DelayAnswers, FailAnswers
from klamm.faults.commands.disk import SlowDisk
from klamm.faults.commands.network import CutLinks
from klamm.processes.tool_errors import ToolError


class Up:
    """A running `klamm up --control-port 0`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        arguments = ["up", "--brokers", "1", "--port", "0", "--dir", str(directory), "--control-port", "0", "--json"]
        self.process = subprocess.Popen([sys.executable, "-m", "klamm", *arguments], stdout=subprocess.PIPE, text=True)
        self.told: dict[str, dict[str, Any]] = {}
        self.until("control_ready")

    def until(self, event: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.told[told["event"]] = told
            if told["event"] == event:
                return told
        raise AssertionError(f"klamm up has ended without {event}; it told {list(self.told)}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=120)
        return self.process.returncode


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up") / "data")
    yield running
    file = running.directory / "control.json"
    assert running.stop() == 0
    assert not file.exists()


@pytest.fixture
def faults(up: Up, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; returns its exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run(["faults", *arguments, "--dir", str(up.directory)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    yield run
    run("heal")


def test_a_fault_is_injected_strikes_and_is_removed(up: Up, faults: Any) -> None:
    fields = ("api=Produce", "error=NOT_LEADER_OR_FOLLOWER", "topic=1", "on_call=1,2")
    code, out, _ = faults("inject", "answers.fail", *fields)
    line = "1: answers.fail api=Produce topic=1 on_call=1,2 error=NOT_LEADER_OR_FOLLOWER"
    assert (code, out) == (0, f"{line} (0 calls, 0 hits)\n")
    producer = Producer({"bootstrap.servers": up.told["ready"]["bootstrap"], "retry.backoff.ms": 10})
    producer.produce("1", b"v")
    assert producer.flush(120) == 0
    assert faults("show", "1", "--hits", "2") == (0, f"{line} (3 calls, 2 hits)\n", "")
    code, out, err = faults("show", "1", "--hits", "3", "--timeout", "0.05")
    assert (code, err) == (1, "klamm: fault 1 has struck 2 times within 0.05 s, not 3\n")
    fault = {"kind": "answers.fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "1"}
    listed = json.loads(faults("list", "--json")[1])
    assert listed == [{"id": 1, "fault": fault | {"on_call": [1, 2]}, "calls": 3, "hits": 2, "active": True}]
    assert faults("remove", "1") == (0, f"{line} (3 calls, 2 hits, removed)\n", "")
    assert faults("list") == (0, "", "")
    assert faults("remove", "99") == (1, "", "klamm: there is no fault 99\n")


def test_a_broker_is_killed_and_started_again(up: Up, faults: Any) -> None:
    assert faults("server", "0", "kill") == (0, "", "")
    assert faults("server", "0", "kill") == (1, "", "klamm: broker-0 does not run\n")
    assert faults("server", "0", "start") == (0, "", "")
    assert up.until("broker_ready")["broker_id"] == 0
    assert faults("server", "0", "start") == (1, "", "klamm: broker-0 runs\n")
    assert faults("server", "7", "stop")[2] == "klamm: this cluster has no broker-7; it has zookeeper, broker-0\n"


def test_heal_starts_what_was_stopped_and_the_history_tells_all(up: Up, faults: Any) -> None:
    assert faults("server", "0", "stop") == (0, "", "")
    assert faults("inject", "answers.drop", "api=Heartbeat")[0] == 0
    assert faults("heal") == (0, "", "")
    assert faults("list") == (0, "", "")
    entries = [json.loads(line) for line in faults("history", "--json")[1].splitlines()]
    assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
    kinds = [entry["kind"] for entry in entries]
    for kind in ("server_ended", "fault_installed", "fault_removed", "server_started"):
        kinds = kinds[kinds.index(kind) :]
    assert " server_ended server=0 how=stopped\n" in faults("history")[1]


def test_a_second_cluster_in_the_same_directory_is_refused(up: Up) -> None:
    command = [sys.executable, "-m", "klamm", "up", "--brokers", "1", "--port", "0", "--dir", str(up.directory)]
    done = subprocess.run([*command, "--control-port", "0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"klamm: another cluster runs in {up.directory}\n")
    assert (up.directory / "control.json").exists()


def test_only_the_owner_can_read_the_token(up: Up) -> None:
    told = up.told["control_ready"]
    assert Path(told["file"]).stat().st_mode & 0o777 == 0o600
    assert told["url"].startswith("http://127.0.0.1:")
    assert json.loads(Path(told["file"]).read_text())["token"] not in json.dumps(up.told)


def test_the_environment_names_a_port_too(up: Up) -> None:
    found = json.loads((up.directory / "control.json").read_text())
    port = Port.find(Path("absent"), {"KLAMM_CONTROL_URL": found["url"], "KLAMM_CONTROL_TOKEN": found["token"]})
    assert port.request("GET", "/v1/cluster")["bootstrap"] == up.told["ready"]["bootstrap"]
    wrong = Port.find(Path("absent"), {"KLAMM_CONTROL_URL": found["url"], "KLAMM_CONTROL_TOKEN": "wrong"})
    with pytest.raises(ToolError, match="Authorization: Bearer TOKEN is missing or wrong"):
        wrong.request("GET", "/v1/cluster")


def test_a_cluster_without_a_control_port_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["faults", "list", "--dir", str(tmp_path)]) == 1
    told = f"klamm: there is no {tmp_path}/control.json: start the cluster with klamm up --control-port 0, or name its"
    assert capsys.readouterr().err.startswith(told)
    (tmp_path / "control.json").write_text('{"url": "http://attacker.example/", "token": ""}')
    assert main.run(["faults", "list", "--dir", str(tmp_path)]) == 1
    assert "'http://attacker.example/' is not the address of a control port" in capsys.readouterr().err
    (tmp_path / "control.json").write_text("[]")
    assert main.run(["faults", "list", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("control.json is not the file of a control port\n")


def test_klamm_up_without_a_control_port_imports_no_faults() -> None:
    imports = "import sys; import klamm.cli.main; print([name for name in sys.modules if 'klamm.faults' in name])"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("kind", "fields", "command"),
    [
        ("answers.delay", ["api=Fetch", "delay_ms=5"], DelayAnswers(api="Fetch", delay_ms=5)),
        (
            "network.cut",
            ["one=0,1", "other=clients", "one_way=true", "client_id=7"],
            CutLinks(one=(0, 1), other=("clients",), one_way=True, client_id="7"),
        ),
        ("disk.slow", ["ms=0.5", "operations=read,sync"], SlowDisk(ms=0.5, operations=("read", "sync"))),
        (
            "answers.fail",
            ["api=Produce", "error=REQUEST_TIMED_OUT", "topic=5", "client_id=true", "after=true", "on_call=3"],
            FailAnswers(
                api="Produce", error="REQUEST_TIMED_OUT", topic="5", client_id="true", after=True, on_call=(3,)
            ),
        ),
        (
            "answers.fail",
            ["api=Produce", "error=REQUEST_TIMED_OUT", "on_call=[3,4]", "probability=1", "topic=a=b"],
            FailAnswers(api="Produce", error="REQUEST_TIMED_OUT", on_call=(3, 4), probability=1, topic="a=b"),
        ),
    ],
)
def test_fields_have_the_types_of_the_vocabulary(kind: str, fields: list[str], command: Any) -> None:
    assert parse_command(kind, fields) == command


@pytest.mark.parametrize(
    ("kind", "fields", "complaint"),
    [
        ("answers.fial", [], "there is no command 'answers.fial'; allowed: "),
        ("answers.drop", ["Produce"], "'Produce' is not FIELD=VALUE"),
        ("answers.drop", ["kind=x"], "'kind=x' is not FIELD=VALUE"),
        ("answers.drop", ["api=Produce", "api=Fetch"], "api is given twice"),
        (
            "answers.drop",
            ["api=Produce", "times=x"],
            "answers.drop: times='x' is not allowed; allowed: an integer of 64 bits",
        ),
        ("answers.drop", ["api=Produce", "tims=1"], "answers.drop has no field 'tims'; allowed: times"),
        ("answers.drop", [], "answers.drop needs the field api: a string of at most 10,000 characters"),
    ],
)
def test_wrong_fields_are_named(kind: str, fields: list[str], complaint: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_command(kind, fields)
    assert str(refused.value).startswith(complaint)
