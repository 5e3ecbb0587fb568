"""A process beside the broker for work that would hold its loop: walks through very many records.

`Worker` is the broker's side. It starts the process when there is first something to do, ends it when there has been
nothing for a while, and starts another after one has died. `serve` is the process's side. Between them is a socket pair
that carries pickled messages, each after its length: (number, work, arguments) and, to cancel it, (number,) one way,
(number, result, error) the other. Each job is answered once, a cancelled one too.

What must stay true:
- The process ends when the socket does: with its broker, however that dies, and at the latest after the step under way.
- Jobs take turns, a step each. A job that says how many bytes it is about to hold waits until there is room for them;
  the others go on meanwhile. One job alone always has room.
- A job whose caller is cancelled ends at its next step. When the process dies, its jobs end in WorkerFailed.
- The broker has no more than `MAX_JOBS` jobs in the process; further callers wait, the first come first. A cancelled
  job is one of them until the process has heard of that: who asks and hangs up, again and again, fills no memory.
- A process that has jobs says something every second. One that says nothing for long is killed, as if it had died.

What a job imports, the broker has not: numba for example. That is what the process is for, besides time.
"""

import asyncio
import contextlib
import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")

# A job is a generator: each step yields how many bytes the next ones will hold besides what the job holds, mostly 0.
Job = Generator[int, None, Any]

MAX_JOBS = 64
MAX_HELD_BYTES = 256 * 1024 * 1024
IDLE_S = 60.0
# Many times what the longest step takes, which is to compile.
MAX_SILENT_S = 30

_LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 20
_WORD_EVERY_S = 1.0
# An answer to no job: the process is at work.
_AT_WORK = (None, None, None)


class WorkerFailed(Exception):
    """The process that worked on something has died. Another one may do better."""


# -- the broker's side ------------------------------------------------------------------------------------------------


class Worker:
    """Used in one loop. `run_blocking` is `Environment.run_blocking`, because to start a process takes a while; `reap`
    waits, off the loop, for the end of one that has been killed."""

    def __init__(
        self,
        run_blocking: Callable[[Callable[[], "Spawned"]], Awaitable["Spawned"]],
        reap: Callable[["subprocess.Popen[bytes]"], None],
        *,
        idle_s: float = IDLE_S,
        max_silent_s: int = MAX_SILENT_S,
    ) -> None:
        self._run_blocking = run_blocking
        self._reap = reap
        self._starting: asyncio.Task[None] | None = None
        self._idle_s = idle_s
        self._max_silent_s = max_silent_s
        self._process: _Process | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = 0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one now."""
        return None if self._process is None else self._process.pid

    async def run(self, work: Callable[..., Generator[int, None, T]], *arguments: object) -> T:
        """As `Environment.run_in_worker`."""
        await self._enter()
        try:
            process = await self._running_process()
            answer = process.ask(work, arguments)
        except BaseException:
            self._leave()
            raise
        # The place is free again when the process has answered, which it does also if this caller goes.
        result: T = await answer
        return result

    def close(self) -> None:
        """Ends the process, and the jobs in it."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._starting is not None:
            self._starting.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.close()

    async def _running_process(self) -> "_Process":
        while self._process is None or self._process.is_over:
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start())
            # The others who wait for it still do if this one is cancelled.
            await asyncio.shield(self._starting)
        return self._process

    async def _start(self) -> None:
        try:
            spawned = await self._run_blocking(_spawn)
            self._process = _Process(spawned, self._reap, self._leave, self._max_silent_s)
        except OSError as error:
            raise WorkerFailed(f"no worker process could be started: {error}") from error
        finally:
            self._starting = None

    async def _enter(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._running < MAX_JOBS:
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # Its turn had come.
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # It takes over the place.
                return
        self._running -= 1
        if self._running == 0 and self._process is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self.close)


Spawned = tuple["subprocess.Popen[bytes]", socket.socket]


def _spawn() -> Spawned:
    """A process, and this end of its socket."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            # In a session of its own: Ctrl-C in a terminal goes to the broker alone, which then stops in order.
            command = [sys.executable, "-P", "-m", "klamm.worker", str(theirs.fileno())]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                # It finds klamm where this process does.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)},
            )
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return process, ours


class _Process(asyncio.Protocol):
    """One process, from its start to its end. `on_job_over` hears of each job that it has been asked for."""

    def __init__(
        self,
        spawned: Spawned,
        reap: Callable[["subprocess.Popen[bytes]"], None],
        on_job_over: Callable[[], None],
        max_silent_s: int,
    ) -> None:
        self._popen, ours = spawned
        self._reap = reap
        self._on_job_over = on_job_over
        self._max_silent_s = max_silent_s
        self._silent_s = 0
        self._watch: asyncio.TimerHandle | None = None
        self._jobs: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._received = bytearray()
        self.is_over = False
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_unix_connection(lambda: self, sock=ours))

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ask(self, work: Callable[..., object], arguments: Sequence[object]) -> "asyncio.Future[Any]":
        """The job's result, when it is over. Cancelling it cancels the job."""
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send((number, work, arguments))
        self._jobs[number] = answer
        answer.add_done_callback(lambda answer: self._send((number,)) if answer.cancelled() else None)
        if self._watch is None:
            self._silent_s = 0
            self._watch = asyncio.get_running_loop().call_later(_WORD_EVERY_S, self._count_silence)
        return answer

    def _count_silence(self) -> None:
        """Counts seconds in which the broker runs: after it has been stopped itself, there may be words to read."""
        self._watch = None
        self._silent_s += 1
        if self._silent_s > self._max_silent_s:
            self.close()
        elif self._jobs:
            self._watch = asyncio.get_running_loop().call_later(_WORD_EVERY_S, self._count_silence)

    def close(self) -> None:
        """At once, also when the loop runs no more. There is nothing in the process that would have to be finished."""
        if not self.is_over:
            self._popen.kill()
            self._ended()
        if self._transport is not None:
            self._transport.abort()

    def _send(self, message: tuple[object, ...]) -> None:
        if self.is_over:
            return
        data = _framed(message)
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    # -- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.is_over:
            self._transport.abort()
            return
        for data in self._unsent:
            self._transport.write(data)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._silent_s = 0
        self._received += data
        for number, result, error in _messages(self._received):
            if number is None:
                continue  # It is at work.
            answer = self._jobs.pop(number)
            self._on_job_over()
            if answer.done():
                continue  # Cancelled meanwhile.
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_over:
            self._popen.kill()
            self._ended()

    def _ended(self) -> None:
        self.is_over = True
        if self._watch is not None:
            self._watch.cancel()
        for answer in self._jobs.values():
            self._on_job_over()
            if not answer.done():
                answer.set_exception(WorkerFailed(f"the worker process {self.pid} has ended"))
        self._jobs.clear()
        self._reap(self._popen)


# -- messages ---------------------------------------------------------------------------------------------------------


def _framed(message: tuple[object, ...]) -> bytes:
    import pickle  # A broker that never needs the process does without.

    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _messages(received: bytearray) -> Iterator[Any]:
    """The messages that are complete; they leave the buffer."""
    import pickle

    position = 0
    while len(received) - position >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(received, position)
        end = position + _LENGTH.size + length
        if end > len(received):
            break
        yield pickle.loads(memoryview(received)[position + _LENGTH.size : end])
        position = end
    del received[:position]


# -- the process's side -----------------------------------------------------------------------------------------------


class Jobs:
    """The jobs of the process, and whose turn it is."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_held_bytes = max_held_bytes
        self._held_bytes: dict[int, int] = {}
        self._turns: deque[tuple[int, Job]] = deque()
        # In the order in which they asked: what waits for room, and how much it needs.
        self._parked: deque[tuple[int, Job, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, number: int, job: Job) -> None:
        self._held_bytes[number] = 0
        self._turns.append((number, job))

    def cancel(self, number: int) -> bool:
        """Whether it was there: one that is over has been answered."""
        if number not in self._held_bytes:
            return False
        self._turns = deque(turn for turn in self._turns if turn[0] != number)
        self._parked = deque(parked for parked in self._parked if parked[0] != number)
        self._ended(number)
        return True

    def step(self) -> tuple[int, Any, Exception | None] | None:
        """One step of the job whose turn it is; (number, result, error) when it was its last."""
        number, job = self._turns.popleft()
        try:
            more_bytes = next(job)
        except StopIteration as end:
            self._ended(number)
            return number, end.value, None
        except MemoryError:
            # Not a fault of the job; there may be more when its client tries again.
            self._ended(number)
            return number, None, WorkerFailed("the worker process has no memory for it")
        except Exception as error:
            self._ended(number)
            return number, None, error
        if more_bytes:
            self._parked.append((number, job, more_bytes))
            self._admit()
        else:
            self._turns.append((number, job))
        return None

    def _ended(self, number: int) -> None:
        self._held_bytes.pop(number, None)
        self._admit()

    def _admit(self) -> None:
        while self._parked:
            number, job, more_bytes = self._parked[0]
            held_bytes = sum(self._held_bytes.values())
            others_bytes = held_bytes - self._held_bytes[number]
            if others_bytes and held_bytes + more_bytes > self._max_held_bytes:
                return
            self._parked.popleft()
            self._held_bytes[number] += more_bytes
            self._turns.append((number, job))


def serve(connection: socket.socket) -> None:
    """Works until the other end closes."""
    jobs = Jobs()
    received = bytearray()
    clock_s = time.monotonic  # noqa: TID251  # there is no loop here
    said_s = clock_s()
    while True:
        if select.select([connection], [], [], 0 if jobs else None)[0]:
            data = connection.recv(_READ_BYTES)
            if not data:
                return
            received += data
            for number, *what in _messages(received):
                if what:
                    work, arguments = what
                    jobs.add(number, work(*arguments))
                elif jobs.cancel(number):
                    connection.sendall(_framed((number, None, None)))
        if jobs:
            ended = jobs.step()
            if ended is not None or clock_s() - said_s >= _WORD_EVERY_S:
                connection.sendall(_framed(ended or _AT_WORK))
                said_s = clock_s()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(socket.socket(fileno=int(sys.argv[1])))
    # Not one job more, and no waiting for what else may run.
    os._exit(0)
