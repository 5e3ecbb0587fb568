"""The quotas of replication."""

import math
import random

import pytest

from klamm.replication.quota import UNLIMITED, ReplicationQuota, throttled_partitions


def quota_of(bytes_per_second: int = 1000, samples: int = 11, window_ms: int = 1000) -> ReplicationQuota:
    return ReplicationQuota(samples=samples, window_ms=window_ms, bytes_per_second=bytes_per_second)


def test_a_quota_allows_one_window_at_first_and_then_the_elapsed_time() -> None:
    quota = quota_of(1000)
    assert (quota.allowance_bytes(0), quota.wait_ms(0)) == (1000, 0)
    quota.record(400, 0)
    assert quota.allowance_bytes(0) == 600
    quota.record(600, 0)
    assert quota.is_exceeded(1000)
    assert quota.wait_ms(0) == pytest.approx(1001)
    assert quota.wait_ms(400) == pytest.approx(601)
    assert quota.allowance_bytes(1500) == 500


def test_what_exceeded_the_bound_is_paid_back_however_long_that_takes() -> None:
    quota = quota_of(1000)
    quota.record(60_000, 0)
    assert quota.is_exceeded(11_000)
    assert quota.is_exceeded(59_000)
    assert quota.wait_ms(59_000) == pytest.approx(1000, abs=2)
    assert not quota.is_exceeded(60_100)
    quota.record(1, 60_100)
    assert quota.allowance_bytes(60_100) == 999  # The sample of 60,000 bytes is gone.


def test_what_is_paid_is_forgotten_with_its_window() -> None:
    quota = quota_of(1000)
    quota.record(100, 0)
    assert quota.rate(10_000) == 10
    assert quota.rate(11_000) == 0


def test_a_bound_of_zero_lets_nothing_through_and_a_missing_bound_everything() -> None:
    assert quota_of(0).is_exceeded(0)
    assert quota_of(0).wait_ms(10**9) == math.inf
    unlimited = quota_of(UNLIMITED)
    unlimited.record(2**50, 0)
    assert not unlimited.is_exceeded(0)
    assert unlimited.rate(0) == 2**50


def test_a_new_bound_takes_effect_at_once() -> None:
    quota = quota_of(1_000_000)
    quota.record(5_000_000, 0)
    quota.bytes_per_second = 1000
    assert quota.allowance_bytes(0) == 1000
    quota.record(1000, 0)
    quota.bytes_per_second = 1000
    assert quota.is_exceeded(0)


def test_throttled_replicas() -> None:
    quota = quota_of()
    assert not quota.has_throttled_replicas
    quota.throttle("t", frozenset({1, 2}))
    quota.throttle("all", None)
    for topic, partition, expected in (("t", 0, False), ("t", 1, True), ("all", 7, True), ("other", 1, False)):
        assert quota.is_throttled(topic, partition) is expected
    quota.throttle("t", frozenset({0}))
    assert (quota.is_throttled("t", 0), quota.is_throttled("t", 1)) == (True, False)
    quota.throttle("t", frozenset())
    quota.throttle("all", frozenset())
    assert not quota.has_throttled_replicas


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((), frozenset()),
        (("*",), None),
        (("0:1", "1:2", "2:1"), frozenset({0, 2})),
        (("0:2",), frozenset()),
    ],
)
def test_the_throttled_partitions_of_a_broker(replicas: tuple[str, ...], expected: frozenset[int] | None) -> None:
    assert throttled_partitions(replicas, 1) == expected


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("largest", [1_000, 20_000])
def test_ten_seconds_have_what_the_bound_says(seed: int, largest: int) -> None:
    """Pieces up to twenty times as large as a second allows, at odd moments, of a copier that is never done."""
    chance = random.Random(seed)
    quota, bound = quota_of(1000), 1000
    flowed: list[tuple[float, int]] = []
    now_ms = 0.0
    while now_ms < 200_000:
        now_ms += chance.uniform(0.1, 300)
        if not quota.is_exceeded(now_ms):
            size_bytes = chance.randint(1, largest)
            quota.record(size_bytes, now_ms)
            flowed.append((now_ms, size_bytes))
    total = sum(size for _, size in flowed)
    assert bound * 200 * 0.98 <= total <= bound * 200 + largest
    for start_ms in range(0, 190_000, 1_000):
        in_ten_s = sum(size for at_ms, size in flowed if start_ms <= at_ms < start_ms + 10_000)
        assert in_ten_s <= bound * 10 * 1.1 + largest
