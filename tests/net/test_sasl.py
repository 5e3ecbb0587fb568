"""SASL against scripted brokers that check it as Kafka does, and against those that lie."""

import asyncio
import base64
import hashlib
import hmac
import random

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.retries import RetryPolicy
from klamm.net.client import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionOptions,
    Disconnected,
    NotSent,
    UnsupportedVersion,
    connect,
)
from klamm.net.sasl import authenticator
from klamm.net.security import SaslOptions
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey, response_class
from support.heartbeats import FAST, heartbeat, heartbeat_response
from support.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.loop("asyncio", "uvloop")

SALT = b"salt"
RANDOM = random.Random(1)
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslBroker:
    """Handler of a scripted broker that lets in alice with her secret, and answers heartbeats then, and only then."""

    def __init__(self, mechanisms=("PLAIN", *HASHES), session_ms=0, version=2):
        self.mechanisms = mechanisms
        self.session_ms = session_ms
        self.versions = {ApiKey.SASL_AUTHENTICATE: (0, version)}
        self.knows_password = True
        self.authentications = 0
        self.nonces = set()
        # Of each connection: what it is expected to send next. None: it may send anything.
        self.steps = {}

    def __call__(self, asked):
        connection, header, body = asked
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            self._handshake(connection, header, body.mechanism)
        elif header.api_key == ApiKey.SASL_AUTHENTICATE:
            self._authenticate(connection, header, body.auth_bytes)
        else:
            assert header.api_key == ApiKey.HEARTBEAT
            assert self.steps[connection] is None
            connection.answer(header, heartbeat_response(header.api_version))

    def _handshake(self, connection, header, mechanism):
        assert self.steps.get(connection) is None
        code = ErrorCode.NONE
        if mechanism not in self.mechanisms:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if self.mechanisms else ErrorCode.ILLEGAL_SASL_STATE
        else:
            server = self._plain() if mechanism == "PLAIN" else self._scram(HASHES[mechanism])
            next(server)
            self.steps[connection] = server
        response = response_class(ApiKey.SASL_HANDSHAKE)
        connection.answer(header, response(error_code=code, mechanisms=list(self.mechanisms)))

    def _authenticate(self, connection, header, token):
        try:
            code, answer = ErrorCode.NONE, self.steps[connection].send(token)
        except StopIteration as end:
            code, answer = end.value
        session_ms = 0
        if answer is None or answer.startswith(b"v="):
            self.authentications += code == ErrorCode.NONE
            self.steps[connection] = None
            session_ms = self.session_ms
        response = response_class(ApiKey.SASL_AUTHENTICATE)
        connection.answer(
            header,
            response(
                error_code=code,
                error_message=None if code == ErrorCode.NONE else "go away",
                auth_bytes=answer or b"",
                session_lifetime_ms=session_ms,
            ),
        )

    def _plain(self):
        token = yield
        return (ErrorCode.NONE if token == b"\0alice\0secret" else ErrorCode.SASL_AUTHENTICATION_FAILED), None

    def _scram(self, name):
        first_bare = (yield).decode().removeprefix("n,,")
        nonce = first_bare.partition(",r=")[2]
        assert nonce not in self.nonces
        self.nonces.add(nonce)
        first = f"r={nonce}server,s={base64.b64encode(SALT).decode()},i=4096"
        final = (yield first.encode()).decode()
        without_proof, _, proof = final.rpartition(",p=")
        message = f"{first_bare},{first},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(name, b"secret", SALT, 4096)
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
        right = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if self.knows_password and base64.b64decode(proof) != right:
            return ErrorCode.SASL_AUTHENTICATION_FAILED, None
        key = salted if self.knows_password else b"guess"
        server_signature = hmac.digest(hmac.digest(key, b"Server Key", name), message, name)
        return ErrorCode.NONE, b"v=" + base64.b64encode(server_signature)


def secured(mechanism="SCRAM-SHA-256", password="secret"):
    sasl = SaslOptions(mechanism, "alice", password)
    return ConnectionOptions(authenticate=authenticator(sasl, RANDOM))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
async def test_who_is_let_in(mechanism, version):
    broker = SaslBroker(version=version)
    async with ScriptedBroker(broker, versions=broker.versions) as listener:
        options = secured(mechanism)
        for _ in range(2):
            connection = await connect(*listener.address, options)
            assert (await connection.send(ApiKey.HEARTBEAT, heartbeat())).error_code == 0
        assert broker.authentications == 2


@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
async def test_who_is_not(mechanism):
    async with ScriptedBroker(SaslBroker()) as listener:
        client = ClusterClient([listener.address], secured(mechanism, "guessed-word"), FAST)
        with pytest.raises(AuthenticationFailed) as caught:
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        told = str(caught.value)
        assert f"{mechanism}: the broker refuses user name and password; see sasl.jaas.config" in told
        assert "(the broker says: go away)" in told
        assert "guessed-word" not in told
        # It was tried once.
        assert len(listener.connections) == 1


async def test_a_broker_that_does_not_know_the_password_is_not_spoken_to():
    broker = SaslBroker()
    broker.knows_password = False
    async with ScriptedBroker(broker) as listener:
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256: the server's signature is wrong"):
            await connect(*listener.address, secured())


async def test_mechanisms_that_the_broker_does_not_have():
    async with ScriptedBroker(SaslBroker(mechanisms=("PLAIN", "GSSAPI"))) as listener:
        with pytest.raises(AuthenticationFailed, match=r"no SCRAM-SHA-256; see sasl.mechanism, .*'PLAIN', 'GSSAPI'"):
            await connect(*listener.address, secured())
    async with ScriptedBroker(SaslBroker(mechanisms=())) as listener:
        with pytest.raises(AuthenticationFailed, match=r"wants no SASL at this port; see security\.protocol"):
            await connect(*listener.address, secured())
    async with ScriptedBroker(SaslBroker(), versions={ApiKey.SASL_AUTHENTICATE: (0, -1)}) as listener:
        with pytest.raises(UnsupportedVersion, match=r"SaslAuthenticate \(36\) is not served by this broker"):
            await connect(*listener.address, secured())


async def test_a_connection_that_ends_meanwhile_is_worth_another():
    def hang_up(asked):
        asked.connection.transport.close()
        listener.script = SaslBroker()

    async with ScriptedBroker(hang_up) as listener:
        with pytest.raises(ConnectFailed):
            await connect(*listener.address, secured())
        listener.script = hang_up
        client = ClusterClient([listener.address], secured(), FAST)
        assert (await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())).error_code == 0


async def test_a_broker_that_wants_sasl_from_a_client_without():
    broker = SaslBroker(mechanisms=("SCRAM-SHA-256",))

    def handler(asked):
        if asked.header.api_key == ApiKey.SASL_HANDSHAKE:
            broker(asked)
        else:
            asked.connection.transport.close()

    async with ScriptedBroker(handler) as listener:
        client = ClusterClient([listener.address], ConnectionOptions(), FAST)
        told = r"wants SASL at this port; see security\.protocol and sasl\.mechanism, it has: SCRAM-SHA-256"
        with pytest.raises(AuthenticationFailed, match=told):
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        # One that only stops, and wants none.
        broker.mechanisms = ()
        brief = ClusterClient([listener.address], ConnectionOptions(), RetryPolicy(20, 1, 5))
        with pytest.raises(Disconnected):
            await brief.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        # One that knows no SASL is not asked for it.
        del listener.versions[ApiKey.SASL_HANDSHAKE]
        listener.headers.clear()
        with pytest.raises(Disconnected):
            await brief.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        assert {header.api_key for header in listener.headers} == {ApiKey.API_VERSIONS, ApiKey.HEARTBEAT}


# -- sessions that end (KIP-368) --------------------------------------------------------------------------------------


@pytest.fixture
def short_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.net.client.LEAST_SESSION_S", 0)


@pytest.mark.usefixtures("short_sessions")
async def test_a_session_is_renewed_between_requests():
    broker = SaslBroker(session_ms=20)
    async with ScriptedBroker(broker) as listener:
        connection = await connect(*listener.address, secured())
        while broker.authentications < 5:
            # Pipelined: the renewal waits for its turn, and the others wait for it.
            answers = await asyncio.gather(*(connection.send(ApiKey.HEARTBEAT, heartbeat()) for _ in range(8)))
            assert [answer.error_code for answer in answers] == [0] * 8
        assert len(listener.connections) == 1


async def test_no_session_is_renewed_within_a_second_of_the_last_time():
    """A broker of Kafka takes the request for one like any other, and refuses it."""
    broker = SaslBroker(session_ms=20)
    async with ScriptedBroker(broker) as listener:
        connection = await connect(*listener.address, secured())
        await asyncio.sleep(0.05)
        assert (await connection.send(ApiKey.HEARTBEAT, heartbeat())).error_code == 0
        assert broker.authentications == 1


@pytest.mark.usefixtures("short_sessions")
async def test_a_session_that_is_not_renewed_ends_the_connection():
    broker = SaslBroker(session_ms=20)
    async with ScriptedBroker(broker) as listener:
        connection = await connect(*listener.address, secured())
        await asyncio.sleep(0.02)
        broker.mechanisms = ("PLAIN",)
        sent = [asyncio.create_task(connection.send(ApiKey.HEARTBEAT, heartbeat())) for _ in range(2)]
        first, second = await asyncio.gather(*sent, return_exceptions=True)
        assert isinstance(first, AuthenticationFailed)
        assert isinstance(second, NotSent)
        assert not connection.connected
        # What was not sent is sent over another connection, if the broker lets it.
        broker.mechanisms = ("PLAIN", "SCRAM-SHA-256")
        client = ClusterClient([listener.address], secured(), FAST)
        assert (await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())).error_code == 0


@pytest.mark.usefixtures("short_sessions")
async def test_a_renewal_that_is_lost_or_broken_off_lost_no_request():
    broker = SaslBroker(session_ms=20)
    async with ScriptedBroker(broker) as listener:
        connection = await connect(*listener.address, secured())
        await asyncio.sleep(0.02)
        listener.script = lambda asked: asked.connection.transport.close()
        with pytest.raises(NotSent):
            await connection.send(ApiKey.HEARTBEAT, heartbeat())

        listener.script = broker
        connection = await connect(*listener.address, secured())
        await asyncio.sleep(0.02)
        handshakes = asyncio.Event()
        listener.script = lambda _: handshakes.set()
        sent = [asyncio.create_task(connection.send(ApiKey.HEARTBEAT, heartbeat())) for _ in range(2)]
        await handshakes.wait()
        sent[0].cancel()
        _, second = await asyncio.gather(*sent, return_exceptions=True)
        assert isinstance(second, NotSent)
