"""Quotas on rates: for how long a client is throttled, and what is kept of clients."""

import math

import pytest

from klamm.broker.quotas import sensors
from klamm.broker.quotas.bounds import QuotaEntity, QuotaTags
from klamm.broker.quotas.rate_quota import RateQuota

ANYONE = QuotaEntity(None, "")


def quota_of(bound: float | None, samples: int = 11, window_ms: int = 1000, **options: float) -> RateQuota:
    quota = RateQuota(samples=samples, window_ms=window_ms, **options)
    quota.bounds.set(ANYONE, bound)
    return quota


@pytest.mark.parametrize(
    ("bound", "records", "throttle_times_ms"),
    [
        # (at ms, bytes): the rate is over ten windows at least, so ten seconds' worth is free at first.
        (1000, [(0, 10_000), (0, 1)], [0, 1]),
        (1000, [(0, 10_000), (0, 500)], [0, 500]),
        (1000, [(0, 20_000)], [10_000]),
        # At 500 ms the span is 10.5 s.
        (1000, [(0, 10_000), (500, 500), (500, 500)], [0, 0, 500]),
        # Windows between are windows without records, until they are older than eleven seconds.
        (1000, [(0, 10_000), (5000, 5000)], [0, 5000]),
        (1000, [(0, 10_000), (10_999, 2_000)], [0, 1001]),
        (1000, [(0, 10_000), (11_000, 10_000)], [0, 0]),
        (None, [(0, 10**12)], [0]),
        # It is never longer than a response can say.
        (1, [(0, 2**40)], [2**31 - 1]),
        # Without a quota above 0 there is nothing to divide by: all windows.
        (0, [(0, 1), (1, 1)], [11_000, 11_000]),
    ],
)
def test_a_client_waits_until_its_rate_is_its_quota(
    bound: float | None, records: list[tuple[int, int]], throttle_times_ms: list[int]
) -> None:
    quota = quota_of(bound)
    assert [quota.record("u", "c", size, at_ms) for at_ms, size in records] == throttle_times_ms


def test_the_throttle_time_of_requests_is_bounded() -> None:
    quota = quota_of(50, limit_ms=1000)
    assert [quota.record("u", "c", percent, 0) for percent in (500, 20, 500)] == [0, 400, 1000]
    assert quota_of(0, limit_ms=1000).record("u", "c", 1, 0) == 1000


def test_what_is_taken_back_does_not_count() -> None:
    quota = quota_of(1000)
    assert quota.has_used_nothing("u", "c", 0)
    assert quota.record("u", "c", 30_000, 0) == 20_000
    assert not quota.has_used_nothing("u", "c", 0)
    quota.take_back("u", "c", 30_000, 0)
    assert quota.has_used_nothing("u", "c", 0)
    assert quota.record("u", "c", 10_000, 0) == 0


def test_the_allowance_is_what_all_windows_hold() -> None:
    quota = quota_of(1000)
    quota.bounds.set(QuotaEntity("alice", None), 5)
    assert (quota.allowance("u", "c"), quota.allowance("alice", "c")) == (10_000, 50)
    assert quota_of(None).allowance("u", "c") == math.inf


def test_clients_of_one_entity_share_a_quota_only_where_kafkas_do() -> None:
    quota = quota_of(None)
    quota.bounds.set(QuotaEntity("alice", None), 1000)
    quota.bounds.set(QuotaEntity("bob", ""), 1000)
    assert [quota.record("alice", client, 10_000, 0) for client in ("a", "b")] == [0, 10_000]
    assert [quota.record("bob", client, 10_000, 0) for client in ("a", "b")] == [0, 0]
    assert dict(quota.rates(0)) == {
        QuotaTags("alice", ""): 2000,
        QuotaTags("bob", "a"): 1000,
        QuotaTags("bob", "b"): 1000,
    }


def test_a_changed_quota_holds_for_what_is_recorded_already() -> None:
    quota = quota_of(1000)
    assert quota.record("u", "c", 10_000, 0) == 0
    quota.bounds.set(ANYONE, 500)
    assert quota.record("u", "c", 0, 0) == 10_000
    quota.bounds.set(ANYONE, None)
    assert quota.record("u", "c", 10_000, 0) == 0


def test_throttle_times_are_the_mean_of_a_minute() -> None:
    quota = quota_of(1000)
    quota.record("u", "c", 1, 0)
    assert dict(quota.throttle_times(0)) == {}
    quota.throttled("u", "c", 100, 0)
    quota.throttled("u", "c", 200, 30_000)
    assert dict(quota.throttle_times(59_999)) == {QuotaTags("", "c"): 150}
    assert dict(quota.throttle_times(60_000)) == {QuotaTags("", "c"): 200}
    assert math.isnan(dict(quota.throttle_times(120_000))[QuotaTags("", "c")])


def test_any_number_of_client_ids_of_any_length_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "MAX_SENSORS", 100)
    quota = quota_of(1)
    for number in range(1000):
        quota.record("u", f"{number}".ljust(30_000, "x"), 5, number)
        quota.record("u", "steady", 1, number)
    rates = dict(quota.rates(1000))
    assert len(rates) <= 100
    assert max(len(tags.client_id) for tags in rates) <= 256
    # Who goes on is not forgotten for the sake of those who come once.
    assert rates[QuotaTags("", "steady")] == pytest.approx(100)


def test_a_client_is_forgotten_after_an_hour() -> None:
    quota = quota_of(1)
    quota.record("u", "a", 1, 0)
    quota.record("u", "b", 1, 1_800_000)
    assert [tags.client_id for tags, _ in quota.rates(3_599_999)] == ["a", "b"]
    assert [tags.client_id for tags, _ in quota.rates(3_600_000)] == ["b"]
