"""Brokers whose inter.broker.protocol.version is 2.4: leaders change ISRs by themselves, and topics have no ids.

Producers never pause meanwhile, and nothing that they were told is written may be lost.
"""

from pathlib import Path

from support.durability.brokers import Brokers, KlammBrokers
from support.durability.kills import TOPIC, Report, Run

PARTITIONS = 4
OLD: dict[str, str | int] = {"inter.broker.protocol.version": "2.4", "replica.lag.time.max.ms": 1500}
# Leaders notice a paused broker long before its session ends.
LONG_SESSION = {"zookeeper.session.timeout.ms": 6_000}


def assert_nothing_lost(report: Report) -> None:
    print("\n".join([*map(str, report.kills), *report.lines()]))
    assert report.problems() == []
    assert all(writer.acknowledged > 0 for writer in report.writers)


def leader_epochs(brokers: Brokers) -> list[int]:
    return [brokers.leader_epoch(TOPIC, partition) for partition in range(PARTITIONS)]


def test_isrs_shrink_and_grow_and_brokers_die(tmp_path: Path) -> None:
    with KlammBrokers.running(tmp_path, {**OLD, **LONG_SESSION}) as brokers:
        run = Run(brokers, partitions=PARTITIONS, down_s=1.0)
        paused = (brokers.wait_for_controller() + 1) % 3
        led_by_others = [number for number in range(PARTITIONS) if brokers.leader(TOPIC, number) != paused]
        epochs = leader_epochs(brokers)
        # Its session lives on, so that only the leaders take it out and in again.
        brokers.pause(paused)
        brokers.until(
            lambda: all(paused not in brokers.isr(TOPIC, number) for number in led_by_others), "it stays in sync"
        )
        brokers.resume(paused)
        brokers.wait_for_full_isr(TOPIC, PARTITIONS)
        assert leader_epochs(brokers) == epochs
        run.kill(brokers.wait_for_controller(), wait_for_isr=True)
        report = run.finish()
        assert [brokers.registration(id_)["version"] for id_ in brokers.broker_ids] == [4, 4, 4]
        assert brokers.topic_id(TOPIC) is None
    assert_nothing_lost(report)


def test_a_rolling_upgrade(tmp_path: Path) -> None:
    with KlammBrokers.running(tmp_path, OLD) as brokers:
        run = Run(brokers, partitions=PARTITIONS, down_s=1.0)
        for broker_id in brokers.broker_ids:
            brokers.restart(broker_id, {"inter.broker.protocol.version": "2.8"})
            brokers.wait_for_full_isr(TOPIC, PARTITIONS)
        run.kill(brokers.wait_for_controller(), wait_for_isr=True)
        report = run.finish()
        assert [brokers.registration(id_)["version"] for id_ in brokers.broker_ids] == [5, 5, 5]
        assert brokers.topic_id(TOPIC) is not None
    assert_nothing_lost(report)
