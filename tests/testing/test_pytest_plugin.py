"""The pytest plugin, as a user's test run sees it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        # A process of its own: the plugin is found by its entry point.
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return run


def test_every_test_has_a_cluster_of_its_own(run: Run) -> None:
    result = run("""
        import pytest

        pytestmark = pytest.mark.klamm(brokers=1)

        @pytest.mark.parametrize("number", [1, 2])
        def test_fresh(klamm_cluster, number):
            assert klamm_cluster.broker_ids == [0]
            assert klamm_cluster.topics() == []
            klamm_cluster.create_topic("t")

        @pytest.mark.klamm(properties={"num.partitions": 3})
        def test_markers_add_up(klamm_cluster):
            assert klamm_cluster.broker_ids == [0]
            assert klamm_cluster._properties == {"num.partitions": "3"}
    """)
    result.assert_outcomes(passed=3)


def test_a_factory_for_several(run: Run) -> None:
    run("""
        def test_two(klamm_cluster_factory):
            first, second = klamm_cluster_factory(1), klamm_cluster_factory(brokers=1)
            first.create_topic("t")
            assert second.topics() == []
    """).assert_outcomes(passed=1)


def test_coroutines(run: Run) -> None:
    run("""
        import asyncio, pytest

        @pytest.mark.klamm(brokers=1)
        def test_async(klamm_async_cluster):
            async def main():
                await klamm_async_cluster.create_topic("t")
                assert await klamm_async_cluster.topics() == ["t"]

            asyncio.run(main())
    """).assert_outcomes(passed=1)


FAILING = """
    import pytest

    @pytest.mark.klamm(brokers=1)
    def test_fails(klamm_cluster):
        klamm_cluster.kill(0)
        assert 0
"""


def test_a_failed_test_shows_the_clusters_state_and_logs(run: Run) -> None:
    result = run(FAILING)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- klamm cluster 127.0.0.1:* -*",
            "zookeeper runs",
            "broker-0 has been stopped or killed",
            "*- log of zookeeper -*",
            "*- log of broker 0 -*",
            "*broker 0 of cluster * serves*",
        ]
    )
    result.stdout.no_fnmatch_line("data and logs: *")


def test_the_data_of_a_failed_test_can_be_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = run(FAILING, "--klamm-keep")
    result.assert_outcomes(failed=1)
    kept = re.search("data and logs: (.*)", result.stdout.str())
    assert kept is not None
    assert [str(path) for path in tmp_path.glob("klamm-cluster-*")] == [kept.group(1)]


def test_a_wrong_marker_is_told(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.mark.klamm(3)
        def test_it(klamm_cluster):
            pass
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_it: pytest.mark.klamm takes named arguments only"])


def test_workers_at_once(run: Run) -> None:
    run(
        """
        import pytest

        @pytest.mark.klamm(brokers=1)
        @pytest.mark.parametrize("number", range(4))
        def test_it(klamm_cluster, number):
            klamm_cluster.create_topic("t")
            klamm_cluster.restart(0)
            assert klamm_cluster.leader("t") == 0
        """,
        "-n2",
    ).assert_outcomes(passed=4)


def test_the_plugin_costs_nothing_where_it_is_not_used(run: Run) -> None:
    run("""
        import sys

        def test_it():
            assert not {"kafka", "klamm.testing.cluster", "klamm.net"} & set(sys.modules)
    """).assert_outcomes(passed=1)
