"""An asyncio event loop on virtual time: it has no selector, no threads and no signals.

The loop never sleeps. Callbacks run in the order in which they were scheduled; when no callback is ready, the clock
jumps to the next timer. Connections go to the in-memory network; the loop refuses all other operations by name.

What must stay true:
- Callbacks run first in, first out; timers by time, and among equal times in the order of their creation.
- Nothing depends on addresses or on when Python collects garbage: the collector runs after fixed numbers of steps.
- An exception that reaches the loop (from a callback, a task that is never awaited, a task that is forgotten while it
  waits) ends the run. A deadlock, where no callback or timer is left while the scenario still waits, ends it too.
"""

import asyncio
import contextvars
import gc
import heapq
import itertools
import random
import socket
import sys
import traceback
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import CoroutineType, FrameType
from typing import Any, NoReturn, Protocol, TypeVar, cast

from klamm.simulation.machine.process import CURRENT, Process, SimulationFailure
from klamm.simulation.machine.step_meter import StepMeter

T = TypeVar("T")

# Where virtual time begins, in seconds. Not zero: a real monotonic clock is not zero when a program starts.
START_S = 1000.0

STEPS_BETWEEN_COLLECTIONS = 50_000
# More callbacks than this at one virtual time mean an endless loop.
MAX_STEPS_PER_INSTANT = 1_000_000
CANCELLED_TIMERS_TO_SWEEP = 1000

# How long a task that yields waits for other tasks, if yielding takes time (`SimulatedLoop.turns`).
TURN_S = (0.0, 0.004)

# CPython's name for the type of the callbacks that run a task's next step.
TASK_STEP = "TaskStepMethWrapper"


class Step:
    """A callback and its process. It replaces `asyncio.Handle`, which is slower: a handle asks the loop several times
    whether debugging is on."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context,
        outside: Process,
    ) -> None:
        self.callback, self.arguments, self.context = callback, arguments, context
        self.process = context.get(CURRENT, outside)
        self.is_cancelled = False

    def cancel(self) -> None:
        """The step will not be taken. Idempotent."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback, self.arguments = _nothing, ()

    def cancelled(self) -> bool:
        """As `asyncio.Handle.cancelled`."""
        return self.is_cancelled


class Timer(Step):
    """A step at a given time. It replaces `asyncio.TimerHandle`."""

    __slots__ = ("_loop", "_when_s")

    def __init__(
        self,
        loop: "SimulatedLoop",
        when_s: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self.callback, self.arguments, self.context = callback, arguments, context
        self.process = context.get(CURRENT, loop.outside)
        self.is_cancelled = False
        self._loop, self._when_s = loop, when_s

    def cancel(self) -> None:
        if not self.is_cancelled:
            self._loop.timer_cancelled()
        super().cancel()

    def when(self) -> float:
        """As `asyncio.TimerHandle.when`."""
        return self._when_s


def _nothing() -> None:
    """The callback of a cancelled step."""


class LoopNetwork(Protocol):
    """What the loop asks of the network."""

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | None,
        port: int,
        start_serving: bool,
    ) -> asyncio.AbstractServer: ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def address_of(self, name: str) -> str: ...


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module. Made by `simulated_loop`, run by `World.run`."""

    network: LoopNetwork

    # When set, a task that yields (`sleep(0)`) continues a little later instead of in the same instant, as if other
    # tasks took time meanwhile. In that time connections may end and timers may run out.
    turns: random.Random | None = None

    def __init__(self) -> None:
        self.outside = Process("scenario", "scenario")
        self.processes = [self.outside]
        self.steps = 0
        self.meter = StepMeter()
        # The number of steps when the clock last moved.
        self._steps_before = 0
        self._now = START_S
        # Virtual microseconds since the start of the world.
        self.time_us = 0
        self._ready: deque[Step] = deque()
        self._held: dict[Process, list[Step]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = itertools.count()
        self._task_numbers = itertools.count(1)
        self._cancelled_timers = 0
        self._running = False
        self._closed = False
        self._process = self.outside
        self._failure: SimulationFailure | None = None

    # -- time and callbacks ---------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual time in seconds."""
        return self._now

    def call_soon(  # type: ignore[override]  # typeshed ties the arguments to the callback's; asyncio.Handle does not
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Step:
        if context is None:
            context = contextvars.copy_context()
        if self.turns is not None and type(callback).__name__ == TASK_STEP and _has_begun(callback):
            return self._add_timer(self._now + self.turns.uniform(*TURN_S), callback, args, context)
        step = Step(callback, args, context, self.outside)
        self._ready.append(step)
        return step

    def call_later(  # type: ignore[override]  # as call_soon
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Timer:
        return self._add_timer(self._now + delay, callback, args, context)

    def call_at(  # type: ignore[override]  # as call_soon
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Timer:
        return self._add_timer(when, callback, args, context)

    def _add_timer(
        self,
        when: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> Timer:
        if context is None:
            context = contextvars.copy_context()
        step = Timer(self, when, callback, arguments, context)
        heapq.heappush(self._timers, (when, next(self._sequence), step))
        return step

    def timer_cancelled(self) -> None:
        """Called by `Timer.cancel`. Cancelled timers are swept out when they are the majority."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(CANCELLED_TIMERS_TO_SWEEP, len(self._timers) // 2):
            # This runs just before the timer counts as cancelled, so this timer stays until the next sweep.
            self._timers[:] = [timer for timer in self._timers if not timer[2].is_cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # typeshed's overloads differ between Python versions
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        context = context if context is not None else contextvars.copy_context()
        # asyncio numbers unnamed tasks per Python process, which would differ between runs.
        name = name if name is not None else f"Task-{next(self._task_numbers)}"
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        context.get(CURRENT, self.outside).adopt(task)
        if self._closed:
            coro.close()
        return task

    # -- the network ----------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]  # only what TCP listeners of klamm use
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | None = None,
        port: int | None = None,
        *,
        ssl: None = None,
        sock: None = None,
        backlog: int = 100,
        reuse_address: bool | None = None,
        reuse_port: bool | None = None,
        start_serving: bool = True,
    ) -> asyncio.AbstractServer:
        if ssl is not None or sock is not None:
            raise SimulationFailure("the simulated network has neither TLS nor real sockets")
        return self.network.listen(protocol_factory, host, port or 0, start_serving)

    async def create_connection(  # type: ignore[override]  # only what TCP connections of klamm use
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: None = None,
        sock: None = None,
        local_addr: None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if ssl is not None or sock is not None or local_addr is not None:
            raise SimulationFailure("the simulated network has neither TLS, real sockets nor a choice of local address")
        if host is None or port is None:
            raise ValueError("host and port are needed")
        return await self.network.connect(protocol_factory, host, port)

    async def getaddrinfo(  # type: ignore[override]  # always one answer
        self,
        host: str | None,
        port: int | str | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        address = self.network.address_of(host or "localhost")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    # -- faults ---------------------------------------------------------------------------------------------------

    def stall(self, process: Process) -> None:
        """Stops the process before its next step, as SIGSTOP does."""
        process.stalled = True
        self._held[process] = []

    def resume(self, process: Process) -> None:
        """Undoes `stall`. Callbacks that became due meanwhile run now, in that order."""
        process.stalled = False
        self._ready.extend(self._held.pop(process))

    def fail(self, message: str, cause: BaseException | None = None) -> None:
        """Ends the run after the current step. The first failure counts."""
        if self._failure is None and not self._closed:
            self._failure = SimulationFailure(f"{message} (in {self._process}, {self.time_us} us)")
            self._failure.__cause__ = cause

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Errors that asyncio would only log end the run, except those of a step in which a process was killed."""
        if not self._process.alive:
            return
        message = context["message"]
        subject = context.get("task") or context.get("future")
        if isinstance(subject, asyncio.Task):
            message += f": {describe_task(subject)}"
        self.fail(message, context.get("exception"))

    def set_exception_handler(self, handler: object) -> None:
        """Accepted without effect: every exception that a handler would see ends the run first."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    # -- running --------------------------------------------------------------------------------------------------

    def run_until_complete(  # type: ignore[override]  # coroutines only
        self, scenario: Coroutine[Any, Any, T], time_limit_s: float = float("inf")
    ) -> T:
        """Runs the scenario and returns its result. SimulationFailure if it fails; the time limit is virtual."""
        main = self.create_task(scenario, name="scenario")
        with self._entered():
            try:
                self._run(main, time_limit_s)
                left = list(self.outside.tasks())
            finally:
                for process in self.processes:
                    process.kill()
            if not main.cancelled() and main.exception() is None:
                self._judge_remains(left)
        return main.result()

    def _judge_remains(self, left: "list[asyncio.Task[Any]]") -> None:
        """Programs may still run when the scenario ends; the scenario's own tasks must be done."""
        if left:
            raise SimulationFailure("the scenario left tasks behind:\n" + "\n".join(map(describe_task, left)))
        self._process = Process("the end of the world", "scenario")
        # Only the collection of a future reports an exception that was never retrieved.
        gc.collect()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _entered(self) -> Iterator[None]:
        collector, hooks = gc.isenabled(), sys.get_asyncgen_hooks()
        gc.disable()
        freezes = not _keeps_frozen()
        if freezes:
            gc.collect()
            gc.freeze()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._generator_forgotten)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            self._dispose()
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if freezes:
                gc.unfreeze()
            if collector:
                gc.enable()

    def _run(self, main: "asyncio.Task[Any]", time_limit_s: float) -> None:
        """Runs until `main` is done, in turns: callbacks that the steps of a turn add wait for the next turn."""
        ready, timers, meter = self._ready, self._timers, self.meter
        while not main.done():
            if not ready:
                self._advance(time_limit_s)
            elif (steps := self.steps - self._steps_before) > MAX_STEPS_PER_INSTANT:
                raise SimulationFailure(f"{steps} steps and no time passes:\n{self.describe_waiting()}")
            while timers and timers[0][0] <= self._now:
                ready.append(heapq.heappop(timers)[2])
            for _ in range(len(ready)):
                step = ready.popleft()
                process = step.process
                if not process.alive:
                    process.keep(step)
                elif process.stalled:
                    self._held[process].append(step)
                elif not step.is_cancelled:
                    self._process = process
                    try:
                        step.context.run(step.callback, *step.arguments)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        message = f"Exception in callback {_describe_callback(step)}"
                        self.call_exception_handler({"message": message, "exception": error})
                    if meter.operations:
                        self._judge_step(step, process)
                    self.steps += 1
                    if self.steps % STEPS_BETWEEN_COLLECTIONS == 0:
                        self._process = self.outside
                        gc.collect()
                    if self._failure is not None:
                        raise self._failure

    def _advance(self, time_limit_s: float) -> None:
        """Moves the clock to the next timer."""
        timers = self._timers
        while timers:
            when, _, step = timers[0]
            if step.is_cancelled or not step.process.alive:
                heapq.heappop(timers)
                if not step.process.alive:
                    step.process.keep(step)
                continue
            self._now = max(self._now, when)
            elapsed_s = self._now - START_S
            self.time_us = round(elapsed_s * 1_000_000)
            self._steps_before = self.steps
            if elapsed_s > time_limit_s:
                raise SimulationFailure(f"not done after {time_limit_s} virtual seconds:\n{self.describe_waiting()}")
            return
        raise SimulationFailure(f"deadlock: nothing is left to do, and these wait:\n{self.describe_waiting()}")

    def _judge_step(self, step: Step, process: Process) -> None:
        """Fails the run if the step did too much. The scenario's own steps are not part of the programs, so they may
        exceed the limits."""
        excess = self.meter.step_ended()
        if excess is not None and process is not self.outside:
            self.fail(f"one step {excess}: {_describe_callback(step)}")

    def describe_waiting(self) -> str:
        """One line for each task that waits in a living process."""
        return "\n".join(
            f"  {process}{' (stalled)' if process.stalled else ''}: {describe_task(task)}"
            for process in self.processes
            if process.alive
            for task in process.tasks()
        )

    def _generator_forgotten(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self._process.alive:
            self.fail(f"an asynchronous generator was not closed: {generator!r}")

    def _dispose(self) -> None:
        """Closes the remaining coroutines. The world is over, so their last actions have no effect."""
        self._closed = True
        for process in self.processes:
            process.kill()
        self._ready.clear()
        self._held.clear()
        self._timers.clear()
        self._process = self.outside
        with warnings.catch_warnings():
            # A task that has not begun may hold another coroutine, which is then never awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            for process in self.processes:
                for task in process.tasks():
                    # A coroutine that is closed in the middle may raise any exception.
                    with suppress(BaseException):
                        cast("Coroutine[Any, Any, Any]", task.get_coro()).close()


def _keeps_frozen() -> bool:
    """Whether this process keeps the objects frozen that outlive its worlds, such as modules, as test processes do.
    Garbage collections skip frozen objects. In other processes each world freezes them while it runs.

    The answer True is remembered, because counting frozen objects walks through all of them.
    """
    global _is_kept_frozen  # noqa: PLW0603  # the process has only one garbage collector, too
    _is_kept_frozen = _is_kept_frozen or gc.get_freeze_count() > 0
    return _is_kept_frozen


_is_kept_frozen = False


def _has_begun(task_step: Callable[..., object]) -> bool:
    """Whether the task of this step has begun. A task that has begun, and whose next step is ready, has yielded."""
    task: asyncio.Task[Any] = task_step.__self__  # type: ignore[attr-defined]  # known by its name
    return cast("CoroutineType[Any, Any, Any]", task.get_coro()).cr_suspended


def simulated_loop() -> SimulatedLoop:
    """A new loop; its owner gives it a `network`."""
    # AbstractEventLoop declares some forty methods that are refused below, so mypy takes the class for abstract.
    return cast("Callable[[], SimulatedLoop]", SimulatedLoop)()


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(self: SimulatedLoop, *_: object, **__: object) -> NoReturn:
        raise SimulationFailure(f"loop.{name} leaves the simulation")

    return refused


for _name in (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "call_soon_threadsafe",
    "close",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_datagram_endpoint",
    "create_unix_connection",
    "create_unix_server",
    "default_exception_handler",
    "get_exception_handler",
    "get_task_factory",
    "getnameinfo",
    "remove_reader",
    "remove_signal_handler",
    "remove_writer",
    "run_forever",
    "run_in_executor",
    "sendfile",
    "set_debug",
    "set_default_executor",
    "set_task_factory",
    "shutdown_asyncgens",
    "shutdown_default_executor",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "stop",
    "subprocess_exec",
    "subprocess_shell",
):
    setattr(SimulatedLoop, _name, _refuse(_name))


def describe_task(task: "asyncio.Task[Any]") -> str:
    """The task's name and where it waits, the innermost call last."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    where = [
        f"{summary.name} ({summary.filename.rpartition('/')[2]}:{summary.lineno})"
        for summary in traceback.StackSummary.extract(((frame, frame.f_lineno) for frame in frames), lookup_lines=False)
    ]
    return f"{task.get_name()}: {' > '.join(where) or 'not started'}"


def _describe_callback(step: Step) -> str:
    callback = step.callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{getattr(owner.get_coro(), '__qualname__', '')}, {describe_task(owner)}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))
