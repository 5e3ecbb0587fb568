"""The environment of a simulated process: virtual wall clock, seeded chance, in-memory disk, blocking work inline."""

import asyncio
import random
from collections.abc import Callable, Generator
from typing import TypeVar

from klamm.base.environment import Environment, WorkerFailed
from klamm.simulation.machine.disk import Disk, SimulatedFileSystem
from klamm.simulation.machine.loop import SimulatedLoop
from klamm.simulation.machine.process import Process
from klamm.storage.directories.log_cleaner import MAX_PROCESS_DEATHS

T = TypeVar("T")

# The wall clock when a world begins: 2021-01-01T00:00:00Z, in milliseconds.
EPOCH_MS = 1_609_459_200_000

BLOCKING_US = (20, 2_000)
# The chance that the worker process dies at a step of a job.
WORKER_DEATHS = 0.01
# The chance that the background process dies during a job, however many steps the job has. It dies before one of the
# first steps.
BACKGROUND_DEATHS = 0.1
STEPS_BEFORE_DEATH = 20
# Here chance kills the process. After one more death the cleaner would assume that the log kills it, and skip the log.
MAX_BACKGROUND_DEATHS = MAX_PROCESS_DEATHS - 1


class SimulatedEnvironment(Environment):
    """One process's view of its machine. Once the process is dead, every call raises ProcessDead."""

    def __init__(
        self, loop: SimulatedLoop, process: Process, disk: Disk, clock: "WallClock", seed: str, boot_id: str
    ) -> None:
        self.file_system = SimulatedFileSystem(disk, process)
        self.random = random.Random(seed)
        self._delays = random.Random(f"{seed}/blocking work")
        self._loop = loop
        self._process = process
        self.clock = clock
        self._boot_id = boot_id
        self._background_deaths = 0

    def now_ms(self) -> int:
        self._process.check_alive()
        return self.clock.now_ms()

    def work_clock_s(self) -> float:
        return self._loop.time()

    def host_name(self) -> str:
        return self._process.host

    def boot_id(self) -> str | None:
        return self._boot_id

    async def run_blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """The work happens at one moment between call and return, even if its caller no longer waits for it."""
        self._process.check_alive()
        done: asyncio.Future[T] = self._loop.create_future()
        self._loop.call_later(self._delay_s(), self._run, done, function, arguments)
        return await done

    async def run_in_worker(self, work: Callable[..., Generator[int, None, T]], *arguments: object) -> T:
        """The steps happen one after the other, some time apart; now and then the worker process dies."""
        steps = work(*arguments)
        while True:
            self._process.check_alive()
            await asyncio.sleep(self._delay_s())
            if self._delays.random() < WORKER_DEATHS:
                raise WorkerFailed("the simulated worker has died")
            try:
                next(steps)
            except StopIteration as end:
                value: T = end.value
                return value

    async def run_in_background(self, work: Callable[..., Generator[float, None, T]], *arguments: object) -> T:
        """Like `run_in_worker`. As in a real process, each step sees the disk as it is at that time."""
        steps = work(self.file_system, *arguments)
        dies = self._background_deaths < MAX_BACKGROUND_DEATHS and self._delays.random() < BACKGROUND_DEATHS
        steps_left = self._delays.randrange(STEPS_BEFORE_DEATH) if dies else float("inf")
        try:
            while True:
                self._process.check_alive()
                if steps_left == 0:
                    self._background_deaths += 1
                    raise WorkerFailed("the simulated background process has died")
                steps_left -= 1
                try:
                    with self._loop.meter.off_the_loop():
                        least_s = next(steps)
                except StopIteration as end:
                    value: T = end.value
                    return value
                await asyncio.sleep(max(self._delay_s(), least_s))
        finally:
            steps.close()

    def _run(self, done: "asyncio.Future[T]", function: Callable[..., T], arguments: tuple[object, ...]) -> None:
        # As with a thread pool: work whose caller was cancelled is dropped if it had not begun.
        if done.cancelled() and self._delays.random() < 0.5:
            return
        try:
            with self._loop.meter.off_the_loop():
                result = function(*arguments)
        except Exception as error:
            self._loop.call_later(self._delay_s(), _finish, done, None, error)
        else:
            self._loop.call_later(self._delay_s(), _finish, done, result, None)

    def _delay_s(self) -> float:
        return self._delays.randint(*BLOCKING_US) / 1_000_000


class WallClock:
    """The wall clock of a machine. It is right until `set_wrong` sets it, forward or back, and makes it drift."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._ahead_ms = 0.0
        self._drift = 0.0
        self._set_us = 0
        self.is_right = True

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        now_us = self._loop.time_us
        return EPOCH_MS + int(now_us / 1000 + self._ahead_ms + self._drift * (now_us - self._set_us) / 1000)

    def set_wrong(self, ahead_ms: float, drift: float) -> None:
        """From now on the clock is `ahead_ms` ahead, and gains `drift` seconds in each second; both may be negative."""
        self._ahead_ms, self._drift, self._set_us = ahead_ms, drift, self._loop.time_us
        self.is_right = False


def _finish(done: "asyncio.Future[T]", result: T, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
