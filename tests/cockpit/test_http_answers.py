"""What answers at a broker's HTTP port may be any program: its answers are refused with a reason, and bounded."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import pytest

from klamm.access.http_reading import WrongAnswer
from klamm.cockpit.live import http_reading
from klamm.cockpit.live.http_answers import numbers_of, record_of, status_of
from klamm.cockpit.live.http_reading import read_answer, read_lines
from klamm.processes.tool_errors import ToolError

NOTHING = {"count": 0, "first": []}
STATUS: dict[str, Any] = {
    "broker_id": 1,
    "active": True,
    "epoch": 7,
    "now_ms": 9,
    "since_ms": 5,
    "state": "Idle",
    "event": None,
    "event_for_ms": 0,
    "event_queue_size": 0,
    "event_waits_ms": 0,
    "waiting_events": [{"event": "TopicChange", "state": "TopicChange", "waits_ms": 1}],
    "brokers": [
        {
            "broker_id": 1,
            "epoch": 3,
            "shutting_down": False,
            "offline_replicas": 0,
            "queue_size": 0,
            "sending": None,
            "sending_for_ms": 0,
            "trouble": "",
        }
    ],
    "preferred_replica_imbalance": 0,
    "machines": {"partitions": {"OnlinePartition": 1}, "replicas": {}},
    "elections": [],
    "deletions": NOTHING,
    "reassignments": NOTHING,
}
NUMBERS = {"time_ms": 1, "memory_bytes": None, "loop_lag_ms": 0.5, "longest_loop_lag_ms": None, "totals": {"a": 1}}
EVENT = {"kind": "event", "sequence": 1, "time_ms": 5, "epoch": 1, "controller": 1, "event": "a", "state": "b"} | {
    "queue_time_ms": 0.1,
    "processing_time_ms": 1,
}
CHANGE = {
    "kind": "partition",
    "sequence": 1,
    "time_ms": 5,
    "epoch": 1,
    "controller": 1,
    "topic": "t",
    "partition": 0,
} | {
    "from": "OnlinePartition",
    "to": "OnlinePartition",
    "leader": None,
    "leader_epoch": None,
    "isr": None,
    "failed": False,
    "why": "",
    "event": "BrokerChange",
}


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (status_of, STATUS),
        (status_of, {"active": False}),
        (numbers_of, NUMBERS),
        (record_of, EVENT),
        (record_of, CHANGE),
        (record_of, {"kind": "idle"}),
        (record_of, {**CHANGE, "kind": "of a later version"}),
    ],
)
def test_what_klamm_answers_passes(check: Callable[[bytes], Any], value: Any) -> None:
    assert check(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("check", "value", "path", "wrong"),
    [
        (status_of, STATUS, ["active"], 1),
        (status_of, STATUS, ["epoch"], True),
        (status_of, STATUS, ["event"], 1),
        (status_of, STATUS, ["waiting_events"], {}),
        (status_of, STATUS, ["waiting_events", 0], None),
        (status_of, STATUS, ["waiting_events", 0, "waits_ms"], "x"),
        (status_of, STATUS, ["brokers", 0, "queue_size"], None),
        (status_of, STATUS, ["machines"], None),
        (status_of, STATUS, ["machines", "partitions", "OnlinePartition"], "x"),
        (status_of, STATUS, ["deletions"], {"count": 1}),
        (status_of, STATUS, ["deletions"], {"count": 1, "first": [{"topic": "t"}]}),
        (status_of, STATUS, ["reassignments"], {"count": 1, "first": [None]}),
        (numbers_of, NUMBERS, ["time_ms"], 0.5),
        (numbers_of, NUMBERS, ["totals"], []),
        (numbers_of, NUMBERS, ["totals", "a"], "x"),
        (record_of, EVENT, ["kind"], None),
        (record_of, EVENT, ["sequence"], None),
        (record_of, EVENT, ["processing_time_ms"], "x"),
        (record_of, CHANGE, ["isr"], [None]),
        (record_of, CHANGE, ["leader"], "x"),
    ],
)
def test_what_is_not_as_klamm_has_it_is_refused(
    check: Callable[[bytes], Any], value: Any, path: list[str | int], wrong: object
) -> None:
    spoilt = deepcopy(value)
    place = spoilt
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(WrongAnswer, match="not klamm"):
        check(json.dumps(spoilt).encode())
    if isinstance(path[-1], str) and path[-1] != "a":
        del place[path[-1]]
        if path[-1] != "OnlinePartition":
            with pytest.raises(WrongAnswer, match="not klamm"):
                check(json.dumps(spoilt).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"[" * 100_000, b"\xff", b'{"active": 1}', b"1e999"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    for check in (status_of, numbers_of, record_of):
        with pytest.raises(WrongAnswer, match="not klamm"):
            check(body)


# -- over a connection --------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(*pieces: bytes, is_endless: bool = False) -> AsyncIterator[int]:
    """The port of a program that sends these bytes, and with `is_endless` the last of them again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            while is_endless:
                writer.write(pieces[-1])
                await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "302"),
        (b"\x00\x00\x00\x2fN\x00\x0bJRMIRegistry", "does not answer as klamm does"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not answer as klamm does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "does not answer as klamm does"),
        (b"A" * 100_000, "does not answer as klamm does"),
    ],
)
async def test_another_program_at_the_port_is_told(answer: bytes, what: str) -> None:
    async with answering(answer) as port:
        with pytest.raises(WrongAnswer, match=what):
            await read_answer("127.0.0.1", port, "/controller", 20)


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_reading, "MAX_ANSWER_BYTES", 100_000)
    monkeypatch.setattr(http_reading, "MAX_LINE_BYTES", 100_000)
    async with answering(HEAD, b"x" * 10_000, is_endless=True) as port:
        with pytest.raises(WrongAnswer, match="more than 100000 bytes"):
            await read_answer("127.0.0.1", port, "/controller", 20)
        with pytest.raises(WrongAnswer, match="more than 100000 bytes"):
            async for _ in read_lines("127.0.0.1", port, "/controller/events", 20):
                pass


async def test_a_long_line_is_refused_also_when_it_is_complete() -> None:
    async with answering(HEAD, b"{}\n" + b"x" * 10_000_000 + b"\n{}\n") as port:
        with pytest.raises(WrongAnswer, match="more than 131072 bytes"):
            async for lines in read_lines("127.0.0.1", port, "/controller/events", 20):
                assert max(map(len, lines)) < 1000


async def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    async with answering(HEAD) as port:
        with pytest.raises(ToolError, match="does not answer within"):
            await read_answer("127.0.0.1", port, "/controller", 0.05)
        with pytest.raises(ToolError, match="is silent"):
            async for _ in read_lines("127.0.0.1", port, "/controller/events", 0.05):
                pass


async def test_what_comes_at_once_in_many_chunks_is_one_piece() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with answering(head + b"1\r\nx\r\n" * 20_000 + b"2\r\n\ny\r\n0\r\n\r\n") as port:
        batches = [lines async for lines in read_lines("127.0.0.1", port, "/controller/events", 20)]
    assert [line for lines in batches for line in lines] == [b"x" * 20_000]
