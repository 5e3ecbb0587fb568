"""Which offsets are read: pure rules, and plans made with a running cluster. No Spark."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.cluster import ClusterClient
from klamm.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from klamm.net.client import ConnectFailed
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, TopicPartition
from klamm.spark.options import OptionError, ReadOptions, read_options
from klamm.spark.read import planning
from klamm.spark.read.planning import (
    Position,
    count_offsets,
    in_tasks,
    limit_position,
    plan_batch,
    plan_micro_batch,
    split,
)
from klamm.spark.settings import DataLoss, PartitionRange
from klamm.testing.cluster import Cluster
from support.present import present
from support.spark.producing import numbered, produce

MakeTopic = Callable[..., str]
NOWHERE = Position({}, {}, {})
NOW_MS = 1_700_000_000_000
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def options(bootstrap: str = "a:1", *, streaming: bool = False, **given_: object) -> ReadOptions:
    return read(bootstrap, given_, streaming=streaming)


def read(bootstrap: str, given_: Mapping[str, object], *, streaming: bool = False) -> ReadOptions:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given_.items()}
    if not {"assign", "subscribePattern"} & set(texts):
        texts.setdefault("subscribe", "t")
    return read_options({"kafka.bootstrap.servers": bootstrap, **texts}, streaming=streaming)


def with_begin(options: ReadOptions, start: Position, latest: Position, now_ms: int = NOW_MS) -> Position:
    return planning.with_begin(options, start, latest, now_ms)


def spans(ranges: list[PartitionRange]) -> list[tuple[int, int, int]]:
    return [(records.partition, records.start_offset, records.end_offset) for records in ranges]


# -- splitting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "sizes", "expected"),
    [
        ({}, [10, 1], [(0, 0, 10), (1, 0, 1)]),
        ({"minPartitions": 2}, [10, 1], [(0, 0, 10), (1, 0, 1)]),
        ({"minPartitions": 3}, [10, 1], [(0, 0, 5), (0, 5, 10), (1, 0, 1)]),
        ({"minPartitions": 4}, [8, 8], [(0, 0, 4), (0, 4, 8), (1, 0, 4), (1, 4, 8)]),
        ({"minPartitions": 9}, [2], [(0, 0, 1), (0, 1, 2)]),
        ({"minPartitions": 2**31 - 1}, [2], [(0, 0, 1), (0, 1, 2)]),
        ({"maxRecordsPerPartition": 4}, [10, 4], [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 4)]),
        ({"maxRecordsPerPartition": 5, "minPartitions": 4}, [10], [(0, 0, 2), (0, 2, 5), (0, 5, 7), (0, 7, 10)]),
    ],
)
def test_large_ranges_are_cut(given_: dict[str, Any], sizes: list[int], expected: list[tuple[int, int, int]]) -> None:
    ranges = [PartitionRange("t", number, 0, size) for number, size in enumerate(sizes)]
    assert spans(split(ranges, options(**given_))) == expected


@given(
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(1, 2**40)), max_size=5),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(2**36, 2**41),
)
def test_parts_are_the_whole(ranges: list[tuple[int, int]], minimum: int | None, maximum: int | None) -> None:
    whole = [PartitionRange("t", number, low, low + size) for number, (low, size) in enumerate(ranges)]
    given_: dict[str, Any] = {"minPartitions": minimum, "maxRecordsPerPartition": maximum}
    parts = split(whole, options(**{name: value for name, value in given_.items() if value is not None}))
    joined: dict[int, list[int]] = {}
    for part in parts:
        assert part.start_offset < part.end_offset
        assert maximum is None or part.end_offset - part.start_offset <= maximum
        span = joined.setdefault(part.partition, [part.start_offset, part.start_offset])
        assert span[1] == part.start_offset
        span[1] = part.end_offset
    assert joined == {records.partition: [records.start_offset, records.end_offset] for records in whole}


def test_plans_of_ten_thousand_partitions_compare_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is linear: one that looks partitions up in a list compares each with thousands of others."""
    compared = 0

    def equal(one: TopicPartition, other: object) -> bool:
        nonlocal compared
        compared += 1
        return tuple.__eq__(one, other)

    monkeypatch.setattr(TopicPartition, "__eq__", equal)
    count = 10_000
    partitions = [TopicPartition("t", number) for number in range(count)]
    wide = options(
        streaming=True,
        failOnDataLoss=False,
        minPartitions=2 * count + 1,
        assign={"t": list(range(count))},
    )
    topic = TopicMetadata(0, {number: PartitionMetadata(0, 1, 0, [1], [1]) for number in range(count)}, UUID(int=2))
    start = Position(dict.fromkeys(partitions, 5), {"t": UUID(int=1).hex}, {})
    end = Position(dict.fromkeys(partitions, 9), {"t": UUID(int=2).hex}, dict.fromkeys(partitions, 2))
    assert planning._partitions(wide.topics, {"t": topic}) == partitions
    limited = limit_position(start, Position.from_json(end.to_json()), count)
    assert limited.offsets == dict.fromkeys(partitions, 3)
    assert count_offsets(start, end) == 7 * count
    assert len(planning._losses(start, end)) == 1
    assert len(plan_micro_batch(wide, start, end)) >= 2 * count
    assert 0 < compared < 10 * count


def test_many_small_ranges_share_tasks() -> None:
    ranges = [PartitionRange("t", number, 0, 10) for number in range(1000)]
    tasks = in_tasks(ranges, options())
    assert [records for task in tasks for records in task] == ranges
    assert (len(tasks), {len(task) for task in tasks}) == (33, {31, 8})
    assert len(in_tasks(ranges, options(minPartitions=100))) == 100
    assert len(in_tasks(ranges, options(minPartitions=2000))) == 1000
    assert {len(task) for task in in_tasks(ranges, options(maxRecordsPerPartition=25))} == {2}
    assert in_tasks(ranges[:32], options()) == [(records,) for records in ranges[:32]]
    assert in_tasks([], options()) == []


def test_large_ranges_are_alone_and_a_task_of_small_ones_is_bounded() -> None:
    small = [PartitionRange("t", number, 0, 60_000) for number in range(100)]
    large = PartitionRange("t", 100, 0, 10**9)
    assert {len(task) for task in in_tasks(small, options())} == {1}
    tiny = [PartitionRange("t", number, 0, 30_000) for number in range(400)]
    assert {len(task) for task in in_tasks(tiny, options())} == {3, 1}
    # A large range does not keep the others apart.
    mixed = in_tasks([*tiny[:200], large, *tiny[200:]], options())
    assert mixed[0] == (large,)
    assert mixed[1:] == in_tasks(tiny, options())


@given(
    st.lists(st.integers(1, 200_000), max_size=200),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1_000, 10**6),
)
def test_tasks_have_every_range_once_and_no_more_than_allowed(
    sizes: list[int], minimum: int | None, maximum: int | None
) -> None:
    whole = [PartitionRange("t", number, 5, 5 + size) for number, size in enumerate(sizes)]
    given_: dict[str, Any] = {"minPartitions": minimum, "maxRecordsPerPartition": maximum}
    chosen = options(**{name: value for name, value in given_.items() if value is not None})
    parts = split(whole, chosen)
    tasks = in_tasks(parts, chosen)
    assert sorted((part.partition, part.start_offset) for task in tasks for part in task) == [
        (part.partition, part.start_offset) for part in parts
    ]
    together = [sum(part.end_offset - part.start_offset for part in task) for task in tasks if len(task) > 1]
    assert max(together, default=0) <= min(maximum or 10**12, planning.TASK_OFFSETS)


# -- positions --------------------------------------------------------------------------------------------------------


def test_a_position_is_json_in_a_fixed_order_and_reads_the_java_connectors() -> None:
    position = Position({B0: 5, A1: 3, A0: 2}, {"b": "02", "a": "01"}, {A1: 1})
    text = json.dumps(position.to_json())
    assert text == (
        '{"a": {"0": 2, "1": 3}, "b": {"0": 5}, "$topicIds": {"a": "01", "b": "02"}, "$begin": {"a": {"1": 1}}}'
    )
    assert Position.from_json(json.loads(text)) == position
    assert Position.from_json({"a": {"0": 2}}) == Position({A0: 2}, {}, {})


def test_a_limit_is_shared_in_proportion_and_nobody_starves() -> None:
    start = Position({A0: 0, A1: 10, B0: 7}, {}, {})
    end = Position({A0: 900, A1: 110, B0: 7}, {}, {})
    assert limit_position(start, end, 100).offsets == {A0: 90, A1: 20, B0: 7}
    assert limit_position(start, end, 1).offsets == {A0: 1, A1: 11, B0: 7}
    assert limit_position(start, end, 10**6).offsets == end.offsets
    assert count_offsets(start, end) == 1000


def test_a_new_partition_counts_from_its_begin() -> None:
    start = Position({A0: 0}, {}, {})
    end = Position({A0: 100, A1: 110}, {}, {A1: 10})
    assert count_offsets(start, end) == 200
    limited = limit_position(start, end, 100)
    assert (limited.offsets, limited.begin) == ({A0: 50, A1: 60}, {A1: 10})
    assert [
        (records.partition, records.start_offset, records.end_offset)
        for records in plan_micro_batch(options(), start, limited)
    ] == [(0, 0, 50), (1, 10, 60)]


def test_the_first_batch_is_planned_from_its_end_alone() -> None:
    """After a restart Spark asks for the initial position anew, and it may have moved (startingOffsets=latest)."""
    end = Position({A0: 20}, {}, {A0: 5})
    moved = Position({A0: 30, A1: 3}, {}, {A0: 30, A1: 3})
    assert spans(plan_micro_batch(options(), moved, end)) == [(0, 5, 20)]
    assert plan_micro_batch(options(), moved, Position({A0: 20}, {}, {A0: 20})) == []


def test_the_java_connectors_uncommitted_first_batch_is_refused() -> None:
    """Its end says 10. Where it begins only that connector has written down; latest has moved to 15 meanwhile."""
    asked_anew = Position({A0: 15}, {"a": "01"}, {A0: 15})
    with pytest.raises(OptionError, match=r'of Spark\'s own Kafka connector, .*format\("kafka"\).*commits/0'):
        plan_micro_batch(options(), asked_anew, Position.from_json({"a": {"0": 10}}))


def test_an_uncommitted_batch_of_the_java_connector_reads_new_partitions_from_their_first_offset() -> None:
    committed, uncommitted = ({"a": {"0": 4}}, {"a": {"0": 10, "1": 3}})
    ranges = plan_micro_batch(options(), Position.from_json(committed), Position.from_json(uncommitted))
    assert spans(ranges) == [(0, 4, 10), (1, 0, 3)]


def test_a_micro_batch_that_would_begin_behind_its_end_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    start, end = Position({A0: 20, A1: 0}, {}, {}), Position({A0: 10, A1: 2}, {}, {})
    told = "partition a-0 ends at 10, but was read up to 20"
    with pytest.raises(DataLoss, match=told):
        plan_micro_batch(options(), start, end)
    assert spans(plan_micro_batch(options(failOnDataLoss=False), start, end)) == [(1, 0, 2)]
    assert told in caplog.text


# -- topics that are missing ------------------------------------------------------------------------------------------

TOLERANT = options(streaming=True, failOnDataLoss=False)
BOTH = Position({A0: 5, A1: 7, B0: 9}, {"a": "01", "b": "02"}, {})
ONLY_B = Position({B0: 9}, {"b": "02"}, {})


@pytest.fixture
def from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """New partitions begin at offset 0; no broker is asked."""
    monkeypatch.setattr(planning, "call", lambda options, work: asyncio.run(work(None)))

    async def list_offsets(client: None, options: ReadOptions, wanted: Mapping[TopicPartition, int]) -> dict:
        return dict.fromkeys(wanted, 0)

    monkeypatch.setattr(planning, "_list_offsets", list_offsets)


def stored(position: Position) -> Position:
    return Position.from_json(json.loads(json.dumps(position.to_json())))


def test_a_topic_that_comes_back_with_its_id_goes_on_where_it_was(
    from_zero: None, caplog: pytest.LogCaptureFixture
) -> None:
    without = stored(with_begin(TOLERANT, BOTH, ONLY_B))
    assert "partition a-0 is gone, its records from offset 5 on cannot be read" in caplog.text
    assert (without.offsets, without.topic_ids, without.begin) == ({B0: 9}, {"b": "02"}, {})
    assert plan_micro_batch(TOLERANT, BOTH, without) == []
    assert (count_offsets(BOTH, without), limit_position(BOTH, without, 1)) == (0, without)
    caplog.clear()
    # It stays away; that was told already.
    still = stored(with_begin(TOLERANT, without, Position({B0: 12}, {"b": "02"}, {}), NOW_MS + 1))
    assert spans(plan_micro_batch(TOLERANT, without, still)) == [(0, 9, 12)]
    assert still.missing == without.missing
    there_again = Position({A0: 50, A1: 7, B0: 12}, BOTH.topic_ids, {})
    back = stored(with_begin(TOLERANT, still, there_again))
    assert back.missing == {}
    assert (count_offsets(still, back), caplog.text) == (45, "")
    assert limit_position(still, back, 10).offsets == {A0: 15, A1: 7, B0: 12}
    assert spans(plan_micro_batch(TOLERANT, still, back)) == [(0, 5, 50)]


def test_a_topic_that_comes_back_with_another_id_is_read_from_its_beginning(
    from_zero: None, caplog: pytest.LogCaptureFixture
) -> None:
    without = with_begin(TOLERANT, BOTH, ONLY_B)
    caplog.clear()
    back = with_begin(TOLERANT, without, Position({A0: 50, B0: 9}, {"a": "03", "b": "02"}, {}))
    assert "topic a was deleted and created again" in caplog.text
    assert (back.begin, back.missing) == ({A0: 0}, {})
    with pytest.raises(DataLoss, match="topic a was deleted and created again"):
        with_begin(options(streaming=True), without, Position({A0: 50, B0: 9}, {"a": "03", "b": "02"}, {}))


def test_a_topic_without_an_id_that_comes_back_is_read_from_its_beginning(from_zero: None) -> None:
    """It may be another one; a record that is read twice is better than one that is not read."""
    no_ids = Position(BOTH.offsets, {}, {})
    without = with_begin(TOLERANT, no_ids, Position({B0: 9}, {}, {}))
    assert without.missing == {}
    assert with_begin(TOLERANT, without, no_ids).begin == {A0: 0, A1: 0}


def test_a_partition_that_is_missing_alone_goes_on_where_it_was(from_zero: None) -> None:
    without = stored(with_begin(TOLERANT, BOTH, Position({A0: 6, B0: 9}, BOTH.topic_ids, {})))
    assert {topic: dict(missing.offsets) for topic, missing in without.missing.items()} == {"a": {1: 7}}
    back = with_begin(TOLERANT, without, Position({A0: 6, A1: 8, B0: 9}, BOTH.topic_ids, {}))
    assert (back.begin, back.missing) == ({A1: 7}, {})
    # Both of them, one after the other.
    neither = stored(with_begin(TOLERANT, without, ONLY_B))
    assert dict(neither.missing["a"].offsets) == {0: 6, 1: 7}
    assert with_begin(TOLERANT, neither, BOTH).begin == {A0: 6, A1: 7}


def test_a_topic_that_comes_back_shorter_than_it_was_is_a_loss(
    from_zero: None, caplog: pytest.LogCaptureFixture
) -> None:
    without = with_begin(TOLERANT, BOTH, ONLY_B)
    shorter = Position({A0: 3, A1: 7, B0: 9}, BOTH.topic_ids, {})
    with pytest.raises(DataLoss, match="partition a-0 ends at 3, but was read up to 5"):
        with_begin(options(streaming=True), without, shorter)
    end = with_begin(TOLERANT, without, shorter)
    assert plan_micro_batch(TOLERANT, without, end) == []
    assert "partition a-0 ends at 3, but was read up to 5" in caplog.text


def test_positions_do_not_grow_for_ever(from_zero: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without = with_begin(TOLERANT, BOTH, ONLY_B)
    week_ms = planning.MISSING_KEPT_MS
    assert with_begin(TOLERANT, without, ONLY_B, NOW_MS + week_ms - 1).missing.keys() == {"a"}
    assert with_begin(TOLERANT, without, ONLY_B, NOW_MS + week_ms).missing == {}
    monkeypatch.setattr(planning, "MISSING_KEPT_PARTITIONS", 2)
    neither = with_begin(TOLERANT, without, NOWHERE, NOW_MS + 1)
    assert neither.missing.keys() == {"b"}, "the one that is missing longest goes first"


# -- with a cluster ---------------------------------------------------------------------------------------------------


def begins_at(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Every partition of every topic answers that its records before this offset were removed."""
    list_offsets = planning._list_offsets

    async def removed(client: ClusterClient, options: ReadOptions, wanted: Mapping[TopicPartition, int]) -> dict:
        found = await list_offsets(client, options, wanted)
        return {
            partition: first if wanted[partition] == EARLIEST_TIMESTAMP else offset
            for partition, offset in found.items()
        }

    monkeypatch.setattr(planning, "_list_offsets", removed)


@pytest.fixture
def filled(cluster: Cluster, topic: MakeTopic) -> str:
    """A topic with offsets 0 to 9 in partition 0 and 0 to 4 in partition 1; timestamps are 1000 + value."""
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(10), *numbered(5, partition=1, first=10)])
    return name


def test_a_plan_has_everything_and_the_topic_id(cluster: Cluster, filled: str) -> None:
    ranges = plan_batch(options(cluster.bootstrap, subscribe=filled))
    assert spans(ranges) == [(0, 0, 10), (1, 0, 5)]
    ids = {records.topic_id for records in ranges}
    assert len(ids) == 1
    assert all(topic_id is not None and len(topic_id) == 32 for topic_id in ids)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"startingOffsets": {"0": 3, "1": -2}}, [(0, 3, 10), (1, 0, 5)]),
        ({"endingOffsets": {"0": -1, "1": 2}}, [(0, 0, 10), (1, 0, 2)]),
        ({"startingOffsets": {"0": 10, "1": 4}}, [(1, 4, 5)]),
        ({"startingOffsetsByTimestamp": {"0": 1004, "1": 1012}}, [(0, 4, 10), (1, 2, 5)]),
        ({"endingOffsetsByTimestamp": {"0": 1004, "1": 9999}}, [(0, 0, 4), (1, 0, 5)]),
        ({"startingTimestamp": 1008}, [(0, 8, 10), (1, 0, 5)]),
        ({"endingTimestamp": 1008}, [(0, 0, 8)]),
        ({"startingTimestamp": 1012, "startingOffsetsByTimestampStrategy": "latest"}, [(1, 2, 5)]),
        ({"minPartitions": 3}, [(0, 0, 5), (0, 5, 10), (1, 0, 5)]),
    ],
)
def test_where_a_batch_begins_and_ends(
    cluster: Cluster, filled: str, given_: dict[str, Any], expected: list[tuple[int, int, int]]
) -> None:
    given_ = {name: {filled: value} if isinstance(value, dict) else value for name, value in given_.items()}
    assert spans(plan_batch(options(cluster.bootstrap, subscribe=filled, **given_))) == expected


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_batch_that_begins_behind_the_end_is_a_loss(
    cluster: Cluster, filled: str, caplog: pytest.LogCaptureFixture, isolation: str
) -> None:
    """Who keeps offsets himself, and whose topic was replaced, must not believe that there is nothing new."""
    given_: dict[str, Any] = {
        "subscribe": filled,
        "startingOffsets": {filled: {"0": 3, "1": 6}},
        "kafka.isolation.level": isolation,
    }
    told = f"partition {filled}-1 ends at 5, but is to be read from 6"
    with pytest.raises(DataLoss, match=f"{told}; .*failOnDataLoss=false"):
        plan_batch(options(cluster.bootstrap, **given_))
    assert spans(plan_batch(options(cluster.bootstrap, **given_, failOnDataLoss=False))) == [(0, 3, 10)]
    assert told in caplog.text


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (
            {"startingOffsets": {"0": 3, "1": 5}, "endingTimestamp": 1012},
            "begins at 5 (startingOffsets) and ends at 2 (endingTimestamp)",
        ),
        (
            {"startingTimestamp": 1012, "endingTimestamp": 1010, "startingOffsetsByTimestampStrategy": "latest"},
            "begins at 2 (startingTimestamp) and ends at 0 (endingTimestamp)",
        ),
    ],
)
def test_a_batch_that_would_end_before_it_begins_is_an_error(
    cluster: Cluster, filled: str, given_: dict[str, Any], told: str
) -> None:
    given_ = {name: {filled: value} if isinstance(value, dict) else value for name, value in given_.items()}
    with pytest.raises(OptionError, match=re.escape(f"{filled}-1 {told}")):
        plan_batch(options(cluster.bootstrap, subscribe=filled, **given_))


def test_records_before_a_chosen_end_that_were_removed_are_a_loss(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begins_at(monkeypatch, 5)
    given_: dict[str, Any] = {
        "subscribe": filled,
        "startingOffsets": {filled: {"0": 0, "1": -2}},
        "endingOffsets": {filled: {"0": 10, "1": 4}},
    }
    told = f"partition {filled}-1 begins at 5, but is to be read up to 4"
    with pytest.raises(DataLoss, match=f"{told}; .*failOnDataLoss=false"):
        plan_batch(options(cluster.bootstrap, **given_))
    assert spans(plan_batch(options(cluster.bootstrap, **given_, failOnDataLoss=False))) == [(0, 0, 10)]
    assert told in caplog.text


def test_a_timestamp_that_no_record_reaches_is_an_error_unless_wanted(cluster: Cluster, filled: str) -> None:
    with pytest.raises(OptionError, match=f"{filled}-0 has no record at or after 1012; .*Strategy=latest"):
        plan_batch(options(cluster.bootstrap, subscribe=filled, startingTimestamp=1012))


def test_topics_are_chosen_by_name_pattern_or_partition(cluster: Cluster, topic: MakeTopic) -> None:
    first, second = topic(), topic()
    for name in (first, second):
        produce(cluster.bootstrap, name, numbered(1))
    both = options(cluster.bootstrap, subscribe=f"{second},{first}")
    assert [records.topic for records in plan_batch(both)] == sorted([first, second])
    pattern = options(cluster.bootstrap, subscribePattern=f"{first}|{second[:-1]}[{second[-1]}]")
    assert [records.topic for records in plan_batch(pattern)] == sorted([first, second])
    assert spans(plan_batch(options(cluster.bootstrap, assign={first: [0]}))) == [(0, 0, 1)]


def test_a_topic_or_partition_that_does_not_exist(
    cluster: Cluster, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MISSING_TIMEOUT_MS", 1)
    with pytest.raises(KafkaError, match="there is no topic nowhere") as caught:
        plan_batch(options(cluster.bootstrap, subscribe="nowhere"))
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert plan_batch(options(cluster.bootstrap, subscribePattern="no such topic")) == []
    name = topic(partitions=2)
    with pytest.raises(OptionError, match=f"has {name}-7, but topic {name} has 2 partitions"):
        plan_batch(options(cluster.bootstrap, assign={name: [7]}))
    with pytest.raises(OptionError, match=f"must name exactly the partitions that are read.*: {name}-1"):
        plan_batch(options(cluster.bootstrap, subscribe=name, startingOffsets={name: {"0": 0}}))


def test_positions_of_a_stream(cluster: Cluster, filled: str) -> None:
    earliest = options(cluster.bootstrap, streaming=True, subscribe=filled, startingOffsets="earliest")
    p0, p1 = TopicPartition(filled, 0), TopicPartition(filled, 1)
    start = planning.initial_position(earliest)
    assert (start.offsets, start.is_initial) == ({p0: 0, p1: 0}, True)
    end = with_begin(earliest, start, planning.latest_position(earliest, start))
    assert (end.offsets, end.begin) == ({p0: 10, p1: 5}, {p0: 0, p1: 0})
    assert end.topic_ids == start.topic_ids != {}
    produce(cluster.bootstrap, filled, numbered(1, partition=1))
    more = with_begin(earliest, end, planning.latest_position(earliest, end))
    assert (more.offsets, more.begin) == ({p0: 10, p1: 6}, {})
    assert spans(plan_micro_batch(earliest, end, more)) == [(1, 5, 6)]
    latest = planning.initial_position(options(cluster.bootstrap, streaming=True, subscribe=filled))
    assert latest.offsets == {p0: 10, p1: 6}


def test_new_partitions_are_read_from_their_first_record(cluster: Cluster, filled: str) -> None:
    latest_only = options(cluster.bootstrap, streaming=True, subscribe=filled, startingOffsets="latest")
    start = Position({TopicPartition(filled, 0): 10}, {}, {})
    end = with_begin(latest_only, start, planning.latest_position(latest_only, start))
    assert end.begin == {TopicPartition(filled, 1): 0}
    assert spans(plan_micro_batch(latest_only, start, end)) == [(1, 0, 5)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_was_created_anew_is_a_loss(cluster: Cluster, topic: MakeTopic, fails: bool) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    given_ = options(
        cluster.bootstrap, streaming=True, subscribe=name, startingOffsets="earliest", failOnDataLoss=fails
    )
    start = planning.latest_position(given_, NOWHERE)
    cluster.delete_topic(name)
    cluster.create_topic(name)
    # As many as before: only the id tells.
    produce(cluster.bootstrap, name, numbered(3, first=10))
    latest = planning.latest_position(given_, start)
    if fails:
        with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again; .*failOnDataLoss=false"):
            with_begin(given_, start, latest)
    else:
        assert spans(plan_micro_batch(given_, start, with_begin(given_, start, latest))) == [(0, 0, 3)]


@pytest.mark.parametrize("chosen", ["subscribe", "subscribePattern"])
def test_a_broker_that_was_just_started_and_knows_no_topic_is_asked_again(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    refresh = ClusterClient.refresh_metadata
    ignorant = []

    async def refresh_metadata(
        client: ClusterClient, topics: Iterable[str] | None = None, *, elsewhere: bool = False
    ) -> ClusterMetadata:
        assert elsewhere == bool(ignorant), "who knew nothing is asked again"
        metadata = await refresh(client, topics)
        if len(ignorant) < 5:
            ignorant.append(topics)
            metadata.topics = {}
        return metadata

    monkeypatch.setattr(ClusterClient, "refresh_metadata", refresh_metadata)
    assert spans(plan_batch(read(cluster.bootstrap, {chosen: filled}))) == [(0, 0, 10), (1, 0, 5)]
    ignorant.clear()
    stream = read(cluster.bootstrap, {chosen: filled}, streaming=True)
    start = Position({TopicPartition(filled, 0): 10, TopicPartition(filled, 1): 5}, {}, {})
    assert planning.latest_position(stream, start).offsets == start.offsets


@pytest.mark.parametrize("chosen", ["subscribe", "subscribePattern"])
def test_a_loss_is_not_believed_because_brokers_were_gone_before(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """The client itself waits for brokers, and then the first that is there again knows no topic yet."""
    refresh = ClusterClient.refresh_metadata
    asked = []

    async def refresh_metadata(
        client: ClusterClient, topics: Iterable[str] | None = None, *, elsewhere: bool = False
    ) -> ClusterMetadata:
        asked.append(elsewhere)
        if len(asked) == 1:
            await asyncio.sleep(2 * planning.MISSING_TIMEOUT_MS / 1000)
        metadata = await refresh(client, topics)
        if len(asked) < 3:
            metadata.topics = {}
        return metadata

    monkeypatch.setattr(planning, "MISSING_TIMEOUT_MS", 400)
    monkeypatch.setattr(ClusterClient, "refresh_metadata", refresh_metadata)
    assert spans(plan_batch(read(cluster.bootstrap, {chosen: filled}))) == [(0, 0, 10), (1, 0, 5)]
    asked.clear()
    impatient = read(cluster.bootstrap, {chosen: filled, "fetchOffset.numRetries": 0}, streaming=True)
    start = Position({TopicPartition(filled, 0): 10, TopicPartition(filled, 1): 5}, {}, {})
    assert planning.latest_position(impatient, start).offsets == start.offsets


def test_records_of_a_new_partition_that_were_removed_are_a_loss(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begins_at(monkeypatch, 3)
    start = Position({TopicPartition(filled, 0): 10}, {}, {})
    given_ = options(cluster.bootstrap, streaming=True, subscribe=filled)
    latest = planning.latest_position(given_, start)
    told = f"partition {filled}-1 is new, but its records before offset 3 were removed"
    with pytest.raises(DataLoss, match=f"{told}; .*failOnDataLoss=false"):
        with_begin(given_, start, latest)
    goes_on = options(cluster.bootstrap, streaming=True, subscribe=filled, failOnDataLoss="false")
    end = with_begin(goes_on, start, latest)
    assert spans(plan_micro_batch(goes_on, start, end)) == [(1, 3, 5)]
    assert told in caplog.text


def test_a_topic_that_is_gone_is_a_loss_after_a_while(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MISSING_TIMEOUT_MS", 1)
    given_ = options(cluster.bootstrap, streaming=True, subscribe=filled)
    start = planning.latest_position(given_, NOWHERE)
    cluster.delete_topic(filled)
    latest = planning.latest_position(given_, start)
    assert latest.offsets == {}
    with pytest.raises(DataLoss, match=f"partition {filled}-0 is gone"):
        with_begin(given_, start, latest)


def test_a_topic_that_is_deleted_between_two_questions_is_a_loss(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = planning._describe
    described = []

    async def deleting(*arguments: Any, **named: Any) -> object:
        described.append(await describe(*arguments, **named))
        if len(described) == 1:
            cluster.delete_topic(filled)
        return described[-1]

    given_ = options(cluster.bootstrap, streaming=True, subscribe=filled, **{"kafka.default.api.timeout.ms": 5000})
    start = planning.latest_position(given_, NOWHERE)
    monkeypatch.setattr(planning, "MISSING_TIMEOUT_MS", 300)
    monkeypatch.setattr(planning, "_describe", deleting)
    latest = planning.latest_position(given_, start)
    with pytest.raises(DataLoss, match=f"partition {filled}-0 is gone"):
        with_begin(given_, start, latest)
    assert [sorted(topics) for topics in described[:2]] == [[filled], []]


def test_what_is_gone_is_a_loss(cluster: Cluster, filled: str, caplog: pytest.LogCaptureFixture) -> None:
    given_ = options(cluster.bootstrap, streaming=True, subscribe=filled, **{"fetchOffset.retryIntervalMs": 1})
    latest = planning.latest_position(given_, NOWHERE)
    for offsets, told in (
        ({TopicPartition(filled, 5): 1}, f"partition {filled}-5 is gone, its records from offset 1 on"),
        ({TopicPartition(filled, 0): 99}, f"partition {filled}-0 ends at 10, but was read up to 99"),
    ):
        with pytest.raises(DataLoss, match=told):
            with_begin(given_, Position(offsets, {}, {}), latest)
        goes_on = options(cluster.bootstrap, streaming=True, subscribe=filled, failOnDataLoss="false")
        with_begin(goes_on, Position(offsets, {}, {}), latest)
        assert told in caplog.text


def test_who_knows_only_a_former_leader_is_not_asked_for_the_leader_again(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, connection_to = ClusterClient._refresh, ClusterClient.connection_to
    asked = []

    async def refresh_metadata(client: ClusterClient, topics: Sequence[str] | None, *, elsewhere: bool) -> None:
        asked.append(elsewhere)
        await refresh(client, topics, elsewhere=False)

    async def connected(client: ClusterClient, broker: int) -> object:
        if len(asked) < 2:
            raise ConnectFailed("gone")
        return await connection_to(client, broker)

    monkeypatch.setattr(ClusterClient, "_refresh", refresh_metadata)
    monkeypatch.setattr(ClusterClient, "connection_to", connected)
    assert spans(plan_batch(options(cluster.bootstrap, subscribe=filled))) == [(0, 0, 10), (1, 0, 5)]
    assert asked == [False, True]


def test_a_plan_survives_the_death_of_a_leader(klamm_cluster_factory: Callable[..., Cluster]) -> None:
    cluster = klamm_cluster_factory(2, zookeeper_session_timeout_ms=1000, properties={"log.retention.ms": -1})
    cluster.create_topic("t", partitions=2, replication_factor=2)
    produce(cluster.bootstrap, "t", [*numbered(3), *numbered(4, partition=1)])
    given_ = options(cluster.bootstrap)
    # Now the client knows the leaders, one of which it will not find again.
    assert spans(plan_batch(given_)) == [(0, 0, 3), (1, 0, 4)]
    cluster.kill(present(cluster.leader("t", 0)))
    assert spans(plan_batch(given_)) == [(0, 0, 3), (1, 0, 4)]
