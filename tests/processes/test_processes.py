"""Servers as processes: started, killed, paused, restarted; none is left behind."""

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.processes.helper import Helper
from klamm.processes.supervisor import Processes, ServerFailed, ServerProcess
from support.paths import TESTS

TOY = "support.toy_servers:Toy"


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    with Helper(preload=("support.toy_servers",)) as helper, Processes(tmp_path, helper=helper) as started:
        yield started


def ask(server: ServerProcess, line: bytes = b"hello\n", timeout_s: float = 120) -> bytes:
    assert server.details is not None
    with socket.create_connection(("127.0.0.1", server.details["port"]), timeout_s) as connection:
        connection.sendall(line)
        return connection.recv(100)


def ends(pids: list[int], timeout_s: float = 120) -> bool:
    """Waits until the processes have ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        readable, _, _ = select.select([descriptor], [], [], timeout_s)
        os.close(descriptor)
        if not readable:
            return False
    return True


def test_a_server_starts_serves_and_stops(processes: Processes) -> None:
    server = processes.start("toy", TOY, {})
    details = server.wait_ready()
    assert details["pid"] == server.pid
    assert ask(server) == b"hello\n"
    assert server.stop() == 0
    assert not server.running
    assert "stopping" in server.log_tail()
    server.stop()  # nothing to do


def test_all_servers_come_from_one_helper(processes: Processes) -> None:
    servers = [processes.start(f"toy-{number}", TOY, {}) for number in range(3)]
    for server in servers:
        server.wait_ready()
    parents = {Path(f"/proc/{server.pid}/stat").read_text().rsplit(")")[1].split()[1] for server in servers}
    assert len(parents) == 1
    assert parents != {str(os.getpid())}


def test_kill_and_restart_with_the_same_port(processes: Processes) -> None:
    server = processes.start("toy", TOY, {})
    port, pid = server.wait_ready()["port"], server.pid
    server.kill()
    assert server.exit_code == -signal.SIGKILL
    assert server.expected_end
    with pytest.raises(ConnectionRefusedError):
        ask(server)
    server.restart({"port": port})
    assert server.pid != pid
    assert not server.expected_end
    assert ask(server) == b"hello\n"


def test_a_paused_server_is_silent_until_it_is_resumed(processes: Processes) -> None:
    server = processes.start("toy", TOY, {})
    server.wait_ready()
    assert server.details is not None
    with socket.create_connection(("127.0.0.1", server.details["port"]), 10) as connection:
        connection.sendall(b"one\n")
        assert connection.recv(10) == b"one\n"
        server.pause()
        assert Path(f"/proc/{server.pid}/stat").read_text().rsplit(")")[1].split()[0] == "T"
        connection.sendall(b"two\n")
        server.resume()
        assert connection.recv(10) == b"two\n"


def test_a_paused_server_can_be_stopped_and_killed(processes: Processes) -> None:
    first, second = processes.start("first", TOY, {}), processes.start("second", TOY, {})
    for server in (first, second):
        server.wait_ready()
        server.pause()
    assert first.stop() == 0
    second.kill()
    assert second.exit_code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("crash", "message"),
    [
        ("error", "^toy: the toy is broken$"),
        ("fault", r"^toy: a fault of the program: AssertionError\('who wrote this\?'\)$"),
        ("exit", "(?s)^toy ended with code 7; the end of .*toy.log:\n.*last words$"),
        ("kill", "^toy was ended by SIGKILL"),
    ],
)
def test_a_server_that_cannot_start_says_why(processes: Processes, crash: str, message: str) -> None:
    with pytest.raises(ServerFailed, match=message):
        processes.start("toy", TOY, {"crash": crash}).wait_ready()


def test_a_port_in_use_is_named(processes: Processes) -> None:
    first = processes.start("first", TOY, {})
    port = first.wait_ready()["port"]
    with pytest.raises(ServerFailed, match=f"second: .*127.0.0.1.*{port}.*in use"):
        processes.start("second", TOY, {"port": port}).wait_ready()


def test_a_server_that_fails_later_is_noticed(processes: Processes) -> None:
    server = processes.start("toy", TOY, {"fails": "the disk is gone"})
    assert server.wait() == 1
    assert server.obituary() == "toy: stopped by a failure: ToolError: the disk is gone"
    assert not server.expected_end


def test_a_server_that_dies_is_noticed_with_the_end_of_its_log(processes: Processes) -> None:
    server = processes.start("toy", TOY, {})
    server.wait_ready()
    ask(server, b"die\n")
    assert server.wait() == 9
    assert not server.expected_end
    server.restart()
    # The log of the life before is kept, and not shown as this one's.
    assert server.log_tail() == ""


def test_a_second_signal_ends_a_server_at_once(processes: Processes) -> None:
    server = processes.start("toy", TOY, {"stops": "never"})
    server.wait_ready()
    with pytest.raises(ServerFailed, match=r"toy \(pid \d+\) has not ended after 0.2 s"):
        server.stop(timeout_s=0.2)
    assert server.stop() == 130


def test_a_server_that_does_not_stop_is_killed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    processes = Processes(tmp_path)
    server = processes.start("toy", TOY, {"stops": "never, and deaf"})
    server.wait_ready()
    processes.close(timeout_s=0.2)
    assert server.exit_code == -signal.SIGKILL
    processes.close()


def test_one_helper_serves_several_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    with Helper(preload=("support.toy_servers",)) as helper:
        first, second = (Processes(tmp_path / name, helper=helper) for name in ("first", "second"))
        left, right = first.start("toy", TOY, {}), second.start("toy", TOY, {})
        left.wait_ready()
        right.wait_ready()
        first.close()
        assert not left.running
        assert ask(right) == b"hello\n"
        second.kill()
        assert right.exit_code == -signal.SIGKILL


def test_what_is_thrown_away_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    with Processes(tmp_path / "data", throwaway=True) as processes:
        processes.start("toy", TOY, {}).wait_ready()
        assert (tmp_path / "data" / "toy.log").exists()
    assert not (tmp_path / "data").exists()


PARENT = """
    import sys
    from klamm.processes.supervisor import Processes
    processes = Processes(sys.argv[1], throwaway=sys.argv[2] == "throwaway")
    servers = [processes.start(f"toy-{number}", "support.toy_servers:Toy", {}) for number in range(3)]
    for server in servers:
        server.wait_ready()
    servers[2].pause()
    print(*(server.pid for server in servers), processes._helper.process.pid, flush=True)
    input()
"""


def killed_parent(directory: Path, kind: str) -> bool:
    """Kills a process that has started servers, and says whether all that it had started has ended."""
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(directory), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 4
        parent.kill()
        parent.wait()
        return ends(pids)


def test_kill_9_of_the_parent_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    assert killed_parent(tmp_path, "kept")
    assert "the parent process is gone" in (tmp_path / "toy-0.log").read_text()


def test_kill_9_of_the_parent_leaves_no_throwaway_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    assert killed_parent(tmp_path / "data", "throwaway")
    assert list(tmp_path.iterdir()) == []


def test_kill_9_of_the_helper_ends_the_servers(processes: Processes) -> None:
    server = processes.start("toy", TOY, {})
    server.wait_ready()
    pid = server.pid
    processes._helper.process.kill()
    server.wait()
    assert ends([pid or 0])
    assert server.obituary() == "toy: the helper process has ended"
    with pytest.raises(ServerFailed, match="the helper process has ended"):
        processes.start("another", TOY, {})
