"""kill -9 for every broker of three in turn, the controller's too, under producers that never pause.

The long run of the same is `bench/kill_brokers.py`.
"""

from pathlib import Path

import pytest

from support.durability.brokers import KlammBrokers
from support.durability.kills import Pass, run


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(Pass(rounds=1, wait_for_isr=True), id="in sync between kills", marks=pytest.mark.long),
        pytest.param(Pass(rounds=3, wait_for_isr=False), id="in sync or not"),
    ],
)
def test_nothing_acknowledged_is_lost(each: Pass, tmp_path: Path) -> None:
    with KlammBrokers.running(tmp_path, {"offsets.topic.num.partitions": 1}) as brokers:
        report = run(brokers, [each], records_per_s=1000, down_s=1.0)
    print("\n".join([*map(str, report.kills), *report.lines()]))
    assert report.problems() == []
    assert all(writer.acknowledged > 0 for writer in report.writers)
