"""The faults of a cluster over HTTP and JSON, for tests in any language. `docs/faults.md` has examples.

| request                               | body                             | answer                                |
|---------------------------------------|----------------------------------|---------------------------------------|
| `GET /v1/cluster`                     |                                  | addresses and servers                 |
| `GET /v1/schema`                      |                                  | the JSON Schema of faults and actions |
| `GET /v1/faults`                      |                                  | `{"faults": [...]}`, the active ones  |
| `POST /v1/faults`                     | a fault                          | 201; the fault holds everywhere       |
| `DELETE /v1/faults`                   |                                  | `{}`; all faults are removed          |
| `GET /v1/faults/7?hits=1&timeout_ms=` |                                  | the fault; waits for this many hits   |
| `DELETE /v1/faults/7`                 |                                  | the fault, with its last counts       |
| `POST /v1/actions`                    | an action                        | `{"result": ...}`                     |
| `POST /v1/servers/0/kill`             |                                  | `{}`; also stop, start, pause, resume |
| `POST /v1/heal`                       |                                  | `{}`; ends faults, starts all servers |
| `GET /v1/history?after=0&timeout_ms=` |                                  | `{"entries": [...], "next": 12}`      |

A fault is answered as `{"id": 7, "fault": {...}, "calls": 3, "hits": 1, "active": true}`, an error as `{"error":
"sentence"}`. `after` is the `next` of an earlier answer; with `timeout_ms` the answer waits for an entry.

What must stay true:
- The port listens on 127.0.0.1 only, and every request needs the token. Web pages cannot use it: requests with an
  Origin, or for another Host, are refused before the token is checked.
- A body has at most `MAX_BODY_BYTES`. A wait ends after `MAX_WAIT_MS`.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from klamm.faults.chronicle import Chronicle
from klamm.faults.commands import Action, Fault, Json, Server, from_json
from klamm.faults.commands.schema import schema
from klamm.faults.control import Control, Installed
from klamm.faults.wire import FaultError
from klamm.net.http import JSON, Answer, HttpServer, Refused, Request

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024
MAX_WAIT_MS = 50_000
# The maximum in one answer. The next request gets the rest.
MAX_ENTRIES = 1_000

OPERATIONS = ("kill", "stop", "start", "pause", "resume")

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The cluster behind the port."""

    def described(self) -> Json:
        """The addresses of the cluster, and its servers."""

    async def operate(self, server: Server, operation: str) -> None:
        """Carries out one of OPERATIONS on a server. Raises FaultError."""

    async def heal(self) -> None:
        """Removes all faults, and resumes and starts all servers. Raises FaultError."""


class _Refused(Exception):
    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers or {}


class ControlPort(HttpServer):
    """Call `bind`, then `start`, and `stop` at any time, all on the loop of `control`."""

    def __init__(self, control: Control, chronicle: Chronicle, owner: Owner, token: str, port: int = 0) -> None:
        super().__init__(HOST, port, {}, self._failed, max_body_bytes=MAX_BODY_BYTES)
        self._control = control
        self._chronicle = chronicle
        self._owner = owner
        self._token = token.encode()
        # Two concurrent starts would start two processes of one broker.
        self._starting = asyncio.Lock()

    @property
    def url(self) -> str:
        """The port's address, once it is bound."""
        return f"http://{self.host}:{self.port}"

    def refused(self, status: int, why: str) -> Answer:
        return _json(status, {"error": why})

    async def answer(self, request: Request) -> Answer:
        """Answers one request."""
        try:
            handle, groups = _route(request)
            status, value = await handle(self, request, *groups)
        except _Refused as refused:
            return _json(refused.status, {"error": str(refused)}, refused.headers)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        except FaultError as error:
            return _json(409, {"error": str(error)})
        except Exception as error:
            self._failed(error)
            return _json(500, {"error": f"a fault of the program: {error!r}"})
        return _json(status, value)

    def check_host(self, head: Request) -> None:
        if head.headers.get("host") not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            raise Refused(self.refused(403, f"the Host must be {HOST}:{self.port}"))

    def admit(self, head: Request) -> bool:
        if "origin" in head.headers:
            raise Refused(self.refused(403, "web pages are not served"))
        scheme, _, token = head.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            why = {"error": "the header Authorization: Bearer TOKEN is missing or wrong"}
            raise Refused(_json(401, why, {"WWW-Authenticate": "Bearer"}))
        return True

    def _failed(self, error: BaseException) -> None:
        _log.error("a fault of the program in the control port", exc_info=error)

    # -- the requests -----------------------------------------------------------------------------------------------

    async def _cluster(self, request: Request) -> "Outcome":
        return 200, self._owner.described()

    async def _schema(self, request: Request) -> "Outcome":
        return 200, schema()

    async def _list(self, request: Request) -> "Outcome":
        await self._control.count()
        return 200, {"faults": [_described(installed) for installed in self._control.active]}

    async def _install(self, request: Request) -> "Outcome":
        fault = from_json(_body(request))
        if not isinstance(fault, Fault):
            raise _Refused(400, f"{fault.kind} is an action; it belongs to /v1/actions")
        number = await self._control.install(fault)
        return 201, _described(self._control.faults[number])

    async def _remove_all(self, request: Request) -> "Outcome":
        await self._control.remove_all()
        return 200, {}

    async def _show(self, request: Request, number: str) -> "Outcome":
        installed = self._installed(number)
        hits = _whole_number(request, "hits", 0)
        if hits:
            try:
                timeout_ms = _whole_number(request, "timeout_ms", MAX_WAIT_MS, MAX_WAIT_MS)
                await self._control.wait_struck(installed.number, hits, timeout_ms / 1000)
            except (TimeoutError, FaultError):
                pass  # The answer has the hits, and whether the fault is still active.
        await self._control.count()
        return 200, _described(installed)

    async def _remove(self, request: Request, number: str) -> "Outcome":
        installed = self._installed(number)
        await self._control.remove(installed.number)
        return 200, _described(installed)

    async def _perform(self, request: Request) -> "Outcome":
        action = from_json(_body(request))
        if not isinstance(action, Action):
            raise _Refused(400, f"{action.kind} is a fault; it belongs to /v1/faults")
        return 200, {"result": await self._control.perform(None, action)}

    async def _operate(self, request: Request, server: str, operation: str) -> "Outcome":
        async with self._starting if operation == "start" else contextlib.nullcontext():
            await self._owner.operate("zookeeper" if server == "zookeeper" else int(server), operation)
        return 200, {}

    async def _heal(self, request: Request) -> "Outcome":
        async with self._starting:
            await self._owner.heal()
        return 200, {}

    async def _history(self, request: Request) -> "Outcome":
        after = _whole_number(request, "after", 0)
        timeout_ms = _whole_number(request, "timeout_ms", 0, MAX_WAIT_MS)
        await self._chronicle.catch_up()
        entries = (await self._control.history.wait_after(after, timeout_ms / 1000))[:MAX_ENTRIES]
        following = entries[-1].number if entries else after
        return 200, {"entries": [entry.to_json() for entry in entries], "next": following}

    def _installed(self, number: str) -> Installed:
        installed = self._control.faults.get(int(number))
        if installed is None:
            raise _Refused(404, f"there is no fault {number}")
        return installed


Outcome = tuple[int, Json]
_Handle = Callable[..., Awaitable[Outcome]]

_ROUTES: tuple[tuple[str, str, _Handle], ...] = (
    ("GET", r"/v1/cluster", ControlPort._cluster),
    ("GET", r"/v1/schema", ControlPort._schema),
    ("GET", r"/v1/faults", ControlPort._list),
    ("POST", r"/v1/faults", ControlPort._install),
    ("DELETE", r"/v1/faults", ControlPort._remove_all),
    ("GET", r"/v1/faults/([0-9]{1,9})", ControlPort._show),
    ("DELETE", r"/v1/faults/([0-9]{1,9})", ControlPort._remove),
    ("POST", r"/v1/actions", ControlPort._perform),
    ("POST", r"/v1/heal", ControlPort._heal),
    ("GET", r"/v1/history", ControlPort._history),
    ("POST", rf"/v1/servers/([0-9]{{1,9}}|zookeeper)/({'|'.join(OPERATIONS)})", ControlPort._operate),
)


def _route(request: Request) -> tuple[_Handle, tuple[str, ...]]:
    """The handler of a request, and the values in its path. Raises _Refused."""
    methods = []
    for method, pattern, handle in _ROUTES:
        if match := re.fullmatch(pattern, request.path, re.ASCII):
            if request.method == method:
                return handle, match.groups()
            methods.append(method)
    if methods:
        allowed = ", ".join(methods)
        raise _Refused(405, f"{request.method[:20]} is not allowed here; allowed: {allowed}", {"Allow": allowed})
    raise _Refused(404, f"there is nothing at {request.path[:100]!r}; docs/faults.md lists the paths")


def _body(request: Request) -> Json:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise _Refused(415, f"the Content-Type of a body must be {JSON}")
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"the body is not JSON: {error}") from None


def _whole_number(request: Request, name: str, default: int, highest: int = 2**31 - 1) -> int:
    text = request.parameters.get(name, str(default))
    if not re.fullmatch("[0-9]{1,10}", text, re.ASCII) or int(text) > highest:
        raise _Refused(400, f"{name}={text[:20]!r} is not allowed; allowed: 0 to {highest:,}")
    return int(text)


def _described(installed: Installed) -> Json:
    return {
        "id": installed.number,
        "fault": installed.fault.to_json(),
        "calls": installed.calls,
        "hits": installed.hits,
        "active": not installed.removed,
    }


def _json(status: int, value: Json, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(value).encode() + b"\n", JSON, headers or {})
