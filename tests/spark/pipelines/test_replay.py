"""An archive back into topics, also by programs that die."""

import os
import signal
from contextlib import suppress
from itertools import count, pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.client.cluster import ClusterClient
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.spark.options import OptionError
from klamm.spark.pipelines import replay as replaying
from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.commit_log import ArchiveError
from klamm.spark.pipelines.offset_runs import offset_map
from klamm.spark.pipelines.replay import (
    Progress,
    ReplayError,
    _batches,
    _log_end,
    _write_rows,
    replay,
)
from support.scripted_broker import ScriptedBroker
from support.spark.archiving import in_topic, one_process
from support.spark.producing import numbered, produce

RECORDS: list[dict[str, Any]] = [
    {"value": None, "key": b"", "partition": 0, "timestamp": 1},
    {"value": b"", "key": None, "partition": 0, "timestamp": 1, "headers": [("h", None), ("h", b"\x00")]},
    *numbered(45, partition=2),
]


@pytest.fixture
def archived(cluster, topic, tmp_path):
    """A topic with `RECORDS` and its archive."""
    name = topic(partitions=3, **{"retention.bytes": 1_000_000})
    produce(cluster.bootstrap, name, RECORDS)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}
    archive(one_process(), str(tmp_path / "archive"), given, offsets_per_file=20)
    return name


def run(cluster, tmp_path, topics, spark=None, output="output", options=None, **arguments):
    given = {"kafka.bootstrap.servers": cluster.bootstrap, **(options or {})}
    spark = spark or one_process()
    return replay(spark, str(tmp_path / "archive"), str(tmp_path / output), given, topics=topics, **arguments)


def test_everything_but_the_offsets_is_the_same(cluster, archived, topic, tmp_path):
    target = topic(partitions=4)
    produce(cluster.bootstrap, target, numbered(5, partition=2))
    told = []
    assert run(cluster, tmp_path, {archived: target}, on_progress=told.append).records == 47
    assert told == [Progress(0, 47), Progress(47, 47)]
    moved = [(number, offset + 5 * (number == 2), *rest) for number, offset, *rest in in_topic(cluster, archived)]
    assert [row for row in in_topic(cluster, target) if (row[0] != 2 or row[1] >= 5)] == moved
    runs = [tuple(row.values()) for row in offset_map(str(tmp_path / "output")).to_pylist()]
    assert runs == [(target, 0, 0, 0, 2), (target, 2, 0, 5, 45)]
    # Again: nothing is left to do.
    before = in_topic(cluster, target)
    assert run(cluster, tmp_path, None).records == 47
    assert in_topic(cluster, target) == before


def test_on_spark_into_a_topic_that_is_created(spark, cluster, archived, tmp_path):
    target = f"{archived}-again"
    run(cluster, tmp_path, {archived: target}, spark=spark)
    assert in_topic(cluster, target) == in_topic(cluster, archived)
    assert target in cluster.topics()


def killed(cluster, tmp_path, target, where):
    """Replays in a process of its own that is killed when it calls what `where` names."""
    child = os.fork()
    if child == 0:
        with patch(where, side_effect=lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)):
            run(cluster, tmp_path, target)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "where",
    [
        "klamm.spark.pipelines.replay._pieces",
        "klamm.spark.pipelines.replay._write_rows",
        "klamm.spark.write.writing.RecordWriter.end_offset",
        "klamm.spark.pipelines.replay._write_offsets",
    ],
)
def test_killed_and_gone_on_with(cluster, archived, topic, tmp_path, where):
    target = topic(partitions=3)
    killed(cluster, tmp_path, {archived: target}, where)
    run(cluster, tmp_path, {archived: target})
    assert in_topic(cluster, target) == in_topic(cluster, archived)


def test_a_file_that_was_written_in_part(cluster, archived, topic, tmp_path):
    target = topic(partitions=3)
    every_batch = replaying._batches

    def first_row(*arguments):
        yield next(every_batch(*arguments)).slice(0, 1)

    with (
        patch("klamm.spark.pipelines.replay._batches", first_row),
        pytest.raises(ReplayError, match="ends at offset 1"),
    ):
        run(cluster, tmp_path, {archived: target})
    run(cluster, tmp_path, {archived: target})
    assert in_topic(cluster, target) == in_topic(cluster, archived)


@pytest.mark.parametrize(("others", "message"), [(1, "other records than those of the archive"), (21, "21 records")])
def test_records_of_another_program_are_found_out(cluster, archived, topic, tmp_path, others, message):
    target = topic(partitions=3)
    with (
        patch("klamm.spark.pipelines.replay._write_rows", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run(cluster, tmp_path, {archived: target})
    produce(cluster.bootstrap, target, numbered(others, partition=2, first=100))
    with pytest.raises(ReplayError, match=message):
        run(cluster, tmp_path, {archived: target})


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_programs_at_once(cluster, archived, topic, tmp_path):
    target = topic(partitions=3)
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        run(
            cluster,
            tmp_path,
            {archived: target},
            on_progress=lambda each: each.records_done or (os.write(ready[1], b"."), os.read(go_on[0], 1)),
        )
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(ReplayError, match=f"another program replays to {tmp_path}/output at this moment"):
        run(cluster, tmp_path, {archived: target})
    os.write(go_on[1], b".")
    assert os.waitpid(child, 0)[1] == 0
    assert in_topic(cluster, target) == in_topic(cluster, archived)


@pytest.mark.parametrize("stalled", [0, 1, 3])
def test_a_task_that_outlives_its_driver_writes_nothing_twice(cluster, archived, topic, tmp_path, stalled):
    """It has seen how far a partition had come, and sends the rest when another attempt has sent it, and more."""
    target, calls = topic(partitions=3), []

    def stalls(*arguments):
        calls.append(arguments)
        if len(calls) > stalled:
            raise KeyboardInterrupt
        _write_rows(*arguments)

    with patch("klamm.spark.pipelines.replay._write_rows", stalls), pytest.raises(KeyboardInterrupt):
        run(cluster, tmp_path, {archived: target})
    run(cluster, tmp_path, {archived: target})
    with suppress(KafkaError, ReplayError):
        _write_rows(*calls[-1])
    assert in_topic(cluster, target) == in_topic(cluster, archived)


def test_two_attempts_at_the_same_time_write_nothing_twice(cluster, archived, topic, tmp_path):
    """The second goes on behind what the first has sent when it looks; then the first sends more."""
    target, calls = topic(partitions=3), []

    def stalls(*arguments):
        calls.append(arguments)
        raise KeyboardInterrupt

    with patch("klamm.spark.pipelines.replay._write_rows", stalls), pytest.raises(KeyboardInterrupt):
        run(cluster, tmp_path, {archived: target})
    options, producer, rate, piece, path, done = calls[0]
    assert done == 0
    for skip, rows in (0, 7), (7, 5):
        batch = next(_batches(path, skip)).slice(0, rows)
        with (
            patch("klamm.spark.pipelines.replay._batches", return_value=iter([batch])),
            pytest.raises(ReplayError, match=f"ends at offset {skip + rows}, and not at 20"),
        ):
            _write_rows(options, producer, rate, piece, path, skip)
    with pytest.raises(KafkaError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        _write_rows(options, producer, rate, piece, path, 7)
    run(cluster, tmp_path, {archived: target})
    assert in_topic(cluster, target) == in_topic(cluster, archived)


def test_a_partition_that_does_not_come_to_rest(cluster, archived, topic, tmp_path):
    target = topic(partitions=3)
    ends = count(0)

    async def grows(*_):
        return next(ends)

    with (
        patch("klamm.spark.pipelines.replay._log_end", grows),
        patch("klamm.spark.pipelines.replay._SETTLE_TIMEOUT_S", 0.3),
        pytest.raises(ReplayError, match=f"{target}-2 ends at offset .* another program writes to it, or a replica"),
    ):
        run(cluster, tmp_path, {archived: target})


@pytest.mark.parametrize("replica_id", [-1, -2])
async def test_the_end_of_a_broker_that_leads_no_more_does_not_count(replica_id):
    """A follower of Kafka tells a debugging consumer where its own log ends, unless the leader epoch is another."""
    current = 4
    list_offsets, described = messages.response_class(ApiKey.LIST_OFFSETS), messages.response_class(ApiKey.METADATA)
    topic_class = described.MetadataResponseTopic

    def answer(asked):
        nonlocal current
        _, header, body = asked
        if header.api_key is ApiKey.METADATA:
            partition = topic_class.MetadataResponsePartition(
                error_code=0, partition_index=0, leader_id=0, leader_epoch=current, replica_nodes=[0], isr_nodes=[0]
            )
            # The election comes after the first answer.
            current = 5
            return described(
                cluster_id="c",
                controller_id=0,
                brokers=[described.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=broker.port, rack=None)],
                topics=[topic_class(error_code=0, name="t", is_internal=False, partitions=[partition])],
            )
        (wanted,) = body.topics[0].partitions
        assert body.replica_id == replica_id
        code = ErrorCode.NONE if wanted.current_leader_epoch in (-1, current) else ErrorCode.FENCED_LEADER_EPOCH
        found = list_offsets.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
            partition_index=0, error_code=code, offset=wanted.current_leader_epoch
        )
        return list_offsets(
            topics=[list_offsets.ListOffsetsTopicResponse(name="t", partitions=[found])],
        )

    async with ScriptedBroker(answer) as broker:
        client = ClusterClient([("127.0.0.1", broker.port)])
        try:
            assert await _log_end(client, "t", 0, replica_id) == 5
        finally:
            await client.close()


def test_a_row_group_at_a_time_is_read(tmp_path):
    """10,000 rows of 1 MB are more than the memory."""
    path, batch = tmp_path / "file", pa.record_batch({"value": [b"x"] * 10})
    with pq.ParquetWriter(path, batch.schema) as writer:
        for _ in range(5):
            writer.write_batch(batch)
    assert [found.num_rows for found in _batches(str(path), 15, ["value"])] == [5, 10, 10, 10]


def test_another_program_writes_meanwhile(cluster, archived, topic, tmp_path):
    target = topic(partitions=3)
    end = "klamm.spark.pipelines.replay._end"

    async def too_early(client, *, piece):
        return piece.new_offset

    async def zeros(client, *, target, numbers):
        return dict.fromkeys(numbers, 0)

    produce(cluster.bootstrap, target, [])
    with patch(end, too_early), patch("klamm.spark.pipelines.replay._begins", zeros):
        produce(cluster.bootstrap, target, numbered(1))
        with pytest.raises(
            ReplayError, match=f"{target}-0 ends at offset 3, and not at 2: another program writes to it"
        ):
            run(cluster, tmp_path, {archived: target})


def test_groups_go_on_where_they_were(cluster, archived, topic, tmp_path):
    target, group = topic(partitions=3), f"group-of-{archived}"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(archived, 2, 23), TopicPartition(archived, 1, 0)], asynchronous=False)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": archived}
    archive(one_process(), str(tmp_path / "archive"), given, offsets_per_file=20)
    produce(cluster.bootstrap, target, numbered(5, partition=2))
    produce(cluster.bootstrap, target, numbered(3, partition=1))
    replayed = run(cluster, tmp_path, {archived: target}, commit_groups=True)
    # Partition 1 has no record in the archive.
    assert (replayed.groups, replayed.refused) == ({group: {target: {1: 3, 2: 28}}}, {})
    committed = consumer.committed([TopicPartition(target, 1), TopicPartition(target, 2)], timeout=120)
    consumer.close()
    assert [each.offset for each in committed] == [3, 28]


def test_offsets_of_a_topic_that_was_created_again_are_not_translated(cluster, archived, topic, tmp_path):
    """The archive goes on between the death of a replay and its end."""
    target, group = topic(partitions=3), f"group-of-{archived}"
    with (
        patch("klamm.spark.pipelines.replay._write_rows", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run(cluster, tmp_path, {archived: target})
    cluster.delete_topic(archived)
    cluster.create_topic(archived, partitions=3)
    produce(cluster.bootstrap, archived, numbered(40, partition=2))
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(archived, 2, 30)], asynchronous=False)
    consumer.close()
    archive(
        one_process(), str(tmp_path / "archive"), {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": archived}
    )
    told = []
    replayed = run(cluster, tmp_path, None, commit_groups=True, on_warning=told.append)
    assert replayed.groups == {}
    assert told == [f"the offsets of groups are not translated for topic {archived}, which was created again since"]


def test_a_rate(cluster, archived, topic, tmp_path):
    target = topic(partitions=3)
    slept = []

    async def sleep_until(client, *, time):
        slept.append(time)

    with patch("klamm.spark.pipelines.replay._sleep_until", sleep_until):
        run(cluster, tmp_path, {archived: target}, max_records_per_second=100)
    assert in_topic(cluster, target) == in_topic(cluster, archived)
    # Two partitions have records and the third none: 100 / 2 a second, in tenths of a second. The larger one is first.
    assert [round(b - a, 6) for a, b in pairwise(slept[:4])] == [0.1, 0.1, 0.1]


def test_a_partition_that_is_left_gets_the_whole_rate(cluster, archived, topic, tmp_path):
    target, steps = topic(partitions=3), []

    async def sleep_until(client, *, time):
        steps.append(time)

    with (
        patch("klamm.spark.pipelines.replay._sleep_until", sleep_until),
        patch("klamm.spark.pipelines.replay.ROUND_BYTES", 1),
    ):
        run(cluster, tmp_path, {archived: target}, max_records_per_second=100)
    assert in_topic(cluster, target) == in_topic(cluster, archived)
    # In tenths of a second: 2 and 20 records at 50 a second each, then files of 20 and 5 records at 100 a second.
    assert len(steps) == (1 + 4) + 2 + 1


def test_what_is_refused(cluster, archived, topic, tmp_path):
    with pytest.raises(OptionError, match=f"the archive has no topic x; it has {archived}"):
        run(cluster, tmp_path, {"x": "y"})
    small = topic()
    with pytest.raises(OptionError, match=f"topic {small} has 1 partitions; the archive has records of partition 2"):
        run(cluster, tmp_path, {archived: small})
    with pytest.raises(OptionError, match="max_records_per_second is 0; allowed: 1 and more"):
        run(cluster, tmp_path, None, max_records_per_second=0)
    for weaker in ({"kafka.acks": "1"}, {"kafka.acks": "0"}, {"kafka.enable.idempotence": "false"}):
        with pytest.raises(OptionError, match=r"a replay writes each record once, which needs kafka\.acks=all"):
            run(cluster, tmp_path, {archived: topic(partitions=3)}, options=weaker)
    (tmp_path / "output" / "plan.json").write_text("[]")
    with pytest.raises(ArchiveError, match=r"plan\.json is no plan of a replay"):
        run(cluster, tmp_path, None)
