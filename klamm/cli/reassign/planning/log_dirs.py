"""Balances the bytes of each broker's log directories. Pure.

A new replica goes to the directory with the fewest bytes. A replica that stays moves to another directory only while a
directory is outside the tolerance. Brokers whose directories are not known choose for themselves.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, MutableMapping, Sequence
from operator import itemgetter

from klamm.cli.reassign.planning.model import ANY_LOG_DIR, Broker
from klamm.cli.reassign.planning.shares import band


class Replica:
    """A replica on a broker: `path` is its directory, None for a new one; a pinned one stays where it is."""

    __slots__ = ("is_pinned", "partition", "path", "size_bytes")

    def __init__(self, partition: int, size_bytes: int, path: str | None, *, is_pinned: bool = False) -> None:
        self.partition = partition
        self.size_bytes = size_bytes
        self.path = path
        self.is_pinned = is_pinned


def balanced_log_dirs(broker: Broker, replicas: Sequence[Replica], tolerance: float) -> Mapping[int, str]:
    """The directory of each replica of this broker, by partition; ANY_LOG_DIR where it is not known."""
    used = dict.fromkeys(broker.log_dirs, 0)
    for each in replicas:
        if each.path in used:
            used[each.path] += each.size_bytes
    chosen = {each.partition: each.path or ANY_LOG_DIR for each in replicas}
    if len(used) < 2:
        return chosen
    largest_first = sorted(replicas, key=lambda each: (-each.size_bytes, each.partition))
    for each in largest_first:
        if each.path is None:
            chosen[each.partition] = path = min(used, key=lambda path: (used[path], path))
            used[path] += each.size_bytes
    _even_out(replicas, chosen, used, tolerance)
    return chosen


def _even_out(
    replicas: Sequence[Replica], chosen: MutableMapping[int, str], used: MutableMapping[str, int], tolerance: float
) -> None:
    mean, low, high = band(sum(used.values()) / len(used), tolerance, is_count=False)
    movable: dict[str, list[tuple[int, int]]] = {path: [] for path in used}
    for each in replicas:
        if chosen[each.partition] in used and not each.is_pinned:
            movable[chosen[each.partition]].append((each.size_bytes, each.partition))
    for sizes in movable.values():
        sizes.sort()
    while True:
        source = max(used, key=lambda path: (used[path], path))
        destination = min(used, key=lambda path: (used[path], path))
        if used[source] <= high and used[destination] >= low:
            return
        # The largest replica that takes neither directory past the mean, or the smallest that still narrows the gap.
        limit = min(used[source] - mean, mean - used[destination])
        fitting = bisect_right(movable[source], limit, key=itemgetter(0))
        position = max(0, fitting - 1)
        if not movable[source] or not 0 < movable[source][position][0] < used[source] - used[destination]:
            return
        size_bytes, partition = movable[source].pop(position)
        insort(movable[destination], (size_bytes, partition))
        used[source] -= size_bytes
        used[destination] += size_bytes
        chosen[partition] = destination
