"""The load of a cluster: windows of time, samples of keys and their bounds, ranges and tasks. No cluster."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from klamm.client.options import ClientOptions
from klamm.client.verification.compare import Batch, batches_of
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.pipelines.hot_keys import (
    MAX_KEY_BYTES,
    Estimate,
    KeySample,
    Summary,
    estimate,
    likely_records,
    shortened,
)
from klamm.spark.pipelines.load import (
    ClusterCount,
    Counted,
    OffsetRange,
    PartitionCount,
    RangeCounter,
    _align,
    _count_range,
    cut,
    pack,
)
from klamm.spark.pipelines.load_options import LoadOptions
from klamm.spark.pipelines.load_windows import DAY_MS, HOUR_MS, MINUTE_MS, WIDTHS_MS, Traffic, Windows, fitting, wider
from klamm.spark.pipelines.replicas import ReplicaLog

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# -- windows ----------------------------------------------------------------------------------------------------------


def test_each_width_is_a_multiple_of_the_one_before() -> None:
    assert [wider(each) for each in WIDTHS_MS] == [*WIDTHS_MS[1:], 100 * DAY_MS]
    # From a width that an operator gave.
    assert [wider(7_000), wider(30_000), wider(2 * MINUTE_MS)] == [70_000, MINUTE_MS, HOUR_MS]


@pytest.mark.parametrize(
    ("span_ms", "width_ms"), [(0, 1000), (95_000, 1000), (95_001, 5000), (HOUR_MS, MINUTE_MS), (2 * DAY_MS, HOUR_MS)]
)
def test_the_width_fits_the_span(span_ms: int, width_ms: int) -> None:
    assert fitting(span_ms, 95) == width_ms


def test_wider_windows_have_the_same_sum() -> None:
    windows = Windows(1000)
    for second in range(100):
        windows.add(second * 1000 + 999, Traffic(1, second, 10))
    windows.limit(10)
    assert windows.width_ms == 15_000
    assert windows.cells[0] == Traffic(15, sum(range(15)), 150)
    assert windows.total() == Traffic(100, sum(range(100)), 1000)


def test_windows_of_different_widths_are_merged_at_the_larger_one() -> None:
    narrow, wide = Windows(1000, {61: Traffic(1, 2, 3)}), Windows(60_000, {1: Traffic(10, 20, 30)})
    narrow.merge(wide)
    assert narrow == Windows(60_000, {1: Traffic(11, 22, 33)})
    other = Windows(60_000, {1: Traffic(10, 20, 30)})
    other.merge(Windows(1000, {61: Traffic(1, 2, 3)}))
    assert other == narrow


def test_a_timestamp_far_away_leaves_the_others_their_width() -> None:
    windows = Windows(1000, {0: Traffic(1, 1, 1), 1: Traffic(1, 1, 1)})
    windows.add(2**62, Traffic(1, 1, 1))
    windows.limit(3)
    assert windows.width_ms == 1000
    windows.limit(2)
    assert windows.width_ms == 5000


def test_all_partitions_have_windows_of_one_width_and_no_more_than_allowed() -> None:
    count = ClusterCount(
        {
            T0: PartitionCount((1,), Counted(Windows(1000, {second: Traffic(1, 1, 1) for second in range(8)}))),
            T1: PartitionCount((1,), Counted(Windows(5000, {10: Traffic(1, 1, 1)}))),
        }
    )
    _align(count, 3)
    assert [each.counted.windows for each in count.partitions.values()] == [
        Windows(5000, {0: Traffic(5, 5, 5), 1: Traffic(3, 3, 3)}),
        Windows(5000, {10: Traffic(1, 1, 1)}),
    ]
    _align(count, 1)
    assert {each.counted.windows.width_ms for each in count.partitions.values()} == {MINUTE_MS}


# -- ranges and tasks -------------------------------------------------------------------------------------------------


def test_ranges_are_cut_and_small_ones_share_a_task() -> None:
    ranges = [OffsetRange(T0, (1,), 0, 25), OffsetRange(T1, (1,), 7, 9)]
    pieces = cut(ranges, 10)
    assert [(each.partition, each.start_offset, each.end_offset) for each in pieces] == [
        (T0, 0, 10),
        (T0, 10, 20),
        (T0, 20, 25),
        (T1, 7, 9),
    ]
    assert pack(pieces, 10) == [pieces[:1], pieces[1:2], pieces[2:]]
    assert list(map(len, pack([OffsetRange(T0, (1,), 0, 1)] * 120, 10**6))) == [50, 50, 20]


# -- batches ----------------------------------------------------------------------------------------------------------


def batch(offset: int, timestamps: list[int], keys: list[bytes | None] | None = None) -> bytes:
    keys = keys or [None] * len(timestamps)
    records = [Record(key, b"x" * 50, timestamp) for key, timestamp in zip(keys, timestamps, strict=True)]
    return bytes(build_batch(records, base_offset=offset, codec=CompressionType.GZIP))


def counted(log: bytes, options: LoadOptions, start: int = 0) -> RangeCounter:
    counter = RangeCounter(options)
    counter.add(log, list(batches_of(log, start)))
    return counter


def test_a_batch_counts_in_the_window_of_its_largest_timestamp() -> None:
    first, second = batch(0, [1000, 3000, 2000]), batch(3, [61_000])
    counter = counted(first + second, LoadOptions(window_ms=60_000))
    assert counter.counted.windows.cells == {0: Traffic(1, 3, len(first)), 1: Traffic(1, 1, len(second))}
    assert (counter.counted.first_timestamp_ms, counter.counted.last_timestamp_ms) == (3000, 61_000)
    assert counter.summary() is None


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "counted_batches"),
    [(None, None, 3), (3000, None, 2), (3001, None, 1), (None, 9000, 1), (None, 9001, 2), (3000, 9000, 1), (0, 1, 0)],
)
def test_a_batch_counts_as_a_whole_within_the_chosen_time(
    start_ms: int | None, end_ms: int | None, counted_batches: int
) -> None:
    """The last batch has no timestamp, so it is part of no chosen time."""
    log = batch(0, [1000, 3000]) + batch(2, [9000]) + batch(3, [-1])
    found = counted(log, LoadOptions(start_ms, end_ms)).counted
    assert found.total.batches == counted_batches
    assert found.untimed.batches == (1 if start_ms is None and end_ms is None else 0)


def test_a_corrupt_batch_is_told_and_not_counted() -> None:
    log = bytearray(batch(0, [1000]) + batch(1, [1000]))
    log[-1] ^= 1
    found = counted(bytes(log), LoadOptions()).counted
    assert (found.total.records, found.corrupt_batches) == (1, 1)


def test_keys_are_counted_in_batches_of_the_chosen_time_alone() -> None:
    log = batch(0, [1000, 1000], [b"a", b"b"]) + batch(2, [5000] * 3, [b"a", None, b"a"])
    summary = counted(log, LoadOptions(start_ms=2000, hot_keys=5)).summary()
    assert summary is not None
    assert estimates([summary]) == {b"a": (2.0, 2.0, 2.0)}


def test_a_range_is_read_on_where_a_broker_failed_and_no_batch_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 1 fails after the first batch, and broker 2 at once; broker 3 has the rest."""
    first, second = batch(0, [1000, 2000]), batch(2, [3000])
    asked = []

    def read(_: object, log: ReplicaLog, start: int, end: int) -> Iterator[tuple[bytes, list[Batch]]]:
        asked.append((log.replica, start, end))
        if log.replica == 1:
            yield first, list(batches_of(first, 0))
        if log.replica < 3:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"broker {log.replica} is away")
        yield second, list(batches_of(second, 2))

    monkeypatch.setattr("klamm.spark.pipelines.load.read_batches", read)
    client = ClientOptions((("localhost", 1),))
    found, _ = _count_range(client, LoadOptions(), OffsetRange(T0, (1, 2, 3), 0, 3))
    assert asked == [(1, 0, 3), (2, 2, 3), (3, 2, 3)]
    assert (found.total.batches, found.total.records, found.failure) == (2, 3, None)
    found, _ = _count_range(client, LoadOptions(), OffsetRange(T0, (1, 2), 0, 3))
    assert (found.total.records, found.failure) == (
        2,
        "not read from offset 2 on; broker 1 is away; broker 2 is away",
    )


# -- keys -------------------------------------------------------------------------------------------------------------


def estimates(summaries: list[Summary]) -> dict[bytes, Estimate]:
    return {key: estimate(summaries, key) for key in likely_records(summaries)}


def sampled(batches: list[list[bytes]], max_records: int) -> KeySample:
    sample = KeySample(max_records)
    random = Random(7)
    for number, keys in enumerate(batches):
        checksum = random.getrandbits(32)
        if sample.wants(number, checksum, len(keys)):
            sample.add(number, checksum, keys)
    return sample


def test_where_every_batch_is_in_the_sample_the_numbers_are_exact() -> None:
    summary = sampled([[b"a", b"a", b"b"], [b"a", b"c"]], 100).summary(1)
    assert (summary.records, summary.sampled_records, summary.dropped_records) == (5, 5, 1)
    assert estimates([summary]) == {b"a": (3.0, 3.0, 3.0)}


def test_a_sample_keeps_to_its_size_and_knows_how_much_there_is() -> None:
    sample = sampled([[b"k%d" % (number % 50)] * 10 for number in range(2000)], 1000)
    assert sample.sampled_records <= 1000
    assert (sample.records, sample.batches) == (20_000, 2000)
    assert sample.summary(10).sampled_batches == len(sample.sample) > 20


@pytest.mark.parametrize(("is_clustered", "widest"), [(False, 6000), (True, 14_000)])
def test_the_bounds_hold_the_true_number_in_at_least_95_of_100_samples(is_clustered: bool, widest: int) -> None:
    """Clustered: a producer writes a key for whole batches, as one that sends in bursts does."""
    held = 0
    for seed in range(60):
        random = Random(seed)
        batches = []
        for _ in range(800):
            if is_clustered:
                batches.append([b"hot" if random.random() < 0.2 else b"cold"] * 20)
            else:
                batches.append([b"hot" if random.random() < 0.2 else b"cold" for _ in range(20)])
        sample = KeySample(1000)
        for number, keys in enumerate(batches):
            checksum = random.getrandbits(32)
            if sample.wants(number, checksum, len(keys)):
                sample.add(number, checksum, keys)
        found = estimates([sample.summary(10)])[b"hot"]
        truth = sum(Counter(keys)[b"hot"] for keys in batches)
        held += found.low <= truth <= found.high
        assert found.high - found.low < widest
    assert held >= 57


def test_the_bounds_of_the_keys_that_are_shown_hold_although_chance_has_chosen_them() -> None:
    """Of keys that all have equally much, those with the most in the sample are shown."""
    held = 0
    for seed in range(10):
        random = Random(seed)
        sample, truth = KeySample(2000), Counter[bytes]()
        for number in range(1500):
            keys = [b"%d" % random.randrange(500) for _ in range(20)]
            truth.update(keys)
            checksum = random.getrandbits(32)
            if sample.wants(number, checksum, len(keys)):
                sample.add(number, checksum, keys)
        found = estimates([sample.summary(50)])
        held += all(each.low <= truth[key] <= each.high for key, each in found.items())
    assert held >= 9


def test_a_key_that_one_part_does_not_name_may_still_be_in_it() -> None:
    """The second part names only its most frequent key; the other may have as many records as the next one."""
    first = sampled([[b"a", b"a"]], 100).summary(1)
    second = sampled([[b"b", b"b", b"b", b"a"]], 100).summary(1)
    assert estimates([first, second])[b"a"] == (2.0, 2.0, 3.0)


def test_a_sample_of_one_batch_among_many_says_little() -> None:
    sample = sampled([[b"a"] * 100 for _ in range(50)], 100)
    found = estimates([sample.summary(10)])[b"a"]
    assert found.records == found.high == 5000
    assert found.low < 3000


def test_a_long_key_is_cut_and_still_differs_from_others() -> None:
    one, other = shortened(b"k" * 1000 + b"1"), shortened(b"k" * 1000 + b"2")
    assert len(one) < MAX_KEY_BYTES
    assert one != other
    assert shortened(b"k" * MAX_KEY_BYTES) == b"k" * MAX_KEY_BYTES
