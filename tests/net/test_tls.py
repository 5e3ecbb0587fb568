"""TLS: connections to toy brokers that have certificates, and stores that are of no use."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.client.cluster import ClusterClient
from klamm.net.client import AuthenticationFailed, ConnectFailed, ConnectionOptions, connect
from klamm.net.security import SecurityError, TlsOptions, security_options
from klamm.net.tls import client_context
from klamm.protocol.apis.fetch import FetchableTopic, FetchResponse, PartitionData
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages import ApiKey
from support.certificates import Authority, one_line, openssl
from support.heartbeats import FAST, echo_group_length, heartbeat
from support.scripted_broker import Asked, ScriptedBroker

pytestmark = pytest.mark.loop("asyncio", "uvloop")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "authority")


@pytest.fixture(scope="module")
def stores(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PEM files: of the broker (for 127.0.0.1), of a client, and what is wrong in some way."""
    directory = tmp_path_factory.mktemp("stores")
    contents = {
        "broker": "".join(authority.certificate("broker", "IP:127.0.0.1")),
        "elsewhere": "".join(authority.certificate("elsewhere", "DNS:elsewhere")),
        "client": "".join(authority.certificate("client", "DNS:client")),
        "stranger": "".join(Authority(directory / "other-authority").certificate("client", "DNS:client")),
        "empty": "",
        "text": "no certificate",
        "broken": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    }
    for name, content in contents.items():
        (directory / name).write_text(content)
    (directory / "binary").write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    key = directory / "encrypted.key"
    openssl("pkcs8", "-topk8", "-in", directory / "client", "-passout", "pass:secret", "-out", key)
    certificate = contents["client"].partition("-----BEGIN PRIVATE KEY-----")[0]
    (directory / "encrypted").write_text(certificate + key.read_text())
    return {path.name: path for path in directory.iterdir() if path.is_file()}


def server_context(store: Path, authority: Authority | None = None, version: str = "TLSv1_3") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(store)
    context.maximum_version = ssl.TLSVersion[version]
    if authority is not None:
        context.load_verify_locations(authority.path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def trusting(authority: Authority, **more: Any) -> ConnectionOptions:
    return ConnectionOptions(ssl_context=client_context(TlsOptions(str(authority.path), **more)))


def asked_for(request: ProduceRequest, _: int) -> ProduceRequest:
    return request


def fetch_response(records: bytes) -> FetchResponse:
    return FetchResponse(
        responses=[
            FetchableTopic(
                topic="t",
                partitions=[
                    PartitionData(
                        partition_index=0,
                        error_code=0,
                        high_watermark=0,
                        last_stable_offset=0,
                        log_start_offset=0,
                        records=records,
                    )
                ],
            )
        ]
    )


async def test_messages_of_all_sizes(authority: Authority, stores: dict[str, Path]) -> None:
    def accept(asked: Asked) -> ProduceResponse:
        size = len(asked.body.topic_data[0].partition_data[0].records)
        topic = ProduceResponse.TopicProduceResponse
        result = topic.PartitionProduceResponse(index=0, error_code=0, base_offset=size)
        return ProduceResponse(responses=[topic(name="t", partition_responses=[result])])

    async with ScriptedBroker(accept, ssl=server_context(stores["broker"])) as broker:
        connection = await connect(*broker.address, trusting(authority))
        for size in (10, 100_000, 5_000_000):
            request = ProduceRequest.of(None, 1, 1_000, [("t", [(0, memoryview(bytes(size)))])])
            response = await connection.send(ApiKey.PRODUCE, partial(asked_for, request))
            assert response.responses[0].partition_responses[0].base_offset == size
        connection.close()
        await connection.wait_closed()


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_who_is_trusted(authority: Authority, stores: dict[str, Path], version: str) -> None:
    context = server_context(stores["broker"], version=version)
    async with ScriptedBroker(echo_group_length, ssl=context) as broker:
        # The one who signed; or the broker's own certificate, as in Java.
        for trusted in (authority.path, stores["broker"]):
            options = ConnectionOptions(ssl_context=client_context(TlsOptions(str(trusted))))
            connection = await connect(*broker.address, options)
            assert (await connection.send(ApiKey.HEARTBEAT, heartbeat("four"))).error_code == 4
            connection.close()
            await connection.wait_closed()
        for other in (str(stores["stranger"]), None):
            options = ConnectionOptions(ssl_context=client_context(TlsOptions(other)))
            with pytest.raises(AuthenticationFailed, match=r"certificate is not trusted: .*ssl\.truststore"):
                await connect(*broker.address, options)
    async with ScriptedBroker(ssl=server_context(stores["elsewhere"], version=version)) as broker:
        with pytest.raises(AuthenticationFailed, match=r"is not of 127\.0\.0\.1: .*identification\.algorithm"):
            await connect(*broker.address, trusting(authority))
        (await connect(*broker.address, trusting(authority, check_host_name=False))).close()


@contextlib.asynccontextmanager
async def refusing(context: ssl.SSLContext | None) -> AsyncIterator[tuple[str, int]]:
    """The address of one that says why it refuses a handshake, which asyncio's servers do not.

    Without a context it is one that speaks TLS, as Java does, to a client that does not: it sends an alert.
    """

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        # To read from until the client goes away: a reset might overtake the reason.
        with connection.dup() as rest:
            if context is None:
                rest.recv(1_000)
                rest.sendall(b"\x15\x03\x03\x00\x02\x02\x50")
                connection.close()
            else:
                with contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True).recv(1_000)
            with contextlib.suppress(OSError):
                while rest.recv(1_000):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(asyncio.to_thread(serve, listener))
        yield listener.getsockname()
        await serving


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_who_the_client_is(authority: Authority, stores: dict[str, Path], version: str) -> None:
    certificate, _, key = stores["encrypted"].read_text().partition("-----BEGIN ENCRYPTED")
    by_text = security_options(
        {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": one_line(authority.path.read_text()),
            "ssl.keystore.certificate.chain": one_line(certificate),
            "ssl.keystore.key": one_line(f"-----BEGIN ENCRYPTED{key}"),
            "ssl.key.password": "secret",
        }
    ).tls
    assert by_text is not None
    async with ScriptedBroker(ssl=server_context(stores["broker"], authority, version)) as broker:
        options = [
            trusting(authority, keystore_path=str(stores["client"])),
            trusting(authority, keystore_path=str(stores["encrypted"]), key_password="secret"),
            ConnectionOptions(ssl_context=client_context(by_text)),
        ]
        for each in options:
            (await connect(*broker.address, each)).close()


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("store", [None, "stranger"])
async def test_a_client_that_is_not_trusted(
    authority: Authority, stores: dict[str, Path], version: str, store: str | None
) -> None:
    options = trusting(authority, keystore_path=None if store is None else str(stores[store]))
    async with refusing(server_context(stores["broker"], authority, version)) as address:
        with pytest.raises(AuthenticationFailed, match=r"TLS handshake failed .* see ssl\.keystore\.location"):
            await connect(*address, options)


async def test_versions(authority: Authority, stores: dict[str, Path]) -> None:
    async with refusing(server_context(stores["broker"], version="TLSv1_2")) as address:
        with pytest.raises(AuthenticationFailed, match=r"no version of TLS in common; see ssl\.enabled\.protocols"):
            await connect(*address, trusting(authority, versions=("TLSv1.3",)))


async def test_a_broker_without_tls(authority: Authority) -> None:
    async with ScriptedBroker() as broker:
        broker.hang_up_on_garbage = True
        client = ClusterClient([broker.address], trusting(authority), FAST)
        with pytest.raises(AuthenticationFailed, match=r"does not speak TLS at this port; see security\.protocol"):
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        broker.stop()
        with pytest.raises(ConnectFailed):
            await connect(*broker.address, trusting(authority))


async def test_a_client_without_tls(stores: dict[str, Path]) -> None:
    async with refusing(None) as address:
        client = ClusterClient([address], ConnectionOptions(), FAST)
        with pytest.raises(AuthenticationFailed, match=r"speaks TLS at this port; see security\.protocol"):
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
    async with ScriptedBroker(ssl=server_context(stores["broker"])) as broker:
        with pytest.raises(ConnectFailed, match=r"without an answer \(so do brokers that speak TLS"):
            await connect(*broker.address)


@pytest.mark.parametrize("name", ["empty", "text", "broken", "binary"])
def test_files_that_are_no_stores(stores: dict[str, Path], name: str) -> None:
    path = str(stores[name])
    with pytest.raises(SecurityError, match=r"^ssl\.truststore\.location: .* has no certificates in PEM.* keytool"):
        client_context(TlsOptions(truststore_path=path))
    with pytest.raises(SecurityError, match=r"^ssl\.keystore\.location: .* has no certificate with .* keytool"):
        client_context(TlsOptions(keystore_path=path))


def test_files_that_cannot_be_read(stores: dict[str, Path]) -> None:
    for path in (str(stores["text"].parent), "/nowhere", "x" * 5_000):
        with pytest.raises(SecurityError, match=r"^ssl\.truststore\.location: "):
            client_context(TlsOptions(truststore_path=path))
        with pytest.raises(SecurityError, match=r"^ssl\.keystore\.location: "):
            client_context(TlsOptions(keystore_path=path))


def test_keys_that_do_not_fit(stores: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    for password in (None, "", "guess", "x" * 1024, "x" * 5_000):
        with pytest.raises(SecurityError, match=r"ssl\.key\.password") as caught:
            client_context(TlsOptions(keystore_path=str(stores["encrypted"]), key_password=password))
        assert "guess" not in str(caught.value)
    certificate = stores["client"].read_text()
    for key in (stores["stranger"].read_text(), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        with pytest.raises(SecurityError, match=r"^ssl\.keystore"):
            client_context(TlsOptions(certificate_chain_pem=certificate, key_pem=key))
    with pytest.raises(SecurityError, match=r"^ssl\.truststore\.certificates has a broken certificate"):
        client_context(TlsOptions(truststore_pem=stores["broken"].read_text()))
    # Nobody is asked for a password at the terminal. Other lines there may be of threads of earlier tests' clients.
    assert "pass phrase" not in "".join(capfd.readouterr())
