"""The causal order of entries, for brokers whose clocks differ. Pure.

The order starts from that of time, and keeps these rules, which need no clock:

1. The entries of one broker keep their order.
2. The controller's decision about a partition (the first entry of a controller with that leader epoch) stands before
   every other broker's entry with that partition and leader epoch.
3. The first entry of a controller epoch, written by its controller, stands before every other broker's entry that names
   that controller epoch.
4. All entries of controllers with an older epoch stand before those of a newer one.

Of the entries that the rules allow next, the one with the earliest time comes next. Rules can contradict each other
(a controller that was replaced and has not noticed still writes): then the earliest entry comes next.
"""

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple


class Fact(NamedTuple):
    """What the order of an entry depends on. `writer` is the broker, or the file where the entry names no broker."""

    writer: Hashable
    is_controller: bool
    controller_epoch: int | None
    partition: tuple[str, int] | None
    leader_epoch: int | None


def causal_order(facts: Sequence[Fact]) -> list[int]:
    """The indexes of entries, which are given in the order of time, in causal order."""
    followers, waits_for = _rules(facts)
    ready = [index for index, count in enumerate(waits_for) if count == 0]
    heapify(ready)
    order: list[int] = []
    is_placed = bytearray(len(facts))
    earliest = 0
    while len(order) < len(facts):
        if not ready:
            while is_placed[earliest]:
                earliest += 1
            ready.append(earliest)
        index = heappop(ready)
        if is_placed[index]:
            continue
        is_placed[index] = True
        order.append(index)
        for follower in followers.get(index, ()):
            waits_for[follower] -= 1
            if waits_for[follower] == 0 and not is_placed[follower]:
                heappush(ready, follower)
    return order


def _rules(facts: Sequence[Fact]) -> tuple[dict[int, list[int]], list[int]]:
    """(the entries that each entry stands before, how many entries stand before each entry)."""
    followers: dict[int, list[int]] = {}
    waits_for = [0] * len(facts)

    def before(first: int, second: int) -> None:
        followers.setdefault(first, []).append(second)
        waits_for[second] += 1

    decisions: dict[tuple[tuple[str, int], int], int] = {}
    epochs: dict[int, list[int]] = {}
    last_of: dict[Hashable, int] = {}
    for index, fact in enumerate(facts):
        if fact.writer in last_of:
            before(last_of[fact.writer], index)
        last_of[fact.writer] = index
        if fact.is_controller and fact.controller_epoch is not None:
            epochs.setdefault(fact.controller_epoch, []).append(index)
            if fact.partition is not None and fact.leader_epoch is not None:
                decisions.setdefault((fact.partition, fact.leader_epoch), index)
    for index, fact in enumerate(facts):
        if fact.is_controller:
            continue
        causes = []
        if fact.partition is not None and fact.leader_epoch is not None:
            causes.append(decisions.get((fact.partition, fact.leader_epoch)))
        if fact.controller_epoch in epochs:
            causes.append(epochs[fact.controller_epoch][0])
        for cause in causes:
            if cause is not None and facts[cause].writer != fact.writer:
                before(cause, index)
    ascending = sorted(epochs)
    for older, newer in pairwise(ascending):
        for last in _last_of_each_writer(facts, epochs[older]):
            before(last, epochs[newer][0])
    return followers, waits_for


def _last_of_each_writer(facts: Sequence[Fact], indexes: Sequence[int]) -> list[int]:
    return list({facts[index].writer: index for index in indexes}.values())
