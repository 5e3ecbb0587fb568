"""The process for long work: turns, room, cancellation, death."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from klamm.base import worker
from klamm.base.worker import Jobs, Worker, WorkerFailed
from klamm.protocol.error_codes import ErrorCode, KafkaError
from support.one_broker import until
from support.paths import ROOT, TESTS
from support.worker_jobs import count, die, echo, fail, mark_steps, pid

SELECT_LIMIT = 1024


@pytest.fixture(autouse=True)
def only_sys_path_tells_where_jobs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


in_thread = asyncio.to_thread


@asynccontextmanager
async def working(**options: Any) -> AsyncIterator[Worker]:
    reaped: list[subprocess.Popen[bytes]] = []
    a_worker = Worker(in_thread, reaped.append, **options)
    try:
        async with asyncio.timeout(120):
            yield a_worker
    finally:
        a_worker.close()
        await asyncio.sleep(0.01)
    for process in reaped:
        await in_thread(process.wait, 20)


async def test_what_a_job_returns_and_raises_comes_back() -> None:
    async with working() as a_worker:
        assert a_worker.pid is None
        assert await a_worker.run(count, 1000) == 1000
        assert await a_worker.run(pid) == a_worker.pid != os.getpid()
        assert await a_worker.run(echo, bytes(3_000_000)) == bytes(3_000_000)
        with pytest.raises(KafkaError) as refused:
            await a_worker.run(fail, KafkaError(ErrorCode.INVALID_RECORD, "why"))
        assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_RECORD, "why")
        assert await asyncio.gather(*(a_worker.run(echo, number) for number in range(200))) == list(range(200))


async def test_it_works_for_a_broker_with_many_open_files() -> None:
    """A log of 10,000 segments has more than 1,024, and the cleaner's worker starts late."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors: list[int] = []
    try:
        while not descriptors or descriptors[-1] < SELECT_LIMIT:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
        async with working() as a_worker:
            assert await a_worker.run(count, 1000) == 1000
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_works_in_uvloop() -> None:
    async def main() -> None:
        a_worker = Worker(in_thread, lambda process: None)
        async with asyncio.timeout(120):
            assert await a_worker.run(echo, "x") == "x"
        a_worker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_process_that_dies_fails_its_jobs_and_another_follows() -> None:
    async with working() as a_worker:
        first = await a_worker.run(pid)
        long = asyncio.create_task(a_worker.run(count, 10**12))
        with pytest.raises(WorkerFailed):
            await a_worker.run(die)
        with pytest.raises(WorkerFailed):
            await long
        assert await a_worker.run(pid) != first


async def test_a_process_that_is_stopped_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_WORD_EVERY_S", 0.05)
    async with working(max_silent_s=40) as a_worker:
        first = await a_worker.run(pid)
        os.kill(first, signal.SIGSTOP)
        # Clients that give up and come again, so that there is always somebody who waits.
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await a_worker.run(pid)
        with pytest.raises(WorkerFailed):
            await a_worker.run(pid)
        assert await a_worker.run(pid) != first


async def test_a_process_that_works_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "_WORD_EVERY_S", 0.1)
    async with working(max_silent_s=60) as a_worker:
        job = asyncio.create_task(a_worker.run(mark_steps, str(tmp_path / "marks")))
        await until(lambda: a_worker._process is not None and a_worker._process._silent_s > 2)
        process = a_worker._process
        assert process is not None
        await until(lambda: process._silent_s < 2)
        assert not job.done()
        job.cancel()


async def test_who_asks_and_hangs_up_again_and_again_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_JOBS", 4)
    async with working() as a_worker:
        first = await a_worker.run(pid)
        os.kill(first, signal.SIGSTOP)
        for _ in range(100):
            job = asyncio.create_task(a_worker.run(echo, bytes(1_000_000)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
        assert a_worker._process is not None and a_worker._process._transport is not None
        assert a_worker._process._transport.get_write_buffer_size() < 5_000_000
        os.kill(first, signal.SIGCONT)
        # Their places are free as soon as the process has heard of it.
        assert await a_worker.run(pid) == first


async def test_who_is_cancelled_ends_in_the_process_too(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    async with working() as a_worker:
        job = asyncio.create_task(a_worker.run(mark_steps, str(marks)))
        await until(lambda: marks.exists() and marks.stat().st_size > 0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        # What comes after the cancellation on the same socket is answered after it.
        await a_worker.run(echo, 1)
        size = marks.stat().st_size
        await a_worker.run(count, 10_000)
        assert marks.stat().st_size == size


async def test_a_short_job_does_not_wait_for_a_long_one() -> None:
    async with working() as a_worker:
        long = [asyncio.create_task(a_worker.run(count, 10**12)) for _ in range(5)]
        assert await a_worker.run(count, 100) == 100
        assert not any(job.done() for job in long)
        for job in long:
            job.cancel()


async def test_more_jobs_than_the_process_may_have_wait_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_JOBS", 2)
    async with working() as a_worker:
        ended: list[int] = []

        async def ask(number: int) -> None:
            await a_worker.run(echo, number)
            ended.append(number)

        await asyncio.gather(*map(ask, range(20)))
        assert ended == list(range(20))
        waiting = [asyncio.create_task(a_worker.run(count, 10**12)) for _ in range(4)]
        await asyncio.sleep(0)
        for job in reversed(waiting):
            job.cancel()
        assert await a_worker.run(echo, 1) == 1


async def test_an_idle_process_ends_and_comes_back() -> None:
    async with working(idle_s=0.01) as a_worker:
        first = await a_worker.run(pid)
        await until(lambda: a_worker.pid is None)
        assert await a_worker.run(pid) != first


PARENT = """
import asyncio, sys
from klamm.base.worker import Worker
from support.one_broker import until
from support.worker_jobs import pid, tidy

async def main():
    worker = Worker(asyncio.to_thread, lambda process: None)
    print(await worker.run(pid), flush=True)
    await worker.run(tidy, sys.argv[1])

asyncio.run(main())
"""


async def test_it_ends_with_its_broker_even_if_that_is_killed_and_tidies_nothing_up(tmp_path: Path) -> None:
    job = tmp_path / "job"
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(job)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    descriptor = os.pidfd_open(number)
    await until(job.exists)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    await asyncio.wait_for(ended.wait(), 120)
    os.close(descriptor)
    # The broker's next process may be at the same files already.
    assert job.read_text() == "begun"


async def test_a_process_that_cannot_be_started_is_an_error_for_its_callers() -> None:
    async def refuse(spawn: object) -> Any:
        raise OSError(errno.ENOMEM, "no memory")

    a_worker = Worker(refuse, lambda process: None)
    results = await asyncio.gather(*(a_worker.run(echo, 1) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [WorkerFailed] * 3
    a_worker.close()


# -- turns and room, without a process


def holding(log: list[str], name: str, size_bytes: int):
    log.append(f"{name} asks")
    yield size_bytes
    log.append(f"{name} holds")
    yield 0
    return name


def drain(jobs: Jobs) -> list[Any]:
    ended = []
    while jobs:
        result = jobs.step()
        if result is not None:
            ended.append(result[1])
    return ended


def test_jobs_wait_for_room_and_others_go_on() -> None:
    log: list[str] = []
    jobs = Jobs(max_held_bytes=100)
    for number, (name, size) in enumerate([("a", 80), ("b", 80), ("c", 20), ("d", 500)]):
        jobs.add(number, holding(log, name, size))
    jobs.add(9, holding(log, "small", 0))
    assert sorted(drain(jobs)) == ["a", "b", "c", "d", "small"]
    assert log.index("b holds") > log.index("a holds")
    # Alone even the largest has room.
    assert log[-1] == "d holds"


def test_a_job_without_memory_may_be_tried_again() -> None:
    jobs = Jobs()
    jobs.add(1, fail(MemoryError()))
    jobs.step()
    ended = jobs.step()
    assert ended is not None
    assert isinstance(ended[2], WorkerFailed)


def test_a_cancelled_job_gives_its_room_to_the_next() -> None:
    log: list[str] = []
    jobs = Jobs(max_held_bytes=100)
    jobs.add(1, holding(log, "a", 80))
    jobs.add(2, holding(log, "b", 80))
    for _ in range(3):
        jobs.step()
    assert "b holds" not in log
    jobs.cancel(1)
    assert drain(jobs) == ["b"]
