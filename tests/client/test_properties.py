"""Client properties, as Java's clients have them, and the options that they become."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.properties import (
    PropertyError,
    check_names,
    client_options,
    consumer_options,
    group_options,
    producer_options,
)
from klamm.net.security import SaslOptions, SecurityOptions, TlsOptions
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import ACKS_ALL, ACKS_LEADER, READ_COMMITTED

SERVERS = {"bootstrap.servers": "a:1"}


def test_without_properties_the_defaults_hold() -> None:
    assert client_options({}, bootstrap=(("a", 1),)) == ClientOptions((("a", 1),))


def test_every_property_with_an_effect() -> None:
    properties = {
        "bootstrap.servers": " a:1 , [::1]:2,",
        "client.id": "me",
        "socket.connection.setup.timeout.ms": "1",
        "socket.connection.setup.timeout.max.ms": "6",
        "request.timeout.ms": " 2 ",
        "default.api.timeout.ms": "3",
        "retry.backoff.ms": "4",
        "retry.backoff.max.ms": "5",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'org.apache.PlainLoginModule required username="u" password="p";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/trust.pem",
        "ssl.keystore.location": "/key.pem",
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "",
    }
    tls = TlsOptions(truststore_path="/trust.pem", keystore_path="/key.pem", key_password="k", check_host_name=False)
    assert client_options(properties) == ClientOptions(
        (("a", 1), ("::1", 2)),
        "me",
        connect_timeout_ms=1,
        connect_timeout_max_ms=6,
        request_timeout_ms=2,
        retry_timeout_ms=3,
        refused_timeout_ms=3,
        retry_backoff_ms=4,
        retry_backoff_max_ms=5,
        security=SecurityOptions(tls, SaslOptions("PLAIN", "u", "p")),
    )


def test_a_given_address_goes_before_that_of_the_properties() -> None:
    assert client_options({"bootstrap.servers": "a:1"}, bootstrap=(("b", 2),)).bootstrap == (("b", 2),)


def test_one_file_serves_all_clients() -> None:
    properties = {**SERVERS, "acks": "all", "group.id": "g", "retries": "5", "linger.ms": "7"}
    assert client_options(properties) == ClientOptions((("a", 1),))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"bootstrap.servers": "a"}, "bootstrap.servers: 'a' is not of the form host:port"),
        ({"bootstrap.servers": ","}, "bootstrap.servers names no broker; allowed: host:port,host:port,..."),
        ({"request.timeout.ms": "x"}, "request.timeout.ms is 'x'; allowed: a number from 1 to 2147483647"),
        ({"retry.backoff.ms": "0"}, "retry.backoff.ms is '0'; allowed: a number from 1 to 2147483647"),
        (
            {"security.protocl": "SSL"},
            "security.protocl is not a known client property; did you mean security.protocol? allowed: bootstrap.ser",
        ),
        ({'"s3cret";': ""}, "a name is not letters, digits and dots; does a line end without its backslash?"),
        ({"client.id": "\ud800"}, "client.id has an invalid character"),
        ({"sasl.username": "u"}, "sasl.username is not a property of Java's clients: the credentials are in sasl.jaas"),
        ({"ssl.ca.location": "u"}, "ssl.ca.location is not a property of Java's clients: the name is ssl.truststore.l"),
        ({"ssl.provider": "u"}, "ssl.provider is not supported: it is a setting of Java's TLS"),
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS'; allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"ssl.truststore.location": "x"}, "ssl.truststore.location has no effect with security.protocol=PLAINTEXT"),
    ],
)
def test_a_property_that_cannot_be_used_is_an_error(properties: dict[str, str], message: str) -> None:
    with pytest.raises(PropertyError) as raised:
        client_options({**SERVERS, **properties})
    assert str(raised.value).startswith(message)


def test_the_properties_of_producers_and_consumers() -> None:
    client = ClientOptions((("a", 1),))
    defaults = ProducerOptions(client, CompressionType.NONE, batch_size_bytes=5)
    assert producer_options({}, defaults) == defaults
    assert producer_options(
        {
            "acks": " all ",
            "batch.size": "0",
            "buffer.memory": "1",
            "compression.type": "zstd",
            "delivery.timeout.ms": "2",
            "enable.idempotence": "false",
            "linger.ms": "3",
            "max.request.size": "4",
            "transaction.timeout.ms": "5",
        },
        defaults,
    ) == ProducerOptions(client, CompressionType.ZSTD, 0, 4, 1, 2, 3, ACKS_ALL, False, None, 5)
    assert producer_options({"transactional.id": "tx"}, defaults).transactional_id == "tx"
    without_replicas = producer_options({"acks": "1"}, defaults)
    assert (without_replicas.acks, without_replicas.enable_idempotence) == (ACKS_LEADER, False)

    assert consumer_options({}, ConsumerOptions(max_poll_records=7)) == ConsumerOptions(max_poll_records=7)
    consumer = {
        "auto.offset.reset": "none",
        "fetch.max.bytes": "1",
        "fetch.max.wait.ms": "2",
        "fetch.min.bytes": "3",
        "isolation.level": "read_committed",
        "max.partition.fetch.bytes": "4",
        "max.poll.records": "5",
    }
    assert consumer_options(consumer, ConsumerOptions()) == ConsumerOptions(
        READ_COMMITTED, OffsetReset.NONE, 5, 1, 4, 3, 2
    )
    group = {
        "group.instance.id": "i",
        "heartbeat.interval.ms": "1",
        "max.poll.interval.ms": "2",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RoundRobinAssignor, range",
        "session.timeout.ms": "3",
    }
    assert group_options(group, "g") == GroupOptions("g", "i", 3, 1, 2, ("roundrobin", "range"))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"acks": "2"}, "acks is '2'; allowed: all, -1, 1, 0"),
        ({"compression.type": "rar"}, "compression.type is 'rar'; allowed: none, gzip, snappy, lz4, zstd"),
        ({"enable.idempotence": "yes"}, "enable.idempotence is 'yes'; allowed: true, false"),
        ({"enable.idempotence": "true", "acks": "1"}, "enable.idempotence is 'true', which needs acks=all"),
        (
            {"transactional.id": "x", "acks": "1"},
            "transactional.id is set, which needs acks=all and enable.idempotence",
        ),
        ({"transaction.timeout.ms": "0"}, "transaction.timeout.ms is '0'; allowed: a number from 1 to 2147483647"),
        ({"linger.ms": "-1"}, "linger.ms is '-1'; allowed: a number from 0 to 2147483647"),
        ({"isolation.level": "x"}, "isolation.level is 'x'; allowed: read_uncommitted, read_committed"),
        ({"auto.offset.reset": "x"}, "auto.offset.reset is 'x'; allowed: earliest, latest, none"),
        ({"partition.assignment.strategy": "sticky"}, "partition.assignment.strategy is 'sticky'; allowed: range, rou"),
    ],
)
def test_a_value_that_a_producer_or_consumer_cannot_use_is_an_error(properties: dict[str, str], message: str) -> None:
    with pytest.raises(PropertyError) as raised:
        producer_options(properties, ProducerOptions(ClientOptions((("a", 1),)), CompressionType.NONE))
        consumer_options(properties, ConsumerOptions())
        group_options(properties, "g")
    assert str(raised.value).startswith(message)


def test_names_that_only_the_caller_knows() -> None:
    check_names({"x.y": "1"}, used=["x.y"])
    with pytest.raises(PropertyError, match=r"x\.z is not a known client property; did you mean x\.y\?"):
        check_names({"x.z": "1"}, used=["x.y"])


@given(st.dictionaries(st.sampled_from(["bootstrap.servers", "request.timeout.ms", "client.id", "x"]), st.text()))
def test_garbage_is_understood_or_refused(properties: dict[str, str]) -> None:
    try:
        options = client_options(properties)
    except PropertyError as error:
        assert any(name in str(error) for name in [*properties, "bootstrap.servers"])
    else:
        assert options.bootstrap
