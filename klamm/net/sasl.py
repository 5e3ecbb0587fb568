"""SASL of the wire client: authenticates a fresh connection by PLAIN or SCRAM (KIP-43, KIP-84, KIP-152).

What must stay true:
- No error message contains a password. Only PLAIN sends the password to the broker.
- With SCRAM the broker too has proved that it knows the password before the connection is used.
- A refusal raises `AuthenticationFailed`, which is never retried. Only a lost connection is worth another attempt.

Source: org.apache.kafka.common.security.authenticator.SaslClientAuthenticator; RFC 4616 for PLAIN.
"""

from collections.abc import Awaitable, Callable

from klamm.environment import Random
from klamm.net.client import AuthenticationFailed, Connection
from klamm.net.scram import ScramClient, ScramError
from klamm.net.security import SaslOptions
from klamm.protocol.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.apis.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages import ApiKey

_PLAIN = "PLAIN"
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_NONCE_BITS = 192


def authenticator(options: SaslOptions, random: Random) -> Callable[[Connection], Awaitable[int]]:
    """Makes the function for `ConnectionOptions.authenticate`. Nonces are drawn from `random`."""

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
        raise AuthenticationFailed(
            f"{connection}: {mechanism}: the broker refuses user name and password; see sasl.jaas.config"
            f" (the broker says: {why or 'nothing'})"
        )
    raise AuthenticationFailed(f"{connection}: {mechanism}: {error_name(code)}: {why or 'the broker does not say why'}")
