"""kazoo's own test classes (its wheel contains them), with the embedded server in place of their ZooKeeper cluster.

What does not apply is listed in `EXCLUDED`, with the reason.
"""

import gc
import logging
import os
import shutil
import sys
import tempfile
import threading
import types
import unittest
from collections.abc import Iterator
from pathlib import Path

from support.zookeeper.embedded import EmbeddedZooKeeper

# Three libraries that kazoo's tests import: two to make certificates for TLS, of the third one function is used.
for name in ("OpenSSL", "jks", "objgraph"):
    sys.modules.setdefault(name, types.ModuleType(name))
if not hasattr(sys.modules["objgraph"], "count"):

    def count(name: str) -> int:
        """How many objects of a class of kazoo's there are; hypothesis, used by other tests, has a TreeNode too."""
        classes = map(type, gc.get_objects())
        return sum(each.__name__ == name and each.__module__.startswith("kazoo.") for each in classes)

    sys.modules["objgraph"].count = count  # type: ignore[attr-defined]
os.environ.setdefault("ZOOKEEPER_VERSION", "3.5.9")

from kazoo.testing import harness  # noqa: E402
from kazoo.tests import (  # noqa: E402
    test_barrier,
    test_cache,
    test_client,
    test_connection,
    test_counter,
    test_election,
    test_interrupt,
    test_lease,
    test_lock,
    test_partitioner,
    test_party,
    test_queue,
    test_watchers,
)

# kazoo's tests join their threads without a limit: a thread that a failed test left in wait would hold up all others.
JOIN_TIMEOUT_S = 120


class BoundedThread(threading.Thread):
    """A thread whose join ends, with an error if the thread has not ended."""

    def join(self, timeout: float | None = None) -> None:
        super().join(JOIN_TIMEOUT_S if timeout is None else timeout)
        assert timeout is not None or not self.is_alive(), f"{self.name} did not end within {JOIN_TIMEOUT_S} s"


test_lock.threading = types.SimpleNamespace(**{**vars(threading), "Thread": BoundedThread})


class EmbeddedServer:
    """What the harness expects of a server of its cluster."""

    def __init__(self) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="klamm-kazoo-")
        self.zookeeper = EmbeddedZooKeeper(Path(self.home.name))
        self.address = self.secure_address = self.zookeeper.connect

    @property
    def running(self) -> bool:
        return self.zookeeper.process is not None and self.zookeeper.process.alive()

    def run(self) -> None:
        if not self.running:
            self.zookeeper.start()

    def stop(self) -> None:
        self.zookeeper.kill()

    def clear(self) -> None:
        shutil.rmtree(self.zookeeper.directory / "data", ignore_errors=True)


class EmbeddedCluster:
    """A cluster of one."""

    def __init__(self) -> None:
        self.servers = [EmbeddedServer()]

    def __getitem__(self, index: int) -> EmbeddedServer:
        return self.servers[index]

    def __iter__(self) -> Iterator[EmbeddedServer]:
        return iter(self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.run()

    def terminate(self) -> None:
        """The harness calls this after every class: the next one finds an empty server."""
        for server in self.servers:
            server.stop()
            server.clear()

    def get_logs(self) -> list[str]:
        processes = [server.zookeeper.process for server in self.servers if server.running]
        return [process.tail() for process in processes if process is not None]


CLUSTER = EmbeddedCluster()
harness.get_global_cluster = lambda: CLUSTER

EXCLUDED: dict[str, str] = {
    "TestSSLClient": "TLS",
    "TestReconfig": "an ensemble of several servers and its reconfiguration",
    "TestReadOnlyMode": "an ensemble that has lost its majority",
    "TestClient.test_update_host_list": "an ensemble of which one server stops",
    "KazooChildrenWatcherTests.test_child_watcher_remove_session_watcher": "ten seconds of kazoo's own timers",
    "KazooLockTests.test_lock": "waits for the moment between two holders of the lock, which it can miss",
    "KazooLockTests.test_rw_lock": "waits for the moment between two holders of the lock, which it can miss",
    "KazooLockingQueueTests.test_concurrent_execution": "gives three threads 0.1 s to get and 0.2 s to report",
    "KazooPartitionerTests.test_race_condition_new_partitioner_during_the_lock": "ten seconds of kazoo's own timers",
    "KazooPartitionerTests.test_race_condition_new_partitioner_steals_the_lock": "eight seconds of kazoo's own timers",
}


def _applicable(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """The class without the tests that are excluded."""
    excluded = {name: None for name in dir(case) if f"{case.__name__}.{name}" in EXCLUDED}
    return type(case.__name__, (case,), {**excluded, "__module__": __name__})


def _collect() -> dict[str, type[unittest.TestCase]]:
    """Every class of kazoo's tests that needs a server."""
    cases = {}
    for module in MODULES:
        for name, case in vars(module).items():
            is_own = isinstance(case, type) and case.__module__ == module.__name__
            if is_own and issubclass(case, harness.KazooTestHarness) and name not in EXCLUDED:
                cases[name] = _applicable(case)
    return cases


MODULES = (
    test_barrier,
    test_cache,
    test_client,
    test_connection,
    test_counter,
    test_election,
    test_interrupt,
    test_lease,
    test_lock,
    test_partitioner,
    test_party,
    test_queue,
    test_watchers,
)
globals().update(_collect())

logging.getLogger("kazoo").setLevel(logging.CRITICAL)
