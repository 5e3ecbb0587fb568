"""Topics are copied in transactions through kill -9 of every broker, and of the copiers: every copy is its input.

Kafka's TransactionalMessageCopier copies beside copiers of the same contract for librdkafka and franz-go. A reader at
read_committed that reads all the time sees the same as one that comes afterwards. `--bootstrap kafka` runs this on
Apache Kafka.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import Producer

import klamm.testing
from support.copying.check import differences, read
from support.copying.copiers import Copier, Copy
from support.copying.run import PROPERTIES, TRANSACTION_STATE_TOPIC_NAME, CopyRun
from support.durability.brokers import Brokers, KlammBrokers, ProcessBrokers

Cluster = Callable[[dict[str, str | int]], AbstractContextManager[Brokers]]

# The fixture without which the copiers cannot run, and what they copy.
COPIES = {
    "java": ("kafka_jars", [Copy("java-2.8"), Copy("librdkafka")]),
    "java-4.3": (
        "kafka4_jars",
        [Copy("java-4.3"), Copy("java-4.3", partitions=2, group_mode=True, name="java-4.3-group")],
    ),
    "groups": (
        "go",
        [
            Copy("franz-go", partitions=2, group_mode=True),
            Copy("librdkafka", partitions=2, group_mode=True, name="librdkafka-group"),
        ],
    ),
}


@pytest.fixture(
    params=[
        pytest.param("java", marks=pytest.mark.java),
        pytest.param("java-4.3", marks=pytest.mark.java),
        "groups",
    ]
)
def copies(request: pytest.FixtureRequest) -> list[Copy]:
    needed, wanted = COPIES[request.param]
    request.getfixturevalue(needed)
    return wanted


@pytest.fixture
def cluster(against_kafka: bool, tmp_path: Path) -> Cluster:
    """Starts three brokers with these properties."""
    if against_kafka:
        return lambda properties: ProcessBrokers.running(tmp_path, ["kafka"] * 3, properties)
    return lambda properties: KlammBrokers.running(tmp_path, properties)


def test_a_copy_is_its_input_through_the_kill_of_the_coordinator(cluster: Cluster, tmp_path: Path) -> None:
    properties = {**PROPERTIES, "transaction.state.log.num.partitions": 1}
    with (
        cluster(properties) as brokers,
        CopyRun(brokers, tmp_path, [Copy("librdkafka"), Copy("klamm")], records=200, transaction_partitions=1) as run,
    ):
        run.kill(brokers.leader(TRANSACTION_STATE_TOPIC_NAME, 0))
        report = run.finish()
    print("\n".join(report.lines))
    assert report.problems() == []
    assert all(count > 0 for count in report.aborted.values())


@pytest.mark.long
@pytest.mark.parametrize("wait_for_isr", [True, False], ids=["in sync between kills", "in sync or not"])
def test_copies_are_their_inputs_through_the_kill_of_every_broker(
    copies: list[Copy], wait_for_isr: bool, cluster: Cluster, tmp_path: Path
) -> None:
    with cluster(PROPERTIES) as brokers, CopyRun(brokers, tmp_path, copies) as run:
        for broker_id in brokers.broker_ids:
            run.kill(broker_id, wait_for_isr=wait_for_isr)
        run.kill_all()
        report = run.finish()
    print("\n".join(report.lines))
    assert report.problems() == []
    assert all(count > 0 for count in report.aborted.values())


def test_a_member_that_stood_still_commits_nothing_that_another_has_copied(tmp_path: Path) -> None:
    """It has written its copies and awakes before it commits their offsets. Its session has expired, and another member
    has copied the same records."""
    properties = {
        **PROPERTIES,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "min.insync.replicas": 1,
    }
    copy = Copy("klamm", group_mode=True, random_aborts=False)
    values = [b"%d" % number for number in range(3 * copy.transaction_size)]
    with contextlib.ExitStack() as at_end:
        bootstrap = at_end.enter_context(klamm.testing.Cluster(1, properties=properties)).bootstrap
        producer = Producer({"bootstrap.servers": bootstrap})
        for value in values:
            producer.produce(copy.input, value)
        assert producer.flush(120) == 0
        copiers = []
        for number, options in enumerate((["--stand-still-in", "2"], [])):
            copiers.append(Copier(copy, number, bootstrap, tmp_path, *options))
            at_end.callback(copiers[-1].kill)
            if options:
                os.waitid(os.P_PID, copiers[-1].pid, os.WSTOPPED)
        sleeper, other = copiers
        assert other.wait() == 0
        sleeper.signal_group(signal.SIGCONT)
        assert sleeper.wait() == 0
        assert "aborts the transaction: UNKNOWN_MEMBER_ID (25): " in sleeper.output()
        found = read(bootstrap, [(copy.output, 0)], committed=True)
    assert differences(values, [record.value for record in found[copy.output, 0]]) == []


@pytest.mark.long
def test_copies_are_their_inputs_while_members_of_the_group_stand_still(cluster: Cluster, tmp_path: Path) -> None:
    """Each loses its partitions, others copy them, and what it had read itself is not committed when it awakes."""
    copy = Copy("klamm", partitions=3, group_mode=True, random_aborts=False, name="klamm-group")
    with cluster(PROPERTIES) as brokers, CopyRun(brokers, tmp_path, [copy]) as run:
        run.pause_copiers(90)
        report = run.finish()
    print("\n".join(report.lines))
    assert report.problems() == []


@pytest.mark.long
def test_copies_are_their_inputs_through_the_end_of_copiers_and_a_rolling_restart(
    copies: list[Copy], cluster: Cluster, tmp_path: Path
) -> None:
    with cluster(PROPERTIES) as brokers, CopyRun(brokers, tmp_path, copies) as run:
        run.kill_copiers()
        run.stop_copiers()
        run.take_over()
        run.oversleep()
        for broker_id in brokers.broker_ids:
            run.bounce(broker_id)
        report = run.finish()
    print("\n".join(report.lines))
    assert report.problems() == []
    assert all(count > 0 for count in report.aborted.values())
