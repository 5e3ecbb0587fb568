"""Keeps the page private to the person who started it: `Guard` checks every request first. Pure.

The address that the command prints has a token. Opening that address exchanges the token for a cookie that scripts
cannot read. Every other request needs the cookie.

What must stay true:
- Every answer, also a refusal, has `HEADERS`.
- A request from a page of another origin is refused, even with the cookie. Only a link that a person follows works.
- Only paths under /api/actions/ take POST, and their bodies are JSON.
"""

import hmac
import secrets
from collections.abc import Mapping
from typing import Final

from klamm.net.http import Request

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
# Besides `Cache-Control: no-store`, which every answer of klamm.net.http has.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

ACTIONS: Final = "/api/actions/"
# How long a browser keeps the cookie of a given token, in seconds.
MAX_AGE_S: Final = 30 * 24 * 3600

WRONG_TOKEN: Final = "The token is wrong. Open the address that klamm printed when it started."
NO_TOKEN: Final = "Open the address that klamm printed when it started: it holds the token."


class NotAllowed(Exception):
    """The request is not served; the message says why, for a person."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """Decides which requests are served. `token` opens the page; None makes a token that ends with this process.

    The cookie is derived from the token, so with a given token a page survives a restart of the server.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        # Browsers send a cookie to every port of a host, so each cockpit needs its own cookie name.
        self._name = f"klamm_cockpit_{_derived(self.token, 'name')[:8]}"
        self._value = _derived(self.token, "value")
        self._max_age = "" if token is None else f"; Max-Age={MAX_AGE_S}"

    @property
    def cookie(self) -> str:
        """The value of Set-Cookie. SameSite=Lax: the browser also sends the cookie when a person follows a link from
        another site."""
        return f"{self._name}={self._value}; HttpOnly; SameSite=Lax; Path=/{self._max_age}"

    def check(self, head: Request) -> None:
        """Raises NotAllowed."""
        allowed = "POST" if head.path.startswith(ACTIONS) else "GET"
        if head.method != allowed:
            raise NotAllowed(405, f"{head.path[:100]!r} takes {allowed} only.")
        if gives_token(head):
            if not _same(head.parameters["token"], self.token):
                raise NotAllowed(401, WRONG_TOKEN)
            return
        headers = head.headers
        if not _same(_cookie(headers.get("cookie", ""), self._name), self._value):
            raise NotAllowed(401, NO_TOKEN)
        origin, site = headers.get("origin", ""), headers.get("sec-fetch-site", "")
        # Browsers that send Sec-Fetch-Site send "none" for an address that a person typed.
        is_own = site in ("", "same-origin", "none") or is_link(head)
        if (origin and origin != f"http://{headers.get('host')}") or not is_own:
            raise NotAllowed(403, "Requests from other sites are not served.")
        if head.method == "POST":
            if not origin:
                raise NotAllowed(403, "A request that changes something needs the header Origin.")
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                raise NotAllowed(415, "The body must be application/json.")


def gives_token(head: Request) -> bool:
    """Whether the request exchanges the token for the cookie."""
    return head.path == "/" and "token" in head.parameters


def is_link(head: Request) -> bool:
    """Whether a person has followed a link to the page, in a window of its own."""
    wanted = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    return head.path == "/" and all(head.headers.get(name) == value for name, value in wanted.items())


def _cookie(header: str, name: str) -> str:
    """The cookie's value, or "". Cookies of other programs on this machine are ignored."""
    for each in header.split(";"):
        given, _, found = each.strip().partition("=")
        if given == name:
            return found
    return ""


def _derived(token: str, what: str) -> str:
    return hmac.new(token.encode(), what.encode(), "sha256").hexdigest()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
