"""The watches that clients have set on the tree, each of which fires once. Pure.

What must stay true:
- A watch fires at most once, in the order of the events. A client gets one event for a deletion.
- The watches of a watcher are forgotten in steps, and the watches on very many events fire in steps. A forgotten
  watcher gets no more events.
- No order here comes from a `set`.

Source: WatchManager and DataTree.setWatches of ZooKeeper 3.5.9.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from klamm.base.slices import Slices, Steps, in_one_go
from klamm.zookeeper import messages
from klamm.zookeeper.messages import EventType, WatcherType
from klamm.zookeeper.server.nodes import parent_of
from klamm.zookeeper.server.tree import Event, ZnodeTree

W = TypeVar("W", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class _WatchTable(Generic[W]):
    """Watches of one kind: the watchers of each path."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[W, None]] = {}
        self._by_watcher: dict[W, dict[str, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_path.values()))

    def add(self, path: str, watcher: W) -> None:
        self.by_path.setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[path] = None

    def has(self, path: str, watcher: W) -> bool:
        return watcher in self.by_path.get(path, ())

    def discard(self, path: str, watcher: W) -> None:
        if self.has(path, watcher):
            self._drop(self.by_path, path, watcher)
            self._drop(self._by_watcher, watcher, path)

    def take(self, path: str) -> dict[W, None]:
        """Ends all watches of a path and returns the watchers."""
        watchers = {watcher: None for watcher in self.by_path.pop(path, ()) if watcher in self._by_watcher}
        for watcher in watchers:
            self._drop(self._by_watcher, watcher, path)
        return watchers

    def forget(self, watcher: W, slices: Slices) -> Steps[None]:
        paths = self._by_watcher.pop(watcher, {})
        while paths:
            self._drop(self.by_path, paths.popitem()[0], watcher)
            if slices.spend():
                yield

    @staticmethod
    def _drop(table: dict[K, dict[V, None]], key: K, value: V) -> None:
        entries = table.get(key)
        if entries is not None:
            entries.pop(value, None)
            if not entries:
                del table[key]


class Watches(Generic[W]):
    """The one-shot watches of all watchers. Data watches (set by getData and exists) and child watches."""

    def __init__(self) -> None:
        self._data: _WatchTable[W] = _WatchTable()
        self._children: _WatchTable[W] = _WatchTable()

    def __len__(self) -> int:
        return len(self._data) + len(self._children)

    def add_data(self, path: str, watcher: W) -> None:
        """Fires once, when the znode is created, changed or deleted."""
        self._data.add(path, watcher)

    def add_children(self, path: str, watcher: W) -> None:
        """Fires once, when a child is created or deleted, or the znode itself is deleted."""
        self._children.add(path, watcher)

    def forget(self, watcher: W) -> Steps[None]:
        """Ends all watches of a watcher, in steps. The watcher must not set more."""
        slices = Slices()
        yield from self._data.forget(watcher, slices)
        yield from self._children.forget(watcher, slices)

    def has(self, path: str, kind: WatcherType, watcher: W) -> bool:
        return any(table.has(path, watcher) for table in self._tables(kind))

    def remove(self, path: str, kind: WatcherType, watcher: W) -> bool:
        """Ends the watcher's watches of this kind on a path; returns whether there was one."""
        found = self.has(path, kind, watcher)
        for table in self._tables(kind):
            table.discard(path, watcher)
        return found

    def _tables(self, kind: WatcherType) -> list[_WatchTable[W]]:
        return {
            WatcherType.DATA: [self._data],
            WatcherType.CHILDREN: [self._children],
            WatcherType.ANY: [self._data, self._children],
        }[kind]

    def fire(self, events: Iterable[Event]) -> list[tuple[W, Event]]:
        """The watchers and the events for them, in order. A watcher of both the data and the children of a znode gets
        one event for its deletion."""
        return in_one_go(self.fire_steps(events))

    def fire_steps(self, events: Iterable[Event]) -> Steps[list[tuple[W, Event]]]:
        """Like `fire`, in steps."""
        fired: list[tuple[W, Event]] = []
        if not self._data.by_path and not self._children.by_path:
            return fired
        slices = Slices()
        for event in events:
            if slices.spend():
                yield
            watchers = self._data.take(event.path) if event.path in self._data.by_path else {}
            if self._children.by_path:
                if event.type == EventType.NODE_DELETED:
                    watchers |= self._children.take(event.path)
                fired += [(watcher, event) for watcher in watchers]
                if event.type != EventType.NODE_DATA_CHANGED:
                    parent = parent_of(event.path)
                    children_changed = Event(EventType.NODE_CHILDREN_CHANGED, parent)
                    fired += [(watcher, children_changed) for watcher in self._children.take(parent)]
            elif watchers:
                fired += [(watcher, event) for watcher in watchers]
        return fired

    def set_again(self, request: messages.SetWatches, tree: ZnodeTree, watcher: W) -> Steps[list[Event]]:
        """Sets the watches of a client that has reconnected; returns the events that it missed since its last zxid
        (DataTree.setWatches). A watch that missed an event is not set again."""
        missed: list[Event] = []
        slices = Slices()
        for path in request.data:
            if slices.spend():
                yield
            stat = tree.find(path)
            if stat is None:
                missed.append(Event(EventType.NODE_DELETED, path))
            elif stat.mzxid > request.relative_zxid:
                missed.append(Event(EventType.NODE_DATA_CHANGED, path))
            else:
                self.add_data(path, watcher)
        for path in request.exists:
            if slices.spend():
                yield
            if tree.find(path) is not None:
                missed.append(Event(EventType.NODE_CREATED, path))
            else:
                self.add_data(path, watcher)
        for path in request.children:
            if slices.spend():
                yield
            stat = tree.find(path)
            if stat is None:
                missed.append(Event(EventType.NODE_DELETED, path))
            elif stat.pzxid > request.relative_zxid:
                missed.append(Event(EventType.NODE_CHILDREN_CHANGED, path))
            else:
                self.add_children(path, watcher)
        return missed
