"""The control port: what it answers, and that nobody without its token gets anything from it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from klamm.faults import control_port
from klamm.faults.chronicle import Chronicle
from klamm.faults.commands import FailAnswers, Json, Server, from_json, kinds
from klamm.faults.commands.schema import schema
from klamm.faults.control import Control
from klamm.faults.control_port import MAX_BODY_BYTES, OPERATIONS, ControlPort
from klamm.faults.history import History
from klamm.faults.wire import FaultError
from klamm.net import http
from support.one_broker import until

TOKEN = "right"
FAULT = {"kind": "answers.fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}


async def no_wait() -> None:
    pass


class Owner(control_port.Owner):
    def __init__(self) -> None:
        self.done: list[tuple[Server, str]] = []
        self.before_end: Callable[[], Awaitable[object]] = no_wait

    def described(self) -> Json:
        return {"bootstrap": "127.0.0.1:9092"}

    async def operate(self, server: Server, operation: str) -> None:
        if server == 9:
            raise FaultError("this cluster has no broker-9")
        self.done.append((server, operation))
        await self.before_end()

    async def heal(self) -> None:
        self.done.append((0, "heal"))
        await self.before_end()


class CaughtUp(Chronicle):
    """There is no ZooKeeper."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def catch_up(self) -> History:
        return self._control.history.after()


class Scene:
    def __init__(self, port: ControlPort, owner: Owner) -> None:
        self.port, self.owner = port, owner

    async def raw(self, request: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port.port)
        writer.write(request)
        async with asyncio.timeout(120):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """`headers` replace those that a client sends; "" leaves one out."""
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        values = {"host": f"127.0.0.1:{self.port.port}", "authorization": f"Bearer {TOKEN}"}
        if body is not None:
            values |= {"content-type": "application/json", "content-length": str(len(sent))}
        values |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in values.items() if value)]
        status, answer = await self.raw("\r\n".join([*lines, "", ""]).encode() + sent)
        return status, json.loads(answer)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    owner = Owner()
    control = Control(tmp_path / "faults", lambda: 17)
    port = ControlPort(control, CaughtUp(control), owner, TOKEN)
    await port.bind()
    await port.start()
    yield Scene(port, owner)
    port.stop()


async def test_a_fault_is_installed_shown_and_removed(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        described = {"id": 1, "fault": FAULT, "calls": 0, "hits": 0, "active": True}
        assert await port.request("POST", "/v1/faults", FAULT) == (201, described)
        assert await port.request("GET", "/v1/faults") == (200, {"faults": [described]})
        assert await port.request("GET", "/v1/faults/1") == (200, described)
        assert await port.request("GET", "/v1/faults/1?hits=1&timeout_ms=10") == (200, described)
        assert await port.request("DELETE", "/v1/faults/1") == (200, described | {"active": False})
        assert await port.request("GET", "/v1/faults") == (200, {"faults": []})
        await port.request("POST", "/v1/faults", FAULT)
        assert await port.request("DELETE", "/v1/faults") == (200, {})
        assert await port.request("GET", "/v1/faults") == (200, {"faults": []})
        assert (await port.request("GET", "/v1/faults/2"))[1]["active"] is False


async def test_servers_and_the_cluster(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        assert await port.request("GET", "/v1/cluster") == (200, {"bootstrap": "127.0.0.1:9092"})
        for operation in OPERATIONS:
            assert await port.request("POST", f"/v1/servers/1/{operation}") == (200, {})
        assert await port.request("POST", "/v1/servers/zookeeper/pause") == (200, {})
        assert await port.request("POST", "/v1/heal") == (200, {})
        assert port.owner.done == [*((1, operation) for operation in OPERATIONS), ("zookeeper", "pause"), (0, "heal")]
        assert await port.request("POST", "/v1/servers/9/kill") == (409, {"error": "this cluster has no broker-9"})


async def test_servers_are_started_one_after_the_other_and_killed_at_any_time(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        may_end = asyncio.Event()
        port.owner.before_end = may_end.wait
        starts = [asyncio.ensure_future(port.request("POST", f"/v1/{path}")) for path in ("servers/1/start", "heal")]
        await until(lambda: len(port.owner.done) == 1)
        port.owner.before_end = no_wait
        assert await port.request("POST", "/v1/servers/1/kill") == (200, {})
        assert len(port.owner.done) == 2
        may_end.set()
        assert await asyncio.gather(*starts) == [(200, {})] * 2
        assert len(port.owner.done) == 3


async def test_the_history_is_read_in_pieces_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_port, "MAX_ENTRIES", 2)
    async with scene(tmp_path) as port:
        assert await port.request("GET", "/v1/history") == (200, {"entries": [], "next": 0})
        waiting = asyncio.ensure_future(port.request("GET", "/v1/history?timeout_ms=50000"))
        await port.request("POST", "/v1/faults", FAULT)
        first = {"kind": "fault_installed", "fault": 1, "what": FAULT, "instead_of": None, "number": 1, "time_ms": 17}
        assert await waiting == (200, {"entries": [first], "next": 1})
        await port.request("POST", "/v1/faults", FAULT)
        await port.request("DELETE", "/v1/faults")
        _, two = await port.request("GET", "/v1/history")
        assert ([entry["fault"] for entry in two["entries"]], two["next"]) == ([1, 2], 2)
        _, rest = await port.request("GET", "/v1/history?after=2")
        assert ([entry["kind"] for entry in rest["entries"]], rest["next"]) == (["fault_removed"] * 2, 4)
        assert await port.request("GET", "/v1/history?after=4&timeout_ms=1") == (200, {"entries": [], "next": 4})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "right"}, 401),
        ({"authorization": "Basic right"}, 401),
        ({"authorization": "Bearer \xff"}, 401),
        ({"host": "attacker.example"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"host": ""}, 400),
        ({"host": " "}, 403),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "attacker.example", "authorization": ""}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": ""}, 415),
        ({"transfer_encoding": "chunked"}, 400),
        ({"content_length": "-1"}, 400),
        ({"content_length": str(MAX_BODY_BYTES + 1)}, 413),
        ({"content_length": "9" * 30}, 400),
    ],
)
async def test_a_request_that_may_not_is_refused_and_has_no_effect(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with scene(tmp_path) as port:
        refused, answer = await port.request("POST", "/v1/faults", FAULT, **headers)
        assert (refused, list(answer)) == (status, ["error"])
        assert await port.request("GET", "/v1/faults") == (200, {"faults": []})


async def test_a_client_cannot_leave_the_host_out_or_name_its_token_twice(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        assert await port.raw(f"GET /v1/faults HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()) == (
            403,
            f'{{"error": "the Host must be 127.0.0.1:{port.port.port}"}}\n',
        )
        twice = f"authorization: Bearer wrong\r\nAuthorization: Bearer {TOKEN}"
        refused = await port.raw(f"GET /v1/faults HTTP/1.1\r\nHost: localhost\r\n{twice}\r\n\r\n".encode())
        assert refused == (400, '{"error": "there are two headers authorization"}\n')


async def test_a_body_in_chunks_is_taken_up_to_its_bound(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        head = (
            f"POST /v1/faults HTTP/1.1\r\nHost: localhost:{port.port.port}\r\nAuthorization: bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        ).encode()
        body = json.dumps(FAULT).encode()
        chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        status, answer = await port.raw(head + chunked + b"0\r\n\r\n")
        assert (status, json.loads(answer)["fault"]) == (201, FAULT)
        status, answer = await port.raw(head + b"%x\r\n" % (MAX_BODY_BYTES + 1) + bytes(MAX_BODY_BYTES + 1))
        assert (status, json.loads(answer)) == (413, {"error": "the request's body is longer than 65536 bytes"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/v1/faults", b"{", 400, "the body is not JSON: "),
        ("POST", "/v1/faults", b"[" * 30_000, 400, "the body is not JSON: "),
        ("POST", "/v1/faults", b"\xff", 400, "the body is not JSON: "),
        ("POST", "/v1/faults", [], 400, "a command is an object such as "),
        ("POST", "/v1/faults", FAULT | {"kind": "answers.fial"}, 400, "there is no command 'answers.fial'; allowed: "),
        ("POST", "/v1/faults", FAULT | {"times": 0}, 400, "answers.fail: times=0 is not allowed; allowed: at least 1"),
        ("POST", "/v1/faults", FAULT | {"probability": 10**400}, 400, "answers.fail: probability=1000"),
        ("POST", "/v1/faults", FAULT | {"tims": 1}, 400, "answers.fail has no field 'tims'; allowed: times, "),
        ("POST", "/v1/actions", FAULT, 400, "answers.fail is a fault; it belongs to "),
        ("POST", "/v1/actions", {"kind": "elections.elect"}, 400, "elections.elect needs the field topic: a string"),
        ("GET", "/v1/faults/99", None, 404, "there is no fault 99"),
        ("GET", "/v1/faults/1x", None, 404, "there is nothing at '/v1/faults/1x'; docs/faults.md lists the paths"),
        ("GET", "/v1/faults/%D9%A1", None, 404, "there is nothing at "),
        ("PUT", "/v1/faults", None, 405, "PUT is not allowed here; allowed: GET, POST, DELETE"),
        ("GET", "/metrics", None, 404, "there is nothing at '/metrics'; docs/faults.md lists the paths"),
        ("POST", "/v1/servers/0/explode", None, 404, "there is nothing at "),
        ("POST", "/v1/servers/-1/kill", None, 404, "there is nothing at "),
    ],
)  # fmt: skip
async def test_bad_input_is_named_with_what_is_allowed(
    tmp_path: Path, method: str, path: str, body: Any, status: int, error: str
) -> None:
    async with scene(tmp_path) as port:
        answered, answer = await port.request(method, path, body)
        assert (answered, answer["error"][: len(error)]) == (status, error)


@pytest.mark.parametrize(
    "query", ["hits=-1", "hits=x", "hits=99999999999", "hits=1&timeout_ms=50001", "hits=1&timeout_ms="]
)
async def test_a_wait_is_bounded(tmp_path: Path, query: str) -> None:
    async with scene(tmp_path) as port:
        await port.request("POST", "/v1/faults", FAULT)
        status, answer = await port.request("GET", f"/v1/faults/1?{query}")
        assert (status, "is not allowed; allowed: 0 to " in answer["error"]) == (400, True)


async def test_a_wait_ends_when_the_fault_is_removed(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        await port.request("POST", "/v1/faults", FAULT)
        waiting, (_, removed) = await asyncio.gather(
            port.request("GET", "/v1/faults/1?hits=1"), port.request("DELETE", "/v1/faults/1")
        )
        assert waiting == (200, removed)


async def test_a_body_may_come_in_pieces(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        body = json.dumps(FAULT).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
        head = (
            f"POST /v1/faults HTTP/1.1\r\nHost: localhost:{port.port.port}\r\nAuthorization: bearer {TOKEN}\r\n"
            f"Content-Type: application/json; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        for byte in head + body:
            writer.write(bytes([byte]))
            await writer.drain()
        async with asyncio.timeout(120):
            assert (await reader.read()).startswith(b"HTTP/1.1 201 Created\r\n")
        writer.close()


async def test_a_client_that_asks_first_is_told_to_send_the_body(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        body = json.dumps(FAULT).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
        writer.write(
            f"POST /v1/faults HTTP/1.1\r\nHost: localhost:{port.port.port}\r\nAuthorization: bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        async with asyncio.timeout(120):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await reader.read()).startswith(b"HTTP/1.1 201 Created\r\n")
        writer.close()


async def test_a_client_without_the_token_is_refused_before_its_body(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        head = f"POST /v1/faults HTTP/1.1\r\nHost: localhost:{port.port.port}\r\nContent-Length: 1000\r\n\r\n"
        assert (await port.raw(head.encode()))[0] == 401


async def test_a_body_that_does_not_arrive_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_TIMEOUT_S", 0.05)
    async with scene(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
        head = f"POST /v1/faults HTTP/1.1\r\nHost: localhost:{port.port.port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(head.encode() + b"Content-Length: 10\r\n\r\n{")
        async with asyncio.timeout(120):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_one_connection_too_many_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    async with scene(tmp_path) as port:
        await port.request("POST", "/v1/faults", FAULT)
        waiting = asyncio.create_task(port.request("GET", "/v1/faults/1?hits=1"))
        while not any(each._is_answering for each in port.port._connections):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        assert await port.request("GET", "/v1/faults") == (503, {"error": "too many connections"})
        waiting.cancel()


async def test_the_port_is_open_on_this_machine_only(tmp_path: Path) -> None:
    async with scene(tmp_path) as port:
        assert port.port.url == f"http://127.0.0.1:{port.port.port}"
        assert [each.getsockname()[0] for each in port.port._server.sockets] == ["127.0.0.1"]


# -- the schema


def test_the_schema_takes_what_the_vocabulary_takes_and_refuses_what_it_refuses() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    fault = FailAnswers(api="Produce", error="REQUEST_TIMED_OUT", topic="t", on_call=(1, 3), probability=0.5, seed=7)
    assert from_json(fault.to_json()) == fault
    assert validator.is_valid(fault.to_json())
    for wrong in (
        {},
        {"kind": "answers.fail"},
        FAULT | {"api": "Prodce"},
        FAULT | {"error": "NONE"},
        FAULT | {"surplus": 1},
        FAULT | {"times": "1"},
        FAULT | {"on_call": 1},
        FAULT | {"kind": "answers.drop"},
    ):
        assert not validator.is_valid(wrong), wrong
        with pytest.raises(ValueError):
            from_json(wrong)


def test_the_schema_has_every_command() -> None:
    assert sorted(schema()["$defs"]) == sorted(kinds())
    assert all(definition["description"] for definition in schema()["$defs"].values())
