"""The quotas of one request: the time that it takes, and which of several throttle times counts."""

import asyncio
from typing import Any

import pytest

from klamm.broker.quotas.bounds import QuotaEntity, QuotaTags
from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.broker.quotas.request_quota import RequestQuota
from klamm.net.stopwatch import Stopwatch
from support.quotas import client_quotas

ANYONE = QuotaEntity(None, "")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_only_the_steps_of_the_work_are_measured() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    clock.now_s += 1
    stopwatch.pause()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        clock.now_s += 2
        found = await ready
        clock.now_s += 4
        return found

    def others() -> None:
        clock.now_s += 100
        ready.set_result(7)

    asyncio.get_running_loop().call_soon(others)
    assert await stopwatch.measured(work()) == 7
    clock.now_s += 100
    stopwatch.resume()
    clock.now_s += 8
    stopwatch.pause()
    assert stopwatch.spent_s == 15


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_errors_reach_the_work_and_its_caller(error: type[BaseException]) -> None:
    stopwatch, seen = Stopwatch(Clock()), []
    stopwatch.pause()

    async def work() -> None:
        try:
            await failing
        except BaseException as raised:
            seen.append(type(raised))
            raise

    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failing.set_exception(error()) if error is ValueError else failing.cancel()
    with pytest.raises(error):
        await stopwatch.measured(work())
    assert seen == [error]


def request_of(quotas: ClientQuotas, clock: Clock, spent_s: float) -> RequestQuota:
    stopwatch = Stopwatch(clock) if quotas.measures_time else None
    clock.now_s += spent_s
    return RequestQuota(quotas, "alice", "c", stopwatch)


@pytest.mark.parametrize(
    ("bounds", "throttle_time_ms", "by"),
    [
        ({}, 0, None),
        ({"producer_byte_rate": 1000}, 20_000, "Produce"),
        # 6 s of the loop are 600 percent-seconds; no throttle time of time is longer than a window.
        ({"request_percentage": 50}, 1000, "Request"),
        ({"producer_byte_rate": 2990, "request_percentage": 50}, 1000, "Request"),
        ({"producer_byte_rate": 1000, "request_percentage": 50}, 20_000, "Produce"),
    ],
)
def test_the_longest_throttle_time_counts(bounds: dict[str, float], throttle_time_ms: int, by: str | None) -> None:
    clock = Clock()
    quotas = client_quotas()
    quotas.configure(ANYONE, bounds)
    assert request_of(quotas, clock, 6).answered(30_000, is_acknowledged=True) == throttle_time_ms
    throttled = {"Produce": dict(quotas.produce.throttle_times(0)), "Request": dict(quotas.request.throttle_times(0))}
    assert {name: found for name, found in throttled.items() if found} == (
        {by: {QuotaTags("", "c"): throttle_time_ms}} if by else {}
    )


def test_the_time_of_a_request_without_an_answer_is_exempt() -> None:
    clock = Clock()
    quotas = client_quotas()
    quotas.configure(ANYONE, {"request_percentage": 0.001})
    assert request_of(quotas, clock, 6).answered(30_000, is_acknowledged=False) == 0
    request_of(quotas, clock, 3).answered_exempt()
    # 900 percent-seconds in half a minute.
    assert quotas._exempt_percent() == 30
    assert dict(quotas.request.rates(0)) == {}


def test_encoding_counts_for_the_next_request() -> None:
    clock = Clock()
    quotas = client_quotas()
    quotas.configure(ANYONE, {"request_percentage": 50})
    first = request_of(quotas, clock, 5)
    assert first.answered(0, is_acknowledged=True) == 0
    clock.now_s += 0.1
    first.encoded()
    assert request_of(quotas, clock, 0).answered(0, is_acknowledged=True) == 200


@pytest.mark.parametrize(
    ("fetches", "throttled"),
    [
        # (bytes, seconds of the loop): whether each fetch is answered without records.
        ([(9_000, 0), (9_000, 0), (1_000, 0)], [False, True, False]),
        # A client that has used nothing gets its records, and waits for the next.
        ([(50_000, 0), (1, 0)], [False, True]),
        # A throttled fetch does not count, whichever quota throttles it.
        ([(5_000, 6), (5_000, 0)], [True, True]),
    ],
)
def test_a_fetch_beyond_a_quota_has_no_records(fetches: list[tuple[int, float]], throttled: list[bool]) -> None:
    clock = Clock()
    quotas = client_quotas()
    quotas.configure(ANYONE, {"consumer_byte_rate": 1000, "request_percentage": 50})
    requests = [request_of(quotas, clock, spent_s) for _, spent_s in fetches]
    found: list[Any] = [quota.throttles_fetch(size) for quota, (size, _) in zip(requests, fetches, strict=True)]
    assert found == throttled
    assert all(quota.answered(0, is_acknowledged=True) > 0 for quota, was in zip(requests, found, strict=True) if was)
