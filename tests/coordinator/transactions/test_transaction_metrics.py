"""The coordinator's metrics, by Kafka's names."""

import pytest

from klamm.base.metrics import Metrics
from klamm.coordinator.transactions import transaction_metrics
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import NO_LEADER
from support.coordination import after, settle
from support.metrics import values
from support.transactions import P0, P1, Transactions

pytestmark = pytest.mark.loop("virtual")


def read(metrics: Metrics) -> dict[str, float]:
    return {metric.name.name: values(metric)[""] for metric in metrics}


async def test_ends_without_a_leader_and_records_that_are_written_again_are_counted() -> None:
    c = await Transactions.elected()
    metrics = Metrics()
    transaction_metrics.register(metrics, c.coordinator)
    assert {(metric.name.group, metric.name.type) for metric in metrics} == {
        ("kafka.coordinator.transaction", "TransactionMarkerChannelManager")
    }
    producer = await c.ongoing(P0, P1)
    assert read(metrics) == {"UnknownDestinationQueueSize": 0, "LogAppendRetryQueueSize": 0}
    c.leaders.led = {P0: NO_LEADER, P1: None}
    assert await c.end(producer) is ErrorCode.NONE
    await settle()
    assert read(metrics) == {"UnknownDestinationQueueSize": 2, "LogAppendRetryQueueSize": 0}
    c.leaders.led = {}
    c.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    await after(1)
    assert read(metrics) == {"UnknownDestinationQueueSize": 0, "LogAppendRetryQueueSize": 1}
    c.log.error = ErrorCode.NONE
    await after(10)
    assert read(metrics) == {"UnknownDestinationQueueSize": 0, "LogAppendRetryQueueSize": 0}
    assert c.state() == "CompleteCommit"
    await c.stop()
