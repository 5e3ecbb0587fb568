"""The markers of a transaction: to which leader, after which answers again, and when it is over."""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence

import pytest

from klamm.base.slices import in_slices
from klamm.coordinator.transactions import marker_manager
from klamm.coordinator.transactions.ports import TransactionMarker
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from support.coordination import after, settle
from support.transactions import P0, P1, Transactions

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE


async def ended(c: Transactions, *partitions: PartitionKey, transactional_id: str = "txn") -> tuple[int, int]:
    producer = await c.ongoing(*partitions, transactional_id=transactional_id)
    assert await c.end(producer, transactional_id=transactional_id) is NONE
    await settle()
    return producer


async def test_each_leader_gets_one_request_with_its_partitions() -> None:
    c = await Transactions.elected()
    c.leaders.led.update({P0: 3, P1: 2, ("u", 0): 3})
    await ended(c, P0, P1, ("u", 0))
    assert [(broker, [marker.partitions for marker in markers]) for broker, markers in c.leaders.requests] == [
        (3, [[P0, ("u", 0)]]),
        (2, [[P1]]),
    ]
    await c.stop()


async def test_markers_that_come_while_a_broker_is_busy_go_together_in_the_next_request() -> None:
    c = await Transactions.elected()
    c.leaders.delay_s = 1
    for number in range(5):
        await ended(c, ("t", number), transactional_id=f"txn{number}")
    await after(3)
    assert [len(markers) for _, markers in c.leaders.requests] == [1, 4]
    assert all(c.state(f"txn{number}") == "CompleteCommit" for number in range(5))
    await c.stop()


async def test_no_broker_waits_for_another() -> None:
    c = await Transactions.elected()
    c.leaders.led[P1] = 2
    c.leaders.delays_s[2] = 1_000
    await ended(c, P0, P1)
    c.leaders.led[P0] = 3
    await ended(c, P0, transactional_id="other")
    assert c.state("other") == "CompleteCommit"
    assert c.leaders.markers == {P0: [(1000, 0, True, 5), (1001, 0, True, 5)]}
    await c.stop()


async def test_a_request_has_a_limited_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_manager, "PARTITIONS_PER_SLICE", 10)
    c = await Transactions.elected()
    c.leaders.delay_s = 1
    await ended(c, *[("t", number) for number in range(25)])
    for name, count in (("a", 4), ("b", 4), ("c", 4)):
        await ended(c, *[(name, number) for number in range(count)], transactional_id=name)
    await after(10)
    sizes = [[len(marker.partitions) for marker in markers] for _, markers in c.leaders.requests]
    assert sizes == [[10], [10], [5, 4], [4, 4]]
    assert [c.state(name) for name in ("txn", "a", "b", "c")] == ["CompleteCommit"] * 4
    assert all(len(written) == 1 for written in c.leaders.markers.values())
    await c.stop()


async def test_the_partitions_of_a_wide_transaction_are_queued_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_manager, "PARTITIONS_PER_SLICE", 10)
    c = await Transactions.elected()
    led = c.leaders.leader
    steps: list[int] = []

    def leader(partition: PartitionKey) -> int | None:
        steps[-1] += 1
        return led(partition)

    async def count() -> None:
        while True:
            steps.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(c.leaders, "leader", leader)
    counting = asyncio.create_task(count())
    await settle()
    await ended(c, *[("t", number) for number in range(95)])
    for _ in range(5):
        await settle()
    counting.cancel()
    assert max(steps) == 10
    assert sum(steps) == 95
    assert c.state() == "CompleteCommit"
    assert all(len(written) == 1 for written in c.leaders.markers.values())
    await c.stop()


async def test_nothing_more_of_a_wide_transaction_is_queued_once_another_broker_coordinates_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marker_manager, "PARTITIONS_PER_SLICE", 10)
    c = await Transactions.elected()
    producer = await c.ongoing(*[("t", number) for number in range(95)])
    assert await c.end(producer) is NONE
    c.resign()
    await settle()
    assert len(c.leaders.markers) <= 10
    await c.stop()


RETRIED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]


@pytest.mark.parametrize("error", RETRIED)
async def test_a_partition_whose_leader_refuses_is_tried_again_until_it_has_its_marker(error: ErrorCode) -> None:
    c = await Transactions.elected()
    c.leaders.errors[P1] = error
    producer = await ended(c, P0, P1)
    await after(30)
    assert c.state() == "PrepareCommit"
    assert await c.add(producer, P0) is ErrorCode.CONCURRENT_TRANSACTIONS
    # A partition that has its marker is not asked again.
    assert [marker.partitions for _, [marker] in c.leaders.requests[1:]] == [[P1]] * (len(c.leaders.requests) - 1)
    assert 30 < len(c.leaders.requests) < 60
    c.leaders.errors.clear()
    await after(2)
    assert c.state() == "CompleteCommit"
    assert c.leaders.markers == {P0: [(1000, 0, True, 5)], P1: [(1000, 0, True, 5)]}
    await c.stop()


@pytest.mark.parametrize("former", [1, NO_LEADER, None])
async def test_a_new_leader_gets_the_marker_as_soon_as_the_metadata_names_it(former: int | None) -> None:
    c = await Transactions.elected()
    c.leaders.dead.add(1)
    c.leaders.led.update({P0: former, P1: former, ("u", 0): 1})
    await ended(c, P0, P1, ("u", 0))
    await after(30)
    c.leaders.led[P1] = 2
    await in_slices(c.coordinator.markers.leaders_changed())
    await settle()
    assert c.leaders.markers == {P1: [(1000, 0, True, 5)]}
    c.leaders.led.update({P0: 3, ("u", 0): 3})
    await in_slices(c.coordinator.markers.leaders_changed())
    await settle()
    assert c.state() == "CompleteCommit"
    assert all(len(written) == 1 for written in c.leaders.markers.values())
    await c.stop()


async def test_news_of_other_partitions_make_no_leader_asked_again() -> None:
    c = await Transactions.elected()
    c.leaders.errors[P0] = ErrorCode.NOT_ENOUGH_REPLICAS
    await ended(c, P0)
    await after(30)
    asked = len(c.leaders.requests)
    for _ in range(10):
        await in_slices(c.coordinator.markers.leaders_changed())
    await settle()
    assert len(c.leaders.requests) == asked
    c.resign()
    await in_slices(c.coordinator.markers.leaders_changed())
    await after(10)
    assert len(c.leaders.requests) == asked
    await c.stop()


async def test_a_marker_that_a_newer_coordinator_epoch_has_fenced_is_sent_again_with_the_newest_epoch() -> None:
    c = await Transactions.elected()
    c.leaders.errors[P0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    await ended(c, P0)
    # Another broker was elected in epoch 7 and replaced, and this one has not heard of it.
    await c.elect(9)
    c.leaders.errors.clear()
    await after(2)
    assert c.leaders.markers == {P0: [(1000, 0, True, 9)]}
    assert c.state() == "CompleteCommit"
    await c.stop()


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
async def test_a_partition_that_needs_no_marker_is_done(error: ErrorCode) -> None:
    c = await Transactions.elected()
    c.leaders.errors[P1] = error
    await ended(c, P0, P1)
    assert c.state() == "CompleteCommit"
    assert c.leaders.markers == {P0: [(1000, 0, True, 5)]}
    await c.stop()


async def test_the_leader_is_looked_up_again_before_each_attempt() -> None:
    c = await Transactions.elected()
    c.leaders.dead.add(1)
    await ended(c, P0)
    await after(1)
    c.leaders.led[P0] = 2
    await after(2)
    assert c.state() == "CompleteCommit"
    assert [broker for broker, _ in c.leaders.requests][-1] == 2
    await c.stop()


async def test_a_partition_without_a_leader_waits_for_one() -> None:
    c = await Transactions.elected()
    c.leaders.led[P1] = NO_LEADER
    await ended(c, P0, P1)
    await after(30)
    assert [marker.partitions for _, [marker] in c.leaders.requests] == [[P0]]
    assert c.leaders.asked == []
    c.leaders.led[P1] = 2
    await after(2)
    assert c.leaders.markers[P1] == [(1000, 0, True, 5)]
    await c.stop()


async def test_a_partition_that_was_deleted_is_left_out() -> None:
    c = await Transactions.elected()
    c.leaders.led[P1] = None
    c.leaders.gone.add(P1)
    await ended(c, P0, P1)
    assert c.state() == "CompleteCommit"
    assert c.leaders.asked == [[P1]]
    await c.stop()


async def test_a_partition_of_which_this_broker_has_not_heard_is_not_taken_for_deleted() -> None:
    c = await Transactions.elected()
    c.leaders.led[P1] = None
    await ended(c, P0, P1)
    await after(30)
    assert c.state() == "PrepareCommit"
    del c.leaders.led[P1]
    await after(2)
    assert c.leaders.markers[P1] == [(1000, 0, True, 5)]
    await c.stop()


async def test_while_zookeeper_does_not_answer_no_partition_counts_as_deleted() -> None:
    c = await Transactions.elected()
    c.leaders.led[P0] = None
    c.leaders.gone.add(P0)
    c.leaders.dead.add(NO_LEADER)
    await ended(c, P0)
    await after(30)
    assert c.state() == "PrepareCommit"
    c.leaders.dead.clear()
    await after(2)
    assert c.state() == "CompleteCommit"
    await c.stop()


async def test_a_marker_without_a_result_is_sent_again() -> None:
    c = await Transactions.elected()
    c.leaders.silent.add(P1)
    await ended(c, P0, P1)
    await after(1)
    assert c.state() == "PrepareCommit"
    c.leaders.silent.clear()
    await after(2)
    assert c.state() == "CompleteCommit"
    await c.stop()


async def test_an_ending_that_fails_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    c = await Transactions.elected()
    c.leaders.dead.add(1)
    with caplog.at_level(logging.WARNING):
        await ended(c, P0, P1)
        await after(60)
    assert caplog.messages == [
        "the end of the transaction of txn cannot be written to t-0 (2 partitions are left); retrying: broker 1 is dead"
    ]
    await c.stop()


async def test_nothing_is_sent_for_a_partition_of_the_topic_that_is_led_elsewhere_now() -> None:
    c = await Transactions.elected()
    c.partition_of["other"] = 1
    c.coordinator.on_election(1, 3)
    await settle()
    c.leaders.delay_s = 1
    await ended(c, P0)
    # These two wait for the request of the first one.
    second = await c.ongoing(P1, transactional_id="second")
    other = await c.ongoing(P1, transactional_id="other")
    assert await c.end(second, transactional_id="second") is NONE
    assert await c.end(other, transactional_id="other") is NONE
    c.resign(6)
    await after(60)
    assert [[marker.producer_id for marker in markers] for _, markers in c.leaders.requests] == [[1000], [other[0]]]
    # The answer to the first request came too late to end the transaction.
    assert c.log.states()[-1] == "PrepareCommit"
    assert c.state("other") == "CompleteCommit"
    await c.stop()


async def test_a_retry_that_comes_after_the_leadership_is_lost_sends_nothing() -> None:
    c = await Transactions.elected()
    c.leaders.dead.add(1)
    await ended(c, P0)
    c.resign(6)
    c.leaders.dead.clear()
    await after(60)
    assert c.leaders.markers == {}
    await c.stop()


async def test_a_prepared_transaction_that_is_loaded_gets_its_markers_all_of_them() -> None:
    c = await Transactions.elected()
    c.leaders.dead.add(1)
    for number in range(1_200):
        producer = await c.ongoing(("t", number), transactional_id=f"txn{number}")
        assert await c.end(producer, number % 2 == 0, transactional_id=f"txn{number}") is NONE
    c.resign(6)
    c.leaders.dead.clear()
    c.leaders.requests.clear()
    await c.elect(7)
    await after(5)
    assert all(len(written) == 1 for written in c.leaders.markers.values())
    assert [written[0][2] for _, written in sorted(c.leaders.markers.items())] == [True, False] * 600
    assert {c.state(f"txn{number}") for number in range(1_200)} == {"CompleteCommit", "CompleteAbort"}
    assert len(c.leaders.requests) < 10
    await c.stop()


async def test_stopping_ends_the_requests_and_the_retries() -> None:
    c = await Transactions.elected()
    c.leaders.delay_s = 100
    await ended(c, P0)
    await c.stop()
    await after(200)
    assert c.leaders.markers == {}


async def test_attempts_of_many_transactions_do_not_come_back_at_the_same_time() -> None:
    c = await Transactions.elected()
    c.leaders.led = {("t", number): NO_LEADER for number in range(50)}
    times: list[float] = []
    ask = c.leaders.leader

    def leader(partition: PartitionKey) -> int | None:
        times.append(asyncio.get_running_loop().time())
        return ask(partition)

    c.leaders.leader = leader
    for number in range(50):
        await ended(c, ("t", number), transactional_id=f"txn{number}")
    await after(20)
    together = max(len(list(group)) for _, group in itertools.groupby(sorted(times[-50:])))
    assert together < 5
    await c.stop()


async def test_an_error_of_the_program_is_reported() -> None:
    c = await Transactions.elected()

    async def broken(
        broker_id: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[PartitionKey, ErrorCode]]:
        raise ValueError("broken")

    c.leaders.write = broken
    await ended(c, P0)
    assert [str(error) for error in c.failures] == ["broken"]
    c.failures.clear()
    await c.stop()


async def test_a_kafka_error_of_the_request_is_retried() -> None:
    c = await Transactions.elected()
    write = c.leaders.write

    async def refused(
        broker_id: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[PartitionKey, ErrorCode]]:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "too old")

    c.leaders.write = refused
    await ended(c, P0)
    await after(5)
    c.leaders.write = write
    await after(3)
    assert c.state() == "CompleteCommit"
    await c.stop()
