"""Gets tokens for SASL/OAUTHBEARER, and keeps a token until its renewal is due.

What must stay true:
- No error message contains a secret or a token. Only an endpoint's errors of RFC 6749 are quoted, shortened.
- A secret goes to the endpoint that was given, and no further: a redirection is an error.
- A refusal raises `AuthenticationFailed`, which is never retried. An endpoint that cannot be reached, or has a fault of
  its own, raises `ConnectFailed`, and the client's next attempt asks again.
- Connections that authenticate at the same time ask for one token. A request ends within its timeouts, and outlives a
  connection that has stopped waiting for it. An answer is at most MAX_ANSWER_BYTES.

Source: org.apache.kafka.common.security.oauthbearer.internals.secured.HttpAccessTokenRetriever; RFC 6749, 4.4.
"""

import asyncio
import base64
import http.client
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

from klamm.base.environment import Environment
from klamm.net.client import AuthenticationFailed, ConnectFailed
from klamm.net.oauth import ENDPOINT, OAuthOptions
from klamm.net.security import TlsOptions
from klamm.net.tls import client_context

MAX_ANSWER_BYTES = 64 * 1024
_MAX_QUOTED = 200
_UNSIGNED_LIFETIME_S = 3_600
_JSON = "application/json"


class Token(NamedTuple):
    """A token, and whether it was kept from an earlier request."""

    text: str
    is_kept: bool


class Tokens:
    """The tokens of one client."""

    def __init__(self, options: OAuthOptions, environment: Environment) -> None:
        self._options = options
        self._environment = environment
        self._asking: asyncio.Task[str] | None = None
        self._kept: str | None = None
        self._renew_at_s = 0.0  # the loop's clock

    async def get(self) -> Token:
        """A token that is not due for renewal. Raises AuthenticationFailed, ConnectFailed."""
        options = self._options
        if options.token is not None:
            return Token(options.token, False)
        if options.claims:
            return Token(_unsigned(dict(options.claims), self._environment.now_ms() / 1000), False)
        if options.token_path is not None:
            return Token(await self._environment.run_blocking(self._read, options.token_path), False)
        if self._kept is not None and asyncio.get_running_loop().time() < self._renew_at_s:
            return Token(self._kept, True)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(options))
            # When no caller waits any longer, asyncio would log that the error was never retrieved.
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return Token(await asyncio.shield(self._asking), False)

    def forget(self, token: Token) -> None:
        """A broker has refused the token."""
        if self._kept == token.text:
            self._kept = None

    async def _ask(self, options: OAuthOptions) -> str:
        """Gets a new token from the endpoint."""
        began_s = asyncio.get_running_loop().time()
        timeout_ms = options.connect_timeout_ms + options.read_timeout_ms
        opened: list[socket.socket] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await self._environment.run_foreign(_request, options, opened.append)
        except TimeoutError:
            for connected in opened:
                # Ends the thread's read. SSLSocket.shutdown would also change state that the thread uses.
                with suppress(OSError):
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)
            raise ConnectFailed(f"{options.where} does not answer within {timeout_ms} ms") from None
        token = answer.get("access_token")
        if not isinstance(token, str) or not _is_sendable(token):
            raise AuthenticationFailed(f"{options.where}: the answer has no access_token")
        self._kept, self._renew_at_s = token, began_s + _lifetime_s(answer, token) * options.refresh_factor
        return token

    def _read(self, path: str) -> str:
        try:
            file = self._environment.file_system.open_to_read(path)
            try:
                text = bytes(file.read(0, MAX_ANSWER_BYTES)).decode("ascii").strip()
            finally:
                file.close()
        except OSError as error:
            raise AuthenticationFailed(f"{ENDPOINT}: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        if not _is_sendable(text):
            raise AuthenticationFailed(f"{ENDPOINT}: {path} holds no token")
        return text


def _is_sendable(token: str) -> bool:
    return bool(token) and len(token) <= MAX_ANSWER_BYTES and token.isascii() and token.isprintable()


# -- the token endpoint -----------------------------------------------------------------------------------------------


def _request(options: OAuthOptions, on_connect: Callable[[socket.socket], object]) -> dict[str, Any]:
    """The answer to a request for client credentials. Blocking; shutting down its socket ends it."""
    assert options.endpoint is not None
    parts = urlsplit(options.endpoint)
    host, timeout_s = parts.hostname or "", options.connect_timeout_ms / 1000
    credentials = _credentials(options)
    body = "grant_type=client_credentials"
    if options.scope:
        body += f"&scope={quote_plus(options.scope)}"
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = client_context(TlsOptions(truststore_path=options.truststore_path))
        connection = http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_s)
    try:
        connection.connect()
        on_connect(connection.sock)
        connection.sock.settimeout(options.read_timeout_ms / 1000)
        connection.request(
            "POST",
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            body,
            {
                "Authorization": f"Basic {credentials}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": _JSON,
                "Connection": "close",
            },
        )
        response = connection.getresponse()
        text = response.read(MAX_ANSWER_BYTES + 1)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(
            f"{options.where}: its certificate is not trusted: {error.verify_message}; sasl.jaas.config may name a PEM"
            " file with the issuer's, as ssl.truststore.location"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        why = _hidden(options, str(error) or type(error).__name__)
        raise ConnectFailed(f"{options.where} does not answer: {why}") from None
    finally:
        connection.close()
    return _answer(options, response.status, text)


def _credentials(options: OAuthOptions) -> str:
    parts = (options.client_id, options.client_secret)
    return base64.b64encode(":".join(map(quote_plus, parts) if options.urlencode else parts).encode()).decode()


def _hidden(options: OAuthOptions, text: str) -> str:
    """The text without the secrets that were sent to the endpoint: its errors may repeat them."""
    for secret in (options.client_secret, quote_plus(options.client_secret), _credentials(options)):
        text = text.replace(secret, "...")
    return text


def _answer(options: OAuthOptions, status: int, text: bytes) -> dict[str, Any]:
    where = options.where
    try:
        answer = json.loads(text) if len(text) <= MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        answer = None
    if status == http.client.OK and isinstance(answer, dict):
        return answer
    why = f"HTTP {status}"
    if isinstance(answer, dict):
        told = [answer[name] for name in ("error", "error_description") if isinstance(answer.get(name), str)]
        why = _hidden(options, ": ".join([why, *told]))[:_MAX_QUOTED]
    if status >= http.client.INTERNAL_SERVER_ERROR or status in (
        http.client.REQUEST_TIMEOUT,
        http.client.TOO_MANY_REQUESTS,
    ):
        raise ConnectFailed(f"{where} fails: {why!r}")
    if status == http.client.OK:
        raise AuthenticationFailed(f"{where}: the answer is not JSON, or too long; is it the URL of a token endpoint?")
    raise AuthenticationFailed(f"{where} gives no token for the clientId and clientSecret of sasl.jaas.config: {why!r}")


def _lifetime_s(answer: dict[str, Any], token: str) -> float:
    """The token's lifetime; 0 where neither the answer nor the token has one."""
    claims = _claims(token)
    for seconds in (answer.get("expires_in"), _difference(claims.get("exp"), claims.get("iat"))):
        if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
            return float(seconds)
        if isinstance(seconds, (int, float)) and 0 < seconds < 1e9:
            return float(seconds)
    return 0


def _difference(end: Any, start: Any) -> float | None:
    try:
        return float(end) - float(start)
    except (TypeError, ValueError, OverflowError):
        return None


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JWT; {} for a token of another kind."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))) if len(parts) == 3 else {}
    except (ValueError, RecursionError):
        claims = {}
    return claims if isinstance(claims, dict) else {}


def _unsigned(claims: dict[str, str], now_s: float) -> str:
    """A JWT without a signature, for brokers that accept unsigned tokens."""
    payload = {**claims, "iat": now_s, "exp": now_s + _UNSIGNED_LIFETIME_S}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, payload))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""])
