"""Runs command lines of klamm in the simulator: real brokers, and no wait for a command that waits for a minute.

    with CommandWorld(brokers=3) as world:
        ended = world.run("topics", "list", "--bootstrap-server", world.bootstrap)
        world.stall(2)                              # as SIGSTOP
        ...

The world has a thread of its own, which stands still while a command computes. What a command asks of its client, and
of ZooKeeper, runs in the world, on the machine `operator`.
"""

import asyncio
import io
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.cli import main
from klamm.client import threads
from klamm.client.cluster import make_client
from klamm.client.consumer.group_consumer import GroupConsumer
from klamm.client.options import GroupOptions
from klamm.net import client as wire
from klamm.simulation.cluster.cluster import BROKER_PORT, ZOOKEEPER_PORT, SimulatedCluster
from klamm.simulation.cluster.ensemble import EnsembleServer
from klamm.simulation.machine.process import CURRENT
from klamm.simulation.machine.world import World

OPERATOR = "operator"
ENDLESS_MS = 2**31 - 1
PROPERTIES = {
    "zookeeper.session.timeout.ms": str(ENDLESS_MS),
    "transaction.state.log.num.partitions": "3",
}
Work = Callable[[], Awaitable[Any]]


class _PatientServer(EnsembleServer):
    """ZooKeeper with sessions of any length, so that a broker that hangs stays in the cluster."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._max_session_timeout_ms = ENDLESS_MS


@dataclass(frozen=True)
class Ended:
    """How a command has ended. `took_s` is virtual time; `in_vain` are the hosts that it has waited for in vain."""

    code: int
    out: str
    err: str
    took_s: float
    in_vain: frozenset[str]

    @property
    def text(self) -> str:
        return self.out + self.err


class CommandWorld:
    """See the module. `properties` are those of every broker."""

    def __init__(self, *, brokers: int = 3, properties: dict[str, str] | None = None) -> None:
        self.world = World(seed=1)
        self.bootstrap = ",".join(f"broker-{broker_id}:{BROKER_PORT}" for broker_id in range(brokers))
        self.zookeeper = f"zookeeper:{ZOOKEEPER_PORT}"
        self._brokers, self._properties = brokers, properties or {}
        self._asked: queue.SimpleQueue[tuple[Work, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="command-world")
        self._failure: BaseException | None = None
        self._patch = pytest.MonkeyPatch()
        self._in_vain: set[str] = set()

    def __enter__(self) -> Self:
        self._patch.setattr("klamm.simulation.cluster.cluster.EnsembleServer", _PatientServer)
        self._patch.setattr(threads, "start", self._start)
        self._patch.setattr(asyncio, "run", self._run)
        self._note_waits()
        self._thread.start()
        self.do(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self._asked.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def run(self, *arguments: str, encoding: str = "utf-8") -> Ended:
        """Runs a command to its end. Its output has this encoding."""
        written = io.BytesIO(), io.BytesIO()
        out, err = (io.TextIOWrapper(each, encoding, newline="", write_through=True) for each in written)
        code, took_s = self.run_with(out, err, *arguments)
        printed, complained = (each.getvalue().decode(encoding, "surrogateescape") for each in written)
        return Ended(code, printed, complained, took_s, frozenset(self._in_vain))

    def run_with(self, out: Any, err: Any, *arguments: str) -> tuple[int, float]:
        """Runs a command with these streams. Returns its exit code, and how much virtual time has passed."""
        self._in_vain.clear()
        begun_s = self.world.loop.time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main.run(list(arguments))
        return code, self.world.loop.time() - begun_s

    def do(self, work: Work) -> Any:
        """The result of `work()`, which runs in the world."""
        return self._submit(work).result()

    def stall(self, broker_id: int) -> None:
        self.do(self._step(self.cluster.brokers[broker_id].node.stall))

    def resume(self, broker_id: int) -> None:
        self.do(self._step(self.cluster.brokers[broker_id].node.resume))

    def later(self, delay_s: float, step: Callable[[], object]) -> None:
        """Takes a step after so much virtual time, while a command runs."""
        self.do(self._step(lambda: self.world.loop.call_later(delay_s, step)))

    def listen(self, machine: str, port: int, says: bytes) -> None:
        """A program at this port that is no broker: it says this to each client, and nothing more."""

        class Program(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                transport.write(says)

        async def listen() -> None:
            await asyncio.get_running_loop().create_server(Program, None, port)

        node = self.do(self._step(lambda: self.world.node(machine)))
        self.do(lambda: node.run(listen()))

    def join(self, group: str, topic: str) -> None:
        """A member of the group, which reads the topic from now on."""

        async def live() -> None:
            member = GroupConsumer(self.cluster.client(), GroupOptions(group), [topic])
            while True:
                await member.poll(1_000)

        async def join() -> None:
            self.world.node(f"member-of-{group}").run(live())
            await asyncio.sleep(5)

        self.do(join)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _submit(self, work: Work) -> "Future[Any]":
        future: Future[Any] = Future()
        self._asked.put((work, future))
        return future

    def _start(self, options: Any, work: Callable[[Any], Awaitable[Any]]) -> "Future[Any]":
        async def run() -> Any:
            return await work(make_client(options, SystemEnvironment().random))

        return self._submit(lambda: self.operator.run(run()))

    def _run(self, work: Any, **_: Any) -> Any:
        return self.do(lambda: self.operator.run(work))

    @staticmethod
    def _step(step: Callable[[], object]) -> Work:
        async def run() -> Any:
            return step()

        return run

    def _note_waits(self) -> None:
        connect, timed_out = wire.connect, wire.Connection._timed_out

        async def noted_connect(host: str, *arguments: Any) -> Any:
            try:
                return await connect(host, *arguments)
            except wire.NoAnswer:
                self._note(host)
                raise

        def noted_time_out(connection: Any, *arguments: Any) -> None:
            self._note(connection.address[0])
            timed_out(connection, *arguments)

        self._patch.setattr(wire, "connect", noted_connect)
        self._patch.setattr(wire.Connection, "_timed_out", noted_time_out)

    def _note(self, host: str) -> None:
        if is_operator():
            self._in_vain.add(host)

    def _live(self) -> None:
        try:
            # Not `World.run`, which forbids the files that commands write.
            self.world.loop.run_until_complete(self._serve())
        except BaseException as failure:
            self._failure = failure
            while (asked := self._asked.get()) is not None:
                asked[1].set_exception(failure)

    async def _begin(self) -> None:
        self.operator = self.world.node(OPERATOR)
        self.cluster = SimulatedCluster(self.world, brokers=self._brokers, properties=PROPERTIES | self._properties)
        await self.cluster.start()
        await self.cluster.until(lambda: self.cluster.controller_id() >= 0)
        await asyncio.sleep(1)

    async def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            work, future = asked
            try:
                future.set_result(await work())
            except Exception as error:
                future.set_exception(error)
        await self.cluster.close()


def is_operator() -> bool:
    """Whether a command's own code is running, not that of a broker."""
    process = CURRENT.get(None)
    return process is not None and process.host == OPERATOR
