"""SCRAM, the client's side: the client proves that it knows a password and verifies that the server knows it too.

`credential` makes the credential that a server stores for a password.

Pure: messages in, messages out. No channel binding, no authorization identity, no extensions. User names and passwords
are UTF-8 without SASLprep, as in Kafka.

What must stay true: a server that does not know the password never passes for one that does, and no message of a server
costs more than `MAX_ITERATIONS`.

Source: RFC 5802, RFC 7677, KIP-84; org.apache.kafka.common.security.scram.internals.ScramSaslClient.
"""

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

# With fewer iterations than Kafka's minimum, the password of a recorded exchange would be too easy to guess. With more
# than the maximum, a server could keep the client busy for seconds.
MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 1_000_000

# No channel binding, no authorization identity.
_HEADER = "n,,"


class ScramCredential(NamedTuple):
    """What a server stores of a user's password. The password does not follow from it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password, which an administrator sends instead of the password itself."""
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def credential(hash_name: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a password."""
    salted = salted_password(hash_name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), iterations)


class ScramError(Exception):
    """The server's message is malformed, or shows that the server does not know the password."""


class ScramClient:
    """One authentication: `first_message`, `final_message`, `verify`, in this order.

    `hash_name` is one of hashlib's; `nonce` is random printable ASCII without a comma, never used before.
    """

    def __init__(self, hash_name: str, username: str, password: str, nonce: str) -> None:
        self._hash_name = hash_name
        self._password = password
        self._nonce = nonce
        self._first_bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._server_signature: bytes | None = None

    def first_message(self) -> bytes:
        return (_HEADER + self._first_bare).encode()

    def final_message(self, server_first: bytes) -> bytes:
        """The proof for the server, which has chosen salt and iterations. Raises ScramError."""
        text = _text(server_first)
        nonce, salt, iterations = self._challenge(text)
        without_proof = f"c={_base64(_HEADER.encode())},r={nonce}"
        message = ",".join((self._first_bare, text, without_proof)).encode()
        salted = salted_password(self._hash_name, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash_name, client_key).digest(), message)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={_base64(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        """Returns when the server has proved that it knows the password. Raises ScramError."""
        name, _, value = _text(server_final).split(",")[0].partition("=")
        if name == "e":
            raise ScramError(f"the server refuses: {value}")
        if name != "v":
            raise ScramError("the server's last message has no signature")
        if self._server_signature is None or not hmac.compare_digest(self._server_signature, _bytes(value)):
            raise ScramError("the server's signature is wrong: it does not know the password")

    def _challenge(self, text: str) -> tuple[str, bytes, int]:
        """Nonce, salt and iterations of the server's first message."""
        parts = [part.partition("=")[::2] for part in text.split(",")]
        # A newer server's optional attributes follow these three; mandatory extensions ("m") come before them.
        if [name for name, _ in parts[:3]] != ["r", "s", "i"]:
            raise ScramError("the server's first message is not r=...,s=...,i=...")
        nonce, salt, iterations = (value for _, value in parts[:3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the server's nonce does not begin with the client's")
        count = int(iterations) if iterations.isascii() and iterations.isdigit() and len(iterations) < 10 else 0
        if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
            raise ScramError(
                f"the server wants {iterations[:20]!r} iterations; allowed: {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        return nonce, _bytes(salt), count

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash_name)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("the server's message is not UTF-8") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ScramError("the server's message has a value that is not base64") from None
