"""Keeps the page to the person who started it: every request passes `Guard` before anything else sees it.

The address that the command prints holds a token. Opening it exchanges the token for a cookie that scripts and other
sites cannot use. Every other request needs the cookie.

What must stay true:
- Every answer, also a refusal, has `HEADERS`.
- The Host header names this machine, so that a name that another site points here ("DNS rebinding") is refused.
- A request that a page of another origin makes is refused, even with the cookie.
- Only paths under /api/actions/ take POST, and their bodies are bounded JSON.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
ENCODED_HEADERS: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

ACTIONS: Final = "/api/actions/"
MAX_TARGET_BYTES: Final = 8192
MAX_BODY_BYTES: Final = 64 * 1024


class Refused(Exception):
    """The request is not served; the message says why, for a person."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """The ASGI application around all others. `host` is the address that the server listens on."""

    def __init__(self, app: "ASGIApp", host: str) -> None:
        self._app = app
        self._host = host
        self.token = secrets.token_urlsafe(24)
        # A cookie is sent to every port of a host, so its name must differ from that of another cockpit's.
        self._cookie = f"klamm_cockpit_{secrets.token_hex(4)}"
        self._session = secrets.token_urlsafe(24)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            return

        async def send_safely(message: "Message") -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                added = [each for each in ENCODED_HEADERS if each[0] not in given]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            exchange = self._check(scope)
        except Refused as refused:
            await _answer(send_safely, refused.status, f"{refused}\n")
            return
        if exchange:
            cookie = f"{self._cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send_safely, 303, "", [("location", "/"), ("set-cookie", cookie)])
            return
        await self._app(scope, _bounded(receive), send_safely)

    def _check(self, scope: "Scope") -> bool:
        """Whether the request gives the token, to get the cookie for it. Raises Refused."""
        headers = _Headers(scope["headers"])
        host = headers.only("host")
        if not is_own_host(host, self._host):
            raise Refused(421, f"This page is not served under the name {_shown(host)}.")
        path: str = scope["path"]
        if len(path) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise Refused(414, f"An address has at most {MAX_TARGET_BYTES} bytes.")
        method: str = scope["method"]
        allowed = "POST" if path.startswith(ACTIONS) else "GET"
        if method != allowed:
            raise Refused(405, f"{_shown(path)} takes {allowed} only.")
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token") if path == "/" else None
        if given is not None:
            if not _same(given, self.token):
                raise Refused(401, "The token is wrong. Open the address that klamm printed when it started.")
            return True
        if not _same(headers.cookie(self._cookie), self._session):
            raise Refused(401, "Open the address that klamm printed when it started: it holds the token.")
        origin, site = headers.only("origin"), headers.only("sec-fetch-site")
        # A browser that knows Sec-Fetch-Site says "none" for what a person typed.
        if (origin and origin != f"http://{host}") or (site and site not in ("same-origin", "none")):
            raise Refused(403, "Requests from other sites are not served.")
        if method == "POST":
            if not origin:
                raise Refused(403, "A request that changes something needs the header Origin.")
            if headers.only("content-type").partition(";")[0].strip() != "application/json":
                raise Refused(415, "The body must be application/json.")
        return False


def is_own_host(header: str, listens_on: str) -> bool:
    """Whether a Host header names this server. A port is not compared: a tunnel may have another one.

    Another site can make any name lead here, but not an address. A server for this machine only is reached by the
    addresses and the name of the loopback interface; any other server also by every address, and by `listens_on`.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    if not header or name.rstrip(".") in ("localhost", listens_on.lower()):
        return bool(header)
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(listens_on)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Headers:
    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in headers:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def only(self, name: str) -> str:
        """The value, "" without one. Raises Refused for two, which could be read in two ways."""
        values = self._values.get(name, [""])
        if len(values) > 1:
            raise Refused(400, f"There are two headers {name}.")
        return values[0]

    def cookie(self, name: str) -> str:
        """The value, "" without one. Whatever other programs of this machine have set is ignored."""
        for value in self._values.get("cookie", ()):
            for each in value.split(";"):
                given, _, found = each.strip().partition("=")
                if given == name:
                    return found
        return ""


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _shown(text: str) -> str:
    """A text of the request in an answer: short, and on one line."""
    return repr(text[:100])


def _bounded(receive: "Receive") -> "Receive":
    """Ends a request whose body is longer than `MAX_BODY_BYTES`."""
    read = 0

    async def receive_some() -> "Message":
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message

    return receive_some


async def _answer(send: "Send", status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    body = text.encode("utf-8", "backslashreplace")
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    encoded += [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
