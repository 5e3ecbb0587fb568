"""Incremental fetch sessions (KIP-227)."""

import random

import pytest

from klamm.base.metrics import Metrics
from klamm.base.slices import in_one_go
from klamm.broker.requests.fetch_session import ABANDONED_MS, EVICTION_MS, MAX_ID, FetchSessionCache
from klamm.protocol.apis.fetch import FetchPartition, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import FINAL_EPOCH, INITIAL_EPOCH, INVALID_SESSION_ID
from support.fetch_messages import to_fetch
from support.metrics import Values


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def cache(slots: int = 10) -> tuple[FetchSessionCache, Clock]:
    clock = Clock()
    return FetchSessionCache(slots, random.Random(1), clock), clock


def want(partition: int, offset: int = 0) -> tuple[str, FetchPartition]:
    return "t", to_fetch(partition, offset, 1000)


def empty(high_watermark: int = 0) -> dict:
    return {"high_watermark": high_watermark, "log_start_offset": 0}


def data(high_watermark: int = 1) -> dict:
    return {"high_watermark": high_watermark, "log_start_offset": 0, "records": b"records"}


FAILED = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}


def begin(sessions, session_id, epoch, wanted=(), forgotten=(), is_follower=False):
    return in_one_go(sessions.begin(session_id, epoch, wanted, forgotten, is_follower=is_follower))


def answered(exchange, results):
    """Which partitions are answered when the reads gave `results`, one for each partition wanted, in order."""
    read = [
        PartitionData(partition_index=want.partition, **result)
        for (_, want), result in zip(exchange.wanted, results, strict=True)
    ]
    return [
        answer.partition_index
        for (topic, _), answer in zip(exchange.wanted, read, strict=True)
        if exchange.must_answer(topic, answer)
    ]


def test_a_sessionless_fetch_answers_everything_and_makes_no_session() -> None:
    sessions, _ = cache()
    exchange = begin(sessions, INVALID_SESSION_ID, FINAL_EPOCH, [want(0), want(1)])
    assert exchange.session_id == INVALID_SESSION_ID
    assert answered(exchange, [empty(), empty()]) == [0, 1]
    assert len(sessions) == 0


def test_a_session_answers_only_news() -> None:
    sessions, _ = cache()
    first = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0), want(1), want(2)])
    assert first.session_id > 0
    assert answered(first, [empty(), empty(), empty()]) == [0, 1, 2]
    second = begin(sessions, first.session_id, 1)
    assert [one.partition for _, one in second.wanted] == [0, 1, 2]
    assert answered(second, [empty(), data(), empty()]) == [1]
    # Partition 1 had records, so it is now the last in line; and its high watermark is known.
    third = begin(sessions, first.session_id, 2, [want(1, 1)])
    assert [(one.partition, one.fetch_offset) for _, one in third.wanted] == [(0, 0), (2, 0), (1, 1)]
    assert answered(third, [empty(), empty(7), empty(1)]) == [2]


def test_an_error_is_told_and_afterwards_the_recovery_is() -> None:
    sessions, _ = cache()
    first = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)])
    answered(first, [empty()])
    assert answered(begin(sessions, first.session_id, 1), [FAILED]) == [0]
    assert answered(begin(sessions, first.session_id, 2), [empty()]) == [0]
    assert answered(begin(sessions, first.session_id, 3), [empty()]) == []


def test_partitions_come_and_go() -> None:
    sessions, _ = cache()
    first = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0), want(1)])
    answered(first, [empty(), empty()])
    second = begin(sessions, first.session_id, 1, [want(5)], [("t", 0)])
    assert [one.partition for _, one in second.wanted] == [1, 5]
    closing = begin(sessions, first.session_id, 2, [], [("t", 1), ("t", 5)])
    assert closing.session_id == INVALID_SESSION_ID
    assert len(sessions) == 0


def test_unknown_session_and_wrong_epoch() -> None:
    sessions, _ = cache()
    with pytest.raises(KafkaError) as unknown:
        begin(sessions, 99, 1)
    assert unknown.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    first = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)])
    for epoch in (2, MAX_ID):
        with pytest.raises(KafkaError) as wrong:
            begin(sessions, first.session_id, epoch)
        assert wrong.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    begin(sessions, first.session_id, 1)


def test_the_epoch_wraps_to_one() -> None:
    sessions, _ = cache()
    first = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)])
    sessions._sessions[first.session_id].epoch = MAX_ID
    begin(sessions, first.session_id, MAX_ID)
    begin(sessions, first.session_id, 1)


def test_a_full_fetch_closes_the_session_it_names() -> None:
    sessions, _ = cache()
    first = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)])
    begin(sessions, first.session_id, FINAL_EPOCH, [want(0)])
    assert len(sessions) == 0


def test_eviction_stale_first_then_less_valuable() -> None:
    sessions, clock = cache(slots=2)
    begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)])
    begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0), want(1)])
    # All young: another consumer gets none, a follower displaces the smallest consumer.
    assert (
        begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(i) for i in range(9)]).session_id == INVALID_SESSION_ID
    )
    follower = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)], is_follower=True)
    assert follower.session_id != INVALID_SESSION_ID
    assert len(sessions) == 2
    assert metrics(sessions) == (2, 3, 1)
    # Stale ones go for anybody.
    clock.now_ms = EVICTION_MS + 1
    begin(sessions, follower.session_id, 1)
    fresh = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)])
    assert fresh.session_id != INVALID_SESSION_ID
    begin(sessions, follower.session_id, 2)
    assert metrics(sessions) == (2, 2, 2)


def metrics(sessions: FetchSessionCache) -> tuple[float, ...]:
    """Sessions, their partitions, and evictions."""
    registry = Metrics()
    sessions.register(registry)
    found = Values.of(registry)
    names = (
        "NumIncrementalFetchSessions",
        "NumIncrementalFetchPartitionsCached",
        "IncrementalFetchSessionEvictionsPerSec",
    )
    return tuple(found[f"kafka.server:type=FetchSessionCache,name={name}"] for name in names)


def test_sessions_of_clients_that_are_gone_are_forgotten_long_before_the_slots_are_full() -> None:
    """A follower that restarts every hour leaves a session each time, with all its partitions."""
    sessions, clock = cache(slots=1000)
    for _ in range(100):
        begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)], is_follower=True)
        clock.now_ms += 3_600_000
    assert len(sessions) == 1


def test_a_session_that_is_used_now_and_then_stays() -> None:
    sessions, clock = cache()
    used = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)]).session_id
    for epoch in range(1, 10):
        clock.now_ms += ABANDONED_MS
        begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(1)])
        assert begin(sessions, used, epoch).session_id == used


def test_an_old_larger_consumer_is_not_evicted_for_a_smaller_one() -> None:
    sessions, clock = cache(slots=1)
    large = begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0), want(1)])
    clock.now_ms = EVICTION_MS
    begin(sessions, large.session_id, 1)
    clock.now_ms = EVICTION_MS + 10
    assert begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(0)]).session_id == INVALID_SESSION_ID
    assert (
        begin(sessions, INVALID_SESSION_ID, INITIAL_EPOCH, [want(i) for i in range(3)]).session_id != INVALID_SESSION_ID
    )


def names(count: int, topic: str = "t") -> list[tuple[str, FetchPartition]]:
    return [(topic, to_fetch(number)) for number in range(count)]


@pytest.fixture
def few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 100 partitions, 40 of them in one session."""
    monkeypatch.setattr("klamm.broker.requests.fetch_session.MAX_PARTITIONS", 100)
    monkeypatch.setattr("klamm.broker.requests.fetch_session.MAX_SESSION_PARTITIONS", 40)


def test_a_session_that_grows_too_large_is_forgotten(few_partitions: None) -> None:
    sessions, _ = cache()
    grown = begin(sessions, 0, INITIAL_EPOCH, names(40))
    assert len(begin(sessions, grown.session_id, 1, names(40)).wanted) == 40
    with pytest.raises(KafkaError) as refused:
        begin(sessions, grown.session_id, 2, [("t", to_fetch(40))])
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_all_sessions_together_have_a_bound(few_partitions: None) -> None:
    sessions, clock = cache()
    first = begin(sessions, 0, INITIAL_EPOCH, names(40))
    second = begin(sessions, 0, INITIAL_EPOCH, names(40))
    clock.now_ms = EVICTION_MS
    begin(sessions, second.session_id, 1)
    # Both were used lately, so a third client has no session: it is served all the same.
    third = begin(sessions, 0, INITIAL_EPOCH, names(21))
    assert (third.session_id, len(third.wanted)) == (INVALID_SESSION_ID, 21)
    assert begin(sessions, 0, INITIAL_EPOCH, names(20)).session_id != INVALID_SESSION_ID
    clock.now_ms = EVICTION_MS + 1
    assert begin(sessions, 0, INITIAL_EPOCH, names(40)).session_id != INVALID_SESSION_ID
    with pytest.raises(KafkaError):
        begin(sessions, first.session_id, 1)
    assert metrics(sessions)[1] == 100
    begin(sessions, second.session_id, 2, (), [("t", number) for number in range(10)])
    begin(sessions, second.session_id, FINAL_EPOCH)
    assert metrics(sessions)[1] == 60


def test_a_follower_takes_the_room_of_consumers(few_partitions: None) -> None:
    sessions, _ = cache()
    consumers = [begin(sessions, 0, INITIAL_EPOCH, names(count)) for count in (10, 40, 40)]
    assert begin(sessions, 0, INITIAL_EPOCH, names(40), is_follower=True).session_id != INVALID_SESSION_ID
    assert len(begin(sessions, consumers[0].session_id, 1).wanted) == 10
    followers = [begin(sessions, 0, INITIAL_EPOCH, names(40), is_follower=True) for _ in range(2)]
    assert [follower.session_id != INVALID_SESSION_ID for follower in followers] == [True, False]
    assert len(sessions) == 2
