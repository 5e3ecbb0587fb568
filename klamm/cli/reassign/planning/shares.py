"""How much of a dimension each broker should have, and how far from that it may be. Pure.

Brokers of one rack have equal shares. Racks share by their number of brokers, as far as the spread of replicas allows:
with three racks and three replicas, each rack has one replica of every partition, whatever its number of brokers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_STEPS: Final = 100


class Band(NamedTuple):
    """A broker's share, and the least and the most amount within the tolerance."""

    share: float
    low: float
    high: float


def band(share: float, tolerance: float, *, is_count: bool) -> Band:
    """A count may always be rounded up or down, however small the tolerance."""
    low, high = share * (1 - tolerance), share * (1 + tolerance)
    if is_count:
        # A sum of floats that should be whole may be a little off.
        share = round(share, 9)
        low, high = min(math.floor(share), math.ceil(low)), max(math.ceil(share), math.floor(high))
    return Band(share, low, high)


def rack_shares(brokers_in_rack: Mapping[str, int], total: float, least: float, most: float) -> dict[str, float]:
    """The shares of racks, in proportion to their brokers but each from `least` to `most`, that sum up to `total`."""
    brokers = sum(brokers_in_rack.values())
    if not least * len(brokers_in_rack) <= total <= most * len(brokers_in_rack):
        return {rack: total * count / brokers for rack, count in brokers_in_rack.items()}

    def shares(per_broker: float) -> dict[str, float]:
        return {rack: min(max(per_broker * count, least), most) for rack, count in brokers_in_rack.items()}

    low, high = 0.0, max(total, most)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(shares(middle).values()) < total else (low, middle)
    return shares(high)


def levels(loads: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[float]:
    """What each broker has after the least movement that brings all of them from `low` to `high`.

    The excess of the brokers above `high` goes to the lowest brokers, or the deficit of the brokers below `low` comes
    from the highest brokers. The sum stays the same. Without an excess and a deficit, the levels are the loads.
    """
    excess = sum(max(0.0, load - top) for load, top in zip(loads, high, strict=True))
    deficit = sum(max(0.0, bottom - load) for load, bottom in zip(loads, low, strict=True))

    def clamped(floor: float, ceiling: float) -> list[float]:
        """`floor` and `ceiling` are fractions of the way from `low` to `high`."""
        return [
            min(max(load, bottom + floor * (top - bottom)), bottom + ceiling * (top - bottom))
            for load, bottom, top in zip(loads, low, high, strict=True)
        ]

    if excess == deficit:
        return clamped(0.0, 1.0)
    total = sum(loads)
    least, most = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (least + most) / 2
        found = clamped(middle, 1.0) if excess > deficit else clamped(0.0, middle)
        least, most = (middle, most) if sum(found) < total else (least, middle)
    return found
