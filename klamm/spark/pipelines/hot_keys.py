"""Which keys have the most records, from a bounded sample of batches. Pure.

The number of records and batches is known exactly, from the headers of all batches; keys are decoded in a sample of the
batches alone. A batch is in the sample when a number that its checksum gives is below a threshold, so each has the same
chance, and a task that is repeated takes the same sample. When the sample has more records than allowed, the threshold
is halved and the batches above it leave the sample.

A batch is the unit of the sample, because the records of a batch are alike: a producer that writes one key many times
fills whole batches with it. The bounds follow from how much the batches differ, not from the number of records.

What must stay true:
- `low` and `high` are each key's limits with 95 % confidence. Where all batches were decoded they are exact.
- Memory is bounded by the allowed records, and by the largest batch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import sqrt
from typing import Final, NamedTuple

# A range's sample has at most about so many records.
SAMPLED_RECORDS: Final = 100_000
# Longer keys are cut, and end with a part of their SHA-256.
MAX_KEY_BYTES: Final = 128
_HASH_BITS: Final = 32
_CONFIDENCE_95: Final = 1.96


class KeyCount(NamedTuple):
    """A key in the sample: its records, and the sums over batches of their square and of records times batch size."""

    records: int
    squares: int
    products: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The sample of some offsets of one partition, with the most frequent keys.

    `records` and `batches` are all there are; `squares` is the sum of the squares of the sampled batches' sizes. No
    key that is not in `keys` has more than `dropped_records` sampled records.
    """

    records: int
    batches: int
    sampled_records: int
    sampled_batches: int
    squares: int
    keys: Mapping[bytes, KeyCount]
    dropped_records: int = 0


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
        """Called for each batch. Returns whether its keys belong into the sample: then `add` follows."""
        self.records += records
        self.batches += 1
        return chance(base_offset, checksum) < self.threshold

    def add(self, base_offset: int, checksum: int, keys: Iterable[bytes | None]) -> None:
        """The keys of all records of a batch."""
        counted = Counter(None if key is None else shortened(key) for key in keys)
        records = counted.total()
        del counted[None]
        self.sample.append((chance(base_offset, checksum), records, counted))  # type: ignore[arg-type]  # None is gone
        self.sampled_records += records
        while self.sampled_records > self.max_records:
            kept = [each for each in self.sample if each[0] < self.threshold // 2]
            if not kept:
                # A single large batch tells more than nothing.
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
        )


def chance(base_offset: int, checksum: int) -> int:
    """A number below 2**32 for a batch: Knuth's multiplicative hash, which also spreads equal checksums."""
    mixed: int = ((checksum ^ base_offset) * 2_654_435_761 + (base_offset >> 32)) % 2**_HASH_BITS
    return mixed


def shortened(key: bytes) -> bytes:
    """The key, or the begin of a long one and what tells it from others."""
    if len(key) <= MAX_KEY_BYTES:
        return key
    return key[: MAX_KEY_BYTES // 2] + b"...sha256:" + sha256(key).hexdigest()[:16].encode()


# -- bounds -----------------------------------------------------------------------------------------------------------


def estimates(summaries: Sequence[Summary]) -> dict[bytes, Estimate]:
    """The keys of one partition, whose offsets were sampled in several parts. The parts' bounds are added up, which is
    wider than needed and never too narrow."""
    found = {}
    for key in dict.fromkeys(key for summary in summaries for key in summary.keys):
        parts = [estimate(summary, summary.keys.get(key)) for summary in summaries]
        found[key] = Estimate(
            sum(part.records for part in parts), sum(part.low for part in parts), sum(part.high for part in parts)
        )
    return found


def estimate(summary: Summary, key: KeyCount | None) -> Estimate:
    """One key in one part; None stands for a key that is not in the summary."""
    sampled, records = summary.sampled_records, summary.records
    if not sampled:
        # Not one batch was decoded, so nothing is known.
        return Estimate(0.0, 0.0, float(records))
    if key is None:
        return Estimate(0.0, 0.0, _upper(summary, summary.dropped_records))
    share = key.records / sampled
    if summary.sampled_batches == summary.batches:
        return Estimate(float(key.records), float(key.records), float(key.records))
    low, high = _wilson(share, _effective_size(summary, key, share))
    least, most = key.records, records - (sampled - key.records)
    return Estimate(share * records, max(low * records, float(least)), min(high * records, float(most)))


def _upper(summary: Summary, sampled_records: int) -> float:
    """The most records of a key with at most so many in the sample."""
    if summary.sampled_batches == summary.batches:
        return float(sampled_records)
    share = sampled_records / summary.sampled_records
    return min(_wilson(share, summary.sampled_batches)[1] * summary.records, float(summary.records))


def _effective_size(summary: Summary, key: KeyCount, share: float) -> float:
    """The number of independent records that would tell as much as the sampled batches do: one record's variance,
    divided by the variance of the share between batches (the ratio estimator's)."""
    batches, records = summary.sampled_batches, summary.sampled_records
    if batches < 2:
        return 1.0
    between = key.squares - 2 * share * key.products + share * share * summary.squares
    variance = batches / (batches - 1) * between / records**2
    independent = share * (1 - share)
    size = independent / variance if variance > 0 and independent > 0 else float(batches)
    # The sample has a part of all batches, which makes it tell more; and a variance of few batches tells less.
    unread = 1 - batches / summary.batches
    few = (_CONFIDENCE_95 / _student(batches - 1)) ** 2
    return max(1.0, min(size, float(records)) * few / unread)


def _student(degrees: int) -> float:
    """About the limit of Student's distribution for 95 %."""
    z = _CONFIDENCE_95
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _wilson(share: float, size: float) -> tuple[float, float]:
    """Wilson's interval: it holds for small samples too, and is not empty where the share is 0 or 1."""
    z2 = _CONFIDENCE_95**2
    middle = (share + z2 / (2 * size)) / (1 + z2 / size)
    half = _CONFIDENCE_95 * sqrt(share * (1 - share) / size + z2 / (4 * size * size)) / (1 + z2 / size)
    return max(0.0, middle - half), min(1.0, middle + half)
