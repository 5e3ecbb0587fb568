"""As test_mixed_cluster.py, at inter.broker.protocol.version 2.4: leaders of both programs write ISRs to ZooKeeper."""

from pathlib import Path

import pytest

from support.durability.brokers import ProcessBrokers
from support.durability.kills import TOPIC, Run

PROPERTIES: dict[str, str | int] = {"inter.broker.protocol.version": "2.4", "replica.lag.time.max.ms": 3000}
PARTITIONS = 4


@pytest.mark.long
def test_both_programs_under_an_older_protocol(kafka_jars: Path, tmp_path: Path) -> None:
    with ProcessBrokers.running(tmp_path, ["kafka", "klamm", "klamm"], PROPERTIES) as brokers:
        run = Run(brokers, partitions=PARTITIONS, down_s=0.5)
        kafka = brokers.move_controller(lambda broker_id: brokers.program(broker_id) == "kafka")
        run.kill(1, wait_for_isr=True)
        run.kill(kafka, wait_for_isr=True)
        klamm = brokers.move_controller(lambda broker_id: brokers.program(broker_id) == "klamm")
        run.kill(kafka, wait_for_isr=True)
        run.kill(klamm, wait_for_isr=True)
        report = run.finish()
        assert [brokers.registration(id_)["version"] for id_ in brokers.broker_ids] == [4, 4, 4]
        assert brokers.topic_id(TOPIC) is None

    print("\n".join(report.lines()))
    assert report.problems() == []
    assert [kill.program for kill in report.kills if kill.was_controller] == ["kafka", "klamm"]
