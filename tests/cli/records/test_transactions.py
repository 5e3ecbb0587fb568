"""`klamm transactions`: its lines, which are those of Kafka's tool, and the calls that it refuses."""

import pytest

from klamm.cli.main import run
from klamm.cli.records.transactions import (
    description_lines,
    description_value,
    hanging_lines,
    list_lines,
    producer_lines,
)
from klamm.client.admin.transaction_admin import (
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from klamm.protocol.vocabulary import TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
STATE = ProducerState(17, 2, -1, 4, 1_000_000, 99)


def test_the_lines_of_a_list() -> None:
    found = [TransactionListing("a-long-transactional-id", 1, 5, "Ongoing"), TransactionListing("b", 12, 6, "Empty")]
    assert list(list_lines(found)) == [
        "TransactionalId        \tCoordinator\tProducerId\tTransactionState\t",
        "a-long-transactional-id\t1          \t5         \tOngoing         \t",
        "b                      \t12         \t6         \tEmpty           \t",
    ]


def test_the_lines_of_a_description() -> None:
    found = [
        TransactionDescription("tx", 1, 7, 3, "Ongoing", 60_000, 1_000, [ZERO, ONE]),
        TransactionDescription("other", 2, 8, 0, "Empty", 5, None, []),
    ]
    assert [[cell.strip() for cell in line.split("\t")] for line in description_lines(found, 4_500)] == [
        [
            "CoordinatorId",
            "TransactionalId",
            "ProducerId",
            "ProducerEpoch",
            "TransactionState",
            "TransactionTimeoutMs",
            "CurrentTransactionStartTimeMs",
            "TransactionDurationMs",
            "TopicPartitions",
            "",
        ],
        ["1", "tx", "7", "3", "Ongoing", "60000", "1000", "3500", "t-0,t-1", ""],
        ["2", "other", "8", "0", "Empty", "5", "None", "None", "", ""],
    ]
    assert description_value(found[0])["partitions"] == [
        {"topic": "t", "partition": 0},
        {"topic": "t", "partition": 1},
    ]


def test_the_lines_of_producers() -> None:
    lines = list(producer_lines([STATE, ProducerState(18, 0, 6, -1, -1, None)]))
    assert [[cell.strip() for cell in line.split("\t")][:-1] for line in lines] == [
        [
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ],
        ["17", "2", "-1", "4", "1000000", "99"],
        ["18", "0", "6", "-1", "-1", "None"],
    ]


def test_the_lines_of_hanging_transactions() -> None:
    lines = list(hanging_lines([OpenTransaction(ONE, STATE)], 1_000_000 + 17 * 60_000 + 59_000))
    assert [[cell.strip() for cell in line.split("\t")][:-1] for line in lines] == [
        [
            "Topic",
            "Partition",
            "ProducerId",
            "ProducerEpoch",
            "CoordinatorEpoch",
            "StartOffset",
            "LastTimestamp",
            "Duration(min)",
        ],
        ["t", "1", "17", "2", "-1", "99", "1000000", "17"],
    ]


TARGET = ("abort", "--topic", "t", "--partition", "0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--transactional-id-pattern", "("), "'(' is not a valid regular expression"),
        (("find-hanging", "--partition", "1"), "needs --topic"),
        (TARGET, "give exactly one of --start-offset and --producer-id"),
        ((*TARGET, "--start-offset", "1", "--producer-id", "2"), "give exactly one of"),
        ((*TARGET, "--producer-id", "2", "--producer-epoch", "1"), "--producer-epoch and --coordinator-epoch belong"),
        ((*TARGET, "--start-offset", "1", "--coordinator-epoch", "1"), "belong together"),
        ((*TARGET, "--start-offset", str(2**63)), "is not in the range"),
        (("describe", "--transactional-id", ""), "a transactional id has 1 to 32767 bytes"),
        (("force-terminate", "--transactionalId", "x" * 32768), "a transactional id has 1 to 32767 bytes"),
    ],
)
def test_calls_that_are_refused(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
