"""Rates over a sliding window, and token buckets."""

import pytest

from klamm.base.rates import SampledRate, TokenBucket


def test_a_rate_counts_from_its_first_window_and_over_at_least_one() -> None:
    rate = SampledRate(samples=3, window_ms=1000)
    assert rate.per_second(500) == 0
    rate.record(100, 500)
    assert rate.per_second(500) == 100
    assert rate.per_second(2500) == 50
    rate.record(200, 2500)
    assert rate.per_second(2500) == 150


def test_a_rate_forgets_whole_windows() -> None:
    rate = SampledRate(samples=3, window_ms=1000)
    rate.record(1, 0)
    rate.record(2, 999)
    rate.record(4, 1000)
    rate.record(8, 2000)
    rate.forget_old(2999)
    assert rate.total == 15
    rate.forget_old(3000)
    assert (rate.total, rate.per_second(3000)) == (12, 6)
    rate.forget_old(90_000)
    assert (rate.total, rate.per_second(90_000)) == (0, 0)


def test_a_rate_that_forgets_nothing_keeps_few_windows() -> None:
    rate = SampledRate(samples=3, window_ms=1000)
    for second in range(1000):
        rate.record(5, second * 1000)
    assert (rate.total, len(rate._windows)) == (5000, 3)
    assert rate.per_second(1_000_000) == 5


@pytest.mark.parametrize(
    ("records_at_ms", "now_ms", "span_ms"),
    [
        # Ten windows, and what has passed of the newest: missing windows count as windows without records.
        ([], 0, 10_000),
        ([0], 0, 10_000),
        ([0], 400, 10_400),
        ([0, 1000], 1000, 10_000),
        ([0, 1000], 1700, 10_700),
        ([0, 5000], 9999, 10_999),
        ([0, 10_000], 10_999, 10_999),
    ],
)
def test_missing_windows_count_as_empty(records_at_ms: list[int], now_ms: int, span_ms: int) -> None:
    rate = SampledRate(samples=11, window_ms=1000)
    for at_ms in records_at_ms:
        rate.record(1, at_ms)
    assert rate.full_span_ms(now_ms) == span_ms


def test_a_rate_of_a_single_window_has_a_whole_window_at_least() -> None:
    rate = SampledRate(samples=1, window_ms=1000)
    rate.record(5, 0)
    assert rate.full_span_ms(0) == 1000


def test_a_rate_of_fractions_comes_back_to_nothing() -> None:
    rate = SampledRate(samples=2, window_ms=1000)
    for at_ms in range(0, 5000, 7):
        rate.forget_old(at_ms)
        rate.record(0.1, at_ms)
    rate.forget_old(10_000)
    assert rate.total == 0


def test_tokens_come_back_up_to_the_burst() -> None:
    bucket = TokenBucket()
    assert bucket.tokens(5, 50, 0) == 50
    assert bucket.take(60, 5, 50, 0) == -10
    assert bucket.tokens(5, 50, 1000) == -5
    assert bucket.tokens(5, 50, 2000) == 0
    assert bucket.tokens(5, 50, 3000) == 5
    assert bucket.tokens(5, 50, 60_000) == 50
    # A smaller quota takes the tokens that do not fit.
    assert bucket.tokens(1, 10, 60_000) == 10
