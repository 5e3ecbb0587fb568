"""Faults at a chosen moment: Spark's workers, and drivers, stop at a gate of the test's until the test lets them go on.

Functions and classes of this module are sent to workers by value, because workers cannot import it.
"""

import os
import pkgutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from pyspark import cloudpickle

from klamm.processes.helper import Helper
from klamm.spark.options import read_options, write_options
from klamm.spark.read.batch import KlammReader
from klamm.spark.read.stream import KlammStreamReader
from klamm.spark.source import KlammDataSource
from klamm.spark.write.sink import KlammStreamWriter, KlammWriter
from klamm.testing.cluster import Cluster

T = TypeVar("T")
Address = tuple[str, int]
# More than Spark needs to come to a gate on a busy machine.
TIMEOUT_S = 120


class Gate:
    """Callers stop at the gate; when it is opened all continue, and later callers do not stop."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.2)
        self.address: Address = self._server.getsockname()
        self._stopped: list[Stopped] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def arrival(self, under_way: Callable[[], bool] = lambda: True) -> "Stopped":
        """The next one that comes, while the action that should bring it runs."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            is_under_way = under_way()
            with suppress(TimeoutError):
                stopped = Stopped(self._server.accept()[0])
                self._stopped.append(stopped)
                return stopped
            assert is_under_way, "it ended before it came to the gate"
            assert time.monotonic() < deadline, "nobody came to the gate in time"

    def open(self) -> None:
        self._server.close()
        for stopped in self._stopped:
            stopped.close()


class Stopped:
    """A process that has stopped at a gate."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_S)
        self._connection = connection
        self.pid = int(connection.recv(20))

    def kill(self) -> None:
        """kill -9, of a worker or a driver."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait_gone()

    def kill_executor(self) -> None:
        """kill -9 of the JVM whose worker this is: the parent of the parent of all its workers."""
        os.kill(_parent(_parent(self.pid)), signal.SIGKILL)
        self.wait_gone()

    def wait_gone(self) -> None:
        with suppress(ConnectionResetError):
            assert self._connection.recv(1) == b""

    def close(self) -> None:
        self._connection.close()


def _parent(pid: int) -> int:
    # What stands behind the program's name in brackets: state, parent.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def stop_at(address: Address) -> None:
    """Waits for the gate to open."""
    with suppress(ConnectionError), socket.create_connection(address) as connection:
        connection.sendall(str(os.getpid()).encode())
        connection.recv(1)


def stop_within(items: Iterable[T], address: Address, after: int) -> Iterator[T]:
    """The items, with a stop behind the first `after` ones."""
    for number, item in enumerate(items):
        if number == after:
            stop_at(address)
        yield item


@contextmanager
def stop_before(target: str, address: Address, call: int = 1) -> Iterator[None]:
    """Meanwhile this process stops before its call-th call of a function: "package.module.Class.function"."""
    owner_name, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    original, calls = getattr(owner, name), count(1)

    def stopping(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            stop_at(address)
        return original(*arguments, **named)

    setattr(owner, name, stopping)
    try:
        yield
    finally:
        setattr(owner, name, original)


class StoppingSession:
    """As much of a session as pipelines need; in its tasks the call-th call of a function stops at a gate."""

    def __init__(self, spark: Any, target: str, address: Address, call: int = 1) -> None:
        self._spark = spark
        self._stop = (target, address, call)

    @property
    def sparkContext(self) -> Any:
        return self._spark.sparkContext

    def range(self, *arguments: int) -> "_StoppingFrame":
        return _StoppingFrame(self._spark.range(*arguments), self._stop)


class _StoppingFrame:
    def __init__(self, frame: Any, stop: tuple[str, Address, int]) -> None:
        self._frame, self._stop = frame, stop

    def mapInArrow(self, function: Callable[..., Iterator[Any]], schema: str) -> Any:
        stop = self._stop

        def stopping(batches: Iterable[Any]) -> Iterator[Any]:
            with stop_before(*stop):
                yield from function(batches)

        return self._frame.mapInArrow(stopping, schema)


def stopping_source(
    *,
    reading: tuple[Address, int] | None = None,
    writing: tuple[Address, int] | None = None,
    batch: int = 0,
    written: Address | None = None,
) -> type[KlammDataSource]:
    """The data source, whose tasks stop at gates.

    - `reading`, `writing`: a gate, and behind how many Arrow batches a task stops there.
    - `batch`: before this micro-batch no writer of a stream stops.
    - `written`: a gate where a task of a stream stops that has written something.
    """

    class Reader(KlammReader):
        def read(self, partition: Any) -> Any:
            batches = super().read(partition)
            return batches if reading is None else stop_within(batches, *reading)

    class StreamReader(KlammStreamReader):
        def read(self, partition: Any) -> Any:
            batches = super().read(partition)
            return batches if reading is None else stop_within(batches, *reading)

    class Writer(KlammWriter):
        def write(self, iterator: Any) -> Any:
            return super().write(iterator if writing is None else stop_within(iterator, *writing))

    class StreamWriter(KlammStreamWriter):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            number = int(context.getLocalProperty("streaming.sql.batchId") or -1)
            if writing is not None and number >= batch:
                iterator = stop_within(iterator, *writing)
            done = super().write(iterator)
            if written is not None and done.records:
                stop_at(written)
            return done

    class Source(KlammDataSource):
        def reader(self, schema: Any) -> Any:
            return Reader(read_options(self.options, streaming=False), schema)

        def streamReader(self, schema: Any) -> Any:
            return StreamReader(read_options(self.options, streaming=True), schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer(write_options(self.options), schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return StreamWriter(write_options(self.options), schema)

    return Source


def three_brokers(helper: Helper) -> Cluster:
    """A cluster with three replicas of everything, which soon notices who is dead."""
    properties = {"log.retention.ms": -1, "min.insync.replicas": 2}
    return Cluster(3, helper=helper, zookeeper_session_timeout_ms=1500, properties=properties)


def take_leaders_away(brokers: Cluster, topic: str) -> int:
    """Partition 1's leader hands over what it leads and comes back, partition 0's is killed; returns who is dead."""
    moved = brokers.leader(topic, 1)
    assert moved is not None
    brokers.restart(moved)
    killed = brokers.leader(topic, 0)
    assert killed is not None
    brokers.kill(killed)
    brokers.until(lambda: brokers.leader(topic, 0) not in (None, killed))
    return killed


def revive(brokers: Cluster, broker: int) -> None:
    brokers.start(broker)
    brokers.until(lambda: not brokers.under_replicated())


cloudpickle.register_pickle_by_value(sys.modules[__name__])
