"""A process beside the broker for work that would hold its loop, such as a walk through very many records.

`Worker` is the broker's side. It starts the process for the first job, ends the process after a while without jobs, and
starts a new process if one has died. `serve` is the process's side. A socket pair between them carries pickled
messages, each after its length. The broker sends (number, work, arguments), or (number,) to cancel a job; the process
sends (number, result, error). Each job is answered once, even if it is cancelled.

What must stay true:
- The process ends when its socket closes, however the broker dies, at the latest after the current step.
- Jobs take turns of one step each. A job that announces how many bytes it will hold waits until there is room, while
  the other jobs continue. A single job always has room.
- A job whose caller is cancelled ends at its next step. When the process dies, its jobs end in WorkerFailed.
- The broker has at most `MAX_JOBS` jobs in the process; further callers wait in the order of their arrival. A cancelled
  job counts until the process has confirmed the cancellation, so a client that repeatedly asks and disconnects cannot
  fill the memory.
- A process that has jobs sends a message every second. A process that is silent for too long is killed.

The process also keeps a job's imports, for example numba, out of the broker.
"""

import asyncio
import contextlib
import functools
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

# A job is a generator: each step yields how many more bytes the next steps will hold, mostly 0.
Job = Generator[int, None, Any]

MAX_JOBS = 64
MAX_HELD_BYTES = 256 * 1024 * 1024
IDLE_S = 60.0
# Many times as long as the longest step, which is a compilation.
MAX_SILENT_S = 30

# The argument of a process with the lowest priority.
_BACKGROUND = "background"
_LOWEST_NICENESS = 19

_LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 20
_WORD_EVERY_S = 1.0
# Not an answer to a job, but a sign of life.
_AT_WORK = (None, None, None)


class WorkerFailed(Exception):
    """The worker process died during a job. The same job may succeed in another process."""


# -- the broker's side ------------------------------------------------------------------------------------------------


class Worker:
    """Use it in one loop. `run_blocking` is `Environment.run_blocking`, because starting a process takes a while.
    `reap` waits for the end of a killed process, off the loop."""

    def __init__(
        self,
        run_blocking: Callable[[Callable[[], "Spawned"]], Awaitable["Spawned"]],
        reap: Callable[["subprocess.Popen[bytes]"], None],
        *,
        idle_s: float = IDLE_S,
        max_silent_s: int = MAX_SILENT_S,
        is_background: bool = False,
    ) -> None:
        """With `is_background` the process gets processor and disk only when no other process needs them."""
        self._spawn = functools.partial(_spawn, is_background=is_background)
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
        """The process's id, or None while no process runs."""
        return None if self._process is None else self._process.pid

    async def run(self, work: Callable[..., Generator[int, None, T]], *arguments: object) -> T:
        """Like `Environment.run_in_worker`."""
        await self._enter()
        try:
            process = await self._running_process()
            answer = process.ask(work, arguments)
        except BaseException:
            self._leave()
            raise
        # The process answers even if this caller is cancelled; its answer frees the place.
        result: T = await answer
        return result

    def close(self) -> None:
        """Ends the process and its jobs."""
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
            # Cancelling this caller must not cancel the start for other callers.
            await asyncio.shield(self._starting)
        return self._process

    async def _start(self) -> None:
        try:
            spawned = await self._run_blocking(self._spawn)
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
                self._leave()  # This caller's turn had come; pass it on.
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # The next caller takes over the place.
                return
        self._running -= 1
        if self._running == 0 and self._process is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self.close)


Spawned = tuple["subprocess.Popen[bytes]", socket.socket]


def _spawn(*, is_background: bool) -> Spawned:
    """Starts a process; returns the process and this end of its socket."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            # The process has its own session: Ctrl-C in a terminal reaches only the broker, which then stops cleanly.
            command = [sys.executable, "-P", "-m", "klamm.base.worker", str(theirs.fileno())]
            if is_background:
                command.append(_BACKGROUND)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                # The process imports klamm from the same place as this process.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)},
            )
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return process, ours


class _Process(asyncio.Protocol):
    """One process, from its start to its end. `on_job_over` is called once for each job."""

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
        """A future of the job's result. Cancelling the future cancels the job."""
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
        """Counts silence, but only in seconds in which the broker runs: after a SIGSTOP, messages may be waiting."""
        self._watch = None
        self._silent_s += 1
        if self._silent_s > self._max_silent_s:
            self.close()
        elif self._jobs:
            self._watch = asyncio.get_running_loop().call_later(_WORD_EVERY_S, self._count_silence)

    def close(self) -> None:
        """Kills the process at once, even after the loop has ended. No job needs to be finished."""
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
                continue  # The process only tells that it is at work.
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
    import pickle  # A broker that never needs the process never imports pickle.

    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _messages(received: bytearray) -> Iterator[Any]:
    """Takes the complete messages from the buffer."""
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
    """The jobs of the process, in the order of their turns."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_held_bytes = max_held_bytes
        self._held_bytes: dict[int, int] = {}
        self._turns: deque[tuple[int, Job]] = deque()
        # Jobs that wait for room, in the order of their requests, with the bytes that each needs.
        self._parked: deque[tuple[int, Job, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, number: int, job: Job) -> None:
        self._held_bytes[number] = 0
        self._turns.append((number, job))

    def cancel(self, number: int) -> bool:
        """Returns False if the job had already ended; it has then been answered."""
        if number not in self._held_bytes:
            return False
        self._turns = deque(turn for turn in self._turns if turn[0] != number)
        self._parked = deque(parked for parked in self._parked if parked[0] != number)
        self._ended(number)
        return True

    def step(self) -> tuple[int, Any, Exception | None] | None:
        """Runs one step of the next job; returns (number, result, error) when the step was the job's last."""
        number, job = self._turns.popleft()
        try:
            more_bytes = next(job)
        except StopIteration as end:
            self._ended(number)
            return number, end.value, None
        except MemoryError:
            # Not an error of the job: more memory may be free when the client tries again.
            self._ended(number)
            return number, None, WorkerFailed("the worker process has no memory for the job")
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


def serve(connection: socket.socket, jobs: Jobs) -> None:
    """Runs jobs until the other end closes the connection."""
    received = bytearray()
    clock_s = time.monotonic  # noqa: TID251  # there is no loop here
    said_s = clock_s()
    # The descriptor has the same number as in the broker, which may be too large for select.
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    while True:
        if readable.poll(0 if jobs else None):
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


def _lower_priority() -> None:
    # The kernel derives the disk priority from the niceness.
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_NICENESS)


if __name__ == "__main__":
    if _BACKGROUND in sys.argv[2:]:
        _lower_priority()
    jobs = Jobs()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(socket.socket(fileno=int(sys.argv[1])), jobs)
    # Exit at once, without further jobs and without waiting for threads. Jobs must not clean up: the broker may have
    # restarted, and another process may do the same work by now.
    os._exit(0)
