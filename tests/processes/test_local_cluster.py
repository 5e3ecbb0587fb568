"""What a cluster on this machine is made of, before any process runs."""

from pathlib import Path

import pytest

from klamm.processes.local_cluster import Plan, Server, process_name, server_of


@pytest.mark.parametrize("server", ["zookeeper", 0, 12])
def test_the_name_of_a_process_tells_its_server(server: Server) -> None:
    assert server_of(process_name(server)) == server


def test_a_process_beside_the_cluster_is_no_server() -> None:
    assert server_of("cockpit") is None


@pytest.mark.parametrize(("port", "ports"), [(9092, [9092, 9093]), (0, [0, 0])])
def test_brokers_have_ports_in_a_row_or_any(tmp_path: Path, port: int, ports: list[int]) -> None:
    plan = Plan(tmp_path, 2, port)
    assert [plan.port_of(broker) for broker in range(2)] == ports


def test_a_brokers_own_property_wins_over_that_of_all_brokers_which_wins_over_the_default(tmp_path: Path) -> None:
    overrides = {"default.replication.factor": "1", "num.partitions": "2"}
    plan = Plan(tmp_path, 5, overrides=overrides, own={1: {"num.partitions": "3"}})
    first, second = (plan.properties(broker, port=7, zookeeper="z:1") for broker in range(2))
    assert first["offsets.topic.replication.factor"] == "3"
    assert first["default.replication.factor"] == second["default.replication.factor"] == "1"
    assert (first["num.partitions"], second["num.partitions"]) == ("2", "3")
    assert (second["broker.id"], second["log.dirs"]) == ("1", str(tmp_path / "broker-1"))
    assert (second["listeners"], second["zookeeper.connect"]) == ("PLAINTEXT://127.0.0.1:7", "z:1")
