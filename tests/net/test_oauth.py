"""SASL/OAUTHBEARER: its properties, tokens of an endpoint, of a file and of the properties, and what brokers answer."""

import asyncio
import base64
import json
import pickle
import random
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient
from klamm.net.client import AuthenticationFailed, ClientError, ConnectFailed, ConnectionOptions, connect
from klamm.net.oauth import ENDPOINT, OAuthOptions
from klamm.net.oauth_tokens import MAX_ANSWER_BYTES, Token, Tokens
from klamm.net.sasl import authenticator
from klamm.net.security import SaslOptions, SecurityError, security_options
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey, response_class
from support.certificates import Authority
from support.heartbeats import FAST, heartbeat, heartbeat_response
from support.processes import free_port
from support.scripted_broker import ScriptedBroker
from support.token_endpoint import CLIENT_ID, CLIENT_SECRET, answered, token_endpoint

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "https://login.example.com/oauth2/token"
LOGIN = f'{MODULE} required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="a b";'
HANDLER = "sasl.login.callback.handler.class"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"

WAYS = {
    "Kafka 3": (
        {ENDPOINT: URL, "sasl.jaas.config": LOGIN, HANDLER: f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler"},
        OAuthOptions(URL, CLIENT_ID, CLIENT_SECRET, "a b"),
    ),
    "Databricks' names of Kafka's classes": (
        {
            ENDPOINT: URL,
            "sasl.jaas.config": f"kafkashaded.{LOGIN}",
            HANDLER: f"kafkashaded.{PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
        },
        OAuthOptions(URL, CLIENT_ID, CLIENT_SECRET, "a b"),
    ),
    "Kafka 4.1": (
        {
            ENDPOINT: URL,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.scope": "a b",
            "sasl.login.retry.backoff.ms": "100",
        },
        OAuthOptions(URL, CLIENT_ID, CLIENT_SECRET, "a b"),
    ),
    "Strimzi": (
        {
            "sasl.jaas.config": f'{MODULE} required oauth.client.id="{CLIENT_ID}" oauth.client.secret="{CLIENT_SECRET}"'
            f' oauth.token.endpoint.uri="{URL}" oauth.ssl.truststore.location="/ca.pem";',
            HANDLER: "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
        },
        OAuthOptions(URL, CLIENT_ID, CLIENT_SECRET, truststore_path="/ca.pem"),
    ),
    "Confluent's extensions": (
        {
            ENDPOINT: URL,
            "sasl.jaas.config": LOGIN.replace(";", ' extension_logicalCluster="lkc-1" extension_identityPoolId="p";'),
            "sasl.login.connect.timeout.ms": "5000",
            "sasl.login.read.timeout.ms": "6000",
            "sasl.login.refresh.window.factor": "0.5",
        },
        OAuthOptions(
            URL,
            CLIENT_ID,
            CLIENT_SECRET,
            "a b",
            extensions=(("logicalCluster", "lkc-1"), ("identityPoolId", "p")),
            connect_timeout_ms=5000,
            read_timeout_ms=6000,
            refresh_factor=0.5,
        ),
    ),
    "a file": (
        {ENDPOINT: "file:///var/token", "sasl.jaas.config": f"{MODULE} required;"},
        OAuthOptions(token_path="/var/token"),
    ),
    "a token": ({"sasl.jaas.config": f'{MODULE} required token="a.b-c";'}, OAuthOptions(token="a.b-c")),
    "Kafka's default": (
        {"sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="alice";'},
        OAuthOptions(claims=(("sub", "alice"),)),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_properties_become(way: str) -> None:
    given, expected = WAYS[way]
    options = security_options({**BEARER, **given})
    assert options.sasl == SaslOptions("OAUTHBEARER", oauth=expected)
    assert pickle.loads(pickle.dumps(options)) == options
    assert CLIENT_SECRET not in repr(options)
    assert "a.b-c" not in repr(options)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"{ENDPOINT} .* must say where the token comes from; given: none of them"),
        ({ENDPOINT: URL}, "sasl.jaas.config has no clientId"),
        ({ENDPOINT: URL, "sasl.jaas.config": f'{MODULE} required clientId="x";'}, "has no clientSecret"),
        ({ENDPOINT: "ftp://x/y", "sasl.jaas.config": LOGIN}, "allowed: https://host/path"),
        ({ENDPOINT: "https://", "sasl.jaas.config": LOGIN}, "allowed: https://host/path"),
        ({ENDPOINT: f"https:/u:{CLIENT_SECRET}@x/", "sasl.jaas.config": LOGIN}, "has credentials"),
        ({ENDPOINT: f"ftp://x/?key={CLIENT_SECRET}", "sasl.jaas.config": LOGIN}, "is 'ftp://x/'; allowed"),
        ({ENDPOINT: "https://a..b/", "sasl.jaas.config": LOGIN}, "is not a URL"),
        ({ENDPOINT: "https://[", "sasl.jaas.config": LOGIN}, "is not a URL"),
        ({ENDPOINT: f"https://{CLIENT_SECRET}@x/", "sasl.jaas.config": LOGIN}, "has credentials"),
        ({ENDPOINT: "file:token", "sasl.jaas.config": f"{MODULE} required;"}, "allowed: file:///path"),
        ({ENDPOINT: "file:///token", "sasl.jaas.config": LOGIN}, "which need sasl.oauthbearer.token.endpoint.url=http"),
        ({"sasl.jaas.config": f'{MODULE} required token="a b";'}, "a token that is empty or has an invalid char"),
        ({ENDPOINT: URL, "sasl.jaas.config": LOGIN.replace(";", ' token="t";')}, "given: .*url and token"),
        ({"sasl.jaas.config": LOGIN.replace(";", ' privateKey="open-sesame";')}, "an option that is not known"),
        ({"sasl.jaas.config": LOGIN.replace("OAuthBearer", "Plain")}, "does not name the login module of OAUTHB"),
        ({"sasl.jaas.config": LOGIN.replace(";", ' extension_auth="x";')}, "an extension that cannot be sent"),
        ({"sasl.jaas.config": LOGIN.replace(";", ' extension_x="\\001";')}, "an extension that cannot be sent"),
        (
            {HANDLER: "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"},
            "a class of Java's; allowed: OA",
        ),
        ({"sasl.login.connect.timeout.ms": "soon"}, "is 'soon'; allowed: a number from 1"),
        ({"sasl.login.refresh.window.factor": "2"}, "is '2'; allowed: a number from 0.5 to 1.0"),
    ],
)
def test_wrong_properties_are_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(SecurityError, match=told) as caught:
        security_options({**BEARER, **given})
    assert CLIENT_SECRET not in str(caught.value)


def test_properties_of_tokens_without_a_mechanism_that_has_them() -> None:
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    given = {**BEARER, "sasl.mechanism": "PLAIN", "sasl.jaas.config": plain, ENDPOINT: URL}
    with pytest.raises(SecurityError, match=f"{ENDPOINT} has no effect with sasl.mechanism=PLAIN; did you mean OAUTHB"):
        security_options(given)


# -- tokens -----------------------------------------------------------------------------------------------------------


def tokens(url: str, **changes: object) -> Tokens:
    options = OAuthOptions(url, CLIENT_ID, CLIENT_SECRET)
    return Tokens(replace(options, **changes), SystemEnvironment())  # type: ignore[arg-type]


def jwt(**claims: object) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return ".".join([*parts, "c2lnbmVk"])


async def test_a_token_is_asked_for_once_and_kept() -> None:
    with token_endpoint(lambda number: answered({"access_token": f"t{number}", "expires_in": 3600})) as endpoint:
        source = tokens(endpoint.url, scope="a b&c")
        found = await asyncio.gather(*(source.get() for _ in range(10)))
        assert found == [Token("t1", False)] * 10
        assert await source.get() == Token("t1", True)
        source.forget(found[0])
        assert await source.get() == Token("t2", False)
        assert endpoint.scopes == ["a b&c", "a b&c"]


@pytest.mark.parametrize(
    "answer",
    [
        {"access_token": "t", "expires_in": 0.001},
        {"access_token": "t", "expires_in": "nonsense"},
        {"access_token": "t", "expires_in": -5},
        {"access_token": "t", "expires_in": 1e300},
        {"access_token": jwt(exp=100, iat=100)},
        {"access_token": jwt(exp="x", iat=None)},
        {"access_token": jwt(exp=10**400, iat=1.0)},
        {"access_token": "a.b.c"},
    ],
)
async def test_a_token_of_unknown_or_no_life_is_not_kept(answer: dict[str, object]) -> None:
    with token_endpoint(lambda _: answered(answer)) as endpoint:
        source = tokens(endpoint.url)
        await source.get()
        await asyncio.sleep(0.002)
        assert not (await source.get()).is_kept


async def test_the_life_of_a_jwt_is_its_own() -> None:
    with token_endpoint(lambda _: answered({"access_token": jwt(exp=5000, iat=1000)})) as endpoint:
        source = tokens(endpoint.url)
        await source.get()
        assert (await source.get()).is_kept


FAILURES: list[tuple[tuple[int, bytes], type[ClientError], str]] = [
    (answered({"error": "invalid_scope", "error_description": "no b"}, 400), AuthenticationFailed, "HTTP 400: invalid"),
    ((200, b"<html>"), AuthenticationFailed, "is it the URL of a token endpoint"),
    ((200, b"[" * 100_000), AuthenticationFailed, "is it the URL of a token endpoint"),
    ((200, b'{"access_token":"' + b"x" * MAX_ANSWER_BYTES + b'"}'), AuthenticationFailed, "or too long"),
    (answered({}), AuthenticationFailed, "has no access_token"),
    (answered({"access_token": 5}), AuthenticationFailed, "has no access_token"),
    (answered({"access_token": "a\x01b"}), AuthenticationFailed, "has no access_token"),
    ((302, b"http://127.0.0.1:9/elsewhere"), AuthenticationFailed, "HTTP 302"),
    ((404, b"no"), AuthenticationFailed, "HTTP 404"),
    ((429, b""), ConnectFailed, "HTTP 429"),
    ((503, b"no"), ConnectFailed, "HTTP 503"),
]


@pytest.mark.parametrize(("answer", "kind", "told"), FAILURES)
async def test_an_endpoint_that_gives_no_token(answer: tuple[int, bytes], kind: type[ClientError], told: str) -> None:
    with token_endpoint(lambda _: answer) as endpoint:
        with pytest.raises(kind, match=told) as caught:
            await tokens(endpoint.url).get()
        assert type(caught.value) is kind
        assert endpoint.url in str(caught.value)


async def test_wrong_credentials_are_told_without_the_secret() -> None:
    with token_endpoint(lambda _: answered({})) as endpoint:
        with pytest.raises(
            AuthenticationFailed, match=r"no token for the clientId .*HTTP 401: invalid_client"
        ) as caught:
            await tokens(endpoint.url, client_secret="guessed-word").get()
        assert "guessed-word" not in str(caught.value)


async def answer_by(write: Callable[[bytes], bytes]) -> tuple[asyncio.Server, str]:
    """An endpoint that answers with what `write` makes of a request's head, and its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        # A socket that is closed with something unread resets the connection, and the answer may be lost.
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(write(head))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize("secret", ["open-sesame", 'quo"ted', "a b", "sl/ash"])
async def test_an_endpoint_that_repeats_what_it_got_is_not_quoted(secret: str) -> None:
    credentials = base64.b64encode(f"{CLIENT_ID}:{secret}".encode()).decode()
    body = json.dumps({"error": secret, "error_description": f"{quote_plus(secret)} {credentials}"}).encode()
    for answer in (
        lambda asked: b"HTTP/1.1 401 No\r\n\r\n" + body,
        lambda asked: next(line for line in asked.split(b"\r\n") if b"Basic" in line) + b"\r\n\r\n",
    ):
        server, url = await answer_by(answer)
        with pytest.raises(ClientError) as caught:
            await tokens(f"{url}?key={quote_plus(secret)}", client_secret=secret).get()
        assert "..." in str(caught.value)
        assert not [text for text in (secret, quote_plus(secret), credentials) if text in str(caught.value)]
        server.close()


async def test_a_client_whose_secret_is_sent_as_in_a_url() -> None:
    given = {**WAYS["Kafka 4.1"][0], "sasl.oauthbearer.header.urlencode": "true"}
    sasl = security_options({**BEARER, **given}).sasl
    assert sasl is not None and sasl.oauth is not None
    asked: list[bytes] = []
    server, url = await answer_by(lambda head: asked.append(head) or b'HTTP/1.1 200 OK\r\n\r\n{"access_token":"t"}')
    await Tokens(replace(sasl.oauth, endpoint=url, client_secret="a/b c"), SystemEnvironment()).get()
    assert base64.b64encode(f"{CLIENT_ID}:a%2Fb+c".encode()) in asked[0]
    server.close()


async def test_a_token_that_comes_after_its_connection_gave_up_is_used() -> None:
    """Else an endpoint that is slower than a connection may be would be asked for ever."""
    gate = threading.Event()

    def answer(number: int) -> tuple[int, bytes]:
        gate.wait(120)
        return answered({"access_token": f"t{number}", "expires_in": 3600})

    with token_endpoint(answer) as endpoint:
        source = tokens(endpoint.url)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await source.get()
        gate.set()
        assert (await source.get()).text == "t1"
        assert len(endpoint.scopes) == 1


async def test_an_endpoint_that_never_ends_its_answer_is_cut_off() -> None:
    is_cut_off = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"X")
                await writer.drain()
                await asyncio.sleep(0.005)
        is_cut_off.set()
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    with pytest.raises(ConnectFailed, match="does not answer within 150 ms"):
        await tokens(url, connect_timeout_ms=100, read_timeout_ms=50).get()
    async with asyncio.timeout(120):
        await is_cut_off.wait()
    server.close()


async def test_nobody_at_the_endpoint() -> None:
    with pytest.raises(ConnectFailed, match=r"does not answer: .*refused"):
        await tokens(f"http://127.0.0.1:{free_port()}/").get()


async def test_an_endpoint_that_is_silent_is_not_waited_for() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectFailed, match="does not answer: timed out"):
        await tokens(f"http://127.0.0.1:{port}/", read_timeout_ms=50).get()
    server.close()


async def test_an_endpoint_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = tmp_path / "chain.pem", tmp_path / "key.pem"
    for path, text in zip(files, authority.certificate("endpoint", "IP:127.0.0.1"), strict=True):
        path.write_text(text)
    with token_endpoint(lambda _: answered({"access_token": "t"}), tls=files) as endpoint:
        assert (await tokens(endpoint.url, truststore_path=str(authority.path)).get()).text == "t"
        with pytest.raises(AuthenticationFailed, match=r"its certificate is not trusted: .* ssl\.truststore\.location"):
            await tokens(endpoint.url).get()


async def test_a_token_in_a_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = Tokens(OAuthOptions(token_path=str(path)), SystemEnvironment())
    with pytest.raises(AuthenticationFailed, match="cannot be read: No such file"):
        await source.get()
    for text, expected in (("one\n", "one"), (" two ", "two")):
        path.write_text(text)
        assert await source.get() == Token(expected, False)
    for wrong in (b"", b"\xff", b"a\x01b"):
        path.write_bytes(wrong)
        with pytest.raises(AuthenticationFailed, match="holds no token"):
            await source.get()


# -- brokers ----------------------------------------------------------------------------------------------------------


class BearerBroker:
    """Handler of a scripted broker that lets in whoever has one of `good`; it says why not in the way of RFC 7628."""

    def __init__(self, good: set[str], session_ms: int = 0) -> None:
        self.good, self.session_ms = good, session_ms
        self.messages: list[bytes] = []
        self.refused = ""

    def __call__(self, asked):
        connection, header, body = asked
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            response = response_class(ApiKey.SASL_HANDSHAKE)
            connection.answer(header, response(error_code=0, mechanisms=["OAUTHBEARER"]))
        elif header.api_key == ApiKey.SASL_AUTHENTICATE:
            self.messages.append(body.auth_bytes)
            token = body.auth_bytes.decode().partition("Bearer ")[2].partition("\x01")[0]
            code, why, answer = ErrorCode.NONE, None, b""
            if body.auth_bytes == b"\x01":
                code, why = ErrorCode.SASL_AUTHENTICATION_FAILED, f"go away with {self.refused}"
            elif token not in self.good:
                self.refused = token
                answer = b'{"status":"invalid_token"}'
            response = response_class(ApiKey.SASL_AUTHENTICATE)(
                error_code=code, error_message=why, auth_bytes=answer, session_lifetime_ms=self.session_ms
            )
            connection.answer(header, response)
        else:
            connection.answer(header, heartbeat_response(header.api_version))


def bearing(options: OAuthOptions) -> ConnectionOptions:
    return ConnectionOptions(authenticate=authenticator(SaslOptions("OAUTHBEARER", oauth=options), random.Random()))


async def test_the_message_of_rfc_7628() -> None:
    broker = BearerBroker({"t"})
    async with ScriptedBroker(broker) as listener:
        connection = await connect(*listener.address, bearing(OAuthOptions(token="t", extensions=(("pool", "p"),))))
        assert (await connection.send(ApiKey.HEARTBEAT, heartbeat())).error_code == 0
    assert broker.messages == [b"n,,\x01auth=Bearer t\x01pool=p\x01\x01"]


async def test_a_refused_token_is_told_at_once_and_not_shown() -> None:
    async with ScriptedBroker(BearerBroker(set())) as listener:
        client = ClusterClient([listener.address], bearing(OAuthOptions(token="my-token")), FAST)
        with pytest.raises(AuthenticationFailed) as caught:
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        told = str(caught.value)
        assert (
            "OAUTHBEARER: the broker refuses the token; see sasl.jaas.config (the broker says: go away with ...)"
            in told
        )
        assert "my-token" not in told
        assert len(listener.connections) == 1


async def test_a_token_that_was_revoked_is_replaced() -> None:
    broker = BearerBroker({"t1"})
    with token_endpoint(lambda number: answered({"access_token": f"t{number}", "expires_in": 3600})) as endpoint:
        async with ScriptedBroker(broker) as listener:
            options = bearing(OAuthOptions(endpoint.url, CLIENT_ID, CLIENT_SECRET))
            for good in ({"t1"}, {"t1"}, {"t2"}):
                broker.good = good
                client = ClusterClient([listener.address], options, FAST)
                assert (await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())).error_code == 0
                await client.close()
        assert len(endpoint.scopes) == 2


async def test_an_endpoint_that_fails_by_itself_is_asked_again() -> None:
    def answer(number: int) -> tuple[int, bytes]:
        return (503, b"") if number < 3 else answered({"access_token": "t"})

    with token_endpoint(answer) as endpoint:
        async with ScriptedBroker(BearerBroker({"t"})) as listener:
            options = bearing(OAuthOptions(endpoint.url, CLIENT_ID, CLIENT_SECRET))
            client = ClusterClient([listener.address], options, FAST)
            assert (await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())).error_code == 0
            await client.close()


async def test_a_session_is_renewed_with_a_new_token() -> None:
    broker = BearerBroker({f"t{number}" for number in range(1, 100)}, session_ms=100)
    with token_endpoint(lambda number: answered({"access_token": f"t{number}", "expires_in": 0.1})) as endpoint:
        async with ScriptedBroker(broker) as listener:
            options = bearing(OAuthOptions(endpoint.url, CLIENT_ID, CLIENT_SECRET))
            connection = await connect(*listener.address, options)
            while len(broker.messages) < 3:
                assert (await connection.send(ApiKey.HEARTBEAT, heartbeat())).error_code == 0
                await asyncio.sleep(0.01)
            assert len(listener.connections) == 1
    assert b"Bearer t2" in broker.messages[1]
