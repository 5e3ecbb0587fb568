"""Properties and arguments that all brokers of a cluster on this machine share, for `klamm up` and `klamm.testing`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from klamm.processes.supervisor import ServerProcess

HOST = "127.0.0.1"


def broker_properties(
    broker_id: int, brokers: int, *, port: int, directory: Path, zookeeper: str, overrides: Mapping[str, str]
) -> dict[str, str]:
    """The properties of one broker of the cluster; the overrides win."""
    replication_factor = str(min(3, brokers))
    return {
        "broker.id": str(broker_id),
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(directory),
        "zookeeper.connect": zookeeper,
        # No topic can have more replicas than there are brokers.
        "default.replication.factor": replication_factor,
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": str(min(2, brokers)),
        "group.initial.rebalance.delay.ms": "0",
        "klamm.metrics.port": "0",
        **overrides,
    }


def broker_arguments(properties: Mapping[str, str], directory: Path, broker_id: int) -> dict[str, Any]:
    """The arguments of `processes.BROKER`. `directory` is the cluster's; the broker's logs go there."""
    return {"properties": dict(properties), "logs_dir": str(directory / "logs" / f"broker-{broker_id}")}


def address_of(broker: ServerProcess) -> tuple[str, int]:
    """Host and port of a ready broker's first listener."""
    assert broker.details is not None
    host, port = next(iter(broker.details["listeners"].values()))
    return str(host or HOST), int(port)
