"""Groups, transactions and records of which no broker can tell are not said to be absent, to hang or to be deleted."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME
from support.command_world import CommandWorld, Ended

# Each partition of the coordinators' topics has one replica, on another broker.
PROPERTIES = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
}
NAMES = [f"name-{number}" for number in range(6)]
GONE = 2
OPTIONS = ProducerOptions(ClientOptions(()), CompressionType.NONE, transaction_timeout_ms=900_000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandWorld]:
    """Six groups, and six open transactions on `orders`. Then a broker stops that coordinates some of both."""
    records = tmp_path_factory.mktemp("records") / "records.txt"
    records.write_text("value\n")
    with CommandWorld(brokers=3, properties=PROPERTIES) as made:
        assert run(made, "topics", "create", "--topic", "orders", "--replica-assignment", "0:1:2").code == 0
        assert run(made, "topics", "create", "--topic", "parts", "--replica-assignment", "0,1,2").code == 0
        assert run(made, "produce", "--topic", "orders", "--file", str(records)).code == 0
        for name in NAMES:
            group = ("--group", name, "--max-messages", "1", "--timeout-ms", "20000")
            assert run(made, "consume", "--topic", "orders", "--from-beginning", *group).code == 0
        made.do(lambda: made.operator.run(open_transactions(made)))
        assert listed_groups(run(made, "groups", "list", "--json")) == NAMES
        assert run(made, "transactions", "list").code == 0
        assert find_hanging(made).code == 0
        # Broker 0 is out of the ISR of `lone` when its leader stops.
        assert run(made, "topics", "create", "--topic", "lone", "--replica-assignment", "2:0").code == 0
        made.do(made.cluster.brokers[0].stop)
        made.do(made.cluster.brokers[GONE].stop)
        made.later(0, made.cluster.brokers[0].start)
        made.do(lambda: asyncio.sleep(10))
        yield made


def run(world: CommandWorld, *arguments: str) -> Ended:
    return world.run(*arguments, "--bootstrap-server", world.bootstrap)


def listed_groups(ended: Ended) -> list[str]:
    return [each["group"] for each in json.loads(ended.out)]


def find_hanging(world: CommandWorld) -> Ended:
    return run(world, "transactions", "find-hanging", "--topic", "orders", "--max-transaction-timeout", "0")


async def open_transactions(world: CommandWorld) -> None:
    async def write(name: str) -> None:
        client = world.cluster.client()
        producer = TransactionalProducer(client, replace(OPTIONS, transactional_id=name), world.operator.environment)
        await producer.init()
        producer.begin()
        await producer.send(ProducerRecord("orders", b"value"))
        await producer.prepare()

    await asyncio.gather(*map(write, NAMES))


def check_incomplete(ended: Ended, topic: str) -> None:
    assert ended.code == 3, ended
    assert f"no broker leads 1 of the 3 partitions of {topic}" in ended.err


def test_a_list_of_groups_says_that_it_may_not_be_complete(world: CommandWorld) -> None:
    ended = run(world, "groups", "list", "--json")
    check_incomplete(ended, GROUP_METADATA_TOPIC_NAME)
    assert 0 < len(listed_groups(ended)) < len(NAMES)
    for arguments in (["describe"], ["describe", "--state"], ["reset-offsets", "--all-topics", "--to-latest"]):
        check_incomplete(run(world, "groups", *arguments, "--all-groups"), GROUP_METADATA_TOPIC_NAME)


def test_a_list_of_transactions_says_that_it_may_not_be_complete(world: CommandWorld) -> None:
    check_incomplete(run(world, "transactions", "list"), TRANSACTION_STATE_TOPIC_NAME)


def test_a_transaction_of_a_missing_coordinator_does_not_hang_and_is_not_aborted(world: CommandWorld) -> None:
    check_incomplete(find_hanging(world), TRANSACTION_STATE_TOPIC_NAME)
    where = ("--topic", "orders", "--partition", "0")
    producers = json.loads(run(world, "transactions", "describe-producers", *where, "--json").out)
    starts = [each["transaction_start_offset"] for each in producers]
    starts = [each for each in starts if each is not None]
    assert len(starts) == len(NAMES)
    codes = []
    for start in starts:
        ended = run(world, "transactions", "abort", *where, "--start-offset", str(start), "--yes")
        codes.append(ended.code)
    assert codes == [3] * len(NAMES)


def test_a_consumer_that_could_not_read_a_partition_says_so(world: CommandWorld) -> None:
    parts = ("consume", "--topic", "parts", "--from-beginning", "--timeout-ms", "300")
    ended = run(world, *parts)
    assert (ended.code, ended.err.count("may not be all: parts-2: LEADER_NOT_AVAILABLE")) == (3, 1), ended
    assert run(world, *parts, "--partition", "0", "--partition", "1").code == 0
    known = listed_groups(run(world, "groups", "list", "--json"))
    (lost, *_) = [name for name in NAMES if name not in known]
    ended = run(world, *parts, "--group", lost)
    assert (ended.code, "has not let this member join" in ended.err) == (3, True), ended


def test_a_start_offset_in_a_partition_without_a_leader_is_not_waited_for_beyond_the_timeout(
    world: CommandWorld,
) -> None:
    ended = run(world, "consume", "--topic", "parts", "--offset", "0", "--timeout-ms", "0")
    assert (ended.code, ended.err.count("may not be all: parts-2: LEADER_NOT_AVAILABLE")) == (3, 1), ended
    assert ended.took_s < 15
    ended = run(world, "consume", "--topic", "parts", "--partition", "0", "--offset", "7", "--timeout-ms", "300")
    assert (ended.code, "offset 7 is not in partition 0 of parts" in ended.err) == (1, True), ended


def test_the_price_of_an_unclean_election_says_that_groups_are_missing(world: CommandWorld) -> None:
    """Broker 2 was the last in the ISR of `lone`, so that what only it has is lost."""
    ended = run(world, "elect", "unclean", "--topic", "lone")
    assert ended.err.count("Some groups may have committed later offsets, so more may be lost: COORD") == 1, ended
    assert f"no broker leads 1 of the 3 partitions of {GROUP_METADATA_TOPIC_NAME}" in ended.err


def test_all_groups_are_not_deleted_while_a_coordinator_is_missing(world: CommandWorld) -> None:
    """The last test: the groups that are known are deleted."""
    check_incomplete(run(world, "groups", "delete", "--all-groups"), GROUP_METADATA_TOPIC_NAME)
