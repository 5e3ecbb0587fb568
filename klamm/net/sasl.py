"""SASL of the wire client: authenticates a fresh connection by PLAIN, SCRAM or OAUTHBEARER (KIP-43, KIP-84, KIP-152,
KIP-255).

What must stay true:
- No error message contains a password or a token. Only PLAIN sends the password to the broker.
- With SCRAM the broker too has proved that it knows the password before the connection is used.
- A refusal raises `AuthenticationFailed`, which is never retried. Only the refusal of a kept token, which may have been
  revoked, raises `NotSent`: the next attempt gets a new token.

Source: org.apache.kafka.common.security.authenticator.SaslClientAuthenticator; RFC 4616 for PLAIN,
RFC 7628 for OAUTHBEARER.
"""

from collections.abc import Awaitable, Callable

from klamm.base.environment import Random
from klamm.base.system_environment import SystemEnvironment
from klamm.net.client import AuthenticationFailed, Connection, NotSent
from klamm.net.oauth import OAuthOptions
from klamm.net.scram import ScramClient, ScramError
from klamm.net.security import OAUTHBEARER, SaslOptions
from klamm.protocol.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.apis.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.error_codes import ErrorCode, error_name
from klamm.protocol.messages import ApiKey

_PLAIN = "PLAIN"
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_NONCE_BITS = 192

_SEPARATOR = "\x01"


def authenticator(options: SaslOptions, random: Random) -> Callable[[Connection], Awaitable[int]]:
    """Makes the function for `ConnectionOptions.authenticate`. Nonces are drawn from `random`."""

    if options.oauth is not None:
        return _bearer(options.oauth)

    async def authenticate(connection: Connection) -> int:
        mechanism, username, password = options.mechanism, options.username, options.password
        await _handshake(connection, mechanism)
        if mechanism == _PLAIN:
            answer = await _exchange(connection, mechanism, f"\0{username}\0{password}".encode())
        else:
            nonce = f"{random.getrandbits(_NONCE_BITS):x}"
            scram = ScramClient(_SCRAM_HASHES[mechanism], username, password, nonce)
            answer = await _exchange_scram(connection, mechanism, scram)
        # Version 0 of the response has no session lifetime.
        return int(answer.session_lifetime_ms or 0)

    return authenticate


def _bearer(options: OAuthOptions) -> Callable[[Connection], Awaitable[int]]:
    # Imported here, because it loads an HTTP client.
    from klamm.net.oauth_tokens import Tokens

    tokens = Tokens(options, SystemEnvironment())

    async def authenticate(connection: Connection) -> int:
        token = await tokens.get()
        await _handshake(connection, OAUTHBEARER)
        pairs = [("auth", f"Bearer {token.text}"), *options.extensions]
        message = f"n,,{_SEPARATOR}{''.join(f'{name}={text}{_SEPARATOR}' for name, text in pairs)}{_SEPARATOR}"
        try:
            answer = await _exchange(connection, OAUTHBEARER, message.encode())
            if answer.auth_bytes:
                # The broker has sent the error, and refuses once the client has acknowledged it (RFC 7628).
                await _exchange(connection, OAUTHBEARER, _SEPARATOR.encode())
                raise AuthenticationFailed(f"{connection}: {OAUTHBEARER}: the broker refuses the token")
        except AuthenticationFailed as error:
            tokens.forget(token)
            # A kept token may have been revoked; the next attempt gets a new token.
            kind = NotSent if token.is_kept else AuthenticationFailed
            raise kind(str(error).replace(token.text, "...")) from None
        return int(answer.session_lifetime_ms or 0)

    return authenticate


async def _handshake(connection: Connection, mechanism: str) -> None:
    response = await connection.exchange(
        ApiKey.SASL_HANDSHAKE, lambda version: SaslHandshakeRequest(mechanism=mechanism)
    )
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        theirs = ", ".join(map(repr, response.mechanisms)) or "none"
        raise AuthenticationFailed(f"{connection}: the broker has no {mechanism}; see sasl.mechanism, it has: {theirs}")
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(f"{connection}: the broker wants no SASL at this port; see security.protocol")
    _check(connection, response.error_code, mechanism, None)


async def _exchange_scram(connection: Connection, mechanism: str, scram: ScramClient) -> SaslAuthenticateResponse:
    try:
        first = await _exchange(connection, mechanism, scram.first_message())
        final = await _exchange(connection, mechanism, scram.final_message(first.auth_bytes))
        scram.verify(final.auth_bytes)
    except ScramError as error:
        raise AuthenticationFailed(f"{connection}: {mechanism}: {error}") from None
    return final


async def _exchange(connection: Connection, mechanism: str, token: bytes) -> SaslAuthenticateResponse:
    response = await connection.exchange(
        ApiKey.SASL_AUTHENTICATE, lambda version: SaslAuthenticateRequest(auth_bytes=token)
    )
    _check(connection, response.error_code, mechanism, response.error_message)
    return response


def _check(connection: Connection, code: int, mechanism: str, why: str | None) -> None:
    if code == ErrorCode.NONE:
        return
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        what = "the token" if mechanism == OAUTHBEARER else "user name and password"
        raise AuthenticationFailed(
            f"{connection}: {mechanism}: the broker refuses {what}; see sasl.jaas.config"
            f" (the broker says: {why or 'nothing'})"
        )
    raise AuthenticationFailed(f"{connection}: {mechanism}: {error_name(code)}: {why or 'the broker does not say why'}")
