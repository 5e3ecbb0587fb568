"""The world of a simulation: one virtual clock, one network, and machines with disks on which programs run and die.

    world = World(seed=1)

    async def scenario() -> None:
        server = world.node("server")
        await server.run(Server(server.environment).start())
        ...
        server.crash()
        server.restart()

    world.run(scenario())

The tasks, timers and connections that a program starts on a node belong to that node's process. A crash ends the
process between two instructions. After that none of its code runs, not even its `finally` blocks; its peers see their
connections end a little later; its disk keeps the data that the kernel has or, when the machine dies, that are durable.
A stall stops the process as SIGSTOP does: its code does not run, but its kernel still accepts connections and takes
bytes while there is room for them. After a resume all callbacks that are due run.

What must stay true: the same seed and the same code give the same trace, in every Python process.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from klamm.simulation.machine import audit
from klamm.simulation.machine.disk import Disk
from klamm.simulation.machine.environment import SimulatedEnvironment, WallClock
from klamm.simulation.machine.loop import simulated_loop
from klamm.simulation.machine.network import Network
from klamm.simulation.machine.process import Process, ProcessDead, context_of
from klamm.simulation.machine.recorder import Recorder
from klamm.simulation.machine.trace import Trace

T = TypeVar("T")

TIME_LIMIT_S = 24 * 3600.0


class World:
    """All machines, the network and the clock of one run. `random` is the scenario's own source of chance."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed}/scenario")
        self.loop = simulated_loop()
        self.trace = Trace(lambda: self.loop.time_us)
        self.network = Network(self.loop, random.Random(f"{seed}/network"), self.trace)
        self.loop.network = self.network
        self._nodes: dict[str, Node] = {}
        self.recorder: Recorder | None = None
        """Records the run; it may not change it."""

    def node(self, name: str) -> "Node":
        """The machine of this name; the first call creates it."""
        if name not in self._nodes:
            self._nodes[name] = Node(self, name)
        return self._nodes[name]

    def run(self, scenario: Coroutine[Any, Any, T], time_limit_s: float = TIME_LIMIT_S) -> T:
        """Runs the scenario to its end, once. `time_limit_s` is virtual.

        SimulationFailure when the run fails; what the scenario raises otherwise. Either names the seed.
        """
        try:
            with audit.armed(self.loop.fail):
                return self.loop.run_until_complete(scenario, time_limit_s)
        except BaseException as error:
            error.add_note(f"simulation seed {self.seed}, after {self.loop.time_us} virtual microseconds")
            raise

    @contextmanager
    def recorded(self, path: str | Path | None, scenario: str = "python -m klamm.simulation") -> Iterator[None]:
        """Inside this context the run is recorded in the file; None records nothing. Raises OSError."""
        if path is None:
            yield
            return
        with open(path, "wb") as file:
            recorder = Recorder(file, f"seed {self.seed} of {scenario}", self.now_ms)
            self.recorder, self.trace.on_event = recorder, recorder.event
            try:
                yield
            except BaseException as error:
                recorder.failed(error)
                raise
            finally:
                recorder.close()

    def now_ms(self) -> int:
        """The right wall clock of this world."""
        return WallClock(self.loop).now_ms()


class Node:
    """A machine: a name on the network, a disk, and at most one process at a time."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._boots = 1
        self._lives = 0
        self._host = world.network.add_host(name)
        self._waiting: dict[asyncio.Future[Any], None] = {}
        chance = random.Random(f"{world.seed}/disk/{name}")
        self.clock = WallClock(world.loop)
        self.disk = Disk(name, chance, world.trace, self.clock.now_ms)
        self.disk.meter = world.loop.meter
        self._begin()

    @property
    def address(self) -> str:
        """The machine's IP address."""
        return self._host.address

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Starts a coroutine in the node's process. The result is the coroutine's, or ProcessDead after a crash.

        An exception in a task that is never awaited fails the run.
        """
        self.process.check_alive()
        loop = self._world.loop
        outcome: asyncio.Future[T] = loop.create_future()
        self._waiting[outcome] = None
        task = loop.create_task(work, context=context_of(self.process))
        task.add_done_callback(lambda done: self._finished(done, outcome))
        return outcome

    def crash(self, *, machine: bool = False) -> None:
        """Kills the process. With `machine` the machine dies too, and data that are not durable may be lost."""
        self.process.check_alive()
        self._world.trace.add(self.name, "crash", "machine" if machine else "process")
        if self.process.stalled:
            self._world.loop.resume(self.process)
        self.process.kill()
        self._host.up = not machine
        self._boots += machine
        self._world.network.process_died(self.process, machine=machine)
        self.disk.crash(lose_unsynced=machine)
        error = ProcessDead(f"{self.process} has been killed")
        for outcome in list(self._waiting):
            if not outcome.done():
                outcome.set_exception(error)
                # Awaiting a server that runs forever is not a fault.
                outcome.exception()
        self._waiting.clear()

    def restart(self) -> None:
        """Creates a new process on the same machine, with a new `environment`. The process runs no code yet."""
        if self.process.alive:
            raise RuntimeError(f"{self.process} is still alive")
        self._world.trace.add(self.name, "restart")
        self._host.up = True
        self._begin()

    def stall(self) -> None:
        """Stops the process until `resume` (or its death). Its connections stay open."""
        self.process.check_alive()
        if self.process.stalled:
            raise RuntimeError(f"{self.process} is stalled already")
        self._world.trace.add(self.name, "stall")
        self._world.loop.stall(self.process)
        self._world.network.process_stalled(self.process)

    def resume(self) -> None:
        """Lets a stalled process run again."""
        self.process.check_alive()
        if not self.process.stalled:
            raise RuntimeError(f"{self.process} is not stalled")
        self._world.trace.add(self.name, "resume")
        self._world.loop.resume(self.process)
        self._world.network.process_resumed(self.process)

    def _begin(self) -> None:
        self._lives += 1
        world, name = self._world, f"{self.name}#{self._lives}"
        self.process = Process(name, self.name)
        world.loop.processes.append(self.process)
        seed, boot_id = f"{world.seed}/{name}", f"{self.name}-boot-{self._boots}"
        self.environment = SimulatedEnvironment(world.loop, self.process, self.disk, self.clock, seed, boot_id)

    def _finished(self, task: "asyncio.Task[T]", outcome: "asyncio.Future[T]") -> None:
        self._waiting.pop(outcome, None)
        if outcome.done():
            task.cancelled() or task.exception()
        elif task.cancelled():
            outcome.cancel()
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())
