"""A broker's session is ended on demand in Apache ZooKeeper, on one server and in an ensemble."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.faults.entries import BrokerRegistered
from klamm.testing import Cluster, Helper
from support.oracles import RealEnsemble, RealZooKeeper

TIMES = 5


def _has_registered(cluster: Cluster, times: int) -> bool:
    return len(cluster.history.of(BrokerRegistered)) > times


def _expire_again_and_again(zookeeper: str, helper: Helper) -> None:
    with Cluster(1, zookeeper=zookeeper, zookeeper_session_timeout_ms=30_000, helper=helper) as c:
        for times in range(1, TIMES + 1):
            c.expire_session(0)
            c.until(partial(_has_registered, c, times))
        epochs = [entry.broker_epoch for entry in c.history.of(BrokerRegistered)]
        assert epochs == sorted(set(epochs))
        c.create_topic("t")


@pytest.mark.long
@pytest.mark.parametrize("jars", ["kafka_jars", "zookeeper39_jars"])
def test_a_session_ends_on_a_server(
    jars: str, tmp_path: Path, running: Callable[[Any], Any], klamm_helper: Helper, request: pytest.FixtureRequest
) -> None:
    server = running(RealZooKeeper(request.getfixturevalue(jars), tmp_path / "zookeeper"))
    server.start()
    _expire_again_and_again(server.connect, klamm_helper)


@pytest.mark.long
def test_a_session_ends_in_an_ensemble(
    kafka_jars: Path, tmp_path: Path, running: Callable[[Any], Any], klamm_helper: Helper
) -> None:
    """The second connection, which closes the session, may be to another server than the broker's."""
    ensemble = running(RealEnsemble(kafka_jars, tmp_path / "zookeeper"))
    ensemble.start()
    _expire_again_and_again(",".join(member.connect for member in ensemble.members), klamm_helper)
