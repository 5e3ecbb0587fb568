"""Every command, on its bad days: a broker that hangs, addresses without a broker, hostile names, closed outputs.

The calls are the examples of the help texts (`support.command_calls`), so a new command is called here too. What takes
long, such as moves of partitions, is left to the variants that are marked `long`.
"""

import io
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from klamm.cli.cluster import metrics
from klamm.net.client import Connection
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import fields_of
from support.command_calls import BROKERS, calls, furnish
from support.command_world import CommandWorld, Ended, is_operator

HUNG = 3
# What the user says about time. Whatever a command does, it has answered after this.
TIMEOUTS = """
request.timeout.ms=1500
default.api.timeout.ms=3000
socket.connection.setup.timeout.ms=1000
socket.connection.setup.timeout.max.ms=1000
delivery.timeout.ms=4000
"""
LONGEST_S = 8.0
# These wait for progress, for a time of their own.
WAIT_FOR_PROGRESS = {
    "klamm brokers decommission", "klamm reassign execute", "klamm reassign rollback", "klamm verify replicas"
}  # fmt: skip
# These do all that was asked though a broker hangs: the records of others are enough, or another broker answers.
COMPLETE_WITHOUT_IT = {"klamm consume"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metrics, "LOOK_FOR_S", 0)


def check_all(problems: dict[str, str]) -> None:
    told = [f"{name}: {what[:1000]}" for name, what in problems.items()]
    if told:
        pytest.fail(f"{len(told)} commands: {chr(10).join(told[:8])}", pytrace=False)


def with_timeouts(name: str, arguments: list[str]) -> list[str]:
    if "--bootstrap-server" not in arguments:
        return arguments
    return [
        *arguments,
        "--admin.config" if name.startswith("klamm elect") else "--command-config",
        "timeouts.properties",
    ]


# -- a broker that hangs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "is_controller", [pytest.param(False, id="any"), pytest.param(True, id="the-controller", marks=pytest.mark.long)]
)
def test_a_broker_that_hangs_is_named_and_the_others_are_heard(is_controller: bool) -> None:
    """Within the user's time, and the exit code says that the answer is not complete."""
    Path("timeouts.properties").write_text(TIMEOUTS)
    problems: dict[str, str] = {}
    with CommandWorld(brokers=BROKERS) as world:
        furnish(world)
        hung = world.cluster.controller_id() if is_controller else HUNG
        world.stall(hung)
        waited = 0
        for name, arguments in calls(world):
            if "--bootstrap-server" not in arguments or (not is_controller and name in WAIT_FOR_PROGRESS):
                continue
            ended = world.run(*with_timeouts(name, arguments))
            waited += bool(ended.in_vain)
            if what := problem_with_silence(name, ended, hung):
                problems[name] = f"{what}: {ended}"
    check_all(problems)
    assert waited > 8, "the broker is asked by many commands"


def problem_with_silence(name: str, ended: Ended, hung: int) -> str:
    if name not in WAIT_FOR_PROGRESS and ended.took_s > LONGEST_S:
        return f"took {ended.took_s:.1f} s"
    if not ended.in_vain or name in COMPLETE_WITHOUT_IT:
        return ""
    if re.search(rf"\bbrokers?[-/ ]{hung}\b", ended.text) is None:
        return "does not name the broker that hangs"
    if ended.code == 0:
        return "says that all is well"
    return ""


# -- addresses without a broker ---------------------------------------------------------------------------------------


def reaching(world: CommandWorld, address: str) -> Iterator[tuple[str, list[str]]]:
    """The commands that look for a broker, with this address."""
    for name, arguments in calls(world):
        needs_more = "--zookeeper" in arguments or name == "klamm reassign throttle"
        if "--bootstrap-server" in arguments and not needs_more:
            arguments[arguments.index("--bootstrap-server") + 1] = address
            yield name, with_timeouts(name, arguments)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        pytest.param("operator:9", "connection refused, no program listens at this port", id="nobody"),
        pytest.param("nowhere:9", "unknown host: ", id="unknown-host", marks=pytest.mark.long),
        pytest.param(
            "zookeeper:2181", "(so do brokers that speak TLS at this port", id="zookeeper", marks=pytest.mark.long
        ),
        pytest.param("ssh:1", "not a Kafka broker, its answer is", id="ssh", marks=pytest.mark.long),
        pytest.param("silent:1", "a connection, but no answer of a Kafka broker", id="silent", marks=pytest.mark.long),
    ],
)
def test_without_a_broker_the_reason_is_told_within_the_users_time(address: str, told: str) -> None:
    Path("timeouts.properties").write_text(TIMEOUTS)
    for name in ("orders.txt", "plan.json", "plan.rollback.json"):
        Path(name).write_text('{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}')
    problems = {}
    with CommandWorld(brokers=1) as world:
        world.listen("silent", 1, b"")
        world.listen("ssh", 1, b"SSH-2.0-OpenSSH_9.2\r\n")
        for name, arguments in reaching(world, address):
            ended = world.run(*arguments)
            code = 3 if name == "klamm verify replicas" else 1
            # The user has asked for three seconds.
            if ended.code != code or ended.out or told not in ended.err or not 2 < ended.took_s < LONGEST_S:
                problems[name] = str(ended)
    check_all(problems)


# -- hostile names ----------------------------------------------------------------------------------------------------

# Erases the screen, forges a row, hides and reorders what follows.
HOSTILE = "\x1b[2J\r\n2*  broker-2:9092\tforged\u202e\u200b\x9b\u2028"
# Fields of answers that are no names, or that a command compares with words of the protocol.
OWN_WORDS = {"host", "group_state", "protocol_type", "transaction_state", "protocol_data"}
# What the examples name, and an address.
PLAIN = re.compile(r"orders|castle|castle-old|billing|copier-1|-?[0-9.]+|zookeeper:2181")
# The examples are about what they name; these calls are about all.
OPEN_CALLS = [
    ["topics", "describe"],
    ["topics", "describe", "--json"],
    ["topics", "alter", "--topic", "(?s)wild.*", "--partitions", "5", "--config", "retention.ms=1", "--yes"],
    ["topics", "delete", "--topic", "(?s)wild.*"],
    ["configs", "describe", "--entity-type", "topics"],
    ["groups", "list"],
    ["groups", "describe", "--all-groups"],
    ["groups", "describe", "--all-groups", "--members", "--verbose"],
    ["groups", "describe", "--all-groups", "--state"],
    ["groups", "reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--dry-run"],
    ["transactions", "list"],
    ["transactions", "find-hanging"],
    ["reassign", "generate", "--topic", "(?s)wild.*", "--broker-list", "0,1,2"],
    ["verify", "replicas"],
]


SHOW_NAMES = {
    "brokers describe", "configs describe", "groups describe", "groups list",
    "groups reset-offsets", "reassign generate", "topics alter", "topics delete",
    "topics describe", "topics list", "transactions list",
}  # fmt: skip


class Strangers:
    """Every name, id and text in an answer ends with `HOSTILE`, unless the request had it without; a command that asks
    about such a name gets the answer about the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send = Connection.send

        async def send_under_other_names(connection: Any, api_key: Any, build: Any, **named: Any) -> Any:
            if not is_operator() or api_key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS):
                return await send(connection, api_key, build, **named)
            known: set[str] = set()

            def build_with_real_names(version: int) -> Any:
                request = build(version)
                rename(request, lambda _, text: known.add(text) or text.removesuffix(HOSTILE))
                return request

            response = await send(connection, api_key, build_with_real_names, **named)

            def hostile(field: str, text: str) -> str:
                is_own = text in known or field in OWN_WORDS or PLAIN.fullmatch(text)
                return text if is_own else f"{text}{HOSTILE}"

            rename(response, hostile)
            return response

        monkeypatch.setattr(Connection, "send", send_under_other_names)


def rename(message: Any, new: Callable[[str, str], str]) -> None:
    """Changes the texts of a message, which `new` gets with the names of their fields."""
    for field in fields_of(type(message)):
        value = getattr(message, field.name, None)
        if field.kind == "String" and isinstance(value, str):
            setattr(message, field.name, new(field.name, value))
        elif field.kind == "String" and value is not None:
            setattr(message, field.name, [new(field.name, each) for each in value])
        elif not isinstance(field.kind, str) and value is not None:
            for each in value if field.is_array else [value]:
                rename(each, new)


@pytest.mark.parametrize(
    "moves", [pytest.param(False, id="all"), pytest.param(True, id="moves", marks=pytest.mark.long)]
)
def test_names_of_strangers_move_and_forge_nothing(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    """Also where the output's encoding has no such characters."""
    Strangers(monkeypatch)
    problems: dict[str, str] = {}
    shown = set()
    with CommandWorld(brokers=BROKERS) as world:
        furnish(world)
        world.join("wild-live", "wild")
        examples = [arguments for name, arguments in calls(world) if (name in WAIT_FOR_PROGRESS) == moves]
        for arguments in examples if moves else [*examples, *OPEN_CALLS]:
            if arguments in OPEN_CALLS:
                arguments = [*arguments, "--bootstrap-server", world.bootstrap]
            ended = world.run(*arguments, encoding="ascii")
            if what := problem_with_text(ended.text):
                problems[" ".join(arguments)] = f"{what}: {ended}"
            if "\\u202e" in ended.text:
                shown.add(" ".join(arguments[:2]))
            if "--json" in arguments and ended.code == 0 and ended.out.strip():
                json.loads(ended.out)
    check_all(problems)
    expected = {"brokers decommission"} if moves else SHOW_NAMES
    assert shown >= expected, expected - shown


def problem_with_text(text: str) -> str:
    if re.search(r"^2\*  broker-2:9092(\t|\\u0009|\\t)", text, re.MULTILINE):
        return "a row is forged"
    if "\tforged" in text:
        return "a column is forged"
    hidden = {each for each in text if each not in "\n\t" and unicodedata.category(each)[0] in "CZ" and each != " "}
    return f"hidden characters {hidden!r}" if hidden else ""


# -- outputs that cannot be written -----------------------------------------------------------------------------------

# These change nothing, so they end in the same way every time.
READS = {
    "klamm status", "klamm completion", "klamm topics list", "klamm topics describe", "klamm configs describe",
    "klamm brokers list", "klamm groups list", "klamm transactions list", "klamm reassign list",
    "klamm controller status", "klamm faults schema",
}  # fmt: skip


DISK_FULL = "klamm: standard output: no space left on device"


def usual_output() -> TextIO:
    return io.TextIOWrapper(io.BytesIO(), "utf-8")


def closed_pipe() -> TextIO:
    read_end, write_end = os.pipe()
    os.close(read_end)
    return os.fdopen(write_end, "w", encoding="utf-8")


def full_disk() -> TextIO:
    return os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", encoding="utf-8")


@pytest.mark.parametrize(
    "reads", [pytest.param(True, id="reads"), pytest.param(False, id="all", marks=pytest.mark.long)]
)
def test_an_output_that_cannot_be_written_is_told_in_a_sentence(reads: bool) -> None:
    """A reader that has enough is no error. A full disk is one, after the work is done."""
    ends: dict[str, list[Ended]] = {}

    def run_all(world: CommandWorld, make_output: Callable[[], TextIO]) -> None:
        for name, arguments in calls(world):
            if reads and name not in READS:
                continue
            with make_output() as out:
                err = io.StringIO()
                code, took_s = world.run_with(out, err, *arguments)
                printed = "something" if isinstance(out.buffer, io.BytesIO) and out.buffer.getvalue() else ""
            ends.setdefault(name, []).append(Ended(code, printed, err.getvalue(), took_s, frozenset()))

    outputs = (usual_output, closed_pipe, full_disk)
    if reads:
        with CommandWorld(brokers=1) as world:
            for make_output in outputs:
                run_all(world, make_output)
    else:
        for make_output in outputs:
            with CommandWorld(brokers=BROKERS) as world:
                furnish(world)
                run_all(world, make_output)
    problems = {}
    for name, (usual, closed, full) in ends.items():
        has_other_code = closed.code not in (usual.code, 0) and name not in WAIT_FOR_PROGRESS
        if has_other_code or "fault of the program" in closed.err:
            problems[f"{name} | true"] = f"{closed}, usually {usual.code}"
        expected = usual.code or (1 if usual.out else 0)
        # A move may fail for another reason in one run.
        if (
            full.code != expected
            or (expected and not full.err)
            or (reads and expected > usual.code and DISK_FULL not in full.err)
        ):
            problems[f"{name} > /dev/full"] = f"{full}, expected {expected}"
    check_all(problems)
    assert len(ends) >= len(READS)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_told_which_broker_a_command_waits_for() -> None:
    with CommandWorld(brokers=BROKERS) as world:
        world.listen("silent", 1, b"")
        err = Terminal()
        code, took_s = world.run_with(io.StringIO(), err, "topics", "list", "--bootstrap-server", "silent:1")
        assert (code, round(took_s)) == (1, 60), "10, 20 and 30 s for a connection, as the properties' defaults say"
        assert err.getvalue().splitlines() == [
            "klamm: waiting: silent:1: no answer yet",
            "klamm: waiting: silent:1: a connection, but no answer of a Kafka broker, within 10000 ms",
            "klamm: waiting: silent:1: a connection, but no answer of a Kafka broker, within 20000 ms",
            "klamm: no broker answers at silent:1: silent:1: a connection, but no answer of a Kafka broker, within "
            + err.getvalue().split()[-2] + " ms",
        ]  # fmt: skip


def test_a_bootstrap_server_that_is_slow_is_waited_for_as_long_as_the_user_says() -> None:
    Path("client.properties").write_text("default.api.timeout.ms=60000\n")
    arguments = ["topics", "list", "--bootstrap-server", "broker-0:9092"]
    with CommandWorld(brokers=1) as world:
        world.stall(0)
        world.later(3.5, world.cluster.brokers[0].node.resume)
        ended = world.run(*arguments)
        assert (ended.code, ended.err, round(ended.took_s, 1)) == (0, "", 3.5), "the defaults are enough for that"
        world.stall(0)
        world.later(45, world.cluster.brokers[0].node.resume)
        ended = world.run(*arguments, "--command-config", "client.properties")
        assert (ended.code, ended.err, round(ended.took_s)) == (0, "", 45)
        world.stall(0)
        ended = world.run("groups", "list", "--timeout", "700", "--bootstrap-server", "broker-0:9092")
        assert (ended.code, round(ended.took_s, 1)) == (1, 0.7)
        world.resume(0)
