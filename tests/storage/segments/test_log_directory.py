from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.error_codes import KafkaError
from klamm.storage.segments import log_directory as ld
from support.logs import DiskEnvironment


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("t-0", ("t", 0, "")),
        ("a.b_c-d-12", ("a.b_c-d", 12, "")),
        ("-0", None),
        ("t", None),
        ("t-", None),
        ("t-x", None),
        ("t--1", ("t-", 1, "")),
        ("t-2147483648", None),
        ("lost+found", None),
        (f"t-3.{'0a' * 16}-delete", ("t", 3, "-delete")),
        (f"t-3.{'0a' * 16}-future", ("t", 3, "-future")),
        (f"t-3.{'0a' * 16}-stray", ("t", 3, "-stray")),
        ("t-3-stray", None),
        ("t-3.0a-delete", None),
        ("t-3-delete", None),
        (f"t-3.{'0A' * 16}-delete", None),
    ],
)
def test_directory_names(name, parsed):
    assert ld.parse_directory_name(name) == parsed


@given(st.text("abc.-_9", min_size=1, max_size=249), st.integers(0, 2**31 - 1), st.uuids())
def test_names_survive(topic, partition, unique):
    name = ld.partition_directory_name(topic, partition)
    assert ld.parse_directory_name(name) == (topic, partition, "")
    marked = ld.delete_directory_name(topic, partition, unique)
    assert len(marked) <= 255
    parsed = ld.parse_directory_name(marked)
    assert parsed is not None
    kept, number, suffix = parsed
    assert topic.startswith(kept)
    assert (number, suffix) == (partition, "-delete")


@given(st.text(max_size=60))
def test_any_name_gets_an_answer(name):
    ld.parse_directory_name(name)


def test_topic_ids_are_written_as_kafka_does():
    # org.apache.kafka.common.Uuid.fromString("Xe5NWWqkTjaLWV85tqNO2Q")
    topic_id = UUID("5dee4d59-6aa4-4e36-8b59-5f39b6a34ed9")
    assert ld.format_topic_id(topic_id) == "Xe5NWWqkTjaLWV85tqNO2Q"
    content = ld.format_partition_metadata(topic_id)
    assert content == b"version: 0\ntopic_id: Xe5NWWqkTjaLWV85tqNO2Q"
    assert ld.parse_partition_metadata(content, "f") == topic_id
    assert ld.parse_partition_metadata(content + b"\n", "f") == topic_id


@given(st.uuids().filter(lambda topic_id: topic_id.int != 0))
def test_topic_ids_survive(topic_id):
    assert ld.parse_partition_metadata(ld.format_partition_metadata(topic_id), "f") == topic_id


@given(st.binary(min_size=1, max_size=60))
def test_garbage_is_no_partition_metadata(content):
    with pytest.raises(KafkaError, match="f: "):
        ld.parse_partition_metadata(content, "f")


@pytest.mark.parametrize(
    "content", [b"version: 1\ntopic_id: Xe5NWWqkTjaLWV85tqNO2Q", b"version: 0\ntopic_id: " + b"A" * 22]
)
def test_wrong_partition_metadata(content):
    with pytest.raises(KafkaError, match="f: "):
        ld.parse_partition_metadata(content, "f")


def test_meta_properties():
    file_system = DiskEnvironment().file_system
    assert ld.read_meta_properties(file_system, "/d") is None
    ld.write_meta_properties(file_system, "/d", ld.MetaProperties("abc=:#", 12))
    assert ld.read_meta_properties(file_system, "/d") == ld.MetaProperties("abc=:#", 12)
    # As Kafka writes it.
    file_system.replace_file("/d/meta.properties", b"#\n#Sat Nov 21 2020\ncluster.id=x_-Y\nversion=0\nbroker.id=0\n")
    assert ld.read_meta_properties(file_system, "/d") == ld.MetaProperties("x_-Y", 0)
