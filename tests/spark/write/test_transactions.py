"""Each row exactly once: tasks that Spark repeats, zombies, drivers that die, transactions that time out.

The brokers are klamm's, and Apache Kafka 2.8.2 in the long tests; a consumer of librdkafka reads with read_committed.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import TaskContext

from klamm.client import threads
from klamm.client.producer.prepared_transactions import TransactionGone, require_prepared
from klamm.net.client import UnsupportedVersion
from klamm.protocol.error_codes import KafkaError
from klamm.spark.files import FilesError
from klamm.spark.options import OptionError, write_options
from klamm.spark.write import transactions
from klamm.spark.write.sink import Written
from klamm.spark.write.transaction_log import TransactionLog
from klamm.spark.write.transactions import MissingTransactions, NotWritten
from klamm.spark.write.writing import RecordWriter, record_writer
from klamm.testing.cluster import Cluster
from support.oracles import RealKafka
from support.present import present
from support.spark.kafka_broker import WITH_TRANSACTIONS, running_with_transactions
from support.spark.transactional_writes import (
    Query,
    attempt,
    committed_values,
    killed_at,
    wait_for_values,
    within_task,
)

NewQuery = Callable[..., Query]
MAX_TIMEOUT_MS = 60_000
# What a task of one row returns whose micro-batch is recorded.
LEFT = Written(1, is_recorded=True)
A, B, C = ["a1", "a2", "a3"], ["b1"], ["c1", "c2"]


@pytest.fixture(scope="module", params=WITH_TRANSACTIONS)
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka | Cluster]:
    directory = tmp_path_factory.mktemp("with-transactions")
    with running_with_transactions(request, directory, **{"transaction.max.timeout.ms": MAX_TIMEOUT_MS}) as running:
        yield running


_names = count()


@pytest.fixture
def new_query(brokers: RealKafka | Cluster, tmp_path: Path) -> NewQuery:
    def make(**options: object) -> Query:
        topic = f"once-{next(_names)}"
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
        return Query(brokers.bootstrap, topic, tmp_path / topic, **{"kafka.transaction.timeout.ms": 30_000, **options})

    return make


def values(query: Query) -> list[str]:
    return committed_values(query.options["kafka.bootstrap.servers"], query.options["topic"])


# -- without faults ---------------------------------------------------------------------------------------------------


def test_rows_are_visible_when_the_driver_has_committed_and_the_transactional_ids_are_used_again(
    new_query: NewQuery,
) -> None:
    query = new_query()
    ids = []
    for batch in range(3):
        planned = query.writer()
        messages = [
            attempt(planned, batch, number, [f"{batch}-{row}" for row in rows]) for number, rows in enumerate((A, B))
        ]
        ids.append([each.prepared.transaction.transactional_id for each in messages if each.prepared])
        assert values(query) == sorted(f"{before}-{row}" for before in range(batch) for row in A + B)
        query.commit(batch, messages)
        assert query.recorded == [f"{batch}.ended".lstrip("0"), f"{batch}.json".lstrip("0")]
    assert values(query) == sorted(f"{batch}-{row}" for batch in range(3) for row in A + B)
    name = query.options["topic"]
    assert ids == [[f"tx-{name}-0-0", f"tx-{name}-1-0"]] * 3


def test_a_task_without_rows_has_no_transaction_and_a_micro_batch_without_rows_no_record(new_query: NewQuery) -> None:
    query = new_query()
    planned = query.writer()
    assert attempt(planned, 0, 0, []) == Written(0)
    assert attempt(planned, 0, 0, [], number=1) == Written(0, None, 1)
    query.run(0, [[], []])
    assert query.recorded == []
    query.run(1, [[], A])
    assert query.recorded == ["1.ended", "1.json"]
    assert values(query) == A


def test_a_batch_write_is_done_once_for_its_checkpoint(new_query: NewQuery, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, because the rows may be new."""
    query = new_query()

    def write(rows: list[str]) -> None:
        planned = query.batch_writer()
        query.batch_writer().commit([attempt(planned, 0, number, [row]) for number, row in enumerate(rows)])

    write(A)
    assert caplog.messages == []
    write(["1", "2", "3"])
    assert caplog.messages == [
        f"option checkpointLocation: {query.batch_checkpoint} is that of a batch write that is in the topic; these 3"
        " rows are not written again. If they are new, give them a directory of their own"
    ]
    with pytest.raises(OptionError) as told:
        write(C)
    assert str(told.value) == (
        f"option checkpointLocation: {query.batch_checkpoint} is that of a batch write of 3 rows, which are in the"
        " topic; of these 2 rows none is written: each query and each batch write needs its own"
    )
    assert values(query) == A


def test_a_batch_write_with_the_checkpoint_of_another_one_is_refused(new_query: NewQuery) -> None:
    """It would write nothing."""
    query = new_query()
    query.batch_writer().commit([attempt(query.batch_writer(), 0, 0, A)])
    for other in ({"topic": "another"}, {"kafka.transactional.id": "another"}):
        changed = Query("", "", query.checkpoint)
        changed.options = {**query.options, **other}
        with pytest.raises(
            OptionError,
            match=r"is that of another write \(tx-once-\d+-0-0 .*each query and each batch write needs its own",
        ):
            changed.batch_writer()


def test_a_batch_write_whose_id_begins_that_of_the_checkpoints_write_is_refused(new_query: NewQuery) -> None:
    query = new_query()
    longer = Query("", "", query.checkpoint)
    longer.options = {**query.options, "kafka.transactional.id": f"{query.options['kafka.transactional.id']}-2"}
    longer.batch_writer().commit([attempt(longer.batch_writer(), 0, 0, A)])
    with pytest.raises(OptionError, match="is that of another write"):
        query.batch_writer()


def test_a_checkpoint_serves_one_query_or_one_batch_write(new_query: NewQuery) -> None:
    """The other one would take its own micro-batch 0 for the recorded one, and write nothing."""
    query = new_query()
    query.run(0, [A])
    query.batch_checkpoint = query.checkpoint
    with pytest.raises(OptionError, match="is that of a query; each query and each batch write needs its own"):
        query.batch_writer()
    (query.checkpoint / "metadata").write_text('{"id":"of-a-new-query"}')
    with pytest.raises(OptionError, match="has the transactions of another query"):
        query.writer()

    write = new_query()
    write.batch_writer().commit([attempt(write.batch_writer(), 0, 0, A)])
    later = Query("", "", write.batch_checkpoint)
    later.options = {**write.options, "checkpointLocation": str(write.batch_checkpoint)}
    with pytest.raises(OptionError, match="has the transactions of a batch write"):
        later.writer()


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_micro_batch_that_is_recorded_at_other_brokers_is_neither_written_nor_taken_for_written(
    new_query: NewQuery, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """There the same transactional id, producer id and epoch are another transaction."""
    query = new_query()
    query.run(0, [A])
    if is_ended:
        query.run(1, [B])
    else:
        with monkeypatch.context() as patch:
            patch.setattr("klamm.spark.write.transactions._end", _raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                query.run(1, [B])
    record = query.checkpoint / "transactions" / "batches" / f"{1:020}.json"
    ours = json.loads(record.read_text())
    record.write_text(json.dumps({**ours, "cluster": "elsewhere"}))
    for _ in range(2):
        with pytest.raises(
            OptionError, match=r"micro-batch 1 is recorded for cluster elsewhere, and these brokers are cluster \S+;"
        ):
            query.run(1, [B])
    assert values(query) == (sorted(A + B) if is_ended else A)
    record.write_text(json.dumps(ours))
    query.run(1, [B])
    assert values(query) == sorted(A + B)


def test_a_query_goes_over_to_other_brokers_between_two_micro_batches(new_query: NewQuery) -> None:
    query = new_query()
    query.run(0, [A])
    record = query.checkpoint / "transactions" / "batches" / f"{0:020}.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "cluster": "elsewhere"}))
    query.run(1, [B])
    assert values(query) == sorted(A + B)


def test_a_task_that_does_not_know_its_micro_batch_fails(new_query: NewQuery) -> None:
    """It would take its rows for those of micro-batch 0, which is recorded."""
    query = new_query()
    query.run(0, [A])
    planned = query.writer()
    with within_task(1, 0, 0):
        present(present(TaskContext.get())._localProperties).clear()
        with pytest.raises(RuntimeError, match=r"streaming\.sql\.batchId"):
            planned.write(iter([pa.record_batch({"value": B})]))


# -- attempts of tasks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_attempts_that_end_only_the_chosen_one_is_visible(new_query: NewQuery, winner: int) -> None:
    """Speculation: both are prepared, and Spark chooses one."""
    query = new_query()
    planned = query.writer()
    both = [attempt(planned, 0, 0, A, number) for number in range(2)]
    query.commit(0, [both[winner], attempt(planned, 0, 1, B)])
    # The other one hides nothing.
    assert values(query) == sorted(A + B)
    query.run(1, [C], attempts={0: 1 - winner})
    assert values(query) == sorted(A + B + C)


@pytest.fixture(params=["listed", "not listed"])
def listing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the brokers list open transactions, as those before Kafka 3.0 do not."""

    async def refused(*_: object, **__: object) -> None:
        raise UnsupportedVersion("no version of ListTransactions")

    if request.param == "not listed":
        monkeypatch.setattr(transactions, "list_transactions", refused)
    return bool(request.param == "listed")


def test_an_attempt_that_ends_after_the_commit_hides_rows_until_the_next_micro_batch(
    new_query: NewQuery, listing: bool
) -> None:
    """Speculation: Spark does not wait for the one that has lost. It may have begun by then, or not."""
    query = new_query()
    planned = query.writer()
    query.commit(0, [attempt(planned, 0, 0, A), attempt(planned, 0, 1, B)])
    attempt(planned, 0, 0, A, number=1)
    attempt(planned, 0, 0, A, number=2)
    attempt(planned, 0, 1, B, number=1)
    # The other partition's rows may be hidden, too.
    query.run(1, [C, A])
    assert values(query) == sorted(A + B + C + A)


def test_a_driver_that_died_hides_rows_until_the_next_micro_batch(new_query: NewQuery, listing: bool) -> None:
    """Its tasks were more, and some of them had begun anew; the next driver has one task."""
    query = new_query()
    query.run(0, [A])
    planned = query.writer()
    for task in range(4):
        attempt(planned, 1, task, B)
    attempt(planned, 1, 0, B, number=1)
    if listing:
        attempt(planned, 1, 9, B, number=3)
    query.run(1, [B])
    assert values(query) == sorted(A + B)


def test_a_micro_batch_without_rows_ends_what_others_have_open(new_query: NewQuery, listing: bool) -> None:
    query = new_query()
    query.run(0, [A])
    attempt(query.writer(), 1, 0, B, number=1)
    query.run(1, [[]])
    other = new_query()
    other.options["topic"] = query.options["topic"]
    other.run(0, [C])
    assert values(query) == sorted(A + C)


def test_transactions_of_other_writers_stay_open(new_query: NewQuery) -> None:
    """Also of those whose transactional id begins with this one's."""
    query = new_query()
    own = query.options["kafka.transactional.id"]
    others = []
    for name in (f"{own}-2", f"{own}x"):
        other = new_query(**{"kafka.transactional.id": name})
        others.append((other, attempt(other.writer(), 0, 0, B)))
    query.run(0, [A])
    for other, message in others:
        other.commit(0, [message])
        assert values(other) == B


def test_a_driver_that_has_lost_ends_nothing_of_the_other(new_query: NewQuery) -> None:
    """The other driver goes on with the next micro-batch, while this one still commits the last."""
    query = new_query()
    first, second = query.writer(), query.writer()
    ours, theirs = [attempt(first, 0, 0, A)], [attempt(second, 0, 0, A, 4)]
    query.commit(0, theirs)
    following = [attempt(query.writer(), 1, 0, B, 1), attempt(query.writer(), 1, 1, C)]
    query.commit(0, ours)
    query.commit(1, following)
    assert values(query) == sorted(A + B + C)


def test_an_attempt_that_still_writes_after_the_commit_is_refused(new_query: NewQuery) -> None:
    query = new_query()
    planned = query.writer()
    with pytest.raises(KafkaError, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"), zombie(query) as writer:
        writer.write(pa.record_batch({"value": ["zombie 1"]}))
        writer.flush()
        query.commit(0, [attempt(planned, 0, 0, A, number=1)])
        assert values(query) == A
        writer.write(pa.record_batch({"value": ["zombie 2"]}))
        writer.prepare()
    query.run(1, [B])
    assert values(query) == sorted(A + B)


def zombie(query: Query) -> AbstractContextManager[RecordWriter]:
    """The writer of attempt 0 of task 0, within its task."""
    options = write_options(query.options)
    own = replace(options.producer, transactional_id=f"{options.producer.transactional_id}-0-0")
    return record_writer(replace(options, producer=own))


def test_an_attempt_that_fails_leaves_nothing_open(new_query: NewQuery) -> None:
    query = new_query()
    planned = query.writer()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from [pa.record_batch({"value": ["x" * 10_000] * 1_000})] * 3
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), within_task(0, 0, 0):
        planned.write(failing())
    # Another id: nothing but the failed attempt itself can have ended what is before these rows.
    query.run(0, [[], [], B])
    assert values(query) == B


def test_a_stage_that_is_repeated_fences_the_attempt_that_spark_chose(new_query: NewQuery) -> None:
    """Both attempts have the number 0. The micro-batch fails before it is decided, and is written again."""
    query = new_query()
    planned = query.writer()
    chosen = attempt(planned, 0, 0, A)
    attempt(planned, 0, 0, A)
    other = attempt(planned, 0, 1, B)
    with pytest.raises(
        NotWritten, match=r"micro-batch 0 is not written.*-0-0 \(producer id \d+, epoch 0\) is no longer"
    ):
        query.commit(0, [chosen, other])
    query.abort(0, [chosen, other])
    assert query.recorded == []
    query.run(0, [A, B])
    assert values(query) == sorted(A + B)


# -- drivers ----------------------------------------------------------------------------------------------------------


def test_a_job_that_failed_is_aborted_at_once(new_query: NewQuery) -> None:
    query = new_query()
    query.abort(0, [attempt(query.writer(), 0, 0, A), None])
    # Another id: nothing but the abort can have ended what is before these rows.
    query.run(0, [[], [], B])
    assert values(query) == B


def test_a_commit_that_failed_half_way_is_completed_by_the_next_driver(
    new_query: NewQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows come again, in other tasks."""
    query = new_query()
    planned = query.writer()
    messages = [attempt(planned, 0, 0, A), attempt(planned, 0, 1, B)]
    with monkeypatch.context() as patch:
        patch.setattr("klamm.spark.write.transactions._end", _raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            query.commit(0, messages)
    assert (query.recorded, values(query)) == ([".json"], [])
    again = query.writer()
    # Before the tasks, which may take longer than transaction.timeout.ms.
    assert (query.recorded, values(query)) == ([".ended", ".json"], sorted(A + B))
    assert [attempt(again, 0, number, [row]) for number, row in enumerate(A + B)] == [LEFT] * 4
    query.commit(0, [LEFT] * 4)
    query.run(0, [A, B])
    query.run(1, [C])
    assert values(query) == sorted(A + B + C)


def test_a_commit_that_failed_half_way_is_not_aborted(new_query: NewQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls `abort` for it."""
    query = new_query()
    messages = [attempt(query.writer(), 0, 0, A)]
    # Made before the record, it does not complete what is recorded.
    aborting = query.writer()
    with monkeypatch.context() as patch:
        patch.setattr("klamm.spark.write.transactions._end", _raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            query.commit(0, messages)
    aborting.abort([*messages], 0)
    assert (query.recorded, values(query)) == ([".json"], [])
    query.abort(0, messages)
    assert (query.recorded, values(query)) == ([".ended", ".json"], A)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_task_of_a_recorded_micro_batch_takes_all_its_rows(new_query: NewQuery) -> None:
    """Spark's operators with state, in the same task, would miss those that it leaves."""
    query = new_query()
    query.run(0, [A])
    taken = []

    def rows() -> Iterator[pa.RecordBatch]:
        for row in A:
            taken.append(row)
            yield pa.record_batch({"value": [row]})

    with within_task(0, 0, 0):
        assert query.writer().write(rows()) == Written(len(A), is_recorded=True)
    assert taken == A


def test_of_two_drivers_the_second_one_commits_what_the_first_one_recorded(new_query: NewQuery) -> None:
    query = new_query()
    first, second = query.writer(), query.writer()
    ours = [attempt(first, 0, 0, A, 3)]
    theirs = [attempt(second, 0, 0, A, 4)]
    query.commit(0, ours)
    query.commit(0, theirs)
    query.run(1, [B])
    # Theirs were aborted, so nothing hides B.
    assert values(query) == sorted(A + B)
    with pytest.raises(NotWritten, match=r"micro-batch 0 is older than micro-batch 1.*another driver"):
        query.commit(0, [attempt(first, 0, 0, A, 5)])
    assert values(query) == sorted(A + B)


def test_a_checkpoint_that_was_set_back(new_query: NewQuery) -> None:
    query = new_query()
    query.run(0, [A])
    query.run(1, [B])
    with pytest.raises(NotWritten, match="micro-batch 0 is older than micro-batch 1"):
        attempt(query.writer(), 0, 0, C)


def test_two_drivers_do_not_commit_at_the_same_time(new_query: NewQuery) -> None:
    query = new_query()
    messages = [attempt(query.writer(), 0, 0, A)]
    with TransactionLog.at(str(query.checkpoint)).adding():
        child = os.fork()
        if child == 0:
            try:
                query.commit(0, messages)
            except FilesError as error:
                os._exit(7 if "another program adds to" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    query.commit(0, messages)
    assert values(query) == A


# -- time-outs --------------------------------------------------------------------------------------------------------


def timed_out(query: Query, messages: list[Written], number: int) -> None:
    """Returns when the brokers have aborted the transaction of one message."""
    prepared = messages[number].prepared
    assert prepared is not None
    deadline = time.monotonic() + 120
    client = write_options(query.options).producer.client
    with pytest.raises(TransactionGone):
        while time.monotonic() < deadline:
            threads.call(client, lambda each: require_prepared(each, prepared.transaction, prepared.partitions[0]))
            time.sleep(0.2)


def test_a_transaction_that_timed_out_before_the_record_fails_the_micro_batch(new_query: NewQuery) -> None:
    query = new_query(**{"kafka.transaction.timeout.ms": 1_000})
    messages = [attempt(query.writer(), 0, number, rows) for number, rows in enumerate((A, B))]
    timed_out(query, messages, 0)
    with pytest.raises(NotWritten, match=r"micro-batch 0 is not written, and nothing of it is visible"):
        query.commit(0, messages)
    query.run(0, [A, B])
    assert values(query) == sorted(A + B)


@pytest.mark.parametrize("way", ["without them", "again"])
def test_a_recorded_transaction_that_timed_out_stops_the_query_and_is_named(
    new_query: NewQuery, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    query = new_query(**{"kafka.transaction.timeout.ms": 1_000})
    patient = Query(
        query.options["kafka.bootstrap.servers"],
        query.options["topic"],
        query.checkpoint,
        **{"kafka.transaction.timeout.ms": 30_000},
    )
    messages = [attempt(query.writer(), 0, 0, A), attempt(patient.writer(), 0, 1, B)]
    with monkeypatch.context() as patch:
        patch.setattr("klamm.spark.write.transactions._end", _raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            query.commit(0, messages)
    timed_out(query, messages, 0)
    lost = messages[0].prepared
    assert lost is not None
    for _ in range(2):
        with pytest.raises(MissingTransactions) as missing:
            query.writer()
        told = str(missing.value)
        assert "1 of the 2 prepared transactions of micro-batch 0 can no longer be committed" in told
        assert f"Missing are the rows of {lost.transaction.transactional_id} (producer id" in told
        assert f"(producer id {lost.transaction.producer_id}, epoch 0, partitions {query.options['topic']}-" in told
        assert values(query) == B
    record = query.checkpoint / "transactions" / "batches" / f"{0:020}.json"
    if way == "without them":
        ended = record.with_suffix(".ended")
        assert f"make an empty file {ended}" in told
        ended.touch()
        query.commit(0, [attempt(query.writer(), 0, 0, A + B)])
        query.run(1, [C])
        assert values(query) == sorted(B + C)
    else:
        assert f"and the rows of the other 1 a second time, remove {record}" in told
        record.unlink()
        query.run(0, [A + B])
        assert values(query) == sorted(A + B + B)


def test_a_record_that_is_removed_while_its_micro_batch_runs(new_query: NewQuery) -> None:
    """As MissingTransactions says, while the query is started again and again: the tasks have left their rows to it."""
    query = new_query()
    query.run(0, [A])
    messages = [attempt(query.writer(), 0, 0, A)]
    for path in (query.checkpoint / "transactions" / "batches").iterdir():
        path.unlink()
    with pytest.raises(NotWritten, match=r"micro-batch 0 is not written: its record .*0\.json was removed"):
        query.commit(0, messages)
    query.run(0, [A])
    assert values(query) == sorted(A + A)


def test_a_task_that_begins_again_between_the_record_and_the_end_is_not_silent(
    new_query: NewQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a stage that Spark repeats, or of another driver: it has the same transactional id."""
    query = new_query()
    planned = query.writer()
    end = transactions._end

    def late(*arguments: Any) -> None:
        attempt(planned, 0, 0, C)
        end(*arguments)

    monkeypatch.setattr(transactions, "_end", late)
    with pytest.raises(MissingTransactions, match=r"1 of the 2 .*Missing are the rows of tx-once-\d+-0-0"):
        query.commit(0, [attempt(planned, 0, 0, A), attempt(planned, 0, 1, B)])


# -- what is checked at the start -------------------------------------------------------------------------------------


def test_a_timeout_that_the_brokers_do_not_allow(new_query: NewQuery) -> None:
    query = new_query(**{"kafka.transaction.timeout.ms": MAX_TIMEOUT_MS + 1})
    with pytest.raises(OptionError, match=r"is 60001; broker \d+ allows at most 60000 \(transaction.max.timeout.ms\)"):
        query.writer()


def test_a_checkpoint_in_another_file_system_than_sparks(new_query: NewQuery, tmp_path: Path) -> None:
    query = new_query()
    query.options["checkpointLocation"] = str(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="elsewhere has no file metadata, so Spark means another"):
        query.writer()
    query.options["checkpointLocation"] = f"file://{query.checkpoint}"
    query.run(0, [A])
    assert query.recorded == [".ended", ".json"]
    for url in ("hdfs://host/x", "dbfs:/x", "hdfs:/x"):
        query.options["checkpointLocation"] = url
        with pytest.raises(OptionError, match=r"where kafka.transactional.id keeps its state: .*cannot be kept in"):
            query.writer()


def lists_transactions(brokers: RealKafka | Cluster) -> bool:
    return isinstance(brokers, Cluster)


# -- kill points ------------------------------------------------------------------------------------------------------


def points(step: Callable[[int], bool]) -> int:
    """Calls step(1), step(2), ... as long as the step comes to its point. Returns how many points it has."""
    for point in count(1):
        if not step(point):
            return point - 1
    raise AssertionError


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_at_each_point_of_a_micro_batch(
    brokers: RealKafka | Cluster, new_query: NewQuery
) -> None:
    """The next driver has the same rows in other tasks: more of them, or one."""
    query = new_query(**{"kafka.transaction.timeout.ms": 30_000 if lists_transactions(brokers) else 3_000})
    written: list[str] = []
    batches = count()

    def die_and_repeat(point: int) -> bool:
        batch = next(batches)
        rows = [f"{batch}-{row}" for row in range(6)]
        written.extend(rows)
        was_killed = killed_at(point, lambda: query.run(batch, [rows[:2], rows[2:4], rows[4:]]))
        query.run(batch, [[row] for row in rows] if point % 2 else [rows])
        # What tasks left open that the brokers do not list, they abort after the time-out.
        bootstrap, topic = query.options["kafka.bootstrap.servers"], query.options["topic"]
        wait_for_values(bootstrap, topic, written, 0 if lists_transactions(brokers) else 30)
        return was_killed

    assert points(die_and_repeat) > 30


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_tasks_and_drivers_that_are_killed_at_each_point_of_a_commit_again_and_again(new_query: NewQuery) -> None:
    """A second driver dies at each point of its repetition, and the third one has the rows as before."""
    query = new_query(**{"kafka.transaction.timeout.ms": 3_000})
    written: list[str] = []
    batches = count()

    def die_twice(point: int) -> bool:
        batch = next(batches)
        rows = [f"{batch}-{row}" for row in range(4)]
        written.extend(rows)
        killed_at(40 + point % 20, lambda: query.run(batch, [rows[:2], rows[2:]]))
        was_killed = killed_at(point, lambda: query.run(batch, [rows]))
        query.run(batch, [rows[:1], rows[1:]])
        wait_for_values(query.options["kafka.bootstrap.servers"], query.options["topic"], written)
        return was_killed or point < 25

    assert points(die_twice) >= 25


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_task_that_is_killed_at_each_point_and_attempted_again(new_query: NewQuery) -> None:
    query = new_query(**{"kafka.transaction.timeout.ms": 3_000})
    written: list[str] = []
    batches = count()

    def die_once(point: int) -> bool:
        batch = next(batches)
        rows = [f"{batch}-{row}" for row in range(6)]
        written.extend(rows)
        planned = query.writer()
        was_killed = killed_at(point, lambda: attempt(planned, batch, 0, rows[:3]))
        query.commit(batch, [attempt(planned, batch, 0, rows[:3], number=1), attempt(planned, batch, 1, rows[3:])])
        # The driver has ended what the first attempt left open.
        assert values(query) == sorted(written)
        return was_killed

    assert points(die_once) > 8
