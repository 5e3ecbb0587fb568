"""The partitions that a request names, which many APIs list by topic."""

from collections.abc import Iterable

from klamm.base.slices import CHEAP_SLICE, Slices
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import PartitionKey


def named_partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> Steps[list[PartitionKey]]:
    """The partitions of (topic, numbers)."""
    named: list[PartitionKey] = []
    slices = Slices(CHEAP_SLICE)
    for topic, numbers in topics:
        for number in numbers:
            named.append((topic, number))
            if slices.is_over():
                yield
    return named
