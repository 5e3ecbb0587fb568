"""How far followers are behind, for the map of partitions: read in pieces of its rows, once for all pages.

What must stay true:
- A piece is read when a page shows it, at most every `KEPT_S`, whatever the number of pages. Pieces are read one after
  another, in at most `SHARE` of the time, so that a map of 100,000 partitions costs the brokers little.
- The number of pieces in memory is bounded.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.consumer.offsets import ListedOffset, list_replica_offsets
from klamm.cockpit.page_json import encoded_json

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.cockpit.partition_map import PartitionMap

PIECE_ROWS: Final = 1_000
KEPT_S: Final = 5.0
KEPT_PIECES: Final = 300
SHARE: Final = 0.2
TIMEOUT_MS: Final = 2_000
UNKNOWN: Final = -1


class MapLags:
    """The newest lags of pieces of the map."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._kept: OrderedDict[tuple[int, int], tuple[float, bytes]] = OrderedDict()

    async def read(self, client: "ClusterClient", found: "PartitionMap", piece: int) -> bytes:
        """JSON: {"version", "first", "lags"}. `lags` has, for each row from `first` on and each broker of the map, how
        many records its replica is behind the leader, or -1 if that is unknown. Raises ClientError."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            key = (found.version, piece)
            kept = self._kept.get(key)
            if kept is not None and loop.time() - kept[0] < KEPT_S:
                return kept[1]
            await asyncio.sleep(self._next_s - loop.time())
            began_s = loop.time()
            answer = encoded_json(await _read(client, found, piece * PIECE_ROWS))
            self._next_s = loop.time() + (loop.time() - began_s) * (1 / SHARE - 1)
            self._kept[key] = (loop.time(), answer)
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT_PIECES:
                self._kept.popitem(last=False)
            return answer


async def _read(client: "ClusterClient", found: "PartitionMap", first: int) -> dict[str, Any]:
    version, brokers, live = found.version, found.brokers, found.live
    rows = list(found.rows(first, PIECE_ROWS))
    asked = [TopicPartitionReplica(*key, each) for key, state in rows for each in state.replicas if each in live]
    found_ends = await list_replica_offsets(client, asked, timeout_ms=TIMEOUT_MS) if asked else {}
    ends = {replica: end.offset for replica, end in found_ends.items() if isinstance(end, ListedOffset)}

    def lags() -> Iterator[int]:
        for key, state in rows:
            end = ends.get(TopicPartitionReplica(*key, state.leader))
            yield from _lags([ends.get(TopicPartitionReplica(*key, each)) for each in brokers], end)

    return {"version": version, "first": first, "lags": list(lags())}


def _lags(ends: Sequence[int | None], end_of_leader: int | None) -> Iterator[int]:
    for end in ends:
        yield UNKNOWN if end is None or end_of_leader is None else max(0, end_of_leader - end)
