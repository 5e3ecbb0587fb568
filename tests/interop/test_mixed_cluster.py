"""One Apache Kafka 2.8.2 and two klamm brokers are one cluster, on one Apache ZooKeeper 3.5.9.

Every partition has a replica on each. The controller is moved to each program in turn, and either controller is killed
under load, in the long run a broker of the other program too: nothing acknowledged is lost, and the replicas are the
same to the byte.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.durability.brokers import ProcessBrokers, Program
from support.durability.kills import Run

PARTITIONS = 4


@pytest.fixture
def brokers(kafka_jars: Path, tmp_path: Path) -> Iterator[ProcessBrokers]:
    with ProcessBrokers.running(tmp_path, ["kafka", "klamm", "klamm"], {"offsets.topic.num.partitions": 1}) as running:
        yield running


@pytest.mark.parametrize("kills", ["controllers", pytest.param("all", marks=pytest.mark.long)])
def test_each_program_leads_and_follows_the_other(brokers: ProcessBrokers, kills: str) -> None:
    def controller_moves_to(program: Program) -> int:
        return brokers.move_controller(lambda broker_id: brokers.program(broker_id) == program)

    def a_klamm_but(other: int) -> int:
        return next(each for each in (1, 2) if each != other)

    run = Run(brokers, partitions=PARTITIONS, records_per_s=2500, down_s=0.5)
    kafka = controller_moves_to("kafka")
    if kills == "all":
        run.kill(a_klamm_but(kafka), wait_for_isr=True)
    run.kill(kafka, wait_for_isr=True)
    klamm = controller_moves_to("klamm")
    if kills == "all":
        run.kill(kafka, wait_for_isr=True)
    run.kill(klamm, wait_for_isr=True)
    report = run.finish()

    print("\n".join(report.lines()))
    assert report.problems() == []
    controllers = [kill.program for kill in report.kills if kill.was_controller]
    assert controllers == ["kafka", "klamm"]
    others = {kill.program for kill in report.kills if not kill.was_controller}
    assert others == ({"kafka", "klamm"} if kills == "all" else set())
