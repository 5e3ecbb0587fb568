"""A broker's configuration: types, defaults, fallbacks, listeners, and what is said about a bad file."""

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.broker import BROKER_CONFIG_DEF, BrokerConfig
from klamm.config.definition import ConfigError, ConfigType, attribute, format_value
from klamm.config.listeners import Listener
from klamm.config.versions import ApiVersion


def config(**properties: str) -> BrokerConfig:
    """A configuration from keys with underscores for dots."""
    return BrokerConfig.from_properties({"zookeeper.connect": "zk:2181", **dotted(properties)})


def dotted(properties: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in properties.items()}


def problems(properties: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({"zookeeper.connect": "zk:2181", **properties})
    return refused.value.problems


def test_kafkas_own_server_properties() -> None:
    # The settings of config/server.properties as Apache Kafka 2.8.2 is shipped.
    shipped = {
        "broker.id": "0",
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "socket.request.max.bytes": "104857600",
        "log.dirs": "/tmp/kafka-logs",
        "num.partitions": "1",
        "num.recovery.threads.per.data.dir": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.retention.hours": "168",
        "log.segment.bytes": "1073741824",
        "log.retention.check.interval.ms": "300000",
        "zookeeper.connect": "localhost:2181",
        "zookeeper.connection.timeout.ms": "18000",
        "group.initial.rebalance.delay.ms": "0",
    }
    parsed = BrokerConfig.from_properties(shipped)
    assert parsed.unknown_keys == []
    assert parsed.unsupported_reasons() == []
    assert parsed.broker_id == 0
    assert parsed.log_dirs == ("/tmp/kafka-logs",)
    assert parsed.log_segment_bytes == 1073741824
    assert parsed.zookeeper_connection_timeout_ms == 18000
    assert parsed.listeners == (Listener("PLAINTEXT", "PLAINTEXT", "", 9092),)


def test_attributes_have_the_declared_types() -> None:
    parsed = config()
    for name, hint in typing.get_type_hints(type(parsed)).items():
        allowed = [
            typing.get_origin(each) or each for each in (typing.get_args(hint) if hint_is_union(hint) else [hint])
        ]
        assert isinstance(getattr(parsed, name), tuple(allowed)), name


def hint_is_union(hint: object) -> bool:
    return type(None) in typing.get_args(hint)


def test_every_default_is_an_allowed_value() -> None:
    for key in BROKER_CONFIG_DEF.keys.values():
        if key.default is not None:
            assert key.parse(format_value(key.type, key.default) or "") == key.default, key.name


def test_every_key_is_documented_in_a_sentence() -> None:
    for key in BROKER_CONFIG_DEF.keys.values():
        assert key.documentation.endswith("."), key.name


@pytest.mark.parametrize(
    ("properties", "name", "expected"),
    [
        ({}, "log_retention_ms", 604800000),
        ({"log.retention.hours": "2"}, "log_retention_ms", 7200000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "log_retention_ms", 180000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, "log_retention_ms", 4),
        ({"log.retention.hours": "-1"}, "log_retention_ms", -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "2"}, "log_retention_ms", -1),
        ({}, "log_roll_ms", 604800000),
        ({"log.roll.hours": "2"}, "log_roll_ms", 7200000),
        ({"log.roll.hours": "2", "log.roll.ms": "5"}, "log_roll_ms", 5),
        ({"log.roll.jitter.hours": "1"}, "log_roll_jitter_ms", 3600000),
        ({}, "log_flush_interval_ms", 2**63 - 1),
        ({"log.flush.scheduler.interval.ms": "7"}, "log_flush_interval_ms", 7),
        ({}, "log_dirs", ("/tmp/kafka-logs",)),
        ({"log.dir": "/a"}, "log_dirs", ("/a",)),
        ({"log.dir": "/a", "log.dirs": "/b , /c,"}, "log_dirs", ("/b", "/c")),
        ({"zookeeper.session.timeout.ms": "6000"}, "zookeeper_connection_timeout_ms", 6000),
        ({"log.dirs": "/a,/b"}, "num_replica_alter_log_dirs_threads", 2),
        ({}, "inter_broker_protocol_version", ApiVersion.V2_8_IV1),
        ({"inter.broker.protocol.version": "2.8"}, "inter_broker_protocol_version", ApiVersion.V2_8_IV1),
        ({"inter.broker.protocol.version": "2.7.1"}, "inter_broker_protocol_version", ApiVersion.V2_7_IV2),
        ({"inter.broker.protocol.version": "2.4-IV0"}, "inter_broker_protocol_version", ApiVersion.V2_4_IV0),
        ({"auto.create.topics.enable": " FALSE "}, "auto_create_topics_enable", False),
        ({"log.cleanup.policy": "compact , delete"}, "log_cleanup_policy", ("compact", "delete")),
        ({"log.cleaner.min.cleanable.ratio": "1e-1"}, "log_cleaner_min_cleanable_ratio", 0.1),
        ({"max.connections.per.ip.overrides": "h:3,::1:4"}, "max_connections_per_ip_overrides", {"h": 3, "::1": 4}),
        ({}, "inter_broker_listener_name", "PLAINTEXT"),
    ],
)
def test_fallbacks_and_parsing(properties: dict[str, str], name: str, expected: object) -> None:
    parsed = BrokerConfig.from_properties({"zookeeper.connect": "zk:2181", **properties})
    assert getattr(parsed, name) == expected


def test_versions_compare_by_age() -> None:
    assert ApiVersion.parse("2.7-IV2") < ApiVersion.parse("2.8-IV0") < ApiVersion.parse("2.8")
    assert str(ApiVersion.parse("2.6")) == "2.6-IV0"


def test_listeners() -> None:
    parsed = config(
        listeners="internal://[::1]:19092, EXTERNAL://:9092",
        advertised_listeners="INTERNAL://[::1]:19092,external://kafka.example.com:80",
        listener_security_protocol_map="internal:plaintext,EXTERNAL:SSL",
        inter_broker_listener_name="internal",
    )
    assert parsed.listeners == (
        Listener("INTERNAL", "PLAINTEXT", "::1", 19092),
        Listener("EXTERNAL", "SSL", "", 9092),
    )
    assert [str(each) for each in parsed.advertised_listeners] == [
        "INTERNAL://[::1]:19092",
        "EXTERNAL://kafka.example.com:80",
    ]
    assert parsed.inter_broker_listener_name == "INTERNAL"
    assert parsed.listener_security_protocol_map == {"INTERNAL": "PLAINTEXT", "EXTERNAL": "SSL"}


def test_the_old_forms_of_listeners() -> None:
    assert config(host_name="h", port="1").listeners == (Listener("PLAINTEXT", "PLAINTEXT", "h", 1),)
    parsed = config(listeners="PLAINTEXT://:1", advertised_port="2")
    assert parsed.advertised_listeners == (Listener("PLAINTEXT", "PLAINTEXT", "", 2),)
    # The new form wins over the old one.
    parsed = config(listeners="PLAINTEXT://:1", advertised_listeners="PLAINTEXT://h:3", advertised_port="2")
    assert parsed.advertised_listeners == (Listener("PLAINTEXT", "PLAINTEXT", "h", 3),)


def test_any_free_port_may_be_asked_for_twice() -> None:
    parsed = config(listeners="A://:0,B://:0", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
                    inter_broker_listener_name="A")  # fmt: skip
    assert [listener.port for listener in parsed.listeners] == [0, 0]


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"broker.id": "one"}, "broker.id=one is not an int (a whole number from -2147483648 to 2147483647)"),
        ({"broker.id": "1001"}, "broker.id=1001 is not allowed; allowed: -1 to 1000"),
        (
            {"broker.id.generation.enable": "false"},
            "broker.id=-1 is not allowed; allowed: at least 0, because broker.id.generation.enable=false",
        ),
        ({"log.segment.bytes": "13"}, "log.segment.bytes=13 is not allowed; allowed: at least 14"),
        (
            {"log.segment.bytes": "2147483648"},
            "log.segment.bytes=2147483648 is not an int (a whole number from -2147483648 to 2147483647);"
            " allowed: at least 14",
        ),
        ({"log.retention.ms": "0"}, "log.retention.ms=0 is not allowed; allowed: at least 1, or -1 for unlimited"),
        ({"delete.topic.enable": "yes"}, "delete.topic.enable=yes is not a boolean (true or false)"),
        (
            {"log.cleanup.policy": "delete,keep"},
            "log.cleanup.policy=delete,keep is not allowed; allowed: a list of compact, delete",
        ),
        ({"log.dirs": ""}, "log.dirs= is not allowed; allowed: at least one directory, each once"),
        ({"log.dirs": "/a,/b,/a"}, "log.dirs=/a,/b,/a is not allowed; allowed: at least one directory, each once"),
        (
            {"compression.type": "rar"},
            "compression.type=rar is not allowed; allowed: one of uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            {"inter.broker.protocol.version": "2.3"},
            "inter.broker.protocol.version=2.3 is not allowed;"
            " allowed: the name of a Kafka version from 2.4-IV0 to 2.8-IV1",
        ),
        (
            {"log.cleaner.min.cleanable.ratio": "half"},
            "log.cleaner.min.cleanable.ratio=half is not a double (a decimal number)",
        ),
        (
            {"listeners": "PLAINTEXT//:9092"},
            "listeners=PLAINTEXT//:9092: 'PLAINTEXT//:9092' is not of the form NAME://host:port"
            " with a port from 0 to 65535",
        ),
        (
            {"listeners": "PLAINTEXT://:65536"},
            "listeners=PLAINTEXT://:65536: 'PLAINTEXT://:65536' is not of the form NAME://host:port"
            " with a port from 0 to 65535",
        ),
        (
            {"listeners": "MINE://:1"},
            "listeners=MINE://:1: listener.security.protocol.map has no security protocol for 'MINE'",
        ),
        (
            {"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"},
            "listeners=PLAINTEXT://:1,PLAINTEXT://:2: each listener must have a different name",
        ),
        (
            {"listeners": "PLAINTEXT://:1,SSL://:1"},
            "listeners=PLAINTEXT://:1,SSL://:1: each listener must have a different port",
        ),
        (
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
            "advertised.listeners: PLAINTEXT://0.0.0.0:9092 cannot be reached by clients; allowed: a routable address",
        ),
        (
            {"advertised.listeners": "PLAINTEXT://h:1,SSL://h:2"},
            "advertised.listeners: SSL://h:2 has no listener of that name; there are PLAINTEXT",
        ),
        (
            {"inter.broker.listener.name": "SSL"},
            "inter.broker.listener.name=SSL is not allowed; allowed: one of the advertised listeners PLAINTEXT",
        ),
        (
            {"listeners": "SSL://:9093"},
            "listener SSL://:9093: SSL is not supported yet, only PLAINTEXT is",
        ),
        (
            {"process.roles": "broker,controller", "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"},
            "process.roles=broker,controller: KRaft is not supported; klamm keeps its metadata in ZooKeeper"
            " (zookeeper.connect). Remove the key to start",
        ),
        (
            {"inter.broker.listener.name": "MINE"},
            "inter.broker.listener.name=MINE: not a name of listener.security.protocol.map",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "inter.broker.listener.name=PLAINTEXT and security.inter.broker.protocol=PLAINTEXT: only one may be set",
        ),
        (
            {"security.inter.broker.protocol": "TLS"},
            "security.inter.broker.protocol: TLS is not a security protocol;"
            " allowed: one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            {"listener.security.protocol.map": "PLAINTEXT"},
            "listener.security.protocol.map=PLAINTEXT: 'PLAINTEXT' is not of the form name:value",
        ),
        (
            {"control.plane.listener.name": "PLAINTEXT"},
            "control.plane.listener.name=PLAINTEXT must differ from the inter-broker listener",
        ),
        (
            {"max.connections.per.ip.overrides": "host:many"},
            "max.connections.per.ip.overrides=host:many: 'many' is not a count; allowed: host:count, comma separated",
        ),
        (
            {"queued.max.request.bytes": "1"},
            "queued.max.request.bytes=1 is less than socket.request.max.bytes=104857600",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(properties: dict[str, str], problem: str) -> None:
    assert problems(properties) == (problem,)


def test_zookeeper_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect is missing: host:port of ZooKeeper"):
        BrokerConfig.from_properties({})


def test_every_bad_key_is_told_at_once() -> None:
    told = problems({"broker.id": "x", "listeners": "?", "log.dirs": ",", "num.partitions": "0"})
    assert [problem.partition("=")[0] for problem in told] == ["broker.id", "num.partitions", "listeners", "log.dirs"]


def test_unknown_keys_are_told_but_not_refused() -> None:
    parsed = BrokerConfig.from_properties(
        {
            "zookeeper.connect": "zk",
            "other.program.enable": "true",
            "listener.name.plaintext.ssl.keystore.location": "/k",
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": "x",
            "listener.name.plaintext.nonsense": "x",
        }
    )
    assert parsed.unknown_keys == ["other.program.enable", "listener.name.plaintext.nonsense"]


def test_what_a_start_must_be_refused_for() -> None:
    secured = config(
        listeners="PLAINTEXT://:1,SASL_SSL://:2", authorizer_class_name="kafka.security.authorizer.AclAuthorizer"
    )
    assert secured.unsupported_reasons() == [
        "listener SASL_SSL://:2: SASL_SSL is not supported yet, only PLAINTEXT is",
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer is not supported yet:"
        " the authorizer would not be asked; remove it to start",
    ]


def test_control_requests_have_a_listener_of_their_own_where_one_is_named() -> None:
    assert config().control_listener_name == "PLAINTEXT"
    separate = config(
        listeners="PLAINTEXT://:1,CONTROL://:2",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
        control_plane_listener_name="control",
    )
    assert separate.control_listener_name == "CONTROL"


def test_passwords_are_marked() -> None:
    sensitive = [name for name, key in BROKER_CONFIG_DEF.keys.items() if key.sensitive]
    assert "ssl.keystore.password" in sensitive
    assert all(BROKER_CONFIG_DEF.keys[name].type is ConfigType.PASSWORD for name in sensitive)


KEYS = st.sampled_from(list(BROKER_CONFIG_DEF.keys))
VALUES = st.one_of(
    st.text(),
    st.integers().map(str),
    st.floats().map(str),
    st.text(alphabet="PLAINTEXTSSL:/.,0123456789[]-"),
    st.sampled_from(["true", "PLAINTEXT://:0", "a:b", "-1", "0", "delete", "2.8"]),
)


@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_garbage_is_parsed_or_refused_by_name(properties: dict[str, str]) -> None:
    try:
        parsed = BrokerConfig.from_properties(properties)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert any(key in problem for key in BROKER_CONFIG_DEF.keys), problem
        return
    for key in BROKER_CONFIG_DEF.keys:
        getattr(parsed, attribute(key))
