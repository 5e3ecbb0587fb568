"""The memory of a listener's requests, over all connections: requests that are being received, and requests that are
not answered yet. Each listener has its own, so that clients take no memory from a listener that only brokers use.

A connection may always have one small request (up to `SMALL_BYTES`), so consumers, followers and the controller
continue whatever other clients send. All other requests share one budget with three parts:

- *small requests* beyond one for each connection: when their part is used up, a connection is muted until its own
  requests are answered;
- *large produce requests*, which are in memory until they are acknowledged;
- *other large requests*, which are in memory until they are decoded. They do not share the part of produces, because
  produces wait for the fetches of followers.

A large request gets memory in pieces as it arrives. Its connection is not read while there is no memory, or while an
earlier request of the connection would keep the large one from starting.

What must stay true:
- Progress: the connection whose large request began first gets its memory, even beyond the part, unless complete
  requests alone fill the part. So half-received requests do not wait for each other.
- A client that has begun a large request and does not send cannot keep the memory: while other requests wait, clients
  that have sent nothing for `STALLED_AFTER_MS`, or not everything within `RECEIVED_WITHIN_MS`, are disconnected. No
  client is disconnected while there is room. A client that is muted for its own unanswered requests does not count as
  silent, but has no more time than the others; a client that is muted because of its quota counts as silent.
- The bound is the budget, one small request for each connection, and two of the largest requests.
"""

import asyncio
from typing import Protocol

from klamm.net.framing import RECEIVE_BUFFER_BYTES

# A request of this size is received at once, in the buffer that all connections share.
SMALL_BYTES = RECEIVE_BUFFER_BYTES
# The key of the API whose requests keep their bytes.
PRODUCE = 0
# The parts of the budget for small requests and for large requests other than produces.
SHARE_OF_SMALL = 4
SHARE_OF_OTHERS = 4
STALLED_AFTER_MS = 2_000
# A client itself gives up after this time without a response (request.timeout.ms).
RECEIVED_WITHIN_MS = 30_000


class Sender(Protocol):
    """A connection, as this module needs it."""

    @property
    def received_bytes(self) -> int:
        """How much of the request that is being received has arrived."""

    @property
    def is_held_up(self) -> bool:
        """Whether this broker does not read from the connection, for a reason other than the client's quota or its
        unread responses."""

    def memory_granted(self) -> None:
        """The sender has got the memory that it waited for: its connection may be read again."""

    def disconnect(self, reason: str) -> None:
        """Ends the connection at once."""


class _Incomplete:
    """A large request that is being received.

    It has `granted_bytes` and waits for `wanted_bytes` more. If `wanted_bytes` is 0, it waits for its client.
    """

    __slots__ = ("began_s", "granted_bytes", "received_bytes", "since_s", "wanted_bytes")

    def __init__(self, now_s: float) -> None:
        self.granted_bytes = 0
        self.wanted_bytes = 0
        self.received_bytes = 0
        # When the request began, moved on by the time that it waited for memory.
        self.began_s = now_s
        # Since when the client has sent nothing, or the request waits for memory.
        self.since_s = now_s


class Part:
    """The part of the budget for one kind of large requests."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        # Bytes of all complete requests so far, and how many of them are free again.
        self.received_bytes = 0
        self.released_bytes = 0
        # Bytes of incomplete requests.
        self.receiving_bytes = 0
        # In the order in which the requests began.
        self._incomplete: dict[Sender, _Incomplete] = {}
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of complete requests that are still held."""
        return self.received_bytes - self.released_bytes

    @property
    def is_full(self) -> bool:
        """Whether complete requests alone fill the part."""
        return self.received_bytes - self.released_bytes >= self.limit_bytes

    def grow(self, sender: Sender, more_bytes: int) -> bool:
        """Takes `more_bytes` for the sender's incomplete request. False: the sender waits for `memory_granted`."""
        entry = self._incomplete.get(sender)
        if entry is None:
            entry = self._incomplete[sender] = _Incomplete(asyncio.get_running_loop().time())
        if self._has_room(sender, more_bytes):
            self._grant(entry, more_bytes)
            return True
        entry.wanted_bytes = more_bytes
        entry.since_s = asyncio.get_running_loop().time()
        self._waiting += 1
        self._look_for_stalled()
        return False

    def received(self, sender: Sender, size_bytes: int) -> None:
        """The request is complete."""
        self._forget(sender)
        self.received_bytes += size_bytes
        self._wake()

    def release(self, size_bytes: int) -> None:
        """The memory of a complete request is free."""
        self.released_bytes += size_bytes
        if self._waiting:
            self._wake()

    def gone(self, sender: Sender) -> None:
        """The connection has ended."""
        self._forget(sender)
        self._wake()

    def _forget(self, sender: Sender) -> None:
        entry = self._incomplete.pop(sender, None)
        if entry is not None:
            self.receiving_bytes -= entry.granted_bytes
            self._waiting -= entry.wanted_bytes > 0

    def _has_room(self, sender: Sender, more_bytes: int) -> bool:
        if self.held_bytes + self.receiving_bytes + more_bytes <= self.limit_bytes:
            return True
        return not self.is_full and next(iter(self._incomplete)) is sender

    def _grant(self, entry: _Incomplete, more_bytes: int) -> None:
        entry.granted_bytes += more_bytes
        self.receiving_bytes += more_bytes

    def _wake(self) -> None:
        """Gives memory to waiting requests, in the order in which they began."""
        if not self._waiting:
            return
        now_s = asyncio.get_running_loop().time()
        for sender, entry in list(self._incomplete.items()):
            if entry.wanted_bytes and self._has_room(sender, entry.wanted_bytes):
                self._grant(entry, entry.wanted_bytes)
                entry.wanted_bytes = 0
                entry.began_s += now_s - entry.since_s
                entry.since_s = now_s
                self._waiting -= 1
                sender.memory_granted()

    def _look_for_stalled(self) -> None:
        """Disconnects clients that do not send, until there is room; checks again later while requests wait."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        sending = [(sender, entry) for sender, entry in self._incomplete.items() if not entry.wanted_bytes]
        for sender, entry in sending:
            if sender.received_bytes > entry.received_bytes or sender.is_held_up:
                entry.received_bytes, entry.since_s = sender.received_bytes, now_s
        for sender, entry in sorted(sending, key=lambda one: one[1].since_s):
            silent_ms, took_ms = (now_s - entry.since_s) * 1000, (now_s - entry.began_s) * 1000
            if self._waiting and (silent_ms >= STALLED_AFTER_MS or took_ms >= RECEIVED_WITHIN_MS):
                sender.disconnect(
                    f"has sent nothing of its request for {silent_ms:.0f} ms, and not all within {took_ms:.0f} ms,"
                    f" while others wait for {self.limit_bytes} bytes, the part of queued.max.request.bytes for such"
                    " requests"
                )
                self.gone(sender)
        if self._waiting:
            self._timer = loop.call_later(STALLED_AFTER_MS / 4000, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._waiting:
            self._look_for_stalled()


class RequestMemory:
    """The budget of one listener."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.small = Part(budget_bytes // SHARE_OF_SMALL)
        self.others = Part(budget_bytes // SHARE_OF_OTHERS)
        self.produces = Part(budget_bytes - self.small.limit_bytes - self.others.limit_bytes)

    def part_of(self, size_bytes: int, api_key: int | None) -> Part:
        """The part that a request of this size and API uses."""
        if size_bytes <= SMALL_BYTES:
            return self.small
        return self.produces if api_key == PRODUCE else self.others

    @property
    def received_bytes(self) -> int:
        """The bytes of all complete requests so far."""
        return self.small.received_bytes + self.produces.received_bytes + self.others.received_bytes

    @property
    def held_bytes(self) -> int:
        return sum(part.held_bytes + part.receiving_bytes for part in (self.small, self.produces, self.others))
