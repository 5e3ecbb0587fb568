"""The HTTP side of the test registry: routes, authentication, errors, and what tests ask of it.

What must stay true: a request is counted before it is answered, and each has one answer.
"""

import base64
import json
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.schema_registry.store import RegistryError, Store, body, schema_of

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_Query = Mapping[str, str]


class SchemaRegistry(AbstractContextManager["SchemaRegistry"]):
    """A registry in a thread: `with SchemaRegistry() as registry: ... registry.url`.

    - `users` and `tokens`: who may use it with basic and bearer authentication; without either, anybody.
    - `tls`: a server's context.

    `requests` has the method and path of each request; `fail` makes the next ones fail.
    """

    def __init__(
        self,
        *,
        users: Mapping[str, str] | None = None,
        tokens: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.store = Store()
        self.requests: list[str] = []
        self._failures: list[int] = []
        self._allowed = {
            *(f"Basic {base64.b64encode(f'{name}:{word}'.encode()).decode()}" for name, word in (users or {}).items()),
            *(f"Bearer {token}" for token in tokens),
        }
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "SchemaRegistry":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, status: int, times: int) -> None:
        """The next requests get this HTTP status."""
        with self._lock:
            self._failures = [status] * times

    def register(self, subject: str, schema: str | dict[str, Any], kind: str = "AVRO", **more: Any) -> int:
        """Registers a schema without HTTP; returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.store.register(subject, schema_of({"schema": text, "schemaType": kind, **more}))

    def answer(self, method: str, target: str, authorization: str | None, content: bytes) -> tuple[int, Any]:
        """The HTTP status and the body of an answer."""
        with self._lock:
            self.requests.append(f"{method} {target}")
            if self._failures:
                status = self._failures.pop(0)
                return status, {"error_code": status * 100 + 1, "message": "a failure of the test"}
            if self._allowed and authorization not in self._allowed:
                return 401, {"error_code": 401, "message": "Unauthorized"}
            try:
                return 200, self._route(method, target, content)
            except RegistryError as error:
                return error.status, {"error_code": error.code, "message": str(error)}

    def _route(self, method: str, target: str, content: bytes) -> Any:
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        for allowed, pattern, function in _ROUTES:
            match = pattern.fullmatch(parts.path)
            if allowed == method and match is not None:
                return function(self.store, *map(unquote, match.groups()), query, _parsed(content))
        raise RegistryError(404, "HTTP 404 Not Found")


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError as error:
        raise RegistryError(42201, "the request is not JSON") from error


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body of an answer in one segment: otherwise each answer waits for a delayed acknowledgement.
        wbufsize = -1
        disable_nagle_algorithm = True

        def _any(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = registry.answer(self.command, self.path, self.headers.get("Authorization"), content)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _any  # names of the standard library

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


# -- routes -----------------------------------------------------------------------------------------------------------


def _flag(query: _Query, name: str) -> bool:
    return query.get(name, "false").lower() == "true"


def _as_asked(answer: dict[str, Any], query: _Query) -> dict[str, Any]:
    """A registry answers a Protobuf schema as text unless asked for the descriptor, and this one has no text."""
    if answer.get("schemaType") == "PROTOBUF" and query.get("format") != "serialized":
        raise RegistryError(422, "this registry has Protobuf only with format=serialized")
    return answer


def _check(store: Store, subject: str, which: str | None, query: _Query, request: Any) -> dict[str, Any]:
    found = store.check(subject, schema_of(request), which, normalize=_flag(query, "normalize"))
    return {"is_compatible": not found, **({"messages": found} if _flag(query, "verbose") else {})}


def _level(store: Store, subject: str, query: _Query) -> dict[str, str]:
    default = not subject or _flag(query, "defaultToGlobal")
    return {"compatibilityLevel": store.level(subject) if default else store.own_level(subject)}


def _set_level(store: Store, subject: str, request: Any) -> dict[str, str]:
    store.set_level(subject, str(request.get("compatibility")) if isinstance(request, dict) else "")
    return {"compatibility": store.level(subject)}


def _set_mode(store: Store, subject: str, request: Any) -> dict[str, str]:
    store.set_mode(subject, str(request.get("mode")) if isinstance(request, dict) else "")
    return {"mode": store.mode(subject)}


def _number(text: str) -> int:
    if not text.isdigit():
        raise RegistryError(404, "HTTP 404 Not Found")
    return int(text)


_Route = Callable[..., Any]
_S = "/subjects/([^/]+)"
_V = _S + "/versions"
_C = "/compatibility" + _V
_TABLE: tuple[tuple[str, str, _Route], ...] = (
    ("GET", "/", lambda s, q, r: {}),
    ("GET", "/contexts", lambda s, q, r: s.contexts()),
    ("GET", "/schemas/types", lambda s, q, r: ["JSON", "PROTOBUF", "AVRO"]),
    (
        "GET",
        "/schemas/ids/([^/]+)",
        lambda s, i, q, r: _as_asked(body(s.by_id(_number(i), q.get("subject", ""))), q),
    ),
    ("GET", "/schemas/ids/([^/]+)/schema", lambda s, i, q, r: json.loads(s.by_id(_number(i)).text)),
    (
        "GET",
        "/schemas/ids/([^/]+)/subjects",
        lambda s, i, q, r: [one["subject"] for one in s.versions_of_id(_number(i), deleted=_flag(q, "deleted"))],
    ),
    (
        "GET",
        "/schemas/ids/([^/]+)/versions",
        lambda s, i, q, r: s.versions_of_id(_number(i), deleted=_flag(q, "deleted")),
    ),
    ("GET", "/subjects", lambda s, q, r: s.subjects(q.get("subjectPrefix", ""), deleted=_flag(q, "deleted"))),
    (
        "POST",
        _S,
        lambda s, n, q, r: s.look_up(n, schema_of(r), normalize=_flag(q, "normalize"), deleted=_flag(q, "deleted")),
    ),
    ("DELETE", _S, lambda s, n, q, r: s.delete_subject(n, permanent=_flag(q, "permanent"))),
    ("GET", _V, lambda s, n, q, r: s.versions(n, deleted=_flag(q, "deleted"))),
    ("POST", _V, lambda s, n, q, r: {"id": s.register(n, schema_of(r), normalize=_flag(q, "normalize"))}),
    ("GET", _V + "/([^/]+)", lambda s, n, v, q, r: _as_asked(s.version(n, v, deleted=_flag(q, "deleted")), q)),
    ("GET", _V + "/([^/]+)/schema", lambda s, n, v, q, r: json.loads(s.version(n, v)["schema"])),
    ("GET", _V + "/([^/]+)/referencedby", lambda s, n, v, q, r: s.referenced_by(n, v)),
    ("DELETE", _V + "/([^/]+)", lambda s, n, v, q, r: s.delete_version(n, v, permanent=_flag(q, "permanent"))),
    ("POST", _C, lambda s, n, q, r: _check(s, n, None, q, r)),
    ("POST", _C + "/([^/]+)", _check),
    ("GET", "/config", lambda s, q, r: _level(s, "", q)),
    ("PUT", "/config", lambda s, q, r: _set_level(s, "", r)),
    ("DELETE", "/config", lambda s, q, r: {"compatibilityLevel": s.forget_level("")}),
    ("GET", "/config/([^/]+)", lambda s, n, q, r: _level(s, n, q)),
    ("PUT", "/config/([^/]+)", lambda s, n, q, r: _set_level(s, n, r)),
    ("DELETE", "/config/([^/]+)", lambda s, n, q, r: {"compatibilityLevel": s.forget_level(n)}),
    ("GET", "/mode", lambda s, q, r: {"mode": s.mode("")}),
    ("PUT", "/mode", lambda s, q, r: _set_mode(s, "", r)),
    (
        "GET",
        "/mode/([^/]+)",
        lambda s, n, q, r: {"mode": s.mode(n, default_to_global=_flag(q, "defaultToGlobal"))},
    ),
    ("PUT", "/mode/([^/]+)", lambda s, n, q, r: _set_mode(s, n, r)),
)
_ROUTES = [(method, re.compile(path), function) for method, path, function in _TABLE]
