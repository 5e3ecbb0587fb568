"""Test cases of unittest with a cluster that their tests share, and with faults.

    class OrdersTest(ClusterTestCase):
        cluster_options = {"brokers": 1}

        @with_faults("answers.fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
        def test_a_record_is_sent_again(self):
            Producer({"bootstrap.servers": self.cluster.bootstrap})

For coroutines: `class OrdersTest(ClusterTestCase, IsolatedAsyncioTestCase)`; `self.async_cluster` is the same cluster.

What must stay true: each test begins with a cluster whose servers all run, without the faults of other tests, even if
those have failed. The notes of a test's error hold the state of the cluster and the command that opens its recording.
"""

import functools
import inspect
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from klamm.faults.commands import Fault
from klamm.testing.async_cluster import AsyncCluster
from klamm.testing.cluster import Cluster
from klamm.testing.faults.given import given_faults
from klamm.testing.recordings import note_recording

F = TypeVar("F", bound=Callable[..., Any])

_WANTED = "_klamm_faults"


def with_faults(*faults: str | Fault | Mapping[str, Any], **fields: Any) -> Callable[[F], F]:
    """The cluster has these faults when the test begins. The arguments are those of pytest.mark.klamm_faults.

    Raises ValueError.
    """
    wanted = given_faults(*faults, **fields)

    def decorate(test: F) -> F:
        # Decorators are applied from the innermost, and the outermost fault is installed first.
        setattr(test, _WANTED, [*wanted, *getattr(test, _WANTED, [])])
        return test

    return decorate


class ClusterTestCase(unittest.TestCase):
    """A test case with one cluster for all its tests: `self.cluster`."""

    cluster_options: ClassVar[Mapping[str, Any]] = {}
    """The arguments of klamm.testing.Cluster."""

    cluster: ClassVar[Cluster]
    _failure: ClassVar[Exception | None] = None

    def __init__(self, methodName: str = "runTest") -> None:
        super().__init__(methodName)
        test = getattr(self, methodName, None)
        if test is not None:
            # unittest calls the method of the instance, so this wrapper sees the failure first.
            setattr(self, methodName, self._told(test))

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._failure = None
        cls.cluster = Cluster(**cls.cluster_options)
        cls.cluster.open()
        cls.addClassCleanup(lambda: cls.cluster.close(cls._failure))

    @property
    def async_cluster(self) -> AsyncCluster:
        """The same cluster, for coroutines."""
        return AsyncCluster(self.cluster)

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.cluster.heal)
        for fault in getattr(getattr(self, self._testMethodName), _WANTED, []):
            self.cluster.faults.install(fault)

    @contextmanager
    def subTest(self, *arguments: Any, **parameters: Any) -> Iterator[None]:
        # A failure in this block does not reach the test's wrapper.
        with super().subTest(*arguments, **parameters), self._telling():
            yield

    def _told(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """The test, wrapped so that the notes of its error hold the state of the cluster."""
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run() -> None:
                with self._telling():
                    await test()
        else:

            @functools.wraps(test)
            def run() -> None:
                with self._telling():
                    test()

        return run

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except unittest.SkipTest:
            raise
        except Exception as error:
            kept = f"\ndata and logs: {self.cluster.directory}" if self.cluster.keeps_on_failure else ""
            error.add_note(f"klamm cluster {self.cluster.bootstrap}\n{self.cluster.describe()}{kept}")
            note_recording(error, self.cluster.record, self.id())
            type(self)._failure = error
            raise
