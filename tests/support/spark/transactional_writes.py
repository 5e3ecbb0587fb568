"""Runs writes with transactions as Spark runs them, without Spark: plan, tasks, commit, each with a writer of its own.

`killed_at` runs a step in a process of its own that dies by kill -9 at a chosen point.
"""

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from klamm.base.system_environment import SystemFileSystem
from klamm.net.client import Connection
from klamm.spark.options import write_options
from klamm.spark.write.sink import BATCH_PROPERTY, KlammStreamWriter, KlammWriter, Written

SCHEMA = StructType([StructField("value", StringType())])
KILLED = -signal.SIGKILL
DONE = 0


class Query:
    """A streaming query that writes to a topic; its checkpoint is as Spark makes it."""

    def __init__(self, bootstrap: str, topic: str, checkpoint: Path, **options: object) -> None:
        self.checkpoint, self.batch_checkpoint = checkpoint, checkpoint / "batch"
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "checkpointLocation": str(checkpoint),
            "kafka.transactional.id": f"tx-{topic}",
            **{name: str(value) for name, value in options.items()},
        }
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": topic}))

    def writer(self) -> KlammStreamWriter:
        """What the driver makes for each step; Spark pickles it for the tasks."""
        made: KlammStreamWriter = pickle.loads(pickle.dumps(KlammStreamWriter(write_options(self.options), SCHEMA)))
        return made

    def batch_writer(self) -> KlammWriter:
        """Of a batch write, which has a checkpoint of its own."""
        options = {**self.options, "checkpointLocation": str(self.batch_checkpoint)}
        made: KlammWriter = pickle.loads(pickle.dumps(KlammWriter(write_options(options), SCHEMA)))
        return made

    def run(self, batch: int, tasks: Sequence[Sequence[str]], attempts: Mapping[int, int] | None = None) -> None:
        """A micro-batch from its plan to its commit. `attempts` has the attempt of a task that is not the first."""
        planned = self.writer()
        messages = [
            attempt(planned, batch, number, rows, (attempts or {}).get(number, 0)) for number, rows in enumerate(tasks)
        ]
        self.commit(batch, messages)

    def commit(self, batch: int, messages: Sequence[Written | None]) -> None:
        self.writer().commit(list(messages), batch)

    def abort(self, batch: int, messages: Sequence[Written | None]) -> None:
        self.writer().abort(list(messages), batch)

    @property
    def recorded(self) -> list[str]:
        """The files about micro-batches, by their names without leading zeros."""
        return sorted(
            path.name.lstrip("0") for path in (self.checkpoint / "transactions" / "batches").glob("*") if path.is_file()
        )


def attempt(writer: Any, batch: int, partition: int, rows: Iterable[str], number: int = 0) -> Written:
    """An attempt of a task, which gets two rows at a time."""
    values = list(rows)
    batches = [pa.record_batch({"value": values[first : first + 2]}) for first in range(0, len(values), 2)]
    with within_task(batch, partition, number):
        written: Written = pickle.loads(pickle.dumps(writer.write(iter(batches))))
    return written


@contextmanager
def within_task(batch: int, partition: int, number: int) -> Iterator[None]:
    before = TaskContext.get()
    TaskContext._setTaskContext(None)
    TaskContext(partitionId=partition, attemptNumber=number, localProperties={BATCH_PROPERTY: str(batch)})
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def committed_values(bootstrap: str, topic: str) -> list[str]:
    """What a consumer with read_committed finds up to the last stable offsets, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        left = set(consumer.list_topics(topic, timeout=120).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        found = []
        while left:
            message = consumer.poll(30)
            assert message is not None, f"{topic}: partitions {left} have not ended"
            error, value = message.error(), message.value()
            if error is None:
                assert value is not None
                found.append(value.decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
        return sorted(found)
    finally:
        consumer.close()


def wait_for_values(bootstrap: str, topic: str, wanted: Iterable[str], timeout_s: float = 120) -> None:
    """Waits until read_committed finds these values, each once. Values that should not be there are an error at once.

    What attempts have left open hides what comes behind it, until the brokers abort it.
    """
    expected = sorted(wanted)
    deadline = time.monotonic() + timeout_s
    while (found := committed_values(bootstrap, topic)) != expected:
        assert len(set(found)) == len(found), f"twice: {sorted(each for each in set(found) if found.count(each) > 1)}"
        assert set(found) <= set(expected), f"never written: {sorted(set(found) - set(expected))}"
        assert time.monotonic() < deadline, f"missing: {sorted(set(expected) - set(found))}"
        time.sleep(0.2)


# -- kill points ------------------------------------------------------------------------------------------------------


def killed_at(point: int, step: Callable[[], object]) -> bool:
    """Runs the step in a child, which dies at its point-th point. Returns whether it came to the point.

    Points are before and after each request to a broker, and before and after each change of the checkpoint.
    """
    child = os.fork()
    if child == 0:
        try:
            _die_at(point)
            step()
            os._exit(DONE)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (KILLED, DONE), f"the step failed at point {point}"
    return code == KILLED


def _die_at(point: int) -> None:
    points = count(1)

    def pass_point() -> None:
        if next(points) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    send = Connection.send

    async def sending(self: Connection, *arguments: Any, **named: Any) -> Any:
        pass_point()
        answer = await send(self, *arguments, **named)
        pass_point()
        return answer

    def changing(original: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **named: Any) -> Any:
            pass_point()
            done = original(*arguments, **named)
            pass_point()
            return done

        return change

    Connection.send = sending  # type: ignore[method-assign]
    os.link = changing(os.link)
    for name in ("remove", "sync_directory", "make_durable_directories"):
        setattr(SystemFileSystem, name, changing(getattr(SystemFileSystem, name)))
