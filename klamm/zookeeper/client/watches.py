"""The watches of a client. Pure.

A watch is a callback that fires once. There are three kinds, as ZooKeeper's server tells them apart: *data* (left by a
get or an exists of an existing znode), *exists* (left by an exists of an absent znode) and *children*. The server
forgets them with the connection, so the client keeps them here and arms them on the next connection (`set_watches`). A
callback that is registered twice for the same path and kind fires once.
"""

from collections.abc import Callable, Iterator
from enum import Enum

from klamm.zookeeper.keeper_exceptions import JuteError
from klamm.zookeeper.messages import EventType, SetWatches, WatcherEvent

Watch = Callable[[WatcherEvent], None]
"""Called with the event. The event's path is without the chroot."""

SET_WATCHES_BYTES = 128 * 1024
"""The size of a SetWatches request, so that thousands of watches stay below the server's limit (ZOOKEEPER-706)."""

PATHS_PER_SLICE = 5_000
"""The most paths in a SetWatches request, which is made and encoded in one step."""


class WatchKind(Enum):
    DATA = "data"
    EXISTS = "exists"
    CHILDREN = "children"


_FIRED_BY: dict[int, tuple[WatchKind, ...]] = {
    EventType.NONE: (),
    EventType.NODE_CREATED: (WatchKind.DATA, WatchKind.EXISTS),
    EventType.NODE_DATA_CHANGED: (WatchKind.DATA, WatchKind.EXISTS),
    EventType.NODE_DELETED: (WatchKind.DATA, WatchKind.EXISTS, WatchKind.CHILDREN),
    EventType.NODE_CHILDREN_CHANGED: (WatchKind.CHILDREN,),
}


class WatchTable:
    """The watches that are armed, by kind and by the path that the server knows (chroot included)."""

    def __init__(self) -> None:
        self._armed: dict[WatchKind, dict[str, list[Watch]]] = {kind: {} for kind in WatchKind}

    def add(self, kind: WatchKind, path: str, watch: Watch) -> None:
        watches = self._armed[kind].setdefault(path, [])
        if watch not in watches:
            watches.append(watch)

    def fire(self, event: WatcherEvent) -> list[Watch]:
        """Disarms and returns the watches that `event` concerns. JuteError when its type does not exist."""
        kinds = _FIRED_BY.get(event.type)
        if kinds is None:
            raise JuteError(f"watcher event of type {event.type}")
        fired: dict[Watch, None] = {}
        for kind in kinds:
            fired.update(dict.fromkeys(self._armed[kind].pop(event.path, ())))
        return list(fired)

    def set_watches(self, relative_zxid: int) -> Iterator[SetWatches]:
        """The requests that arm the watches on a new connection: all that are armed when the first request is taken."""
        armed = [(kind, list(self._armed[kind])) for kind in WatchKind]
        chunk: dict[WatchKind, list[str]] = {kind: [] for kind in WatchKind}
        size = count = 0
        for kind, paths in armed:
            for path in paths:
                path_bytes = 4 + len(path.encode())
                if count == PATHS_PER_SLICE or (size and size + path_bytes > SET_WATCHES_BYTES):
                    yield _request(relative_zxid, chunk)
                    chunk = {kind: [] for kind in WatchKind}
                    size = count = 0
                chunk[kind].append(path)
                size += path_bytes
                count += 1
        if size:
            yield _request(relative_zxid, chunk)


def _request(relative_zxid: int, chunk: dict[WatchKind, list[str]]) -> SetWatches:
    data, exists, children = (tuple(chunk[kind]) for kind in WatchKind)
    return SetWatches(relative_zxid, data, exists, children)
