"""Each znode's content: Kafka's own examples are read, what we write has exactly their fields, garbage is an error that
names the znode and what is wrong with it."""

import contextlib
import json
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base import json_bytes
from klamm.protocol.vocabulary import NO_LEADER
from klamm.znodes import brokers, cluster, configs, requests, topics
from klamm.znodes.brokers import BrokerRegistration, Endpoint, SupportedVersions
from klamm.znodes.cluster import (
    Controller,
    Features,
    FeatureStatus,
    FinalizedVersions,
    ProducerIdBlock,
    incompatible_features,
)
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment

TOPIC_ID = UUID("688d01e0-4332-4326-aa5a-97f00f0c390b")  # aI0B4EMyQyaqWpfwDww5Cw in URL-safe base64

# Content as a Kafka 2.8.2 cluster writes it, the value it means, our encoding of it.
EXAMPLES = [
    (
        b'{"version":1,"brokerid":1,"timestamp":"1795233549038"}',
        Controller.decode,
        Controller(1, 1795233549038),
        Controller.encode,
    ),
    (b"17", cluster.decode_controller_epoch, 17, cluster.encode_controller_epoch),
    (
        b'{"version":"1","id":"YFc3PXthTa642OToa5_2_g"}',
        cluster.decode_cluster_id,
        "YFc3PXthTa642OToa5_2_g",
        cluster.encode_cluster_id,
    ),
    (
        b'{"version":1,"broker":2,"block_start":"2000","block_end":"2999"}',
        ProducerIdBlock.decode,
        ProducerIdBlock(2, 2000, 2999),
        ProducerIdBlock.encode,
    ),
    (
        b'{"features":{},"version":1,"status":1}',
        Features.decode,
        Features(FeatureStatus.ENABLED),
        Features.encode,
    ),
    (
        b'{"features":{"f":{"min_version_level":1,"max_version_level":3}},"version":1,"status":0}',
        Features.decode,
        Features(FeatureStatus.DISABLED, {"f": FinalizedVersions(1, 3)}),
        Features.encode,
    ),
    (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://127.0.0.1:19092"],"jmx_port":-1,"port":19092,"host":"127.0.0.1","version":5,'
        b'"timestamp":"1795233548915"}',
        lambda data: BrokerRegistration.decode(3, data),
        BrokerRegistration(3, (Endpoint("PLAINTEXT", "127.0.0.1", 19092),), timestamp_ms=1795233548915),
        BrokerRegistration.encode,
    ),
    (
        b'{"features":{"f":{"min_version":1,"max_version":3}},"jmx_port":9999,"port":-1,"host":null,"version":5,'
        b'"listener_security_protocol_map":{"CLIENT":"SASL_SSL","REPLICATION":"SSL"},"timestamp":"5","rack":"r1",'
        b'"endpoints":["CLIENT://h.example:1","REPLICATION://[::1]:2"]}',
        lambda data: BrokerRegistration.decode(3, data),
        BrokerRegistration(
            3,
            (Endpoint("CLIENT", "h.example", 1, "SASL_SSL"), Endpoint("REPLICATION", "::1", 2, "SSL")),
            "r1",
            {"f": SupportedVersions(1, 3)},
            9999,
            5,
        ),
        BrokerRegistration.encode,
    ),
    (
        b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:1"],"jmx_port":-1,'
        b'"port":1,"host":"h","version":4,"timestamp":"5"}',
        lambda data: BrokerRegistration.decode(3, data),
        BrokerRegistration(3, (Endpoint("PLAINTEXT", "h", 1),), timestamp_ms=5, version=4),
        BrokerRegistration.encode,
    ),
    (
        b'{"partitions":{"0":[1,2],"1":[2,1]},"topic_id":"aI0B4EMyQyaqWpfwDww5Cw","adding_replicas":{},'
        b'"removing_replicas":{},"version":3}',
        lambda data: TopicAssignment.decode("t", data),
        TopicAssignment({0: (1, 2), 1: (2, 1)}, TOPIC_ID),
        TopicAssignment.encode,
    ),
    (
        b'{"partitions":{"0":[1,2,3]},"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]},"version":3}',
        lambda data: TopicAssignment.decode("t", data),
        TopicAssignment({0: (1, 2, 3)}, None, {0: (3,)}, {0: (1,)}),
        TopicAssignment.encode,
    ),
    (
        b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0,2,1]}',
        lambda data: LeaderAndIsr.decode("t", 0, data),
        LeaderAndIsr(0, 0, (0, 2, 1), 1),
        LeaderAndIsr.encode,
    ),
    (
        b'{"controller_epoch":9,"leader":-1,"version":1,"leader_epoch":7,"isr":[0]}',
        lambda data: LeaderAndIsr.decode("t", 0, data),
        LeaderAndIsr(NO_LEADER, 7, (0,), 9),
        LeaderAndIsr.encode,
    ),
    (
        b'{"version":1,"config":{"retention.ms":"5","cleanup.policy":"compact,delete"}}',
        lambda data: configs.decode_config("topics/t", data),
        {"retention.ms": "5", "cleanup.policy": "compact,delete"},
        configs.encode_config,
    ),
    (
        b'{"version":2,"entity_path":"users/u/clients/c"}',
        lambda data: configs.decode_config_change("config_change_0000000001", data),
        "users/u/clients/c",
        configs.encode_config_change,
    ),
    (
        b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"u","partition":3}]}',
        lambda data: requests.decode_partitions(requests.PREFERRED_REPLICA_ELECTION_PATH, data),
        [("t", 0), ("u", 3)],
        requests.encode_partitions,
    ),
    (
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}',
        requests.decode_reassignment,
        {("t", 0): (1, 2)},
        requests.encode_reassignment,
    ),
    (
        b'{"version":1,"broker":2,"event":1}',
        lambda data: requests.decode_log_dir_event("/log_dir_event_notification/log_dir_event_0000000000", data),
        2,
        requests.encode_log_dir_event,
    ),
]


@pytest.mark.parametrize(("content", "decode", "value", "encode"), EXAMPLES)
def test_kafkas_examples(
    content: bytes, decode: Callable[[bytes], object], value: object, encode: Callable[..., bytes]
) -> None:
    assert decode(content) == value
    assert json_bytes.decode(encode(value)) == json_bytes.decode(content)
    assert b" " not in encode(value)


KEYS = st.sampled_from(
    ["version", "partitions", "0", "isr", "leader", "config", "features", "endpoints", "broker", "id", "topic"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("minimum", "maximum", "supported", "incompatible"),
    [
        (1, 3, SupportedVersions(1, 3), []),
        (2, 2, SupportedVersions(1, 3), []),
        (1, 4, SupportedVersions(1, 3), ["f"]),
        (1, 2, SupportedVersions(2, 3), ["f"]),
        (1, 1, None, ["f"]),
    ],
)
def test_incompatible_features(
    minimum: int, maximum: int, supported: SupportedVersions | None, incompatible: list[str]
) -> None:
    finalized = {"f": FinalizedVersions(minimum, maximum), "g": FinalizedVersions(1, 1)}
    known = {"g": SupportedVersions(1, 1), "h": SupportedVersions(1, 1)} | ({"f": supported} if supported else {})
    assert incompatible_features(finalized, known) == incompatible


@pytest.mark.parametrize("decode", [example[1] for example in EXAMPLES])
@settings(max_examples=50)
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_a_value_or_a_znode_error(decode: Callable[[bytes], object], content: bytes) -> None:
    with contextlib.suppress(ZnodeError):
        decode(content)


@pytest.mark.parametrize(("content", "decode"), [example[:2] for example in EXAMPLES])
@settings(max_examples=50)
@given(position=st.integers(0, 300), byte=st.integers(0, 255))
def test_damage_is_a_value_or_a_znode_error(
    content: bytes, decode: Callable[[bytes], object], position: int, byte: int
) -> None:
    damaged = bytearray(content)
    damaged[position % len(damaged)] = byte
    with contextlib.suppress(ZnodeError):
        decode(bytes(damaged))


@pytest.mark.parametrize(
    ("decode", "content", "problem"),
    [
        (Controller.decode, b"", "/controller: not JSON"),
        (Controller.decode, b"[]", "/controller: the content is a list, not an object"),
        (Controller.decode, b'{"version":1,"timestamp":"1"}', "brokerid is missing"),
        (Controller.decode, b'{"version":1,"brokerid":true,"timestamp":"1"}', "brokerid is a boolean, not an integer"),
        (Controller.decode, b'{"version":1,"brokerid":1,"timestamp":"x"}', "timestamp is 'x', not a number"),
        (Controller.decode, b'{"version":0,"brokerid":1,"timestamp":"1"}', "version is 0; allowed are 1 to"),
        (cluster.decode_controller_epoch, b"-1", "is not an epoch"),
        (cluster.decode_controller_epoch, b"99999999999", "is not an epoch"),
        (cluster.decode_cluster_id, b'{"version":"1","id":""}', "id is empty"),
        (
            ProducerIdBlock.decode,
            b'{"version":1,"broker":2,"block_start":"9","block_end":"8"}',
            "block_end 8 is below block_start 9",
        ),
        (Features.decode, b'{"version":1,"status":2,"features":{}}', "status is 2; allowed are 0 to 1"),
        (
            Features.decode,
            b'{"version":1,"status":1,"features":{"f":{"min_version_level":3,"max_version_level":1}}}',
            "features.f has versions 3 to 1",
        ),
        (
            lambda data: BrokerRegistration.decode(3, data),
            b'{"version":5,"jmx_port":-1,"endpoints":["nonsense"]}',
            "/brokers/ids/3: endpoints has 'nonsense', which is not LISTENER://host:port",
        ),
        (
            lambda data: BrokerRegistration.decode(3, data),
            b'{"version":5,"jmx_port":-1,"endpoints":["A://h:99999"]}',
            "port 99999; allowed are -1 to 65535",
        ),
        (
            lambda data: BrokerRegistration.decode(3, data),
            b'{"version":5,"jmx_port":-1,"endpoints":["A://h:1"],"listener_security_protocol_map":{"A":"TELNET"}}',
            "security protocol TELNET; allowed are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            lambda data: TopicAssignment.decode("t", data),
            b'{"version":3,"partitions":{"0":[1,"2"]}}',
            r"/brokers/topics/t: partitions.0\[1\] is a string, not an integer",
        ),
        (
            lambda data: TopicAssignment.decode("t", data),
            b'{"version":3,"partitions":{"-1":[1]}}',
            "partitions.-1 is not a partition's number",
        ),
        (
            lambda data: TopicAssignment.decode("t", data),
            b'{"version":3,"partitions":{},"topic_id":"short"}',
            "topic_id is 'short', not 16 bytes",
        ),
        (
            lambda data: LeaderAndIsr.decode("t", 4, data),
            b'{"leader":-2,"leader_epoch":0,"isr":[],"controller_epoch":0}',
            "/brokers/topics/t/partitions/4/state: leader is -2; allowed are -1 to",
        ),
        (
            lambda data: LeaderAndIsr.decode("t", 4, data),
            b'{"leader":1,"leader_epoch":4294967296,"isr":[],"controller_epoch":0}',
            "leader_epoch is 4294967296",
        ),
        (
            lambda data: configs.decode_config("topics/t", data),
            b'{"version":1,"config":{"a":1}}',
            "/config/topics/t: config.a is an integer, not a string",
        ),
        (
            lambda data: configs.decode_config_change("config_change_1", data),
            b'{"version":1,"entity_type":"users","entity_name":"u"}',
            "entity_type is 'users'; allowed in version 1 are topics and clients",
        ),
        (
            requests.decode_reassignment,
            b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
            r"/admin/reassign_partitions: partitions\[0\].replicas is missing",
        ),
    ],
)
def test_errors_name_the_znode_and_the_problem(decode: Callable[[bytes], object], content: bytes, problem: str) -> None:
    with pytest.raises(ZnodeError, match=problem):
        decode(content)


@pytest.mark.parametrize(
    ("content", "endpoints", "rack"),
    [
        (
            b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"1"}',
            (Endpoint("PLAINTEXT", "h", 9092, "PLAINTEXT"),),
            None,
        ),
        (
            b'{"version":2,"host":"h","port":1,"jmx_port":1,"timestamp":"1","endpoints":["PLAINTEXT://h:1","SSL://h:2"]}',
            (Endpoint("PLAINTEXT", "h", 1, "PLAINTEXT"), Endpoint("SSL", "h", 2, "SSL")),
            None,
        ),
        (
            b'{"version":3,"host":"h","port":1,"jmx_port":1,"timestamp":"1","endpoints":["ssl://:2"],"rack":"dc1"}',
            (Endpoint("SSL", "", 2, "SSL"),),
            "dc1",
        ),
        (
            b'{"version":4,"host":null,"port":-1,"jmx_port":1,"timestamp":"1","endpoints":["C://h:1"],"rack":"dc1",'
            b'"listener_security_protocol_map":{"C":"SASL_PLAINTEXT"}}',
            (Endpoint("C", "h", 1, "SASL_PLAINTEXT"),),
            "dc1",
        ),
        (
            b'{"version":6,"jmx_port":1,"endpoints":["SSL://h:1"],"news":[]}',
            (Endpoint("SSL", "h", 1, "SSL"),),
            None,
        ),
    ],
)
def test_old_and_future_broker_registrations(content: bytes, endpoints: tuple[Endpoint, ...], rack: str | None) -> None:
    registration = BrokerRegistration.decode(1, content)
    assert (registration.endpoints, registration.rack) == (endpoints, rack)


def test_old_topics() -> None:
    assert TopicAssignment.decode("t", b'{"version":1,"partitions":{"10":[3],"9":[4]}}') == TopicAssignment(
        {9: (4,), 10: (3,)}
    )
    second = b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{"0":[1]},"removing_replicas":{}}'
    assert TopicAssignment.decode("t", second) == TopicAssignment({0: (1,)}, None, {0: (1,)})


def test_partitions_are_in_order_and_empty_reassignments_left_out() -> None:
    assignment = TopicAssignment({10: [1], 2: [0]}, None, {2: []}, {10: []})
    assert list(json_bytes.decode(assignment.encode())["partitions"]) == ["2", "10"]
    assert json_bytes.decode(assignment.encode())["adding_replicas"] == {}
    assert list(TopicAssignment.decode("t", b'{"version":3,"partitions":{"10":[1],"2":[0]}}').partitions) == [2, 10]


def test_versions_of_znodes_are_no_part_of_their_content() -> None:
    state = LeaderAndIsr(1, 2, (1,), 3)
    assert LeaderAndIsr.decode("t", 0, state.encode(), 17).zk_version == 17
    assert LeaderAndIsr.decode("t", 0, state.encode(), 17) == state


def test_old_config_changes_and_empty_configs() -> None:
    old = b'{"version":1,"entity_type":"clients","entity_name":"c"}'
    assert configs.decode_config_change("config_change_1", old) == "clients/c"
    assert configs.decode_config("topics/t", b"") == {}
    with pytest.raises(ZnodeError, match="config is missing"):
        configs.decode_config("topics/t", b'{"version":1}')


def test_blocks_of_producer_ids_follow_each_other_to_the_end() -> None:
    first = ProducerIdBlock.after(None, 1, 1000)
    assert first == ProducerIdBlock(1, 0, 999)
    assert ProducerIdBlock.after(first, 2, 1000) == ProducerIdBlock(2, 1000, 1999)
    last = ProducerIdBlock(1, 0, 2**63 - 1001)
    assert ProducerIdBlock.after(last, 2, 1000).last == 2**63 - 1
    with pytest.raises(ZnodeError, match="no block of 1000 producer ids is left"):
        ProducerIdBlock.after(ProducerIdBlock(1, 0, 2**63 - 1000), 2, 1000)


def test_a_partition_is_asked_for_once() -> None:
    twice = requests.encode_partitions([("t", 1), ("t", 0), ("t", 1)])
    assert requests.decode_partitions("/isr_change_notification/isr_change_1", twice) == [("t", 1), ("t", 0)]


def test_paths() -> None:
    assert brokers.broker_path(3) == "/brokers/ids/3"
    assert topics.topic_path("t") == "/brokers/topics/t"
    assert topics.partitions_path("t") == "/brokers/topics/t/partitions"
    assert topics.partition_path("t", 2) == "/brokers/topics/t/partitions/2"
    assert topics.partition_state_path("t", 2) == "/brokers/topics/t/partitions/2/state"
    assert configs.config_path(configs.topic_entity("t")) == "/config/topics/t"
    assert requests.delete_topic_path("t") == "/admin/delete_topics/t"
