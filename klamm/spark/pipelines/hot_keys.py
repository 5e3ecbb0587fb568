"""Estimates which keys have the most records, from a bounded sample of batches. Pure.

The headers of all batches give the exact number of records and batches. Keys are decoded only in a sample of the
batches. A batch is in the sample if a hash of its checksum is below a threshold. So each batch has the same chance, and
a repeated task takes the same sample. When the sample has more records than allowed, the threshold is halved, and the
batches above it leave the sample.

A batch is the unit of the sample, because the records of a batch are alike: a producer that writes one key many times
fills whole batches with it. The bounds follow from how much the batches differ, not from the number of records.

What must stay true:
- With 95 % confidence the limits of all keys of a sample hold at the same time. Limits for single keys would not be
  enough, because chance favours the keys that are shown. If all batches were decoded, the limits are exact.
- Memory is bounded by the allowed records, and by the largest batch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf, log, sqrt
from typing import Final, NamedTuple

# A range's sample has at most about this many records.
SAMPLED_RECORDS: Final = 100_000
# Longer keys are truncated, and end with a part of their SHA-256.
MAX_KEY_BYTES: Final = 128
_HASH_BITS: Final = 32
_ERROR: Final = 0.05
_BISECTIONS: Final = 50


class KeyCount(NamedTuple):
    """A key in the sample: the number of its records, and two sums over batches: of the square of its records in the
    batch, and of its records times the size of the batch."""

    records: int
    squares: int
    products: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The sample of some offsets of one partition, with the most frequent keys.

    `records` and `batches` count everything, not only the sample. `squares` is the sum of the squares of the sizes of
    sampled batches. A key that is not in `keys` has at most `dropped_records` sampled records. `distinct_keys` is the
    number of keys in the sample.
    """

    records: int
    batches: int
    sampled_records: int
    sampled_batches: int
    squares: int
    keys: Mapping[bytes, KeyCount]
    dropped_records: int = 0
    distinct_keys: int = 1

    @property
    def surprise(self) -> float:
        """The negative logarithm of the allowed probability that one limit fails. The keys share the error
        (Bonferroni)."""
        return log(2 * max(1, self.distinct_keys) / _ERROR)


class Estimate(NamedTuple):
    """How many records a key has: most likely, at least and at most."""

    records: float
    low: float
    high: float


@dataclass(slots=True)
class KeySample:
    """The sample of some offsets of one partition, while they are read."""

    max_records: int = SAMPLED_RECORDS
    threshold: int = 2**_HASH_BITS
    records: int = 0
    batches: int = 0
    sampled_records: int = 0
    # (the batch's number, its records, the keys).
    sample: list[tuple[int, int, Counter[bytes]]] = field(default_factory=list)

    def wants(self, base_offset: int, checksum: int, records: int) -> bool:
        """Call it for each batch. Returns whether the batch is in the sample; then call `add`."""
        self.records += records
        self.batches += 1
        return chance(base_offset, checksum) < self.threshold

    def add(self, base_offset: int, checksum: int, keys: Iterable[bytes | None]) -> None:
        """Adds the keys of all records of a batch."""
        counted = Counter(None if key is None else shortened(key) for key in keys)
        records = counted.total()
        del counted[None]
        self.sample.append((chance(base_offset, checksum), records, counted))  # type: ignore[arg-type]  # None is gone
        self.sampled_records += records
        while self.sampled_records > self.max_records:
            kept = [each for each in self.sample if each[0] < self.threshold // 2]
            if not kept:
                # A single large batch stays: it is better than no sample.
                break
            self.threshold, self.sample = self.threshold // 2, kept
            self.sampled_records = sum(each[1] for each in kept)

    def summary(self, max_keys: int) -> Summary:
        records: Counter[bytes] = Counter()
        squares: Counter[bytes] = Counter()
        products: Counter[bytes] = Counter()
        for _, size, keys in self.sample:
            for key, count in keys.items():
                records[key] += count
                squares[key] += count * count
                products[key] += count * size
        found = sorted(records, key=lambda key: (-records[key], key))
        return Summary(
            self.records,
            self.batches,
            self.sampled_records,
            len(self.sample),
            sum(size * size for _, size, _ in self.sample),
            {key: KeyCount(records[key], squares[key], products[key]) for key in found[:max_keys]},
            max((records[key] for key in found[max_keys:]), default=0),
            len(records),
        )


def chance(base_offset: int, checksum: int) -> int:
    """A number below 2**32 for a batch: Knuth's multiplicative hash, which also spreads equal checksums."""
    mixed: int = ((checksum ^ base_offset) * 2_654_435_761 + (base_offset >> 32)) % 2**_HASH_BITS
    return mixed


def shortened(key: bytes) -> bytes:
    """The key, or the beginning of a long key and a part of its hash."""
    if len(key) <= MAX_KEY_BYTES:
        return key
    return key[: MAX_KEY_BYTES // 2] + b"...sha256:" + sha256(key).hexdigest()[:16].encode()


# -- bounds -----------------------------------------------------------------------------------------------------------


def likely_records(summaries: Sequence[Summary]) -> dict[bytes, float]:
    """The most likely number of records of each key of one partition, whose offsets were sampled in several parts."""
    found: dict[bytes, float] = {}
    for summary in summaries:
        for key, count in summary.keys.items():
            found[key] = found.get(key, 0.0) + count.records * summary.records / summary.sampled_records
    return found


def estimate(summaries: Sequence[Summary], key: bytes) -> Estimate:
    """The limits of one key: the sums of the limits of all parts. They may be wider than needed, but not too narrow."""
    limits = [_limits_of_part(summary, summary.keys.get(key)) for summary in summaries]
    return Estimate(likely_records(summaries)[key], sum(low for low, _ in limits), sum(high for _, high in limits))


def _limits_of_part(summary: Summary, key: KeyCount | None) -> tuple[float, float]:
    """None stands for a key that is not in the summary."""
    sampled, records = summary.sampled_records, summary.records
    if not sampled:
        # Not one batch was decoded, so nothing is known.
        return 0.0, float(records)
    if summary.sampled_batches == summary.batches:
        return (float(key.records), float(key.records)) if key else (0.0, float(summary.dropped_records))
    if key is None:
        share = summary.dropped_records / sampled
        return 0.0, min(_limits(share, summary.sampled_batches, summary.surprise)[1] * records, float(records))
    share = key.records / sampled
    low, high = _limits(share, _effective_size(summary, key, share), summary.surprise)
    return max(low * records, float(key.records)), min(high * records, float(records - (sampled - key.records)))


def _effective_size(summary: Summary, key: KeyCount, share: float) -> float:
    """The number of independent records with the same information as the sampled batches: the variance of one record,
    divided by the variance of the share between batches (of the ratio estimator)."""
    batches, records = summary.sampled_batches, summary.sampled_records
    if batches < 2:
        return 1.0
    between = key.squares - 2 * share * key.products + share * share * summary.squares
    variance = batches / (batches - 1) * between / records**2
    independent = share * (1 - share)
    size = independent / variance if variance > 0 and independent > 0 else float(batches)
    # A sample with a large part of all batches tells more; a variance of few batches tells less.
    unread = 1 - batches / summary.batches
    z = sqrt(2 * summary.surprise)
    few = (z / _student(z, batches - 1)) ** 2
    return max(1.0, min(size, float(records)) * few / unread)


def _student(z: float, degrees: int) -> float:
    """The approximate quantile of Student's distribution for the normal distribution's quantile `z`."""
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _limits(share: float, size: float, surprise: float) -> tuple[float, float]:
    """Chernoff's limits: if the true share is beyond them, a sample of `size` independent records has this share with a
    probability of at most e to the power of -`surprise`. They hold also for small samples, and for shares near 0 and
    1."""
    return _limit(share, 0.0, size, surprise), _limit(share, 1.0, size, surprise)


def _limit(share: float, end: float, size: float, surprise: float) -> float:
    """The point between the share and the end at which the sample becomes too improbable."""
    near, far = share, end
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        near, far = (middle, far) if size * _divergence(share, middle) <= surprise else (near, middle)
    return far


def _divergence(share: float, other: float) -> float:
    """The Kullback-Leibler divergence of two Bernoulli distributions."""
    if not 0 < other < 1:
        return 0.0 if share == other else inf
    heads = share * log(share / other) if share > 0 else 0.0
    tails = (1 - share) * log((1 - share) / (1 - other)) if share < 1 else 0.0
    return heads + tails
