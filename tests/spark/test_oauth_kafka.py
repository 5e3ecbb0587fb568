"""Reading from and writing to Apache Kafka 4.3 with tokens: signed ones of an OIDC provider, and unsigned ones."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from klamm.net.client import AuthenticationFailed
from klamm.spark import arrow
from klamm.spark.options import write_options
from klamm.spark.write.writing import record_writer
from support.oracles import SMALL_HEAP, RealKraft
from support.processes import free_port
from support.token_endpoint import CLIENT_ID, CLIENT_SECRET, TokenEndpoint, answered, token_endpoint

pytestmark = pytest.mark.long

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
SESSION_MS = 1_500
TOKEN_LIFE_S = 2


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class Signer:
    """Signs tokens as a provider does; `jwks` is what brokers check them with."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key().public_numbers()
        self.jwks = {
            "keys": [
                {
                    "kty": "RSA",
                    "kid": "1",
                    "use": "sig",
                    "alg": "RS256",
                    "n": number(public.n),
                    "e": number(public.e),
                }
            ]
        }

    def token(self, life_s: int = TOKEN_LIFE_S, **claims: object) -> str:
        now_s = int(time.time())
        payload = {"sub": "shop", "scope": ["kafka"], "aud": "kafka", "iat": now_s, "exp": now_s + life_s, **claims}
        parts = ({"alg": "RS256", "kid": "1", "typ": "JWT"}, payload)
        signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="module")
def ports(kafka4_jars: Path, signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """A broker whose listener OIDC takes signed tokens, for a short session, and UNSIGNED takes unsigned ones."""
    directory = tmp_path_factory.mktemp("oauth")
    jwks = directory / "jwks.json"
    jwks.write_text(json.dumps(signer.jwks))
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    options = (*SMALL_HEAP, f"{allowed}.urls={jwks.as_uri()}", f"{allowed}.files={jwks}")
    kafka = RealKraft(kafka4_jars, directory, options=options)
    found = {"OIDC": free_port(), "UNSIGNED": free_port()}
    properties = kafka.brokers[0].properties
    for name, port in found.items():
        for key in ("listeners", "advertised.listeners"):
            properties[key] = f"{properties[key]},{name}://127.0.0.1:{port}"
        properties["listener.security.protocol.map"] = (
            f"{properties['listener.security.protocol.map']},{name}:SASL_PLAINTEXT"
        )
        prefix = f"listener.name.{name.lower()}"
        properties[f"{prefix}.sasl.enabled.mechanisms"] = "OAUTHBEARER"
        properties[f"{prefix}.oauthbearer.sasl.jaas.config"] = (
            f'{MODULE} required unsecuredLoginStringClaim_sub="broker";'
            if name == "UNSIGNED"
            else f"{MODULE} required;"
        )
    properties["listener.name.oidc.oauthbearer.sasl.server.callback.handler.class"] = (
        f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
    )
    properties["listener.name.oidc.oauthbearer.connections.max.reauth.ms"] = SESSION_MS
    properties["sasl.oauthbearer.jwks.endpoint.url"] = jwks.as_uri()
    properties["sasl.oauthbearer.expected.audience"] = "kafka"
    try:
        kafka.start()
        yield found
    finally:
        kafka.kill()


def bearing(port: int, login: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f"{MODULE} required {login};",
        **more,
    }


def from_endpoint(port: int, endpoint: TokenEndpoint) -> dict[str, str]:
    login = f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}"'
    return bearing(port, login, **{"kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url})


def write(options: dict[str, str], topic: str, values: list[bytes]) -> None:
    with record_writer(write_options({**options, "topic": topic})) as writer:
        writer.write(pa.record_batch({"value": pa.array(values, pa.binary())}))
        writer.flush()


def read(options: dict[str, str], topic: str) -> list[bytes]:
    more = {name: value for name, value in options.items() if name != "kafka.bootstrap.servers"}
    found = arrow.read(options["kafka.bootstrap.servers"], subscribe=topic, columns=["value"], options=more)
    return sorted(found.read_all()["value"].to_pylist())


def test_tokens_of_a_provider(ports: dict[str, int], signer: Signer) -> None:
    values = sorted(b"%d" % number for number in range(1000))
    with token_endpoint(lambda _: answered({"access_token": signer.token(), "expires_in": TOKEN_LIFE_S})) as endpoint:
        options = from_endpoint(ports["OIDC"], endpoint)
        write(options, "oidc", values)
        assert read(options, "oidc") == values


def test_sessions_and_tokens_that_end_while_rows_are_written(ports: dict[str, int], signer: Signer) -> None:
    written = []
    with token_endpoint(lambda _: answered({"access_token": signer.token(), "expires_in": TOKEN_LIFE_S})) as endpoint:
        options = from_endpoint(ports["OIDC"], endpoint)
        ends_s = time.monotonic() + 3 * SESSION_MS / 1000
        with record_writer(write_options({**options, "topic": "sessions"})) as writer:
            while time.monotonic() < ends_s:
                written.append(b"%06d" % len(written))
                writer.write(pa.record_batch({"value": pa.array(written[-1:], pa.binary())}))
                writer.flush()
                time.sleep(0.05)
        assert len(endpoint.scopes) > 1
        assert read(options, "sessions") == written


def test_a_token_in_a_file_and_in_the_options(ports: dict[str, int], signer: Signer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(signer.token(life_s=60) + "\n")
    in_file = bearing(ports["OIDC"], "", **{"kafka.sasl.oauthbearer.token.endpoint.url": path.as_uri()})
    write(in_file, "file", [b"1"])
    assert read(bearing(ports["OIDC"], f'token="{signer.token(life_s=60)}"'), "file") == [b"1"]


def test_an_unsigned_token(ports: dict[str, int]) -> None:
    options = bearing(ports["UNSIGNED"], 'unsecuredLoginStringClaim_sub="alice" extension_pool="p"')
    write(options, "unsigned", [b"1"])
    assert read(options, "unsigned") == [b"1"]


@pytest.mark.parametrize("wrong", ["stranger", "expired", "audience", "nonsense"])
def test_a_token_that_the_broker_refuses_is_told_at_once(ports: dict[str, int], signer: Signer, wrong: str) -> None:
    token = {
        "stranger": Signer().token(),
        "expired": signer.token(iat=1, exp=2),
        "audience": signer.token(aud="other"),
        "nonsense": "a.b.c",
    }[wrong]
    patient = {"kafka.default.api.timeout.ms": str(2**31 - 1)}
    with pytest.raises(AuthenticationFailed, match="OAUTHBEARER: the broker refuses the token; see sasl") as caught:
        read({**bearing(ports["OIDC"], f'token="{token}"'), **patient}, "refused")
    assert token not in str(caught.value)
