"""A start tells how far the loading of the logs is, and loads as many at once as num.recovery.threads.per.data.dir."""

import asyncio
import logging
import threading

import pytest

from klamm.base.metrics import Metrics
from klamm.base.system_environment import SystemEnvironment
from klamm.storage.directories import directory_loader, log_metrics
from klamm.storage.directories.directory_loader import DirectoryLoader
from klamm.storage.directories.log_manager import LOGS_PER_LOADING, LogManager, LogManagerSettings
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties
from support.logs import DiskEnvironment, append

pytestmark = pytest.mark.loop("virtual")

A, B = "/disks/a", "/disks/b"
LOGS = 3 * LOGS_PER_LOADING
CONFIG = LogConfig()


class Slowly(DiskEnvironment):
    """Loading takes a second of virtual time."""

    def __init__(self):
        super().__init__()
        self.loading = self.ended = self.most_at_once = 0
        self.long_workers = []
        self.after_each = lambda: None

    def set_long_workers(self, count):
        self.long_workers.append(count)

    async def run_blocking(self, function, *arguments):
        if function.__name__ != DirectoryLoader._load_each.__name__:
            return await super().run_blocking(function, *arguments)
        self.loading += 1
        self.most_at_once = max(self.most_at_once, self.loading)
        await asyncio.sleep(1)
        self.loading -= 1
        self.after_each()
        return await super().run_blocking(function, *arguments)


def manager_of(environment, threads=1):
    return LogManager(
        environment,
        [A, B],
        meta_properties=MetaProperties("cluster", 1),
        default_config=CONFIG,
        settings=LogManagerSettings(recovery_threads_per_directory=threads),
        on_directory_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
        on_failure=lambda error: pytest.fail(str(error)),
    )


async def filled(environment):
    manager = manager_of(environment)
    await manager.load({})
    for number in range(2 * LOGS):
        append(manager.get_or_create("t", number, None, CONFIG), b"a")
    return manager


def remaining(manager):
    metrics = Metrics()
    log_metrics.register(metrics, manager)
    (gauge,) = [metric for metric in metrics if metric.name.name == "remainingLogsToRecover"]
    return gauge.read()


async def test_the_metric_counts_down_while_logs_are_recovered():
    environment = Slowly()
    await filled(environment)
    environment.disk.crash(lose_unsynced=False)
    seen = []
    manager = manager_of(environment)
    environment.after_each = lambda: seen.append(remaining(manager))
    await manager.load({})
    assert [of[A] for of in seen[::2]] == [LOGS, LOGS - LOGS_PER_LOADING, LOGS - 2 * LOGS_PER_LOADING]
    assert remaining(manager) == {A: 0, B: 0}


async def test_after_a_clean_stop_nothing_is_left_to_recover():
    environment = Slowly()
    await (await filled(environment)).stop()
    manager, seen = manager_of(environment), []
    environment.after_each = lambda: seen.append(remaining(manager))
    await manager.load({})
    assert seen == [{A: 0, B: 0}] * 6


async def test_the_log_says_how_far_a_start_is(caplog, monkeypatch):
    monkeypatch.setattr(directory_loader, "PROGRESS_INTERVAL_S", 1.5)
    environment = Slowly()
    await filled(environment)
    environment.disk.crash(lose_unsynced=False)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="klamm.storage.directories.directory_loader"):
        manager = manager_of(environment)
        await manager.load({})
    told = [line for line in caplog.messages if A in line]
    assert told == [
        f"Attempting recovery for all logs in {A} since no clean shutdown file was found",
        f"Loaded 32 of 48 logs in {A}",
        f"Loaded 48 logs in {A} in 3000ms",
    ]
    await manager.stop()
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="klamm.storage.directories.directory_loader"):
        await manager_of(environment).load({})
    assert f"Skipping recovery for all logs in {A} since clean shutdown file was found" in caplog.messages


@pytest.mark.parametrize("threads", [1, 3])
async def test_each_directory_has_its_own_recovery_threads(threads):
    environment = Slowly()
    await filled(environment)
    environment.disk.crash(lose_unsynced=False)
    environment.most_at_once, environment.long_workers = 0, []
    manager = manager_of(environment, threads)
    await manager.load({})
    assert environment.most_at_once == 2 * threads
    assert environment.long_workers == [2 * threads, 0]
    assert len(manager.logs) == 2 * LOGS


class OneLastsLonger(Slowly):
    """The second piece of loading ends a second after the first."""

    async def run_blocking(self, function, *arguments):
        result = await super().run_blocking(function, *arguments)
        if function.__name__ == DirectoryLoader._load_each.__name__:
            self.ended += 1
            if self.ended == 2:
                await asyncio.sleep(1)
        return result


async def test_a_directory_that_fails_while_another_thread_loads_from_it_keeps_no_logs():
    environment, failed = OneLastsLonger(), []
    await filled(environment)
    environment.ended = 0
    environment.disk.crash(lose_unsynced=False)
    manager = manager_of(environment, threads=2)
    manager._on_directory_failure = lambda path, error: failed.append(path)
    environment.disk.fail("list_directory", f"{A}/*")
    await manager.load({})
    await asyncio.sleep(5)
    assert failed == [A]
    assert {log.log_directory.path for log in manager.logs.values()} == {B}


@pytest.mark.loop("asyncio")
async def test_more_pieces_of_long_work_run_at_once_when_they_may():
    """Before, four threads did all of it, whatever num.recovery.threads.per.data.dir was."""
    environment = SystemEnvironment(blocking_workers=1)
    environment.set_long_workers(6)
    barrier = threading.Barrier(6, timeout=120)
    await asyncio.gather(*(environment.run_long(barrier.wait) for _ in range(6)))
    environment.set_long_workers(0)
    assert await environment.run_long(lambda: 7) == 7
    environment.close()
