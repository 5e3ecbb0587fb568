"""The coordinator's metrics, by Kafka's names."""

import pytest

from klamm.base.metrics import Metrics
from klamm.coordinator.groups import group_metrics
from support.coordination import Coordination
from support.metrics import values

pytestmark = pytest.mark.loop("virtual")


async def test_groups_and_offsets_are_counted() -> None:
    c = await Coordination.elected()
    metrics = Metrics()
    group_metrics.register(metrics, c.manager)
    [member] = await c.stable()
    await c.commit(member)
    for group_id in ("e", "f"):
        await c.coordinator.commit_offsets(group_id, -1, "", None, {("t", 0): c.an_offset(1)})
    assert {metric.name.name: values(metric)[""] for metric in metrics} == {
        "NumGroups": 3,
        "NumGroupsEmpty": 2,
        "NumGroupsPreparingRebalance": 0,
        "NumGroupsCompletingRebalance": 0,
        "NumGroupsStable": 1,
        "NumGroupsDead": 0,
        "NumOffsets": 3,
    }
    assert {(metric.name.group, metric.name.type) for metric in metrics} == {
        ("kafka.coordinator.group", "GroupMetadataManager")
    }
    await c.stop()
