"""What the stores of znodes have in common: watches, reads of many znodes, and the greatest size of a znode.

What must stay true:
- Two equal watches are armed once. A watch gets no data, so the caller reads again.
- Reads of many znodes are pipelined. A znode that does not exist is left out of the result.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.client.watches import Watch
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, NoNode
from klamm.zookeeper.messages import Stat, WatcherEvent

K = TypeVar("K")

# A ZooKeeper server accepts requests of 1,048,575 bytes (jute.maxbuffer), including headers. Brokers create smaller
# znodes, so that a few hundred partitions of the largest topic can be reassigned at a time.
MAX_ZNODE_BYTES = 1_000_000
MAX_REASSIGNED_ZNODE_BYTES = 1_040_000


@dataclass(frozen=True, slots=True)
class _Notice:
    """A watch that calls `callback` with fixed arguments. Two equal watches are armed once."""

    callback: Callable[..., None]
    arguments: tuple[Any, ...] = ()

    def __call__(self, _event: WatcherEvent) -> None:
        self.callback(*self.arguments)


def notice(callback: Callable[..., None] | None, *arguments: Any) -> Watch | None:
    """A watch that calls `callback(*arguments)` for any event."""
    return None if callback is None else _Notice(callback, arguments)


async def get_all(
    client: ZooKeeperClient, paths: Mapping[K, str], watch: Callable[[K], None] | None = None
) -> dict[K, tuple[bytes, Stat]]:
    """The data and stat of the znodes that exist, read in one pipeline."""
    pending = dict(paths)
    found: dict[K, tuple[bytes, Stat]] = {}
    while pending:
        answers = await asyncio.gather(
            *(client.submit_get(path, notice(watch, key)) for key, path in pending.items()),
            return_exceptions=True,
        )
        lost = {}
        for (key, path), answer in zip(pending.items(), answers, strict=True):
            if not isinstance(answer, BaseException):
                found[key] = answer
            elif isinstance(answer, ConnectionLoss):
                lost[key] = path
            elif not isinstance(answer, NoNode):
                raise answer
        pending = lost
    return {key: found[key] for key in paths if key in found}


def check_size(name: str, size_bytes: int) -> None:
    """Raises KafkaError for a znode over the server's limit: the server would close the connection at every try."""
    if size_bytes > MAX_ZNODE_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the znode of '{name}' would take {size_bytes} bytes, ZooKeeper takes {MAX_ZNODE_BYTES}",
        )
