"""How commands end: exit codes, one line on stderr, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from klamm import __version__
from klamm.cli import main
from klamm.cli.cluster.up_view import sentence
from klamm.cli.shared.options import ClusterOptions
from klamm.processes.tool_errors import ToolError, describe_os_error


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(list(arguments))
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'."),
        (["up", "--brokers", "0"], "Invalid value for '--brokers': "),
        (["up", "--port", "70000"], "Invalid value for '--port': "),
        (["up", "--override", "novalue"], "Invalid value for --override: 'novalue' is not of the form key=value"),
        (["up", "--wrong"], "No such option: --wrong"),
        (["broker"], "Missing argument 'FILE.properties'."),
        (["zookeeper", "--port", "1"], "Missing option '--dir'."),
        (["topics", "create"], "Missing option '--topic'."),
        (["topics", "create", "--topic", "t", "--partitions", "0"], "Invalid value for '--partitions': "),
        (["topics", "create", "--topic", "t", "--config", "x"], "Invalid value for --config: 'x' is not of the form"),
        (
            ["topics", "create", "--topic", "t", "--replica-assignment", "0:1,x"],
            "Invalid value for --replica-assignment: '0:1,x' is not of the form broker:broker,broker:broker",
        ),
        (
            ["topics", "create", "--topic", "t", "--replica-assignment", "0", "--partitions", "1"],
            "Invalid value for --replica-assignment: replaces --partitions and --replication-factor",
        ),
        (["produce", "--topic", "a/b"], "Invalid value for '--topic': 'a/b' is not 1 to 249 letters, digits, "),
        (["topics", "create", "--topic", ".."], "Invalid value for '--topic': '..' is not "),
        (["produce", "--topic", "t", "--acks", "2"], "Invalid value for --acks: '2' is not one of all, 1, 0"),
        (
            ["produce", "--topic", "t", "--acks", "1", "--idempotence"],
            "Invalid value for --idempotence: needs --acks all",
        ),
        (
            ["produce", "--topic", "t", "--compression-type", "rar"],
            "Invalid value for --compression-type: 'rar' is not one of none, gzip, snappy, lz4, zstd",
        ),
        (
            ["consume", "--topic", "t", "--offset", "-1"],
            "Invalid value for --offset: '-1' is not earliest, latest or a number",
        ),
        (["consume", "--topic", "t", "--separator", ""], "Invalid value for --separator: must not be empty"),
        *(
            (
                ["topics", "list", "--bootstrap-server", f"127.0.0.1:9092,{address}"],
                f"Invalid value for '--bootstrap-server': {address!r} is not host:port with a port from 1 to 65535",
            )
            for address in ("", "broker", "broker:0", "broker:99999", ":9092", "http://broker:9092")
        ),
        (
            ["up", "--port", "65534", "--brokers", "3"],
            "Invalid value for --port: 3 brokers need the ports 65534 to 65536",
        ),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"klamm: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["topics"]])
def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert "Usage: klamm" in out + err
    assert "Traceback" not in out + err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"klamm {__version__}\n", "")
    code, out, _ = run(capsys, "topics", "describe", "--help")
    assert code == 0
    assert "--under-replicated-partitions" in out


PROPERTIES = [
    (b"broker.id=\\u12", "line 1: \\u must be followed by four hexadecimal digits"),
    (b"broker.id=1", "zookeeper.connect is missing: host:port of ZooKeeper"),
    (b"zookeeper.connect=z\nlog.segment.bytes=1", "log.segment.bytes=1 is not allowed; allowed: at least 14"),
    (b"\x00\xff\xfe\x80=\x01\nbroker.id=x", "broker.id=x is not an int"),
]


@pytest.mark.parametrize(("content", "message"), PROPERTIES)
def test_a_broker_with_a_bad_file_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(content)
    code, _, err = run(capsys, "broker", str(file))
    assert code == 1
    assert err.startswith("klamm: ") and message in err
    assert err.count("\n") == 1


def test_a_broker_without_a_file_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "none"
    assert run(capsys, "broker", str(file)) == (1, "", f"klamm: {file}: no such file or directory\n")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("broker.id=3", "broker.id cannot be overridden"),
        ("num.partitions=none", "num.partitions=none is not an int"),
        ("num.partition=3", "num.partition is not a property of a broker; did you mean num.partitions?"),
        ("listeners=SSL://:1", "listener SSL://:1: SSL is not supported yet, only PLAINTEXT is"),
        ("authorizer.class.name=x", "authorizer.class.name=x is not supported yet"),
    ],
)
def test_up_refuses_bad_overrides_before_it_starts_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, override: str, message: str
) -> None:
    directory = tmp_path / "data"
    code, out, err = run(capsys, "up", "--dir", str(directory), "--override", override)
    assert (code, out) == (1, "")
    assert err.startswith(f"klamm: {message}")
    assert not directory.exists()


def test_client_properties_that_are_not_understood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocl=SSL\n")
    code, _, err = run(capsys, "topics", "list", "--command-config", str(file))
    assert code == 1
    assert err.startswith(
        f"klamm: {file}: security.protocl is not a known client property; did you mean security.protocol? allowed: "
    )


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ClusterOptions, "call", fail)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ToolError("that is that"), 1, "klamm: that is that\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "klamm: /x: permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ValueError("oops"),
            1,
            "klamm: a fault of the program: ValueError('oops') (klamm --debug ... shows where)\n",
        ),
    ],
)
def test_every_error_has_its_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    fail_with(monkeypatch, error)
    assert main.run(["topics", "list"]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("arguments", [["--version"], ["topics", "--help"], ["topics", "list"]])
def test_a_reader_that_has_enough_is_no_error(arguments: list[str]) -> None:
    code = """if True:
        import sys
        from klamm.cli import main
        from klamm.cli.shared.options import ClusterOptions
        ClusterOptions.call = lambda *_: (["x" * 1000] * 1000, set())
        sys.exit(main.run(sys.argv[1:]))
    """
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, ToolError("that is\x1b[2J that"))
    assert main.run(["topics", "list"]) == 1
    assert capsys.readouterr().err == "klamm: that is\\u001b[2J that\n"
    assert main.run(["--debug", "topics", "list"]) == 1
    first, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "klamm: that is\\u001b[2J that")


def test_an_address_in_use_is_told_as_such() -> None:
    told = "error while attempting to bind on address ('127.0.0.1', 9092): address already in use"
    expected = "127.0.0.1:9092: address already in use; another program uses it"
    assert describe_os_error(OSError(98, told)) == expected
    assert describe_os_error(OSError(98, "Address already in use")) == "address already in use; another program uses it"


def test_an_interruption_of_the_imports_shows_no_traceback() -> None:
    code = (
        "import sys, klamm.__main__\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'klamm.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "klamm.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_importing_the_command_is_light() -> None:
    heavy = {"kafka", "uvloop", "klamm.broker", "klamm.protocol.messages", "rich", "asyncio", "pydantic", "h11"}
    code = f"import sys, klamm.cli.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_status_in_words() -> None:
    status = {"brokers_up": 1, "brokers_down": ["broker-1"], "topics": 2, "partitions": 9, "uptime_s": 3725}
    assert sentence("status", status) == "1 broker up, down: broker-1, 2 topics with 9 partitions, for 1:02:05"
    status |= {"brokers_up": 3, "brokers_down": [], "topics": None}
    assert sentence("status", status) == "3 brokers up, for 1:02:05"
