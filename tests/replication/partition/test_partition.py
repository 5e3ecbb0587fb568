"""One partition: leading with followers, ISR changes, following."""

import asyncio

import pytest

from klamm.config.safest import ALL_REPLICAS
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from klamm.replication.partition.isr import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from klamm.replication.ports import WrittenIsr
from support.replicas import ME, NOW_MS, batch, hosting_broker, state, values_in

pytestmark = pytest.mark.loop("virtual")


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def append(partition, *values, acks=1):
    return partition.append_records_as_leader(batch(*values), acks, NOW_MS)


def fetched(partition, replica_id, offset):
    partition.update_follower_fetch_state(replica_id, offset, 0, now_ms())


def raises(code: ErrorCode):
    return pytest.raises(KafkaError, match=code.name)


def scenario(function=None, **options):
    """A test of a partition: `async def test(broker, partition)`."""
    if function is None:
        return lambda wrapped: scenario(wrapped, **options)

    async def test(tmp_path):
        async with hosting_broker(tmp_path, **options) as broker:
            await function(broker, broker.lone_partition())

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


# -- leading ----------------------------------------------------------------------------------------------------------


@scenario
async def test_before_the_controller_has_spoken_it_neither_leads_nor_knows_an_epoch(broker, partition):
    assert (partition.is_leader, partition.leader_epoch) == (False, -1)
    with raises(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        append(partition, b"a")


@scenario
async def test_records_are_committed_when_every_member_of_the_isr_has_fetched_past_them(broker, partition):
    assert partition.make_leader(state())
    append(partition, b"a", b"b")
    assert partition.log.high_watermark == 0
    fetched(partition, 2, 2)
    assert partition.log.high_watermark == 0
    fetched(partition, 3, 1)
    assert partition.log.high_watermark == 1
    fetched(partition, 3, 2)
    assert partition.log.high_watermark == 2
    assert broker.advanced == [1, 2]
    assert not broker.proposals.submitted


@scenario
async def test_alone_in_the_isr_it_commits_at_once(broker, partition):
    partition.make_leader(state(isr=(1,)))
    append(partition, b"a")
    assert partition.log.high_watermark == 1


@scenario
async def test_a_new_epoch_begins_at_the_logs_end_even_without_records(broker, partition):
    partition.make_leader(state(isr=(1,)))
    append(partition, b"a")
    assert not partition.make_leader(state(epoch=4))
    assert partition.leader_epoch_start_offset == 1
    assert partition.log.leader_epochs.entries == [(0, 0), (4, 1)]


@scenario
async def test_a_new_leader_trusts_no_offset_that_it_heard_before(broker, partition):
    partition.make_leader(state(isr=(1, 2), replicas=(1, 2)))
    append(partition, b"a")
    fetched(partition, 2, 1)
    partition.make_follower(state(leader=2, epoch=1))
    partition.make_leader(state(epoch=2, isr=(1, 2), replicas=(1, 2)))
    append(partition, b"b")
    assert partition.remote_replicas[2].log_end_offset == -1
    assert partition.log.high_watermark == 1


@scenario
async def test_the_same_leader_in_a_new_epoch_keeps_what_it_knows(broker, partition):
    partition.make_leader(state())
    append(partition, b"a")
    fetched(partition, 2, 1)
    partition.make_leader(state(epoch=1, isr=(1, 2)))
    assert partition.log.high_watermark == 1


@scenario
async def test_a_leader_that_has_missed_an_epoch_trusts_no_offset_that_it_heard_before(broker, partition):
    """In epoch 1, of which this broker has not heard, 2 has followed 3 and cut what 3 did not have."""
    partition.make_leader(state())
    append(partition, b"a")
    fetched(partition, 2, 1)
    assert not partition.make_leader(state(epoch=2, isr=(1, 2)))
    assert partition.remote_replicas[2].log_end_offset == -1
    assert partition.acknowledgement(1, 0) is None
    fetched(partition, 2, 1)
    assert partition.acknowledgement(1, 0) is ErrorCode.NONE


@scenario
async def test_the_leaders_high_watermark_never_goes_back(broker, partition):
    partition.make_leader(state(isr=(1,)))
    append(partition, b"a")
    partition.make_leader(state(epoch=1, isr=(1, 2, 3)))
    fetched(partition, 2, 0)
    assert partition.log.high_watermark == 1


@scenario
async def test_epochs_of_requests_are_checked_before_leadership(broker, partition):
    partition.make_leader(state(epoch=5))
    partition.require_leader(5)
    partition.require_leader()
    with raises(ErrorCode.FENCED_LEADER_EPOCH):
        partition.require_leader(4)
    with raises(ErrorCode.UNKNOWN_LEADER_EPOCH):
        partition.require_leader(6)
    partition.make_follower(state(leader=2, epoch=6))
    with raises(ErrorCode.FENCED_LEADER_EPOCH):
        partition.require_leader(5)
    with raises(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        partition.require_leader(6)


# -- acks=all and min.insync.replicas ---------------------------------------------------------------------------------


@scenario(min_insync_replicas="2")
async def test_acks_all_is_refused_while_the_committed_isr_is_too_small(broker, partition):
    partition.make_leader(state(isr=(1,)))
    with raises(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(partition, b"a", acks=-1)
    append(partition, b"a", acks=1)
    fetched(partition, 2, 1)
    assert isinstance(partition.isr_state, PendingExpandIsr)
    with raises(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(partition, b"a", acks=-1)  # the new member is not certain yet


@scenario(min_insync_replicas=str(ALL_REPLICAS))
async def test_where_nobody_knows_how_many_replicas_acks_all_needs_it_needs_all(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    with raises(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(partition, b"a", acks=-1)
    # One that a reassignment adds is not waited for.
    partition.make_leader(state(epoch=1, isr=(1, 2), adding_replicas=(3,)))
    append(partition, b"a", acks=-1)


@scenario(min_insync_replicas="2")
async def test_an_isr_that_has_become_too_small_since_the_append_is_told(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    info = append(partition, b"a", acks=-1)
    assert partition.acknowledgement(info.last_offset + 1, 0) is None
    partition.make_leader(state(epoch=1, isr=(1,)))
    assert partition.acknowledgement(info.last_offset + 1, 0) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@scenario
async def test_acks_all_waits_for_the_high_watermark(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    append(partition, b"a", b"b")
    assert partition.acknowledgement(2, 0) is None
    fetched(partition, 2, 1)
    assert partition.acknowledgement(2, 0) is None
    fetched(partition, 2, 2)
    assert partition.acknowledgement(2, 0) is ErrorCode.NONE


@scenario
async def test_a_follower_that_was_caught_up_when_it_died_holds_nothing_up(broker, partition):
    """It was about to join the ISR: without the news of its death everybody waits for replica.lag.time.max.ms."""
    partition.make_leader(state(isr=(1, 2)))
    fetched(partition, 3, 0)
    # The controller leaves out who is shutting down.
    broker.proposals.submitted[-1].on_result(WrittenIsr(0, (1, 2), partition.zk_version))
    append(partition, b"a")
    fetched(partition, 2, 1)
    assert partition.acknowledgement(1, 0) is None
    partition.broker_died(2)  # in the ISR: it counts as long as the controller has not taken it out
    assert partition.acknowledgement(1, 0) is None
    partition.broker_died(3)
    assert partition.acknowledgement(1, 0) is ErrorCode.NONE


@scenario
async def test_a_follower_that_dies_while_it_is_proposed_counts_until_the_controller_has_decided(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    fetched(partition, 3, 0)
    append(partition, b"a")
    fetched(partition, 2, 1)
    partition.broker_died(3)
    assert partition.acknowledgement(1, 0) is None
    broker.proposals.submitted[-1].on_result(WrittenIsr(0, (1, 2), partition.zk_version))
    assert partition.acknowledgement(1, 0) is ErrorCode.NONE


@scenario
async def test_what_was_appended_before_following_another_is_never_acknowledged(broker, partition):
    """The records may have been truncated; that the high watermark passes their offset again says nothing."""
    partition.make_leader(state(isr=(1, 2)))
    append(partition, b"lost")
    partition.make_follower(state(leader=2, epoch=1))
    partition.truncate_to(0)
    partition.make_leader(state(epoch=2, isr=(1,)))
    append(partition, b"other")
    assert partition.log.high_watermark == 1
    assert partition.acknowledgement(1, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.acknowledgement(1, 2) is ErrorCode.NONE


# -- ISR changes ------------------------------------------------------------------------------------------------------


@scenario
async def test_a_replica_that_has_caught_up_is_proposed_and_counts_at_once(broker, partition):
    partition.make_leader(state(isr=(1,), epoch=3, zk_version=8, controller_epoch=5))
    append(partition, b"a")
    fetched(partition, 2, 0)
    assert not broker.proposals.submitted
    fetched(partition, 2, 1)
    [change] = broker.proposals.submitted
    assert (change.topic_partition, change.leader_epoch, change.isr, change.zk_version) == (("t", 0), 3, (1, 2), 8)
    assert change.controller_epoch == 5
    assert partition.isr_state == PendingExpandIsr((1,), 2)
    append(partition, b"b")
    assert partition.log.high_watermark == 1  # 2 must have it, for it may be in the ISR already
    fetched(partition, 3, 2)
    assert len(broker.proposals.submitted) == 1  # one change at a time
    change.on_result(WrittenIsr(3, (1, 2), 9))
    assert (partition.isr_state, partition.zk_version) == (CommittedIsr((1, 2)), 9)
    fetched(partition, 3, 2)
    assert broker.proposals.submitted[1].isr == (1, 2, 3)
    assert broker.proposals.submitted[1].zk_version == 9


@scenario
async def test_one_that_may_be_in_the_isr_counts_however_long_the_controller_is_silent(broker, partition):
    partition.make_leader(state(isr=(1,)))
    fetched(partition, 2, 0)
    await asyncio.sleep(100)
    append(partition, b"a")
    assert partition.log.high_watermark == 0
    partition.maybe_shrink_isr()
    assert len(broker.proposals.submitted) == 1
    fetched(partition, 2, 1)
    assert partition.log.high_watermark == 1


@scenario
async def test_nobody_is_proposed_before_it_has_reached_the_leaders_epoch(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    append(partition, b"a")
    partition.make_leader(state(epoch=1, isr=(1, 2)))  # its high watermark, 0, is behind the epoch's start, 1
    fetched(partition, 3, 0)
    assert not broker.proposals.submitted
    fetched(partition, 3, 1)
    assert broker.proposals.submitted[0].isr == (1, 2, 3)


@scenario
async def test_those_that_are_behind_for_too_long_leave_but_count_until_that_is_certain(broker, partition):
    partition.make_leader(state())
    append(partition, b"a")
    fetched(partition, 3, 1)
    await asyncio.sleep(30)
    partition.maybe_shrink_isr()
    assert not broker.proposals.submitted  # not longer than replica.lag.time.max.ms
    await asyncio.sleep(0.001)
    partition.maybe_shrink_isr()
    [change] = broker.proposals.submitted
    assert change.isr == (1, 3)  # 3 has everything, although it has not fetched for as long
    assert partition.isr_state == PendingShrinkIsr((1, 2, 3), (2,))
    partition.maybe_shrink_isr()
    assert len(broker.proposals.submitted) == 1
    assert partition.log.high_watermark == 0
    change.on_result(WrittenIsr(0, (1, 3), 1))
    # Committed without another append or fetch (KAFKA-13091).
    assert (partition.isr, partition.log.high_watermark, broker.advanced) == ((1, 3), 1, [1])


@scenario
async def test_members_of_the_isr_that_are_no_replicas_leave_it_and_nothing_is_committed_before(broker, partition):
    """A reassignment shrinks the replicas first, then the ISR: a member that is still in there may be elected if the
    controller dies in between. (KAFKA-9672 is that they could not leave.)"""
    partition.make_leader(state(isr=(1, 2, 3), replicas=(1, 2)))
    append(partition, b"a")
    fetched(partition, 2, 1)
    assert partition.log.high_watermark == 0
    partition.maybe_shrink_isr()
    [change] = broker.proposals.submitted
    assert change.isr == (1, 2)
    assert partition.log.high_watermark == 0
    change.on_result(WrittenIsr(0, (1, 2), 1))
    assert partition.log.high_watermark == 1
    partition.make_leader(state(epoch=1, isr=(1, 3), replicas=(1,)))
    append(partition, b"b")
    assert partition.log.high_watermark == 1
    partition.make_leader(state(epoch=2, isr=(1,), replicas=(1,)))
    assert partition.log.high_watermark == 2


@scenario
async def test_a_steady_follower_that_never_reaches_the_end_stays(broker, partition):
    partition.make_leader(state(isr=(1, 2), replicas=(1, 2)))
    append(partition, b"0")
    for offset in range(1, 100):
        append(partition, b"x")
        fetched(partition, 2, offset)  # always one behind
        await asyncio.sleep(1)
        partition.maybe_shrink_isr()
    assert not broker.proposals.submitted


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
async def test_a_refused_change_stays_pending_until_the_next_leader_and_isr(tmp_path, code):
    async with hosting_broker(tmp_path) as broker:
        partition = broker.lone_partition()
        partition.make_leader(state(isr=(1,)))
        fetched(partition, 2, 0)
        broker.proposals.submitted[0].on_result(code)
        assert partition.isr_state == PendingExpandIsr((1,), 2)
        fetched(partition, 3, 0)
        assert len(broker.proposals.submitted) == 1
        partition.make_leader(state(epoch=1, isr=(1,)))
        assert partition.isr_state == CommittedIsr((1,))
        assert broker.proposals.cleared == [("t", 0), ("t", 0)]


@scenario
async def test_answers_to_what_is_not_waited_for_any_more_are_ignored(broker, partition):
    partition.make_leader(state(isr=(1,)))
    fetched(partition, 2, 0)
    partition.make_leader(state(epoch=1, isr=(1,), zk_version=5))
    fetched(partition, 2, 0)
    first, second = broker.proposals.submitted
    first.on_result(WrittenIsr(0, (1, 2), 6))  # an equal proposal, but of the epoch before
    assert partition.isr_state == PendingExpandIsr((1,), 2)
    second.on_result(WrittenIsr(2, (1, 2), 6))  # another epoch
    assert partition.isr_state == PendingExpandIsr((1,), 2)
    second.on_result(WrittenIsr(1, (1, 2), 4))  # older than what is known
    assert partition.isr_state == PendingExpandIsr((1,), 2)
    second.on_result(WrittenIsr(1, (1, 2), 5))  # nothing had to be written
    assert partition.isr_state == CommittedIsr((1, 2))
    partition.stop()
    second.on_result(WrittenIsr(1, (1, 2), 7))
    assert partition.isr_state == CommittedIsr(())


@scenario
async def test_the_high_watermark_waits_for_those_about_to_join(broker, partition):
    partition.make_leader(state(isr=(1,)))
    fetched(partition, 2, 0)
    fetched(partition, 3, 0)  # caught up, but cannot be proposed while 2 is
    append(partition, b"a")
    fetched(partition, 2, 1)
    assert partition.log.high_watermark == 0
    fetched(partition, 3, 1)
    assert partition.log.high_watermark == 1
    append(partition, b"b")
    await asyncio.sleep(30.001)
    fetched(partition, 2, 2)
    assert partition.log.high_watermark == 2  # 3 has not been seen for too long


# -- what is read -----------------------------------------------------------------------------------------------------


@scenario
async def test_latest_offsets_are_not_told_before_the_high_watermark_reaches_the_epoch(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    append(partition, b"a")
    partition.make_leader(state(epoch=1, isr=(1, 2)))
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        with raises(ErrorCode.OFFSET_NOT_AVAILABLE):
            await partition.list_offset(LATEST_TIMESTAMP, isolation)
        with raises(ErrorCode.OFFSET_NOT_AVAILABLE):
            await partition.list_offset(NOW_MS, isolation)
    assert await partition.list_offset(EARLIEST_TIMESTAMP, READ_UNCOMMITTED) == (-1, 0, 0)
    assert await partition.list_offset(LATEST_TIMESTAMP, None) == (-1, 1, 1)  # a follower
    assert await partition.list_offset(NOW_MS, None) == (NOW_MS, 0, 0)
    fetched(partition, 2, 1)
    assert await partition.list_offset(LATEST_TIMESTAMP, READ_UNCOMMITTED) == (-1, 1, 1)
    assert await partition.list_offset(NOW_MS, READ_UNCOMMITTED) == (NOW_MS, 0, 0)
    assert await partition.list_offset(NOW_MS + 1, READ_UNCOMMITTED) is None


@scenario
async def test_a_log_that_differs_is_told_where(broker, partition):
    partition.make_leader(state(isr=(1,)))
    append(partition, b"a", b"b")
    partition.make_leader(state(epoch=3, isr=(1,)))
    append(partition, b"c")
    assert partition.diverging_epoch(3, 3) is None
    assert partition.diverging_epoch(2, 0) is None
    assert partition.diverging_epoch(3, 0) == (0, 2)
    assert partition.diverging_epoch(3, 2) == (0, 2)
    assert partition.diverging_epoch(4, 3) == (3, 3)
    with raises(ErrorCode.OFFSET_OUT_OF_RANGE):
        partition.diverging_epoch(0, 4)


# -- following --------------------------------------------------------------------------------------------------------


@scenario
async def test_a_follower_copies_and_takes_over_the_leaders_offsets(broker, partition):
    partition.make_follower(state(leader=2, epoch=7, isr=(2, 3)))
    assert (partition.leader_id, partition.leader_epoch, partition.isr) == (2, 7, ())
    assert partition.leader_epoch_start_offset is None
    partition.append_records_as_follower(batch(b"a", b"b", partition_leader_epoch=6))
    assert partition.log.leader_epochs.entries == [(6, 0)]
    assert partition.update_follower_high_watermark(9) == 2
    assert partition.update_follower_high_watermark(1) == 1  # it may go back
    partition.maybe_increment_log_start_offset(2)
    assert partition.log.log_start_offset == 1  # not above the high watermark
    assert partition.truncate_to(1)
    assert partition.log.log_end_offset == 0  # a batch goes as a whole


@scenario
async def test_an_empty_follower_begins_with_the_batch_that_the_leaders_log_begins_within(broker, partition):
    partition.make_follower(state(leader=2))
    partition.truncate_fully_and_start_at(7)
    partition.append_records_as_follower(batch(b"5", b"6", b"7", base_offset=5, partition_leader_epoch=0))
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (5, 8)
    partition.update_follower_high_watermark(8)
    partition.maybe_increment_log_start_offset(7)
    read = await partition.log.read(7, 1000, max_offset=8, minimum_one_batch=True)
    assert values_in(read.data) == [b"5", b"6", b"7"]


@scenario
async def test_a_follower_that_has_something_takes_no_batch_from_before(broker, partition):
    partition.make_follower(state(leader=2))
    partition.append_records_as_follower(batch(b"0", b"1", partition_leader_epoch=0))
    with raises(ErrorCode.OFFSET_OUT_OF_RANGE):
        partition.append_records_as_follower(batch(b"1", b"2", base_offset=1, partition_leader_epoch=0))
    assert partition.log.log_end_offset == 2


@scenario
async def test_a_leader_copies_nothing_and_truncates_nothing(broker, partition):
    partition.make_leader(state(isr=(1,)))
    append(partition, b"a")
    for attempt in (
        lambda: partition.append_records_as_follower(batch(b"b", base_offset=1)),
        lambda: partition.truncate_to(0),
        lambda: partition.truncate_fully_and_start_at(0),
        lambda: partition.update_follower_high_watermark(0),
        lambda: partition.maybe_increment_log_start_offset(1),
    ):
        with raises(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            attempt()
    assert (partition.log.log_end_offset, partition.log.high_watermark, partition.log.log_start_offset) == (1, 1, 0)


@scenario
async def test_an_epoch_that_cannot_be_written_down_is_not_led(broker, partition):
    partition.make_follower(state(leader=2, epoch=1))
    broker.machine.fill()
    with raises(ErrorCode.KAFKA_STORAGE_ERROR):
        partition.make_leader(state(epoch=2))
    assert (partition.leader_id, partition.leader_epoch) == (2, 1)
    broker.machine.heal()
    assert partition.make_leader(state(epoch=2))


@scenario
async def test_under_replicated(broker, partition):
    partition.make_leader(state(isr=(1, 2)))
    assert partition.is_under_replicated
    partition.make_leader(state(epoch=1, isr=(1, 2), adding_replicas=(3,)))
    assert not partition.is_under_replicated
    partition.make_follower(state(leader=2, epoch=2))
    assert not partition.is_under_replicated
    assert ME in partition.replicas
