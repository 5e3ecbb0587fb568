"""The pytest plugin: fixtures that give a test a cluster of its own, and the cluster's logs when the test fails.

Every pytest run loads this plugin where klamm is installed (by pytest's entry point), so the plugin imports the rest of
klamm only when a fixture is used.
"""

import sys
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from klamm.testing.async_cluster import AsyncCluster
    from klamm.testing.cluster import Cluster
    from klamm.testing.faults.faults import FaultHandle
    from klamm.testing.helper import Helper
    from klamm.testing.recordings import Recordings

LOG_LINES = 30
HISTORY_LINES = 200

_failed = pytest.StashKey[BaseException]()
_has_faults = pytest.StashKey[bool]()
_recordings = pytest.StashKey["Recordings"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("klamm")
    group.addoption(
        "--klamm-keep",
        action="store_true",
        help="keep data and logs of the clusters of failed tests, and report their directories",
    )
    group.addoption(
        "--klamm-recordings",
        metavar="DIR",
        help="where the recordings of the clusters of failed tests are written; by default a new temporary directory",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "klamm(brokers=3, properties={...}, ...): the cluster that the fixture klamm_cluster gives this test;"
        " the arguments are those of klamm.testing.Cluster. A function's marker is added to its class's and module's.",
    )
    config.addinivalue_line(
        "markers",
        "klamm_faults(kind, field=value, ...): a fault that the cluster of klamm_cluster has when the test begins, by"
        " its kind and fields; or klamm_faults(fault, ...) with fault objects. Each marker adds faults.",
    )


@pytest.fixture(scope="session")
def klamm_helper() -> "Iterator[Helper]":
    """The helper process that starts all clusters of the session, all but the first in a tenth of a second."""
    from klamm.testing.helper import Helper

    with Helper() as helper:
        yield helper


@pytest.fixture
def klamm_cluster_factory(request: pytest.FixtureRequest) -> "Iterator[Callable[..., Cluster]]":
    """Starts any number of clusters, with the arguments of klamm.testing.Cluster; they end with the test."""
    from klamm.testing.cluster import Cluster

    clusters: list[Cluster] = []

    def start(brokers: int = 3, **options: Any) -> Cluster:
        options.setdefault("keep_on_failure", request.config.getoption("--klamm-keep"))
        # The helper is requested only here, so that a wrong marker is reported before anything starts.
        cluster = Cluster(brokers, helper=request.getfixturevalue("klamm_helper"), **options)
        cluster.open()
        clusters.append(cluster)
        return cluster

    yield start
    error = request.node.stash.get(_failed, None)
    with ExitStack() as stack:
        for cluster in clusters:
            stack.callback(cluster.close, error)


@pytest.fixture
def klamm_faults(request: pytest.FixtureRequest) -> "Iterator[Callable[[Cluster], list[FaultHandle]]]":
    """For shared clusters: gives a cluster the faults of the test's markers `klamm_faults` until the test ends.

    `klamm_faults(cluster)` returns their handles, those of the outermost marker first.
    """
    from klamm.testing.faults.given import given_faults

    wanted = []
    for marker in reversed(list(request.node.iter_markers("klamm_faults"))):
        try:
            wanted += given_faults(*marker.args, **marker.kwargs)
        except ValueError as error:
            raise pytest.UsageError(f"{request.node.nodeid}: pytest.mark.klamm_faults: {error}") from None
    handles: list[FaultHandle] = []

    def install(cluster: "Cluster") -> "list[FaultHandle]":
        request.node.stash[_has_faults] = True
        for fault in wanted:
            handles.append(cluster.faults.install(fault))
        return handles[len(handles) - len(wanted) :]

    yield install
    for handle in handles:
        handle.remove()


@pytest.fixture
def klamm_cluster(
    request: pytest.FixtureRequest,
    klamm_cluster_factory: "Callable[..., Cluster]",
    klamm_faults: "Callable[[Cluster], list[FaultHandle]]",
) -> "Cluster":
    """A cluster for this test alone: three brokers, or the arguments of its marker `klamm`, with the faults of its
    markers `klamm_faults`."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("klamm"))):
        if marker.args:
            raise pytest.UsageError(f"{request.node.nodeid}: pytest.mark.klamm takes named arguments only")
        options.update(marker.kwargs)
    cluster = klamm_cluster_factory(**options)
    klamm_faults(cluster)
    return cluster


@pytest.fixture
def klamm_async_cluster(klamm_cluster: "Cluster") -> "AsyncCluster":
    """The same cluster for coroutines, with any plugin that runs them on asyncio; docs/testing.md names them."""
    from klamm.testing.async_cluster import AsyncCluster

    return AsyncCluster(klamm_cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that has a marker `klamm_faults` of its own and has passed without those faults."""
    yield
    marked = any(marker.name == "klamm_faults" for marker in item.own_markers)
    if marked and not item.stash.get(_has_faults, False):
        pytest.fail("no cluster has the faults of pytest.mark.klamm_faults: use klamm_cluster or klamm_faults")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the history and the logs of all running clusters to the report of a failed test, and records them."""
    report = yield
    module = sys.modules.get("klamm.testing.cluster")
    if report.failed and call.excinfo is not None:
        item.stash[_failed] = call.excinfo.value
        if module is not None:
            # The alarm of pytest-timeout may come as late as here, and an error here would end the whole run.
            try:
                for title, text in _sections(item, module.running_clusters, module.failed_clusters):
                    report.sections.append((title, text))
            except (Exception, pytest.fail.Exception) as error:
                report.sections.append(("klamm", f"the clusters could not be described further: {error}"))
    if module is not None:
        # If a passed test has expected an error of its cluster, the next test's report must not show that cluster.
        module.failed_clusters.clear()
    return report


def _sections(
    item: pytest.Item, running: "Collection[Cluster]", failed: "Collection[Cluster]"
) -> Iterator[tuple[str, str]]:
    for cluster in list(running):
        kept = f"\ndata and logs: {cluster.directory}" if cluster.keeps_on_failure else ""
        yield f"klamm cluster {cluster.bootstrap}", cluster.describe(HISTORY_LINES) + kept
        for server in cluster.servers:
            yield f"log of {'broker ' if isinstance(server, int) else ''}{server}", cluster.log(server, LOG_LINES)
    clusters = [*running, *failed]
    if clusters:
        lines = _recordings_of(item.config).lines(item.nodeid, [each.record for each in clusters])
        yield "klamm recordings", "\n".join(lines)


def _recordings_of(config: pytest.Config) -> "Recordings":
    from klamm.testing.recordings import Recordings

    if _recordings not in config.stash:
        config.stash[_recordings] = Recordings(config.getoption("--klamm-recordings"))
    return config.stash[_recordings]
