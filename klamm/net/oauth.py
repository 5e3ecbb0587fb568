"""Where a client gets its token for SASL/OAUTHBEARER (KIP-255, KIP-768): the properties, as Java's clients have them.

A token comes from an OIDC provider (client credentials), from a file, from the properties themselves, or is made here
without a signature, as Kafka's own default does for tests. `oauth_tokens.py` gets it.

What must stay true:
- Options are immutable, comparable and picklable. No secret and no token is in their `repr` or in an error message.
- Exactly one source is named; an option without effect beside the others is an error.

Source: org.apache.kafka.common.security.oauthbearer.internals.secured, OAuthBearerUnsecuredLoginCallbackHandler.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
PROPERTIES: Final = (
    ENDPOINT,
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.login.callback.handler.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.window.factor",
    "sasl.oauthbearer.header.urlencode",
)
WITHOUT_EFFECT: Final = (
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
)
"""Properties without effect here: the first connection or session after the refresh window renews the token, and the
client does not check the claims of a token."""

IGNORED_BY_KAFKA: Final = frozenset({"debug", "serviceName", "ssl.protocol"})
"""Options of sasl.jaas.config in many examples. They mean nothing to Kafka's login modules or to TLS here."""

_HANDLERS: Final = (
    "OAuthBearerLoginCallbackHandler",
    "OAuthBearerUnsecuredLoginCallbackHandler",
    # Strimzi's handler, whose options have other names.
    "JaasClientOauthLoginCallbackHandler",
)
_OTHER_NAMES: Final = {
    "oauth.client.id": "clientId",
    "oauth.client.secret": "clientSecret",
    "oauth.scope": "scope",
    "oauth.token.endpoint.uri": ENDPOINT,
    "oauth.access.token": "token",
    "oauth.ssl.truststore.location": "ssl.truststore.location",
    "sasl.oauthbearer.client.credentials.client.id": "clientId",
    "sasl.oauthbearer.client.credentials.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}
_CLAIM: Final = "unsecuredLoginStringClaim_"
_EXTENSION: Final = "extension_"
_KNOWN: Final = ("clientId", "clientSecret", "scope", "token", "ssl.truststore.location")
_MS: Final = re.compile(r"[1-9][0-9]{0,8}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")


class OAuthError(ValueError):
    """A property cannot be used. The message begins with its name."""


@dataclass(frozen=True, slots=True)
class OAuthOptions:
    """Exactly one of `endpoint`, `token_path`, `token` and `claims` is set.

    - `endpoint`: the URL of an OIDC provider, whose query may hold a secret. `truststore_path`: the certificates that
      are trusted there. `urlencode`: the client's id and secret are sent as in a URL (RFC 6749, 2.3.1).
    - `token_path`: a file with the token, which is read for each connection.
    - `claims`: the claims of a token without a signature.
    - `extensions`: sent to the broker beside the token.
    - `refresh_factor`: the share of its life after which a token is renewed.
    """

    endpoint: str | None = field(default=None, repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None
    truststore_path: str | None = None
    token_path: str | None = None
    token: str | None = field(default=None, repr=False)
    claims: tuple[tuple[str, str], ...] = ()
    extensions: tuple[tuple[str, str], ...] = ()
    connect_timeout_ms: int = 3_000
    read_timeout_ms: int = 3_000
    refresh_factor: float = 0.8
    urlencode: bool = False

    @property
    def where(self) -> str:
        """The endpoint, for messages."""
        return f"{ENDPOINT}: {_shown(self.endpoint or '')}"


def oauth_options(properties: Mapping[str, str], login: Mapping[str, str]) -> OAuthOptions:
    """The options of these properties and of the login module in sasl.jaas.config. Raises OAuthError."""
    handler = properties.get("sasl.login.callback.handler.class", _HANDLERS[0]).rpartition(".")[2]
    if handler not in _HANDLERS:
        raise OAuthError(
            f"sasl.login.callback.handler.class is {handler!r}, which is a class of Java's; allowed: "
            + ", ".join(_HANDLERS)
        )
    given, claims, extensions = _options_of_login(login)
    for name, text in properties.items():
        if name in _OTHER_NAMES or name == ENDPOINT:
            given[_OTHER_NAMES.get(name, name)] = text
    url = given.pop(ENDPOINT, None)
    timing: dict[str, Any] = {
        "connect_timeout_ms": _timeout_ms(properties, "sasl.login.connect.timeout.ms"),
        "read_timeout_ms": _timeout_ms(properties, "sasl.login.read.timeout.ms"),
        "refresh_factor": _refresh_factor(properties),
    }
    _check_sources(url, given, claims)
    if url is None:
        return OAuthOptions(token=given.get("token"), claims=claims, extensions=extensions, **timing)
    if url.startswith("file:"):
        return OAuthOptions(token_path=_path(url), extensions=extensions, **timing)
    for name in ("clientId", "clientSecret"):
        if not given.get(name):
            raise OAuthError(f"sasl.jaas.config has no {name}, which {ENDPOINT} needs")
    return OAuthOptions(
        endpoint=_checked(url),
        client_id=given["clientId"],
        client_secret=given["clientSecret"],
        scope=given.get("scope"),
        truststore_path=given.get("ssl.truststore.location"),
        extensions=extensions,
        urlencode=_boolean(properties, "sasl.oauthbearer.header.urlencode"),
        **timing,
    )


def _options_of_login(
    login: Mapping[str, str],
) -> tuple[dict[str, str], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    given: dict[str, str] = {}
    claims, extensions = [], []
    for name, text in login.items():
        known = _OTHER_NAMES.get(name, name)
        if name.startswith(_CLAIM):
            claims.append((name.removeprefix(_CLAIM), text))
        elif name.startswith(_EXTENSION):
            extensions.append(_extension(name.removeprefix(_EXTENSION), text))
        elif known in _KNOWN or known == ENDPOINT:
            given[known] = text
        elif name not in IGNORED_BY_KAFKA:
            allowed = ", ".join([*_KNOWN, f"{_EXTENSION}...", f"{_CLAIM}..."])
            raise OAuthError(f"sasl.jaas.config has an option that is not known; allowed: {allowed}")
    return given, tuple(claims), tuple(extensions)


def _check_sources(url: str | None, given: Mapping[str, str], claims: object) -> None:
    sources = [name for name, is_there in ((ENDPOINT, url), ("token", "token" in given), (_CLAIM, claims)) if is_there]
    if len(sources) != 1:
        found = " and ".join(sources) or "none of them"
        raise OAuthError(
            f"{ENDPOINT} (https://..., or file:///... for a token in a file), or in sasl.jaas.config the option token"
            f" or {_CLAIM}sub must say where the token comes from; given: {found}"
        )
    if "token" in given and not _TOKEN.fullmatch(given["token"]):
        raise OAuthError("sasl.jaas.config has a token that is empty or has an invalid character")
    if (url is None or url.startswith("file:")) and ("clientId" in given or "clientSecret" in given):
        raise OAuthError(f"sasl.jaas.config has clientId and clientSecret, which need {ENDPOINT}=https://...")


def _extension(name: str, text: str) -> tuple[str, str]:
    # RFC 7628: kvsep ends a value, and `auth` is the token's own name.
    if not name.isascii() or not name.isalpha() or name == "auth" or not text.isascii() or not text.isprintable():
        raise OAuthError(f"sasl.jaas.config has an extension that cannot be sent; allowed: {_EXTENSION}NAME of letters")
    return name, text


def _checked(url: str) -> str:
    # Imported here, because processes that only look at options start often.
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise OAuthError(f"{ENDPOINT} is not a URL") from None
    if "@" in parts.netloc or (not is_good and "@" in url):
        raise OAuthError(f"{ENDPOINT} has credentials; they stand in sasl.jaas.config, as clientId and clientSecret")
    if not is_good or not url.isascii() or not url.isprintable() or " " in url:
        raise OAuthError(f"{ENDPOINT} is {_shown(url)!r}; allowed: https://host/path, http://host/path, file:///path")
    return url


def _shown(url: str) -> str:
    return url.partition("?")[0]


def _path(url: str) -> str:
    path = url.removeprefix("file:").removeprefix("//")
    if not path.startswith("/") or "\0" in path:
        raise OAuthError(f"{ENDPOINT} is {url!r}; allowed: file:///path")
    return path


def _timeout_ms(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name)
    if text is None:
        return 3_000
    if not _MS.fullmatch(text):
        raise OAuthError(f"{name} is {text!r}; allowed: a number from 1 to 999999999")
    return int(text)


def _boolean(properties: Mapping[str, str], name: str) -> bool:
    text = properties.get(name, "false").lower()
    if text not in ("true", "false"):
        raise OAuthError(f"{name} is {text!r}; allowed: true, false")
    return text == "true"


def _refresh_factor(properties: Mapping[str, str]) -> float:
    text = properties.get("sasl.login.refresh.window.factor", "0.8")
    try:
        factor = float(text)
    except ValueError:
        factor = 0
    if not 0.5 <= factor <= 1:
        raise OAuthError(f"sasl.login.refresh.window.factor is {text!r}; allowed: a number from 0.5 to 1.0")
    # The client authenticates again after 85 % of a session's life. By then the token must be due for renewal.
    return min(factor, 0.8)
