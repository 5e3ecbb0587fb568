"""Topics are copied in transactions in a cluster of Apache Kafka 2.8.2 and klamm: every copy is its input, each record
once.

The leader of the only partition of `__transaction_state`, which is the coordinator of every copier, moves between the
programs, in order and by kill -9.
"""

from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from support.copying.copiers import Copy
from support.copying.run import PROPERTIES, TRANSACTION_STATE_TOPIC_NAME, CopyRun
from support.durability.brokers import Brokers, ProcessBrokers

COPIES = [Copy("librdkafka"), Copy("java-2.8")]


@pytest.mark.long
def test_the_coordinator_moves_between_the_programs(kafka_jars: Path, tmp_path: Path) -> None:
    properties = {**PROPERTIES, "transaction.state.log.num.partitions": 1}
    with (
        ProcessBrokers.running(tmp_path, ["kafka", "klamm", "klamm"], properties) as brokers,
        CopyRun(brokers, tmp_path, COPIES, transaction_partitions=1) as run,
    ):
        for broker_id in (0, 1, 0, 2, 0):
            move_coordinator(brokers, broker_id)
            run.note(f"broker {broker_id} ({brokers.program(broker_id)}) is the coordinator")
            run.wait_for_progress()
        for broker_id in (0, 1):
            move_coordinator(brokers, broker_id)
            run.kill(broker_id)
        report = run.finish()
    print("\n".join(report.lines))
    assert report.problems() == []
    assert all(count > 0 for count in report.aborted.values())


def move_coordinator(brokers: Brokers, broker_id: int) -> None:
    """Makes a broker the leader of the only partition of `__transaction_state`."""
    if brokers.leader(TRANSACTION_STATE_TOPIC_NAME, 0) == broker_id:
        return
    others = [other for other in brokers.broker_ids if other != broker_id]
    place = TopicPartition(TRANSACTION_STATE_TOPIC_NAME, 0)
    admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap.split(","))
    try:
        admin.alter_partition_reassignments({place: [broker_id, *others]})
        brokers.until(lambda: not admin.list_partition_reassignments(), "the reassignment did not end")
        admin.elect_leaders(0, {TRANSACTION_STATE_TOPIC_NAME: [0]})
    finally:
        admin.close()
    brokers.until(lambda: brokers.leader(TRANSACTION_STATE_TOPIC_NAME, 0) == broker_id, "the coordinator did not move")
