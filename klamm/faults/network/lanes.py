"""One direction of a disturbed connection: bytes arrive late, slowly, or only after the end of a cut.

What must stay true:
- Bytes arrive in order and are neither lost nor duplicated, however the conditions change meanwhile.
- A lane without faults keeps nothing: bytes have arrived when `put` returns, unless earlier bytes still wait.
- One step of a lane hands over one item, so that the backlog of a cut does not hold the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

# The bytes of a slow lane arrive in pieces of this duration.
PIECE_S = 0.02


class Draw(Protocol):
    """A delay in seconds for the next bytes."""

    def __call__(self) -> float: ...


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Conditions:
    """The effects of faults on the bytes in a lane.

    `delays` add up. `bytes_per_s` is None without a limit. `held` is called when a fault holds or delays bytes.
    """

    is_cut: bool = False
    delays: tuple[Draw, ...] = ()
    bytes_per_s: int | None = None
    held: Callable[[], None] = field(default=_nothing, compare=False)

    @property
    def are_clear(self) -> bool:
        return not self.is_cut and not self.delays and self.bytes_per_s is None


CLEAR = Conditions()


class _Item:
    """Bytes in the lane, or an action that happens when all earlier bytes have arrived."""

    __slots__ = ("action", "data", "due_s", "put_s")

    def __init__(self, put_s: float, due_s: float, data: memoryview | None, action: Callable[[], None]) -> None:
        self.put_s, self.due_s, self.data, self.action = put_s, due_s, data, action


class Lane:
    """`hand_over(data)` takes arriving bytes and returns how many it took, at least one. `advanced()` is called when an
    item of the lane has arrived."""

    def __init__(self, hand_over: Callable[[memoryview], int], advanced: Callable[[], None] = _nothing) -> None:
        self.held_bytes = 0
        self._hand_over = hand_over
        self._advanced = advanced
        self._conditions = CLEAR
        self._items: deque[_Item] = deque()
        self._is_stopped = False
        self._last_due_s = 0.0
        # A slow lane hands over the next bytes at this time or later.
        self._free_at_s = 0.0
        self._timer: asyncio.Handle | None = None

    @property
    def is_cut(self) -> bool:
        return self._conditions.is_cut

    @property
    def is_idle(self) -> bool:
        """Whether the lane is empty and has no faults."""
        return not self._items and self._conditions.are_clear

    def change(self, conditions: Conditions) -> None:
        """Sets new conditions. Bytes in the lane keep their time of arrival, except that ended delays no longer
        count."""
        ended = set(self._conditions.delays) - set(conditions.delays)
        self._conditions = conditions
        if conditions.are_clear:
            self._free_at_s = 0.0
        if ended or conditions.are_clear:
            self._last_due_s = 0.0
            for item in self._items:
                item.due_s = self._due_s(item.put_s)
        self._schedule()

    def put(self, data: memoryview) -> None:
        """Adds bytes. The lane refers to `data` until they have arrived."""
        if not self._items and self._conditions.are_clear and not self._is_stopped:
            taken = self._hand_over(data)
            if taken == len(data):
                return
            data = data[taken:]
        if not self._conditions.are_clear:
            self._conditions.held()
        self.held_bytes += len(data)
        self._append(data, _nothing)

    def then(self, action: Callable[[], None]) -> None:
        """Calls `action` when all earlier bytes have arrived; at once if the lane is idle."""
        if self.is_idle:
            action()
        else:
            self._append(None, action)

    def stop(self) -> None:
        """Stops handing over bytes. Actions before the first bytes still happen."""
        self._is_stopped = True

    def resume(self) -> None:
        """Hands over bytes again."""
        self._is_stopped = False
        self._schedule()

    def clear(self) -> None:
        """Drops all bytes and actions."""
        self._items.clear()
        self.held_bytes = 0
        self._schedule()

    def _append(self, data: memoryview | None, action: Callable[[], None]) -> None:
        put_s = asyncio.get_running_loop().time()
        self._items.append(_Item(put_s, self._due_s(put_s), data, action))
        if len(self._items) == 1:
            self._schedule()

    def _due_s(self, put_s: float) -> float:
        """When the next item arrives: after its own delays, and not before the item in front of it."""
        self._last_due_s = max(self._last_due_s, put_s + sum(draw() for draw in self._conditions.delays))
        return self._last_due_s

    def _schedule(self) -> None:
        """Sets the timer for the first item."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._items or self._conditions.is_cut:
            return
        first = self._items[0]
        if first.data is not None and self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        when_s = first.due_s if first.data is None else max(first.due_s, self._free_at_s)
        self._timer = loop.call_soon(self._step) if when_s <= loop.time() else loop.call_at(when_s, self._step)

    def _step(self) -> None:
        self._timer = None
        first = self._items[0]
        if first.data is None:
            self._items.popleft()
            first.action()
        else:
            self._hand_over_some(first, first.data)
        self._schedule()
        self._advanced()

    def _hand_over_some(self, item: _Item, data: memoryview) -> None:
        bytes_per_s = self._conditions.bytes_per_s
        piece = data if bytes_per_s is None else data[: max(1, int(bytes_per_s * PIECE_S))]
        taken = self._hand_over(piece)
        if bytes_per_s is not None:
            self._free_at_s = asyncio.get_running_loop().time() + taken / bytes_per_s
        if self._items and self._items[0] is item:  # Otherwise the receiver has cleared the lane.
            self.held_bytes -= taken
            item.data = data[taken:]
            if taken == len(data):
                self._items.popleft()
