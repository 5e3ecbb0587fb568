"""klamm.testing.Cluster: what it promises, with one broker and with three."""

import copy
import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kazoo.client import KazooClient

import klamm.testing
from klamm.processes.local_cluster import ReservedPort
from klamm.testing import Cluster, ClusterError, ErrorCode, Helper, KafkaError, NotInTime, cluster_errors


@pytest.fixture(scope="module")
def one(klamm_helper: Helper) -> Iterator[Cluster]:
    """One broker, for tests that leave it running; each uses topics of its own."""
    with Cluster(1, helper=klamm_helper) as cluster:
        yield cluster


@pytest.fixture
def three(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for value in values:
        producer.send(topic, value, partition=0).get(30)
    producer.close()


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    values = [next(consumer).value for _ in range(count)]
    consumer.close()
    return values


def ended(pid: int, timeout_s: float = 120) -> bool:
    """Waits until a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def pids_of(cluster: Cluster) -> list[int]:
    return [process.pid for process in cluster._local.processes.servers.values() if process.pid is not None]


def test_every_error_is_in_the_package_and_in_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs/testing.md").read_text(encoding="utf-8")
    for name, one in vars(cluster_errors).items():
        if isinstance(one, type):
            assert getattr(klamm.testing, name) is one
            assert name in klamm.testing.__all__
            assert f"| `{name}` |" in page


# -- what there is --------------------------------------------------------------------------------------------------


def test_what_a_cluster_tells_of_itself(one: Cluster) -> None:
    assert one.broker_ids == [0]
    assert one.servers == ["zookeeper", 0]
    (broker,) = one.brokers
    assert one.bootstrap == broker.address == f"127.0.0.1:{broker.port}"
    assert broker.running and not broker.paused
    assert (broker.data_directory / "meta.properties").exists()
    assert broker.data_directory == one.data_directory(0)
    assert f"serves {{'PLAINTEXT': ('127.0.0.1', {broker.port})}}" in one.log(0)
    assert one.describe().startswith("zookeeper runs\nbroker-0 runs\nwhat happened last:\n")
    assert one.controller_id() == 0


def test_zookeeper_can_be_asked_directly(one: Cluster) -> None:
    client = KazooClient(one.zookeeper)
    client.start()
    assert client.get_children("/brokers/ids") == ["0"]
    client.stop()


def test_topics(one: Cluster) -> None:
    one.create_topic("orders", partitions=3, configs={"retention.ms": 1000, "preallocate": False})
    assert "orders" in one.topics()
    assert [one.leader("orders", partition) for partition in range(3)] == [0, 0, 0]
    assert one.isr("orders", 2) == one.replicas("orders", 2) == [0]
    assert one.under_replicated() == []
    produce(one, "orders", b"first")
    assert consume(one, "orders", 1) == [b"first"]
    one.delete_topic("orders")
    assert "orders" not in one.topics()


def test_the_worker_process_of_a_broker_is_all_that_may_hold_numba_and_it_holds_nothing_else(
    klamm_helper: Helper,
) -> None:
    def produce_large(cluster: Cluster) -> int:
        """The broker's process for walks through large batches."""
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=1000, batch_size=1 << 20)
        sent = [producer.send("t", key=b"k", value=b"v", partition=0) for _ in range(1000)]
        producer.flush()
        assert all(one.succeeded() for one in sent)
        producer.close()
        broker = cluster.broker(0).pid
        assert re.search("numpy|numba|llvmlite", Path(f"/proc/{broker}/maps").read_text()) is None
        (worker,) = [
            child
            for thread in Path(f"/proc/{broker}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
        return int(worker)

    with Cluster(1, helper=klamm_helper) as cluster:
        cluster.create_topic("t", configs={"cleanup.policy": "compact"})
        first = produce_large(cluster)
        os.kill(first, signal.SIGSTOP)
        cluster.kill(0)
        cluster.start(0)
        second = produce_large(cluster)
        os.kill(first, signal.SIGCONT)
        assert ended(first)
    assert ended(second)


def test_what_the_controller_refuses(one: Cluster) -> None:
    one.create_topic("there")
    for arguments, code in (
        ({"name": "there"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": "wide", "replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "odd", "configs": {"no.such": 1}}, ErrorCode.INVALID_CONFIG),
    ):
        with pytest.raises(KafkaError) as refused:
            one.create_topic(**arguments)
        assert refused.value.code is code
    with pytest.raises(KafkaError) as refused:
        one.delete_topic("never made")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_questions_without_an_answer(one: Cluster) -> None:
    one.create_topic("two", partitions=2)
    with pytest.raises(ClusterError, match=r"^topic two has 2 partitions, not 2$"):
        one.leader("two", 2)
    with pytest.raises(ClusterError, match=r"^there is no topic nowhere$"):
        one.isr("nowhere")
    with pytest.raises(ClusterError, match=r"^this cluster has no server 7; allowed: 'zookeeper', 0$"):
        one.kill(7)
    with pytest.raises(ClusterError, match=r"^this cluster has no server 'broker-0'; allowed: 'zookeeper', 0$"):
        one.kill("broker-0")  # type: ignore[arg-type]  # the name of its log and its directory
    with pytest.raises(ClusterError, match=r"^broker-0 is running$"):
        one.start(0)


def test_a_copy_of_a_cluster_is_the_cluster(one: Cluster) -> None:
    """Django's test cases copy deeply, for each test, what setUpTestData has kept."""
    assert copy.deepcopy({"cluster": one})["cluster"] is one


def test_a_cluster_outside_its_block() -> None:
    cluster = Cluster(1)
    with pytest.raises(ClusterError, match="use it inside `with Cluster"):
        cluster.controller_id()
    with pytest.raises(ClusterError, match="use it inside `with Cluster"):
        _ = cluster.bootstrap
    cluster.close()


def test_what_a_cluster_cannot_be() -> None:
    misspelt = {"auto.create.topic.enable": False}
    told = r"^auto\.create\.topic\.enable is not a property of a broker; did you mean auto\.create\.topics\.enable\?$"
    with pytest.raises(ValueError, match=told):
        Cluster(properties=misspelt)
    with pytest.raises(ValueError, match=told):
        Cluster(broker_properties={1: misspelt})
    with pytest.raises(ValueError, match="brokers=0 is not allowed; allowed: at least 1"):
        Cluster(0)
    with pytest.raises(ValueError, match=r"broker\.id cannot be set: the cluster sets it for each broker"):
        Cluster(1, properties={"broker.id": 5})


# -- its life -------------------------------------------------------------------------------------------------------


def test_properties(klamm_helper: Helper) -> None:
    with Cluster(
        1,
        properties={"num.partitions": 4, "auto.create.topics.enable": True},
        broker_properties={0: {"broker.rack": "a"}},
        helper=klamm_helper,
    ) as cluster:
        produce(cluster, "made", b"x")
        assert len(cluster._run(cluster._observing.replicas("made"))) == 4
        cluster.restart(0, {"num.partitions": 5})
        produce(cluster, "later", b"x")
        assert len(cluster._run(cluster._observing.replicas("later"))) == 5


def test_a_bad_property_is_told_and_leaves_nothing(klamm_helper: Helper) -> None:
    cluster = Cluster(1, properties={"num.partitions": "none"}, helper=klamm_helper)
    with pytest.raises(ClusterError, match=r"broker-0: num\.partitions=none is not an int"):
        cluster.open()
    with pytest.raises(ClusterError, match="use it inside"):
        _ = cluster.directory


def test_nothing_is_left_behind() -> None:
    with Cluster(1) as cluster:
        directory = cluster.directory
        pids = pids_of(cluster)
        assert directory.exists() and len(pids) == 2
    assert not directory.exists()
    assert all(map(ended, pids))


SCRIPT = """
    from klamm.testing import Cluster
    cluster = Cluster(1)
    cluster.open()
    cluster.pause(0)
    processes = cluster._local.processes
    pids = [server.pid for server in processes.servers.values()]
    print(cluster.directory, *pids, processes._helper.process.pid, flush=True)
    input()
"""


def test_kill_9_of_the_test_leaves_nothing_behind() -> None:
    test = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert test.stdin is not None and test.stdout is not None
    with test.stdin, test.stdout:
        directory, *pids = test.stdout.readline().split()
        assert len(pids) == 3
        test.kill()
        test.wait()
    assert all(ended(int(pid)) for pid in pids)
    assert not Path(directory).exists()


def test_a_directory_that_was_given_keeps_the_data(tmp_path: Path, klamm_helper: Helper) -> None:
    with Cluster(1, directory=tmp_path, helper=klamm_helper) as cluster:
        cluster.create_topic("kept")
        produce(cluster, "kept", b"for ever")
    assert (tmp_path / "broker-0" / ".kafka_cleanshutdown").exists()
    with Cluster(1, directory=tmp_path, helper=klamm_helper) as cluster:
        assert consume(cluster, "kept", 1) == [b"for ever"]


@pytest.mark.parametrize("keep", [True, False])
def test_the_data_of_a_failed_test(keep: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError) as failed, Cluster(1, keep_on_failure=keep) as cluster:
        directory = cluster.directory
        raise ZeroDivisionError
    notes = getattr(failed.value, "__notes__", [])
    assert notes == ([f"klamm: data and logs of the cluster are in {directory}"] if keep else [])
    assert (directory / "broker-0.log").exists() is keep


def test_a_broker_that_dies_by_itself_fails_the_block() -> None:
    with pytest.raises(ClusterError, match=r"^died by itself: broker-0 was ended by SIGKILL"), Cluster(1) as cluster:
        pid = cluster.broker(0).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        cluster.until(lambda: not cluster.broker(0).running)


def test_a_zookeeper_of_ones_own(klamm_helper: Helper) -> None:
    with (
        Cluster(1, helper=klamm_helper) as first,
        Cluster(1, zookeeper=f"{first.zookeeper}/second", helper=klamm_helper) as second,
    ):
        assert second.servers == [0]
        second.create_topic("t")
        assert first.topics() == []
        assert second.topics() == ["t"]
        assert first.bootstrap != second.bootstrap


# -- faults ---------------------------------------------------------------------------------------------------------


def test_a_broker_keeps_its_address_and_data(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as cluster:
        address = cluster.bootstrap
        cluster.create_topic("t")
        for value, end in ((b"1", cluster.kill), (b"2", cluster.stop)):
            produce(cluster, "t", value)
            end(0)
            assert not cluster.broker(0).running
            assert cluster.broker(0).pid is None
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", cluster.broker(0).port))
            cluster.start(0)
            assert cluster.bootstrap == address
        assert consume(cluster, "t", 2) == [b"1", b"2"]


def test_zookeeper_goes_and_comes_back(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as cluster:
        cluster.create_topic("t")
        address = cluster.zookeeper
        cluster.kill("zookeeper")
        produce(cluster, "t", b"without it")
        cluster.start("zookeeper")
        assert cluster.zookeeper == address
        assert cluster.leader("t") == 0
        cluster.pause("zookeeper")
        produce(cluster, "t", b"while it stands still")
        cluster.resume("zookeeper")
        assert cluster.topics() == ["t"]


def test_all_servers_go_and_come_back_one_by_one(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as cluster:
        cluster.create_topic("t")
        cluster.kill(0)
        cluster.kill("zookeeper")
        cluster.start("zookeeper")
        cluster.start(0)
        assert cluster.topics() == ["t"]


def test_what_is_down_cannot_be_paused(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as cluster:
        cluster.pause(0)
        assert cluster.broker(0).paused
        assert "\nbroker-0 is paused\n" in cluster.describe()
        cluster.kill(0)
        assert "\nbroker-0 has been stopped or killed\n" in cluster.describe()
        assert cluster.describe().endswith("    c.pause(0)\n    c.kill(0)")
        with pytest.raises(ClusterError, match=r"broker-0 was ended by SIGKILL"):
            cluster.pause(0)


def test_a_killed_leader(three: Cluster) -> None:
    three.create_topic("t", partitions=3, configs={"min.insync.replicas": 2})
    assert sorted(three.isr("t")) == [0, 1, 2]
    produce(three, "t", b"before")
    leader = three.leader("t")
    assert leader is not None
    three.kill(leader)
    three.until(lambda: three.leader("t") not in (None, leader))
    assert leader not in three.isr("t")
    produce(three, "t", b"after")
    three.start(leader)
    three.until(lambda: not three.under_replicated())
    assert consume(three, "t", 2) == [b"before", b"after"]


def test_a_stopped_broker_has_handed_its_leaderships_over(three: Cluster) -> None:
    three.create_topic("t", partitions=6)
    three.stop(1)
    assert 1 not in [three.leader("t", partition) for partition in range(6)]
    three.start(1)
    three.until(lambda: not three.under_replicated())


def test_a_paused_controller_is_replaced(three: Cluster) -> None:
    three.create_topic("t", partitions=3)
    controller = three.controller_id()
    assert controller is not None
    three.pause(controller)
    three.until(lambda: three.controller_id() not in (None, controller))
    three.resume(controller)
    three.until(lambda: not three.under_replicated())


def test_more_brokers(three: Cluster) -> None:
    assert three.add_broker({"log.segment.bytes": 1_000_000}) == 3
    assert three.broker_ids == [0, 1, 2, 3]
    assert len(three.bootstrap.split(",")) == 4
    three.create_topic("wide", replication_factor=4)
    assert sorted(three.isr("wide")) == [0, 1, 2, 3]


# -- waiting --------------------------------------------------------------------------------------------------------


def test_until_returns_what_came_true(one: Cluster) -> None:
    looks: list[int] = []

    def third_time() -> str:
        looks.append(1)
        return "yes" if len(looks) == 3 else ""

    assert one.until(third_time) == "yes"


def test_an_assertion_that_fails_is_not_true_yet(one: Cluster) -> None:
    looks: list[int] = []

    def third_time() -> bool:
        looks.append(1)
        assert len(looks) == 3, "too early"
        return True

    assert one.until(third_time)
    with pytest.raises(NotInTime, match=r"(?s)third_time.*AssertionError: too early"):
        one.until(third_time, timeout=0)


def test_until_says_what_was_seen(one: Cluster) -> None:
    one.create_topic("seen")
    with pytest.raises(NotInTime) as late:
        one.until(lambda: one.leader("seen") == 5 and one.isr("seen") == [5], timeout=0.1)
    assert str(late.value).startswith(
        'not within 0.1 s: one.until(lambda: one.leader("seen") == 5 and one.isr("seen") == [5], timeout=0.1)\n'
        "last seen: False, leader('seen', 0) = 0\n"
        "zookeeper runs\n"
        "broker-0 runs\n"
        "what happened last:\n"
    )
    assert isinstance(late.value, AssertionError)


def test_until_with_a_question_that_has_no_answer_yet(one: Cluster) -> None:
    with pytest.raises(NotInTime, match="ClusterError: there is no topic absent"):
        one.until(lambda: one.leader("absent") == 0, timeout=0)


def test_a_faulty_condition_is_told_at_once(one: Cluster) -> None:
    with pytest.raises(ZeroDivisionError):
        one.until(lambda: 1 // 0)


# -- ports ----------------------------------------------------------------------------------------------------------


def test_a_reserved_port_is_given_to_nobody_but_who_names_it() -> None:
    reserved = ReservedPort("127.0.0.1")
    with socket.create_server(("127.0.0.1", reserved.number)):
        pass
    others = [ReservedPort("127.0.0.1") for _ in range(2000)]
    try:
        assert reserved.number not in [other.number for other in others]
    finally:
        for other in others:
            other.release()
    with socket.create_server(("127.0.0.1", reserved.number)) as again:
        assert again.getsockname()[1] == reserved.number
    reserved.release()


def test_its_brokers_give_no_leadership_back_by_themselves(one: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    broker = ConfigResource(ConfigResource.Type.BROKER, "0")
    configs = admin.describe_configs([broker])[broker].result(120)
    assert configs["auto.leader.rebalance.enable"].value == "false"
