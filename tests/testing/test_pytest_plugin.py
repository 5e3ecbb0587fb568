"""The pytest plugin, as a user's test run sees it."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

# Here, so that the runs below do not each import it anew.
import klamm.testing.cluster  # noqa: F401

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    def run(source: str, *options: str, in_process: bool = True) -> pytest.RunResult:
        pytester.makepyfile(source)
        pytest_run = pytester.runpytest_inprocess if in_process else pytester.runpytest_subprocess
        return pytest_run("-p", "no:cacheprovider", *options)

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
        klamm_cluster.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
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
            "what happened last:",
            "    0.000 s  ZooKeeper is ready",
            "*s  broker 0 is the controller, controller epoch 1",
            "*s  fault 1: c.fail(api='Produce', times=1, error='NOT_LEADER_OR_FOLLOWER')",
            "*s  broker 0 was killed",
            "what was done to the cluster c:",
            "    fault_1 = c.fail(api='Produce', times=1, error='NOT_LEADER_OR_FOLLOWER')",
            "    c.kill(0)",
            "*- log of zookeeper -*",
            "*- log of broker 0 -*",
            "*broker 0 of cluster * serves*",
        ]
    )
    result.stdout.no_fnmatch_line("data and logs: *")


def test_the_data_of_a_failed_test_can_be_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
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
        in_process=False,
    ).assert_outcomes(passed=4)


def test_the_plugin_costs_nothing_where_it_is_not_used(run: Run) -> None:
    run(
        """
        import sys

        def test_it():
            assert not {"kafka", "klamm.testing.cluster", "klamm.net"} & set(sys.modules)
        """,
        in_process=False,
    ).assert_outcomes(passed=1)


def test_markers_give_the_cluster_faults(run: Run) -> None:
    run("""
        import pytest
        from klamm.faults.commands.answers import DelayAnswers
        from klamm.testing import Cluster

        pytestmark = [
            pytest.mark.klamm(brokers=1),
            pytest.mark.klamm_faults("answers.fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", on_call=[3]),
        ]

        @pytest.fixture(scope="module")
        def shared(klamm_helper):
            with Cluster(brokers=1, helper=klamm_helper) as cluster:
                yield cluster

        @pytest.mark.klamm_faults(DelayAnswers(api="Fetch", delay_ms=5))
        def test_own(klamm_cluster):
            handles = klamm_cluster.faults.active
            assert [handle.fault.kind for handle in handles] == ["answers.fail", "answers.delay"]
            klamm_cluster.close()
            assert [handle.hits for handle in handles] == [0, 0]

        def test_shared(shared, klamm_faults):
            (failed,) = klamm_faults(shared)
            assert failed.fault.on_call == (3,)

        @pytest.fixture
        def removed(shared):
            yield
            assert shared.faults.active == []

        def test_removed(removed, shared, klamm_faults):
            klamm_faults(shared)
    """).assert_outcomes(passed=3)


def test_a_marked_test_that_uses_no_cluster_fails(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.mark.klamm_faults("clock.shift", ms=1)
        def test_it():
            pass
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no cluster has the faults of pytest.mark.klamm_faults: use klamm_cluster or *"])


def test_a_wrong_fault_is_told(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.mark.klamm_faults("answers.fail", api="Prodce", error="NONE")
        def test_it(klamm_cluster):
            pass

        @pytest.mark.klamm_faults(api="Produce")
        def test_fields(klamm_cluster):
            pass

        @pytest.mark.klamm_faults()
        def test_nothing(klamm_cluster):
            pass
    """)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "*test_it: pytest.mark.klamm_faults: answers.fail: api='Prodce' is not served; allowed: Produce, *",
            "*test_fields: pytest.mark.klamm_faults: the fields api belong to one fault, whose kind is the only*",
            "*test_nothing: pytest.mark.klamm_faults: a fault is missing; allowed: a kind such as *",
        ]
    )
