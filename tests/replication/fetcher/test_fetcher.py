"""Follower fetchers against a leader that the tests play, with real partitions and logs on a disk in memory."""

import asyncio
import errno
import random
import struct
from contextlib import asynccontextmanager

import pytest

from klamm.base.metrics import Metrics
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.config.topic import TopicConfig
from klamm.protocol.apis.fetch import EpochEndOffset, PartitionData
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, response_class
from klamm.replication.fetcher import fetcher, followed_partitions
from klamm.replication.fetcher.fetch_state import InitialFetchState
from klamm.replication.fetcher.fetcher_manager import ReplicaFetcherManager
from klamm.replication.partition.isr import IsrStatistics
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.topic_metrics import TopicCounts
from klamm.replication.quota import UNLIMITED, ReplicationQuota
from klamm.storage.log import written_ahead
from klamm.storage.log.written_ahead import WrittenAhead
from support.fetch_messages import fetch_response, forgotten_of, wanted_of
from support.logs import NOW_MS, DiskEnvironment, append, batch, open_log, read_all
from support.metrics import Values
from support.replicas import Proposals
from support.scripted_broker import Asked, ScriptedBroker

pytestmark = pytest.mark.loop("asyncio", "uvloop")

LEADER = 2
FOLLOWER = 1
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


@pytest.fixture(autouse=True)
def leaders_may_take_their_time(monkeypatch):
    """Here a leader's answer comes when the test says so; no fetch is given up because it takes long."""
    monkeypatch.setattr(fetcher, "LONG_POLL_MS", 60_000)


class AskedByFollower(Asked):
    @property
    def wanted(self):
        """(leader epoch, offset, last fetched epoch) by partition."""
        return {
            (topic, want.partition): (want.current_leader_epoch, want.fetch_offset, want.last_fetched_epoch)
            for topic, partitions in wanted_of(self.body)
            for want in partitions
        }

    @property
    def session(self):
        return self.body.session_id, self.body.session_epoch

    def answer_fetch(self, results=(), *, session_id=7, error=0):
        """`results`: (partition, PartitionData) pairs."""
        topics = [(topic, [result]) for (topic, _), result in results]
        self.answer(fetch_response(*topics, error_code=error, session_id=session_id))


class Leader(ScriptedBroker):
    """The test takes each request from it and answers."""

    asked_class = AskedByFollower


class NoProposals(Proposals):
    """A follower has none."""

    def submit(self, change):
        raise AssertionError(change)


class OnItsDisk(Partition):
    environment: DiskEnvironment


def make_partition(topic_partition, config, broker_id, environment=None):
    environment = environment or DiskEnvironment()
    partition = OnItsDisk(
        topic_partition[0],
        topic_partition[1],
        broker_id,
        open_log(environment, is_clean=True),
        TopicConfig.from_overrides(config, {}),
        replica_lag_time_max_ms=30_000,
        clock_ms=lambda: 0.0,
        isr_changes=NoProposals(),
        isr_statistics=IsrStatistics(),
        topic_counts=TopicCounts(),
        on_high_watermark=lambda partition: None,
        on_low_watermark=lambda partition: None,
    )
    partition.environment = environment
    return partition


def state_of(number, leader, epoch):
    return LeaderAndIsrPartitionState(
        number, 1, leader, epoch, (leader,), 0, (LEADER, FOLLOWER) if leader == LEADER else (FOLLOWER, LEADER)
    )


class Follower:
    """Broker 1, with the partitions that a test hosts on it."""

    def __init__(self, leader, **settings):
        self.config = BrokerConfig.from_properties(
            {"zookeeper.connect": "nowhere:1", "broker.id": str(FOLLOWER), "replica.fetch.backoff.ms": "40"}
            | {key.replace("_", "."): str(value) for key, value in settings.items()}
        )
        self.leader = leader
        self.partitions = {}
        self.failures = []
        self.quota = ReplicationQuota(samples=11, window_ms=50)
        self.current_config = CurrentConfig(self.config)
        self.manager = ReplicaFetcherManager(
            self.current_config, FOLLOWER, self.partitions.get, self.quota, self.failures.append
        )

    def host(self, topic_partition, *epochs):
        """Hosts a partition that has one record for each of these leader epochs."""
        partition = self.partitions[topic_partition] = make_partition(topic_partition, self.config, FOLLOWER)
        for epoch in epochs:
            append(partition.log, b"old", leader_epoch=epoch)
        partition.log.update_high_watermark(0)
        return partition

    def follow(self, *topic_partitions, epoch=1, leader_id=LEADER, address=None):
        """As LeaderAndIsr does."""
        states = {}
        for topic_partition in topic_partitions:
            if topic_partition not in self.partitions:
                self.host(topic_partition)
            self.partitions[topic_partition].make_follower(state_of(topic_partition[1], leader_id, epoch))
            host, port = address or self.leader.address
            states[topic_partition] = InitialFetchState(leader_id, host, port, epoch)
        self.manager.remove_fetchers(states)
        self.manager.add_fetchers(states)

    def pass_backoffs(self):
        """As if all of them had just ended."""
        for each in self.manager._fetchers.values():
            waits = each.followed._waits
            waits[:] = [(0.0, number, key, fetch) for _, number, key, fetch in waits]

    def lead(self, topic_partition, epoch):
        self.manager.remove_fetchers([topic_partition])
        self.partitions[topic_partition].make_leader(state_of(topic_partition[1], FOLLOWER, epoch))


@asynccontextmanager
async def following(**settings):
    """A follower and its leader; no fetcher may have failed or outlive it."""
    async with Leader() as leader:
        follower = Follower(leader, **settings)
        try:
            yield follower, leader
        finally:
            await follower.manager.shutdown()
    assert follower.failures == []
    assert len(asyncio.all_tasks()) == 1


def records(offset, *values, epoch=1):
    """A batch as a leader has it."""
    environment = DiskEnvironment()
    log = open_log(environment, is_clean=True)
    log.truncate_fully_and_start_at(offset)
    data = batch(*values)
    log.append_as_leader(data, epoch, now_ms=NOW_MS)
    return bytes(data)


def result(topic_partition, data=b"", *, hw=0, start=0, error=0, diverging=None):
    return topic_partition, PartitionData(
        partition_index=topic_partition[1],
        error_code=error,
        high_watermark=hw,
        last_stable_offset=hw,
        log_start_offset=start,
        records=data,
        diverging_epoch=diverging and EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
    )


# -- throttling -------------------------------------------------------------------------------------------------------

THROTTLED_FETCH_BYTES = 64 * 1024


async def test_throttled_partitions_take_turns_as_the_quota_allows():
    async with following(replica_fetch_wait_max_ms=500) as (follower, leader):
        follower.quota.bytes_per_second = 20_000
        follower.quota.throttle("t", None)
        follower.follow(T0, T1, U0)
        asked = await leader.next(ApiKey.FETCH)
        # The first answer says which replicas are out of sync.
        assert asked.wanted.keys() == {T0, T1, U0}
        sizes = {want.partition_max_bytes for topic, wants in wanted_of(asked.body) for want in wants if topic == "t"}
        assert sizes == {THROTTLED_FETCH_BYTES}
        data = records(0, bytes(2000))
        asked.answer_fetch([result(T0, data, hw=5), result(T1, hw=5), result(U0, records(0, b"u"), hw=1)])
        began = asyncio.get_running_loop().time()
        asked = await leader.next(ApiKey.FETCH)
        # The quota is exceeded until the bytes are paid for. U0 is fetched on.
        assert (asked.wanted.keys(), forgotten_of(asked.body)) == ({U0}, [("t", [0, 1])])
        assert asked.body.max_wait_ms <= 500
        while not asked.wanted.keys() & {T0, T1}:
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
        assert asyncio.get_running_loop().time() - began >= len(data) / 20_000 - 0.02
        (first,) = asked.wanted.keys() & {T0, T1}  # The quota has room for less than one answer.
        number, offset = first[1], 1 if first == T0 else 0
        asked.answer_fetch([result(first, records(offset, bytes(100)), hw=5)])
        asked = await leader.next(ApiKey.FETCH)
        while not asked.wanted.keys() & {T0, T1}:
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted.keys() & {T0, T1} == {("t", 1 - number)}


async def test_a_throttled_partition_in_sync_is_not_held_back():
    async with following() as (follower, leader):
        follower.quota.bytes_per_second = 0
        follower.quota.throttle("t", None)
        follower.host(T0, 1)
        follower.follow(T0)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, hw=1)])
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(1, b"new"), hw=1)])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (1, 2, 1)}
        follower.follow(T0, epoch=2)  # In a new epoch, too, the leader is asked at once.
        asked.answer_fetch()
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 2, 1)}


async def held_back(follower, leader):
    """T0 is throttled and out of sync, U0 neither."""
    follower.quota.bytes_per_second = 0
    follower.quota.throttle("t", None)
    follower.follow(T0, T1, U0)
    (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, hw=5), result(T1, hw=5), result(U0)])
    asked = await leader.next(ApiKey.FETCH)
    assert (asked.wanted, forgotten_of(asked.body)) == ({}, [("t", [0, 1])])
    return asked


async def test_a_throttle_that_goes_lets_its_partitions_go():
    async with following() as (follower, leader):
        asked = await held_back(follower, leader)
        follower.quota.bytes_per_second = UNLIMITED
        follower.quota.throttle("t", frozenset())
        while T0 not in asked.wanted:
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted.keys() == {T0, T1}


async def test_a_partition_that_is_throttled_no_more_does_not_wait_until_the_quota_is_paid_for():
    async with following() as (follower, leader):
        asked = await held_back(follower, leader)
        follower.quota.throttle("t", frozenset({1}))
        asked.answer_fetch()
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted.keys() == {T0}


async def test_a_partition_that_waits_for_its_turn_may_go_or_come_again():
    async with following() as (follower, leader):
        asked = await held_back(follower, leader)
        follower.manager.remove_fetchers([T0])
        follower.follow(T1, epoch=2)
        while T1 not in asked.wanted:
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
            assert T0 not in asked.wanted
        assert asked.wanted[T1][0] == 2


# -- steady fetching --------------------------------------------------------------------------------------------------


async def test_the_first_fetch_says_who_asks_and_names_everything():
    async with following(
        replica_fetch_wait_max_ms=250,
        replica_fetch_min_bytes=2,
        replica_fetch_response_max_bytes=3_000_000,
        replica_fetch_max_bytes=400_000,
    ) as (follower, leader):
        follower.host(T1, 3, 3)
        follower.follow(T0, T1, U0, epoch=5)
        asked = await leader.next(ApiKey.FETCH)
        assert (asked.header.api_version, asked.header.client_id) == (12, "broker-1-fetcher-0")
        body = asked.body
        assert (body.replica_id, body.max_wait_ms, body.min_bytes, body.max_bytes) == (1, 250, 2, 3_000_000)
        assert (body.isolation_level, asked.session) == (0, (0, 0))
        assert asked.wanted == {T0: (5, 0, -1), T1: (5, 2, 3), U0: (5, 0, -1)}
        assert {want.partition_max_bytes for _, wants in wanted_of(body) for want in wants} == {400_000}


async def test_what_arrives_is_appended_and_acknowledged_by_the_next_fetch():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        first = records(0, b"a", b"b", epoch=1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, first, hw=1), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.session == (7, 1)
        assert asked.wanted == {T0: (1, 2, 1)}
        log = follower.partitions[T0].log
        assert log.high_watermark == 1
        second = records(2, b"c", epoch=1)
        asked.answer_fetch([result(T0, second, hw=2)])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.session == (7, 2)
        assert asked.wanted == {T0: (1, 3, 1)}
        assert await read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
        # The last bytes may be a part of a batch.
        asked.answer_fetch([result(T0, records(3, b"d") + records(4, b"e")[:30], hw=3)])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (1, 4, 1)}


async def test_lags_have_the_names_of_kafkas_mbeans():
    async with following() as (follower, leader):
        metrics = Metrics()
        follower.manager.register(metrics)
        follower.follow(T0, T1)
        lag = "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=ReplicaFetcherThread-0-2,"
        lag += "topic=t,partition={}"
        max_lag = "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica"
        asked = await leader.next(ApiKey.FETCH)
        found = Values.of(metrics)
        # Before the leader's first answer.
        assert [found[lag.format(0)], found[lag.format(1)], found[max_lag]] == [-1, -1, 0]
        asked.answer_fetch([result(T0, records(0, b"a", b"b"), hw=5), result(T1, hw=1)])
        asked = await leader.next(ApiKey.FETCH)
        found = Values.of(metrics)
        assert [found[lag.format(0)], found[lag.format(1)], found[max_lag]] == [3, 1, 3]
        asked.answer_fetch([result(T0, records(2, b"c"), hw=2)])
        await leader.next(ApiKey.FETCH)
        found = Values.of(metrics)
        assert [found[lag.format(0)], found[max_lag]] == [0, 1]
        follower.manager.remove_fetchers([T0, T1])
        assert Values.of(metrics)[max_lag] == 0


async def test_the_high_watermark_and_the_log_start_follow_the_leader():
    async with following() as (follower, leader):
        follower.host(T0, 1, 1, 1)
        follower.follow(T0)
        log = follower.partitions[T0].log
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, hw=9)])
        asked = await leader.next(ApiKey.FETCH)
        assert log.high_watermark == 3
        assert asked.wanted == {}
        asked.answer_fetch([result(T0, hw=2, start=1)])
        asked = await leader.next(ApiKey.FETCH)
        assert (log.high_watermark, log.log_start_offset) == (2, 1)
        assert asked.wanted == {T0: (1, 3, 1)}
        assert asked.body.topics[0].partitions[0].log_start_offset == 1
        asked.answer_fetch([result(T0, hw=3, start=99)])
        await leader.next(ApiKey.FETCH)
        assert log.log_start_offset == 3


async def test_the_leader_hears_of_a_log_start_offset_when_it_is_on_disk():
    async with following(replica_fetch_wait_max_ms=9_000) as (follower, leader):
        follower.host(T0, 1, 1, 1)
        follower.follow(T0)
        log = follower.partitions[T0].log
        log._host.checkpoints_starts = False
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, hw=3, start=2)])
        for _ in range(3):
            asked = await leader.next(ApiKey.FETCH)
            assert (asked.wanted, asked.body.max_wait_ms, log.log_start_offset) == ({}, 20, 2)
            asked.answer_fetch()
        log.checkpointed_start_offset = 2
        asked = await leader.next(ApiKey.FETCH)
        if not asked.wanted:  # It was on its way.
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
        assert asked.body.topics[0].partitions[0].log_start_offset == 2
        assert asked.body.max_wait_ms == 9_000


async def test_the_leader_hears_of_a_log_start_offset_that_was_on_its_way_to_the_disk_when_the_epoch_began():
    async with following(replica_fetch_wait_max_ms=9_000) as (follower, leader):
        log = follower.host(T0, 1, 1, 1).log
        log._host.checkpoints_starts = False
        log.update_high_watermark(3)
        log.update_log_start_offset(2)
        follower.follow(T0, epoch=2)
        asked = await leader.next(ApiKey.FETCH)
        assert asked.body.topics[0].partitions[0].log_start_offset == 0
        log.checkpointed_start_offset = 2
        asked.answer_fetch()
        asked = await leader.next(ApiKey.FETCH)
        assert [want.log_start_offset for _, wants in wanted_of(asked.body) for want in wants] == [2]
        assert asked.body.max_wait_ms == 9_000


async def test_a_log_start_offset_told_together_with_a_difference_is_kept():
    async with following() as (follower, leader):
        follower.host(T0, 1, 1, 3)
        follower.follow(T0, epoch=4)
        log = follower.partitions[T0].log
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, hw=2, start=1, diverging=(1, 2))])
        (await leader.next(ApiKey.FETCH)).answer_fetch()  # no news
        await leader.next(ApiKey.FETCH)
        assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (2, 2, 1)


async def test_partitions_come_and_go_between_fetches():
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        follower.follow(T1)
        asked.answer_fetch([result(T0)])
        asked = await leader.next(ApiKey.FETCH)
        assert (asked.session, asked.wanted) == ((7, 1), {T1: (1, 0, -1)})
        follower.manager.remove_fetchers([T0])
        follower.follow(U0)
        asked.answer_fetch([result(T1, records(0, b"a"))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T1: (1, 1, 1), U0: (1, 0, -1)}
        assert forgotten_of(asked.body) == [("t", [0])]
        follower.follow(T1, epoch=2)
        asked.answer_fetch()
        assert (await leader.next(ApiKey.FETCH)).wanted == {T1: (2, 1, 1)}


async def test_many_partitions():
    async with following() as (follower, leader):
        shared = follower.host(("m", 0))
        keys = [("m", number) for number in range(1200)]
        for key in keys[1:]:
            follower.partitions[key] = shared
        follower.follow(*keys)
        asked = await leader.next(ApiKey.FETCH)
        assert list(asked.wanted) == keys
        asked.answer(fetch_response(("m", [result(key)[1] for key in keys]), session_id=7))
        asked = await leader.next(ApiKey.FETCH)
        assert (asked.session, asked.wanted) == ((7, 1), {})
        follower.manager.remove_fetchers(keys[:600])
        asked.answer_fetch()
        assert len((await leader.next(ApiKey.FETCH)).body.forgotten_topics_data[0].partitions) == 600


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "closed"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7)],
)
async def test_a_lost_session_is_replaced_at_once(error, closed):
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a")), result(T1)])
        (await leader.next(ApiKey.FETCH)).answer_fetch(error=error, session_id=0)
        asked = await leader.next(ApiKey.FETCH)
        assert asked.session == (closed, 0)
        assert asked.wanted == {T0: (1, 1, 1), T1: (1, 0, -1)}
        asked.answer_fetch([result(T0), result(T1)], session_id=8)
        assert (await leader.next(ApiKey.FETCH)).session == (8, 1)


async def test_a_leader_without_room_for_sessions_gets_full_fetches():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a")), result(T1)], session_id=0)
        asked = await leader.next(ApiKey.FETCH)
        assert (asked.session, asked.wanted) == ((0, 0), {T1: (1, 0, -1), T0: (1, 1, 1)})


async def test_an_answer_that_does_not_fit_changes_nothing():
    async with following() as (follower, leader):
        follower.follow(T0)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a")), result(U0)])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (1, 0, -1)}
        assert follower.partitions[T0].log.log_end_offset == 0


# -- divergence -------------------------------------------------------------------------------------------------------


async def test_what_the_leader_does_not_have_is_cut():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1, 1, 1)
        follower.follow(T0, epoch=2)
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (2, 4, 1)}
        asked.answer_fetch([result(T0, hw=4, diverging=(1, 2))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (2, 2, 1)}
        # The leader's high watermark counts once the leader has found the logs to agree, and it will not repeat it.
        assert partition.log.high_watermark == 0
        asked.answer_fetch()
        asked = await leader.next(ApiKey.FETCH)
        assert partition.log.high_watermark == 2
        asked.answer_fetch([result(T0, records(2, b"n", epoch=2), hw=3)])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 3, 2)}
        assert await read_all(partition.log) == [(0, b"old"), (1, b"old"), (2, b"n")]


async def test_divergence_in_several_rounds():
    async with following() as (follower, leader):
        # Here: epoch 1 from 0, 3 from 2, 5 from 4. The leader: 1 from 0, 2 from 1, 4 from 3, 6 from 5.
        partition = follower.host(T0, 1, 1, 3, 3, 5)
        follower.follow(T0, epoch=6)
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (6, 5, 5)}
        asked.answer_fetch([result(T0, hw=5, diverging=(4, 5))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (6, 4, 3)}  # nothing of epoch 4 here: what is below it goes on to be compared
        asked.answer_fetch([result(T0, hw=5, diverging=(2, 3))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (6, 2, 1)}
        asked.answer_fetch([result(T0, hw=5, diverging=(1, 1))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (6, 1, 1)}
        assert partition.log.high_watermark == 0
        asked.answer_fetch()
        await leader.next(ApiKey.FETCH)
        assert partition.log.high_watermark == 1


async def test_an_epoch_without_records_is_cut_too():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1)
        partition.make_leader(state_of(0, FOLLOWER, 4))
        follower.follow(T0, epoch=5)
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (5, 1, 4)}
        asked.answer_fetch([result(T0, diverging=(1, 3))])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (5, 1, 1)}


async def test_a_leader_that_names_no_end_within_the_log_is_not_asked_in_a_hot_loop():
    async with following() as (follower, leader):
        follower.host(T0, 1)
        follower.follow(T0, T1, epoch=5)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, diverging=(1, 3)), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        assert forgotten_of(asked.body) == [("t", [0])]
        assert asked.body.max_wait_ms < 100  # it is back in time for another try
        asked.answer_fetch()
        while T0 not in (asked := await leader.next(ApiKey.FETCH)).wanted:
            asked.answer_fetch()
        assert asked.wanted == {T0: (5, 1, 1)}


async def test_after_a_truncation_the_disk_is_waited_for_off_the_loop():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        log = partition.log
        follower.follow(T0, T1, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, diverging=(1, 1)), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        assert log.durability.is_truncation_unsynced
        ends = []
        partition.environment.before_blocking = lambda: ends.append(log.log_end_offset)
        asked.answer_fetch([result(T0, records(1, b"n", epoch=2)), result(T1, records(0, b"x"))])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T1: (2, 1, 1), T0: (2, 2, 2)}
        assert ends == [1]


async def test_a_partition_that_leaves_while_the_disk_is_waited_for_gets_nothing():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        follower.follow(T0, T1, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, diverging=(1, 1)), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        partition.environment.before_blocking = lambda: follower.lead(T0, 3)
        asked.answer_fetch([result(T0, records(1, b"n", epoch=2))])
        asked = await leader.next(ApiKey.FETCH)
        assert forgotten_of(asked.body) == [("t", [0])]
        assert partition.log.log_end_offset == 1
        assert partition.is_leader


@pytest.mark.parametrize("seed", range(40))
async def test_any_two_histories_converge(seed):
    """Both led in turn while the other was away; then one leads for good, and the other must become alike."""
    async with following() as (follower, leader):
        chance = random.Random(seed)
        mine = follower.host(T0)
        theirs = make_partition(T0, follower.config, LEADER)
        epoch = 0
        for number in range(chance.randrange(4)):  # what both have
            epoch += chance.randrange(2)
            for log in (mine.log, theirs.log):
                append(log, b"both%d" % number, leader_epoch=epoch)
        for _ in range(chance.randrange(8)):
            epoch += 1
            log = chance.choice((mine.log, theirs.log))
            log.leader_epochs.assign(epoch, log.log_end_offset)
            for number in range(chance.randrange(3)):
                append(log, b"%d.%d" % (epoch, number), leader_epoch=epoch)
        epoch += 1
        theirs.make_leader(state_of(0, LEADER, epoch))
        for number in range(chance.randrange(3)):
            append(theirs.log, b"%d.%d" % (epoch, number), leader_epoch=epoch)
        end = theirs.log.log_end_offset
        theirs.log.update_high_watermark(end)
        follower.follow(T0, epoch=epoch)
        told = None
        rounds = 0
        while mine.log.high_watermark < end or mine.log.log_end_offset != end:
            asked = await leader.next(ApiKey.FETCH)
            rounds += 1
            assert rounds < 40
            if T0 in asked.wanted:
                _, offset, last_epoch = asked.wanted[T0]
            diverging = theirs.diverging_epoch(offset, last_epoch)
            data = b""
            if diverging is None:
                data = (await theirs.log.read(offset, 1000, max_offset=end, minimum_one_batch=True)).data
            elif mine.log.high_watermark > 0:
                raise AssertionError("the high watermark passed records that differ")
            news = bool(data) or diverging is not None or told != end
            asked.answer_fetch([result(T0, data, hw=end, diverging=diverging)] if news else [])
            told = end
        assert await read_all(mine.log) == await read_all(theirs.log)
        ours, leaders = mine.log.leader_epochs.entries, theirs.log.leader_epochs.entries
        assert [entry for entry in leaders if entry[1] < end] == list(ours)


# -- before inter.broker.protocol.version 2.7-IV1 ---------------------------------------------------------------------


def end_offsets(*answers):
    response = response_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topic = response.OffsetForLeaderTopicResult
    return response(
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.EpochEndOffset(error_code=error, partition=number, leader_epoch=epoch, end_offset=end)
                ],
            )
            for (name, number), error, epoch, end in answers
        ],
    )


async def test_older_clusters_ask_for_the_ends_of_epochs_before_they_fetch():
    async with following(inter_broker_protocol_version="2.7-IV0") as (follower, leader):
        partition = follower.host(T0, 1, 1, 3, 3)
        follower.host(T1, 1, 1)
        follower.follow(T0, T1, U0, epoch=6)
        asked = await leader.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        assert (asked.header.api_version, asked.body.replica_id) == (3, 1)
        assert [
            (topic.topic, want.partition, want.current_leader_epoch, want.leader_epoch)
            for topic in asked.body.topics
            for want in topic.partitions
        ] == [("t", 0, 6, 3), ("t", 1, 6, 1)]
        asked.answer(end_offsets((T0, 0, 2, 3), (T1, 0, 1, 1)))
        asked = await leader.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        assert partition.log.log_end_offset == 2
        assert [want.leader_epoch for topic in asked.body.topics for want in topic.partitions] == [1]
        asked.answer(end_offsets((T0, 0, 1, 1)))
        asked = await leader.next(ApiKey.FETCH)
        assert asked.header.api_version == 11
        assert asked.wanted == {U0: (6, 0, -1), T1: (6, 1, -1), T0: (6, 1, -1)}


async def test_a_follower_walks_the_log_that_it_cuts_off_the_loop():
    async with following() as (follower, leader):
        partition = follower.host(T0)
        for i in range(2000):
            append(partition.log, b"x", leader_epoch=1, producer_id=7, producer_epoch=0, base_sequence=i)
        follower.follow(T0, epoch=2)
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (2, 2000, 1)}
        before = partition.environment.bytes_read_on_the_loop
        asked.answer_fetch([result(T0, diverging=(1, 1990))])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 1990, 1)}
        assert partition.environment.bytes_read_on_the_loop - before == 0
        assert partition.log.producer_state.entries[7].last_sequence == 1989


async def test_a_partition_that_this_broker_leads_before_its_log_is_walked_is_not_cut():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1, 1)
        follower.follow(T0, epoch=2)
        partition.environment.before_blocking = lambda: follower.lead(T0, 3)
        asked = await leader.next(ApiKey.FETCH)
        asked.answer_fetch([result(T0, diverging=(1, 1))])
        # The next request comes when the answer has been worked off.
        follower.follow(T1)
        assert list((await leader.next(ApiKey.FETCH)).wanted) == [T1]
        assert partition.is_leader
        assert partition.log.log_end_offset == 3


async def test_a_partition_that_follows_anew_before_its_log_is_walked_asks_again():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1, 1)
        follower.follow(T0, epoch=2)
        partition.environment.before_blocking = lambda: follower.follow(T0, epoch=3)
        asked = await leader.next(ApiKey.FETCH)
        asked.answer_fetch([result(T0, diverging=(1, 1))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (3, 3, 1)}
        asked.answer_fetch([result(T0, diverging=(1, 2))])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (3, 2, 1)}


async def test_older_clusters_truncate_to_the_high_watermark_when_the_leader_knows_no_end():
    async with following(inter_broker_protocol_version="2.7-IV0") as (follower, leader):
        partition = follower.host(T0, 1, 1, 1)
        partition.log.update_high_watermark(2)
        follower.follow(T0, epoch=2)
        (await leader.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)).answer(end_offsets((T0, 75, -1, -1)))  # unknown epoch
        (await leader.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)).connection.transport.abort()
        (await leader.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)).answer(end_offsets((T0, 0, -1, -1)))
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 2, -1)}


# -- offsets out of range ---------------------------------------------------------------------------------------------


def offsets(*answers):
    response = response_class(ApiKey.LIST_OFFSETS)
    topic = response.ListOffsetsTopicResponse
    return response(
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.ListOffsetsPartitionResponse(
                        partition_index=number, error_code=error, timestamp=-1, offset=offset, leader_epoch=1
                    )
                ],
            )
            for (name, number), error, offset in answers
        ],
    )


def asked_offsets(asked):
    return [
        (topic.name, want.partition_index, want.current_leader_epoch, want.timestamp)
        for topic in asked.body.topics
        for want in topic.partitions
    ]


OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_leader_whose_log_ends_earlier():
    async with following() as (follower, leader):
        follower.host(T0, 1, 1, 1)
        follower.follow(T0, T1, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, error=OUT_OF_RANGE), result(T1)])
        asked = await leader.next(ApiKey.LIST_OFFSETS)
        assert (asked.header.api_version, asked.body.replica_id) == (6, 1)
        assert asked_offsets(asked) == [("t", 0, 2, -1)]
        asked.answer(offsets((T0, 0, 1)))
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 1, 1)}


async def test_a_leader_whose_log_begins_later():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1, 1)
        follower.follow(T0, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, error=OUT_OF_RANGE)])
        (await leader.next(ApiKey.LIST_OFFSETS)).answer(offsets((T0, 0, 30)))
        asked = await leader.next(ApiKey.LIST_OFFSETS)
        assert asked_offsets(asked) == [("t", 0, 2, -2)]
        asked.answer(offsets((T0, 0, 20)))
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (2, 20, -1)}
        asked.answer_fetch([result(T0, records(20, b"a"), hw=21, start=20)])
        await leader.next(ApiKey.FETCH)
        log = partition.log
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (20, 21, 21)


async def test_a_leader_that_changes_its_mind_is_asked_again_later():
    async with following() as (follower, leader):
        follower.host(T0, 1, 1, 1)
        follower.follow(T0, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, error=OUT_OF_RANGE)])
        (await leader.next(ApiKey.LIST_OFFSETS)).answer(offsets((T0, 0, 3)))
        (await leader.next(ApiKey.LIST_OFFSETS)).answer(offsets((T0, 0, 0)))
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (2, 3, 1)}
        asked.answer_fetch([result(T0, error=OUT_OF_RANGE)])
        (await leader.next(ApiKey.LIST_OFFSETS)).answer(offsets((T0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)))
        asked = await leader.next(ApiKey.FETCH)
        asked.answer_fetch([result(T0, error=OUT_OF_RANGE)])
        (await leader.next(ApiKey.LIST_OFFSETS)).answer(offsets())
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, error=OUT_OF_RANGE)])
        (await leader.next(ApiKey.LIST_OFFSETS)).connection.transport.abort()
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, error=OUT_OF_RANGE)])
        asked = await leader.next(ApiKey.LIST_OFFSETS)
        follower.follow(T0, epoch=3)
        asked.answer(offsets((T0, 0, 1)))  # of an epoch that is over
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (3, 3, 1)}


# -- errors of the leader ---------------------------------------------------------------------------------------------


async def test_a_fenced_partition_does_not_wait_when_the_controller_names_it_again():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, error=ErrorCode.FENCED_LEADER_EPOCH), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        assert forgotten_of(asked.body) == [("t", [0])]
        follower.follow(T0, epoch=2)
        asked.answer_fetch()
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 0, -1)}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        12345,
    ],
)
async def test_other_errors_only_delay_the_partition(error, monkeypatch):
    monkeypatch.setattr(followed_partitions, "FIRST_BACKOFF_MS", 10_000)
    async with following(replica_fetch_backoff_ms=10_000, replica_fetch_wait_max_ms=20_000) as (follower, leader):
        follower.follow(T0, T1)
        asked = await leader.next(ApiKey.FETCH)
        for _ in range(3):
            asked.answer_fetch([result(T0, error=error)] + [result(T1)] * (asked.session[1] == 0))
            asked = await leader.next(ApiKey.FETCH)
            assert forgotten_of(asked.body) == [("t", [0])]
            assert asked.body.max_wait_ms <= 10_000  # it is back in time for another try
            follower.pass_backoffs()
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
            assert asked.wanted == {T0: (1, 0, -1)}
        assert follower.manager.failed_partitions == []


async def test_corrupt_records_are_not_appended_and_asked_for_again():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        good = records(0, b"a", b"b")
        bad = bytearray(good)
        bad[-3] ^= 1
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, bytes(bad), hw=2), result(T1, records(0, b"x"))])
        asked = await leader.next(ApiKey.FETCH)
        log = follower.partitions[T0].log
        assert (log.log_end_offset, log.high_watermark) == (0, 0)
        assert asked.wanted == {T1: (1, 1, 1)}
        while T0 not in asked.wanted:
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
        asked.answer_fetch([result(T0, good, hw=2)])
        while (asked := await leader.next(ApiKey.FETCH)).wanted != {T0: (1, 2, 1)}:
            asked.answer_fetch()
        assert log.high_watermark == 2


async def test_records_that_do_not_follow_end_the_fetching():
    async with following() as (follower, leader):
        follower.host(T0, 1, 1)
        follower.follow(T0, T1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a")), result(T1)])
        assert forgotten_of((await leader.next(ApiKey.FETCH)).body) == [("t", [0])]
        assert follower.manager.failed_partitions == [T0]
        assert follower.partitions[T0].log.log_end_offset == 2


async def test_a_failing_disk_ends_the_fetching_of_its_partition_only():
    async with following() as (follower, leader):
        partition = follower.host(T0)
        follower.follow(T0, T1)
        partition.environment.disk.fail("write", "*", errno.EIO)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a")), result(T1, records(0, b"x"))])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T1: (1, 1, 1)}
        assert forgotten_of(asked.body) == [("t", [0])]
        assert follower.manager.failed_partitions == [T0]
        assert partition.log.failures


async def test_a_disk_that_fails_while_it_is_synced_after_a_truncation():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        follower.follow(T0, T1, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, diverging=(1, 1)), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        partition.environment.disk.fail("sync", "*", errno.EIO)
        asked.answer_fetch([result(T0, records(1, b"n", epoch=2)), result(T1, records(0, b"x"))])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T1: (2, 1, 1)}
        assert follower.manager.failed_partitions == [T0]
        assert partition.log.log_end_offset == 1


async def test_a_full_disk_is_waited_for():
    async with following() as (follower, leader):
        partition = follower.host(T0)
        follower.follow(T0, T1)
        partition.environment.disk.fail("write", "*", errno.ENOSPC)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a")), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        assert follower.manager.failed_partitions == []
        while T0 not in asked.wanted:
            asked.answer_fetch()
            asked = await leader.next(ApiKey.FETCH)
        asked.answer_fetch([result(T0, records(0, b"a"), hw=1)])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (1, 1, 1)}


# -- answers that come too late ---------------------------------------------------------------------------------------


async def test_an_answer_for_a_removed_partition_is_dropped():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        asked = await leader.next(ApiKey.FETCH)
        follower.lead(T0, 2)
        asked.answer_fetch([result(T0, records(0, b"a"), hw=1), result(T1)])
        await leader.next(ApiKey.FETCH)
        log = follower.partitions[T0].log
        assert (log.log_end_offset, log.high_watermark) == (0, 0)


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_partition_that_leaves_while_a_large_batch_is_written_gets_nothing(monkeypatch, is_full):
    for module in (fetcher, written_ahead):
        monkeypatch.setattr(module, "PIECE_BYTES", 100)
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        write_piece = WrittenAhead.write_piece

        def leave(ahead):
            follower.manager.remove_fetchers([T0])
            if is_full:
                raise OSError(errno.ENOSPC, "full")
            write_piece(ahead)

        monkeypatch.setattr(WrittenAhead, "write_piece", leave)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"x" * 1000), hw=1), result(T1)])
        asked = await leader.next(ApiKey.FETCH)
        assert forgotten_of(asked.body) == [("t", [0])]
        log = follower.partitions[T0].log
        assert log.log_end_offset == 0
        assert log._segments.active.file().size() == 0


@pytest.mark.parametrize("epoch", [1, 2])
async def test_an_answer_for_a_partition_that_was_added_anew_is_dropped_but_its_high_watermark(epoch):
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        follower.follow(T0, epoch=epoch)
        asked.answer_fetch([result(T0, records(2, b"a"), hw=3)])
        asked = await leader.next(ApiKey.FETCH)
        assert asked.wanted == {T0: (epoch, 2, 1)}
        assert (partition.log.log_end_offset, partition.log.high_watermark) == (2, 0)
        asked.answer_fetch()  # the leader has told its high watermark, so it has no news
        await leader.next(ApiKey.FETCH)
        assert partition.log.high_watermark == 2


async def test_an_error_for_a_partition_that_was_added_anew_is_dropped():
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        follower.follow(T0, epoch=2)
        asked.answer_fetch([result(T0, error=ErrorCode.FENCED_LEADER_EPOCH)])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 0, -1)}
        assert follower.manager.failed_partitions == []


async def test_a_partition_that_leads_before_its_fetcher_knows_is_left_alone():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        follower.follow(T0, T1)
        asked = await leader.next(ApiKey.FETCH)
        partition.make_leader(state_of(0, FOLLOWER, 2))
        asked.answer_fetch([result(T0, diverging=(0, 0)), result(T1)])
        assert forgotten_of((await leader.next(ApiKey.FETCH)).body) == [("t", [0])]
        assert partition.log.log_end_offset == 2


async def test_a_partition_that_follows_a_newer_epoch_before_its_fetcher_knows_is_left_alone():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        follower.follow(T0, T1)
        asked = await leader.next(ApiKey.FETCH)
        partition.make_follower(state_of(0, LEADER, 2))
        asked.answer_fetch([result(T0, diverging=(1, 1)), result(T1)])
        assert forgotten_of((await leader.next(ApiKey.FETCH)).body) == [("t", [0])]
        assert partition.log.log_end_offset == 2


async def test_adding_a_partition_again_in_the_same_epoch_changes_nothing():
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        follower.manager.add_fetchers({T0: InitialFetchState(LEADER, leader.address[0], leader.address[1], 1)})
        asked.answer_fetch([result(T0, records(0, b"a"))])
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (1, 1, 1)}


# -- the leader's life ------------------------------------------------------------------------------------------------


async def test_a_leader_that_cannot_be_reached_is_tried_until_it_can():
    async with following() as (follower, leader):
        leader.stop()
        follower.follow(T0)
        await asyncio.sleep(0.05)
        again = await Leader().start(leader.address[1])
        try:
            (await again.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a"))])
            assert (await again.next(ApiKey.FETCH)).wanted == {T0: (1, 1, 1)}
        finally:
            again.stop()


async def test_a_connection_that_breaks_is_made_again_with_a_full_fetch():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0), result(T1)])
        (await leader.next(ApiKey.FETCH)).connection.transport.abort()
        asked = await leader.next(ApiKey.FETCH)
        assert asked.session == (7, 0)
        assert asked.wanted == {T0: (1, 0, -1), T1: (1, 0, -1)}


@pytest.mark.parametrize("garbage", [b"", b"\0\0\0\1" + b"\xff" * 20, b"\xff" * 9])
async def test_garbage_from_the_leader_breaks_the_connection(garbage):
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        asked.connection.transport.write(len(garbage).to_bytes(4, "big") + garbage)
        await asked.connection.closed.wait()
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (1, 0, -1)}


async def test_a_silent_leader_is_given_up():
    async with following(replica_socket_timeout_ms=50, replica_fetch_wait_max_ms=20) as (follower, leader):
        follower.follow(T0)
        first = await leader.next(ApiKey.FETCH)
        second = await leader.next(ApiKey.FETCH)
        assert second.connection is not first.connection


async def test_a_leader_at_a_new_address_is_asked_there():
    async with following() as (follower, leader):
        follower.follow(T0, T1)
        asked = await leader.next(ApiKey.FETCH)
        moved = await Leader().start()
        try:
            follower.follow(T0, epoch=2, address=moved.address)
            assert (await moved.next(ApiKey.FETCH)).wanted == {T1: (1, 0, -1), T0: (2, 0, -1)}
            await asked.connection.closed.wait()
        finally:
            moved.stop()


async def test_a_partition_moves_from_leader_to_leader():
    async with following() as (follower, leader):
        other = await Leader().start()
        try:
            follower.follow(T0, T1)
            asked = await leader.next(ApiKey.FETCH)
            follower.follow(T0, epoch=2, leader_id=3, address=other.address)
            assert sorted(follower.manager.leaders) == [LEADER, 3]
            assert (await other.next(ApiKey.FETCH)).wanted == {T0: (2, 0, -1)}
            asked.answer_fetch([result(T0, records(0, b"a")), result(T1)])
            assert forgotten_of((await leader.next(ApiKey.FETCH)).body) == [("t", [0])]
            assert follower.partitions[T0].log.log_end_offset == 0
        finally:
            other.stop()


async def test_the_partitions_of_a_leader_are_spread_over_its_fetchers():
    async with following(num_replica_fetchers=2) as (follower, leader):
        follower.follow(T0, T1, U0)
        asked = [await leader.next(ApiKey.FETCH) for _ in range(2)]
        wanted = [set(each.wanted) for each in asked]
        assert sorted(map(len, wanted)) == [1, 2]
        assert wanted[0] | wanted[1] == {T0, T1, U0}
        assert wanted[0].isdisjoint(wanted[1])
        assert asked[0].connection is not asked[1].connection
        assert follower.manager.leaders == [LEADER]
        # One fetcher waits for its answer, the other one continues.
        mine = next(each for each in asked if T0 in each.wanted)
        mine.answer_fetch([result(key, records(0, b"a") if key == T0 else b"") for key in mine.wanted])
        assert (await leader.next(ApiKey.FETCH)).wanted[T0] == (1, 1, 1)


async def test_partitions_move_when_the_number_of_fetchers_changes(monkeypatch):
    monkeypatch.setattr(fetcher, "LONG_POLL_MS", 1)
    monkeypatch.setattr("klamm.replication.fetcher.fetcher_manager.IDLE_FETCHER_MS", 5)
    async with following(num_replica_fetchers=2) as (follower, leader):
        follower.follow(T0, T1)
        asked = [await leader.next(ApiKey.FETCH) for _ in range(2)]
        assert sorted(key for each in asked for key in each.wanted) == [T0, T1]
        follower.current_config.replace(follower.config.with_dynamic(default={"num.replica.fetchers": "1"}))
        seen = set()
        while seen != {T0, T1}:
            seen |= set((await leader.next(ApiKey.FETCH)).wanted)
        while len(follower.manager._fetchers) > 1:
            await leader.lost.get()
        assert follower.manager.followed_partitions == {T0: (LEADER, 1), T1: (LEADER, 1)}


async def test_a_fetcher_without_partitions_ends_its_connection(monkeypatch):
    monkeypatch.setattr("klamm.replication.fetcher.fetcher_manager.IDLE_FETCHER_MS", 5)
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        follower.manager.remove_fetchers([T0])
        await asked.connection.closed.wait()
        assert follower.manager.leaders == []
        follower.follow(T0, epoch=2)
        assert (await leader.next(ApiKey.FETCH)).wanted == {T0: (2, 0, -1)}


async def test_a_fetcher_that_waits_for_partitions_hears_of_them():
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        follower.manager.remove_fetchers([T0])
        asked.answer_fetch([result(T0)])
        await asyncio.sleep(0.02)  # nothing is wanted: nothing is asked
        assert leader.requests.empty()
        follower.follow(T1)
        assert (await leader.next(ApiKey.FETCH)).wanted == {T1: (1, 0, -1)}


async def test_a_new_partition_does_not_wait_for_the_end_of_a_long_poll(monkeypatch):
    monkeypatch.setattr(fetcher, "LONG_POLL_MS", 1)
    async with following() as (follower, leader):
        follower.follow(T0)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a"))])
        waiting = await leader.next(ApiKey.FETCH)
        follower.follow(T1)
        asked = await leader.next(ApiKey.FETCH)
        assert (asked.session, asked.wanted) == ((7, 0), {T0: (1, 1, 1), T1: (1, 0, -1)})
        await waiting.connection.closed.wait()
        # With many partitions it does.
        monkeypatch.setattr(fetcher, "INTERRUPTIBLE_PARTITIONS", 2)
        follower.follow(U0)
        await asyncio.sleep(0.02)
        asked.answer_fetch([result(T0), result(T1)])
        assert (await leader.next(ApiKey.FETCH)).session == (7, 1)


# -- shutdown ---------------------------------------------------------------------------------------------------------


async def test_shutdown_while_the_leader_has_the_fetch():
    async with following() as (follower, leader):
        follower.follow(T0)
        asked = await leader.next(ApiKey.FETCH)
        await follower.manager.shutdown()
        await asked.connection.closed.wait()
        follower.follow(T1)
        assert follower.manager.leaders == []


async def test_shutdown_before_anything_was_sent():
    async with following() as (follower, _):
        follower.follow(T0)
        await follower.manager.shutdown()


async def test_shutdown_while_waiting_after_a_failure():
    async with following(replica_fetch_backoff_ms=60_000) as (follower, leader):
        leader.stop()
        follower.follow(T0)
        await asyncio.sleep(0.01)
        await follower.manager.shutdown()


async def test_shutdown_while_the_disk_is_waited_for():
    async with following() as (follower, leader):
        partition = follower.host(T0, 1, 1)
        follower.follow(T0, epoch=2)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, diverging=(1, 1))])
        asked = await leader.next(ApiKey.FETCH)
        reached = asyncio.Event()

        async def never_done(function, *arguments):
            reached.set()
            await asyncio.Event().wait()

        partition.environment.run_blocking = never_done
        asked.answer_fetch([result(T0, records(1, b"n", epoch=2))])
        await reached.wait()
        await follower.manager.shutdown()
        assert partition.log.log_end_offset == 1


@pytest.mark.loop("asyncio")
async def test_a_fault_of_the_program_is_heard_of():
    leader = await Leader().start()
    follower = Follower(leader)
    partition = follower.host(T0)
    failed = asyncio.Event()
    follower.manager = ReplicaFetcherManager(
        follower.current_config, FOLLOWER, follower.partitions.get, follower.quota, lambda error: failed.set()
    )

    def broken(data):
        raise ZeroDivisionError

    partition.append_records_as_follower = broken
    follower.follow(T0)
    (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, records(0, b"a"))])
    await failed.wait()
    await follower.manager.shutdown()
    leader.stop()


async def test_a_leader_cannot_be_copied_into():
    """What protects a log that is led here, should everything else fail."""
    async with following() as (follower, _):
        partition = follower.host(T0, 1)
        partition.make_leader(state_of(0, FOLLOWER, 2))
        with pytest.raises(KafkaError):
            partition.truncate_to(0)


# -- a leader whose numbers make no sense -----------------------------------------------------------------------------

NUMBERS = (-(2**63), -5, -1, 0, 1, 2, 4, 2**31 - 1, 2**31, 2**63 - 2, 2**63 - 1)


def hostile_batch(chance, offset):
    """A batch with a valid checksum, at an offset that may be any."""
    data = bytearray(records(max(0, offset), b"a", b"b", epoch=1))
    if chance.random() < 0.5:
        struct.pack_into(">q", data, 0, chance.choice(NUMBERS))  # the checksum does not cover the base offset
        struct.pack_into(">i", data, 12, chance.choice((-(2**31), -1, 0, 1, 2**31 - 1)))  # nor the leader epoch
    return bytes(data)


def hostile_result(chance, asked):
    offset = asked.wanted.get(T0, (0, 0, 0))[1]
    number = lambda: chance.choice(NUMBERS)  # noqa: E731
    kind = chance.choice(("records", "records", "out of range", "diverging", "error", "nothing"))
    return result(
        T0,
        hostile_batch(chance, offset) if kind == "records" else b"",
        hw=number(),
        start=number(),
        error={"out of range": OUT_OF_RANGE, "error": chance.choice((-1, 3, 6, 74, 75, 9999))}.get(kind, 0),
        diverging=(chance.choice((-1, 0, 1, 2, 2**31 - 1)), number()) if kind == "diverging" else None,
    )


async def next_request(follower, leader):
    """The controller names the partition again when it was given up."""
    while leader.requests.empty():
        assert follower.failures == []
        if T0 in follower.manager.failed_partitions:
            follower.follow(T0, epoch=2)
        await asyncio.sleep(0)
    return leader.requests.get_nowait()


async def test_a_batch_that_begins_before_offset_0_is_no_beginning_of_a_log():
    async with following() as (follower, leader):
        partition = follower.host(T0)
        follower.follow(T0, epoch=2)
        data = bytearray(records(0, b"a", b"b"))
        struct.pack_into(">q", data, 0, -1)
        (await leader.next(ApiKey.FETCH)).answer_fetch([result(T0, bytes(data), hw=1)])
        assert (await next_request(follower, leader)).wanted == {T0: (2, 0, -1)}
        assert (partition.log.log_start_offset, partition.log.log_end_offset) == (0, 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("protocol", ["2.8", "2.6"])
async def test_a_leader_whose_numbers_make_no_sense_stops_nobody_and_leaves_a_log_that_makes_sense(seed, protocol):
    async with following(inter_broker_protocol_version=protocol, replica_fetch_backoff_ms=1) as (follower, leader):
        chance = random.Random(seed)
        partition = follower.host(T0, 0, 1, 1)
        follower.follow(T0, epoch=2)
        for _ in range(40):
            asked = await next_request(follower, leader)
            if asked.header.api_key == ApiKey.LIST_OFFSETS:
                asked.answer(offsets((T0, 0, chance.choice(NUMBERS))))
            elif asked.header.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
                asked.answer(end_offsets((T0, 0, chance.choice((-1, 0, 1, 2)), chance.choice(NUMBERS))))
            else:
                asked.answer_fetch([hostile_result(chance, asked)])
            log = partition.log
            assert 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset < 2**63 - 1
