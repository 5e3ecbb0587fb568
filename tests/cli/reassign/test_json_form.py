"""Kafka's reassignment files: what is written, what is read, and the errors about files that are wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.cli.reassign.json_form import format_reassignment, parse_reassignment, parse_topics
from klamm.cli.reassign.planning.model import Placement, anywhere
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition

T0, T1, T10 = (TopicPartition("t", number) for number in (0, 1, 10))


def entry(**fields: object) -> str:
    """A file with one partition, t-0 on broker 1, with these fields changed; None removes a field."""
    values = {"topic": "t", "partition": 0, "replicas": [1]} | fields
    return json.dumps({"version": 1, "partitions": [{key: each for key, each in values.items() if each is not None}]})


def test_a_reassignment_is_written_as_kafka_writes_it_sorted_by_topic_and_number() -> None:
    placements = {
        T10: anywhere([3]),
        T1: Placement((2, 1), ("/data/a", "any")),
        TopicPartition("a", 7): anywhere([1, 2]),
    }
    assert format_reassignment(placements) == (
        '{"version":1,"partitions":['
        '{"topic":"a","partition":7,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"t","partition":1,"replicas":[2,1],"log_dirs":["/data/a","any"]},'
        '{"topic":"t","partition":10,"replicas":[3],"log_dirs":["any"]}]}'
    )


def test_topics_to_move_keep_the_order_of_the_file() -> None:
    assert parse_topics('{"version":1,"topics":[{"topic":"b"},{"topic":"a"}]}', "f") == ["b", "a"]


def test_version_and_log_dirs_may_be_left_out() -> None:
    text = '{"partitions":[{"topic":"t","partition":0,"replicas":[2,1]}]}'
    assert parse_reassignment(text, "f") == {T0: Placement((2, 1), ("any", "any"))}
    assert parse_topics('{"topics":[{"topic":"t"}]}', "f") == ["t"]


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text("abc.-_", min_size=1), st.integers(0, 2**31 - 1)),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5, unique=True).flatmap(
            lambda brokers: st.builds(
                Placement,
                st.just(tuple(brokers)),
                st.tuples(*[st.sampled_from(["any", "/a", "C:\\a"]) for _ in brokers]),
            )
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read_back(placements: dict[TopicPartition, Placement]) -> None:
    assert parse_reassignment(format_reassignment(placements), "f") == placements


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f: not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "f: a JSON object is expected, not [1]"),
        ('{"version":2,"partitions":[]}', "f: version 2 is not supported, only 1"),
        ('{"version":true,"partitions":[]}', "f: version true is not supported, only 1"),
        ('{"version":1}', "f: the field 'partitions' is missing"),
        ('{"version":1,"partitions":[],"topics":[]}', "f: unknown field 'topics'; known are partitions, version"),
        ('{"version":1,"version":1,"partitions":[]}', "f: an object has the field 'version' twice"),
        ('{"version":1,"partitions":[]}', "f: partitions must be a list with at least one entry, not []"),
        ('{"version":1,"partitions":[3]}', "f: partitions[0]: a JSON object is expected, not 3"),
        (entry(topic=None), "f: partitions[0]: the field 'topic' is missing"),
        (entry(topic=""), 'f: partitions[0]: topic must be a name, not ""'),
        (entry(partition="0"), 'f: partitions[0]: partition must be a number from 0 to 2147483647, not "0"'),
        (entry(partition=-1), "f: partitions[0]: partition must be a number from 0 to 2147483647, not -1"),
        (entry(partition=True), "f: partitions[0]: partition must be a number from 0 to 2147483647, not true"),
        (entry(replicas=[]), "f: partitions[0] (t-0): replicas must be a list with at least one broker, not []"),
        (
            entry(replicas=[1, 2.0]),
            "f: partitions[0] (t-0): a broker in replicas must be a number from 0 to 2147483647, not 2.0",
        ),
        (entry(replicas=[3, 1, 3]), "f: partitions[0] (t-0): replicas has broker 3 twice"),
        (
            entry(log_dir=["any"]),
            "f: partitions[0]: unknown field 'log_dir'; known are log_dirs, partition, replicas, topic",
        ),
        (
            entry(log_dirs=["any", "any"]),
            "f: partitions[0] (t-0): log_dirs must have one entry for each of the 1 replicas, not 2 entries",
        ),
        (
            entry(log_dirs="any"),
            'f: partitions[0] (t-0): log_dirs must have one entry for each of the 1 replicas, not "any"',
        ),
        (
            entry(log_dirs=["data"]),
            'f: partitions[0] (t-0): a log directory must be "any" or an absolute path, not "data"',
        ),
        (
            '{"partitions":[{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}]}',
            "f: partitions[1] (t-0): the partition is named twice",
        ),
    ],
)
def test_an_error_names_the_file_the_entry_and_what_is_allowed(text: str, error: str) -> None:
    with pytest.raises(ToolError) as raised:
        parse_reassignment(text, "f")
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"topics":[{"topic":"t"},{"topic":"t"}]}', "f: topics[1]: topic 't' is named twice"),
        ('{"topics":["t"]}', 'f: topics[0]: a JSON object is expected, not "t"'),
        ('{"topics":[{"name":"t"}]}', "f: topics[0]: the field 'topic' is missing"),
        ('{"version":2,"topics":[{"topic":"t"}]}', "f: version 2 is not supported, only 1"),
    ],
)
def test_an_error_about_topics_names_the_entry(text: str, error: str) -> None:
    with pytest.raises(ToolError) as raised:
        parse_topics(text, "f")
    assert str(raised.value) == error


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"\xff", "1" * 10_000])
def test_garbage_is_one_line_of_error(text: str | bytes) -> None:
    with pytest.raises(ToolError, match="f: "):
        parse_reassignment(text, "f")
