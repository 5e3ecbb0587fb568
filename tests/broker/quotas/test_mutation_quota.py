"""The quota on partitions created and deleted."""

import pytest

from klamm.broker.quotas.bounds import QuotaEntity, QuotaTags
from klamm.broker.quotas.mutation_quota import MutationQuota
from klamm.protocol.error_codes import ErrorCode, KafkaError


class Scene:
    def __init__(self, per_second: float | None) -> None:
        self.now_ms = 0.0
        self.quota = MutationQuota(samples=11, window_ms=1000, clock_ms=lambda: self.now_ms)
        self.quota.bounds.set(QuotaEntity("alice", None), per_second)

    def play(self, *, strict: bool, counts: list[int]) -> tuple[list[bool], int]:
        """A request that changes topics with so many partitions: which were admitted, and the throttle time."""
        changes = self.quota.of("alice", "c", strict=strict)
        admitted = []
        for count in counts:
            try:
                changes.record(count)
                admitted.append(True)
            except KafkaError as error:
                assert error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
                admitted.append(False)
        return admitted, changes.throttle_time_ms()


@pytest.mark.parametrize(
    ("strict", "counts", "admitted", "throttle_time_ms"),
    [
        # Eleven seconds of five are in the bucket.
        (True, [55], [True], 0),
        # A topic is admitted as a whole, and no other while the bucket is overdrawn.
        (True, [54, 3, 1], [True, True, False], 400),
        (True, [100, 1], [True, False], 9000),
        (False, [54, 3, 1], [True, True, True], 600),
        (False, [55], [True], 0),
    ],
)
def test_topics_beyond_the_quota(strict: bool, counts: list[int], admitted: list[bool], throttle_time_ms: int) -> None:
    assert Scene(5).play(strict=strict, counts=counts) == (admitted, throttle_time_ms)


def test_a_strict_request_is_refused_until_the_bucket_is_no_longer_overdrawn() -> None:
    scene = Scene(5)
    assert scene.play(strict=True, counts=[60]) == ([True], 0)
    scene.now_ms = 900
    assert scene.play(strict=True, counts=[1]) == ([False], 100)
    scene.now_ms = 1000
    assert scene.play(strict=True, counts=[1, 1]) == ([True, False], 200)


def test_the_throttle_time_shrinks_while_a_request_waits() -> None:
    scene = Scene(5)
    changes = scene.quota.of("alice", "c", strict=False)
    changes.record(65)
    assert changes.throttle_time_ms() == 2000
    scene.now_ms = 1500
    assert changes.throttle_time_ms() == 500
    scene.now_ms = 3000
    assert changes.throttle_time_ms() == 0


def test_without_a_quota_everything_is_admitted() -> None:
    assert Scene(None).play(strict=True, counts=[10**6, 1]) == ([True, True], 0)


def test_a_quota_of_0_admits_one_topic_and_then_none() -> None:
    assert Scene(0).play(strict=True, counts=[3, 1]) == ([True, False], 11_000)


def test_metrics_show_the_tokens_and_the_rate() -> None:
    scene = Scene(5)
    scene.play(strict=True, counts=[25])
    assert dict(scene.quota.tokens(0)) == {QuotaTags("alice", ""): 30}
    # Over half a minute at least, like Kafka's metrics.
    assert dict(scene.quota.rates(0)) == {QuotaTags("alice", ""): pytest.approx(25 / 30)}
