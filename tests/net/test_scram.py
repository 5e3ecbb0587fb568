"""SCRAM against the exchanges that its RFCs print, and against servers that lie."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.net.scram import ScramClient, ScramError, credential


def test_the_exchange_of_rfc_5802() -> None:
    client = ScramClient("sha1", "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL")
    assert client.first_message() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    first = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
    assert client.final_message(first) == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    client.verify(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


def test_the_exchange_of_rfc_7677() -> None:
    client = ScramClient("sha256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.final_message(first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_the_credential_of_the_password_of_rfc_7677() -> None:
    stored = credential("sha256", "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    assert base64.b64encode(stored.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(stored.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert stored.iterations == 4096


def test_names_with_the_characters_that_separate() -> None:
    assert ScramClient("sha512", "a=b,cé", "p", "nonce").first_message() == "n,,n=a=3Db=2Ccé,r=nonce".encode()


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"", "is not r="),
        (b"r=nonceX,s=QQ==", "is not r="),
        (b"m=new,r=nonceX,s=QQ==,i=4096", "is not r="),
        (b"s=QQ==,r=nonceX,i=4096", "is not r="),
        (b"r=other,s=QQ==,i=4096", "does not begin with"),
        (b"r=nonce,s=QQ==,i=4096", "does not begin with"),
        (b"r=nonceX,s=?,i=4096", "not base64"),
        (b"r=nonceX,s=QQ==,i=4095", "wants '4095' iterations; allowed: 4096 to 1000000"),
        (b"r=nonceX,s=QQ==,i=1000001", "iterations"),
        (b"r=nonceX,s=QQ==,i=99999999999999999999", "iterations"),
        (b"r=nonceX,s=QQ==,i=-4096", "iterations"),
        ("r=nonceX,s=QQ==,i=٤٠٩٦".encode(), "iterations"),
        (b"r=nonceX,s=QQ==,i=4096\xff", "not UTF-8"),
    ],
)
def test_a_first_message_that_is_none(first: bytes, told: str) -> None:
    with pytest.raises(ScramError, match=told):
        ScramClient("sha256", "user", "pencil", "nonce").final_message(first)


@pytest.mark.parametrize(
    ("final", "told"),
    [
        (b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=", "it does not know the password"),
        (b"v=", "it does not know the password"),
        (b"v=?", "not base64"),
        (b"e=invalid-proof", "refuses: invalid-proof"),
        (b"", "has no signature"),
        (b"x=1,v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "has no signature"),
    ],
)
def test_a_server_that_does_not_know_the_password(final: bytes, told: str) -> None:
    client = ScramClient("sha256", "user", "pencil", "nonce")
    client.final_message(b"r=nonceX,s=QQ==,i=4096")
    with pytest.raises(ScramError, match=told):
        client.verify(final)


def test_a_signature_before_the_challenge_is_none() -> None:
    with pytest.raises(ScramError):
        ScramClient("sha256", "user", "pencil", "nonce").verify(b"v=")


@given(st.binary())
def test_garbage_is_an_error(message: bytes) -> None:
    client = ScramClient("sha256", "user", "pencil", "nonce")
    for step in (client.final_message, client.verify):
        with pytest.raises(ScramError):
            step(message)


@given(st.text(), st.text(), st.binary(min_size=1), st.sampled_from(["sha256", "sha512"]))
def test_a_server_that_has_the_salted_password_is_convinced(name: str, password: str, salt: bytes, hash_: str) -> None:
    """The server's side of RFC 5802, which stores no password."""
    client = ScramClient(hash_, name, password, "nonce")
    bare = client.first_message().decode()[3:]
    first = f"r=nonce-and-more,s={base64.b64encode(salt).decode()},i=4096"
    final = client.final_message(first.encode()).decode()
    without_proof, _, proof = final.rpartition(",p=")
    message = f"{bare},{first},{without_proof}".encode()

    salted = hashlib.pbkdf2_hmac(hash_, password.encode(), salt, 4096)
    stored = hashlib.new(hash_, hmac.digest(salted, b"Client Key", hash_)).digest()
    signature = hmac.digest(stored, message, hash_)
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(hash_, client_key).digest() == stored
    server_signature = hmac.digest(hmac.digest(salted, b"Server Key", hash_), message, hash_)
    client.verify(b"v=" + base64.b64encode(server_signature))
