"""The memory of a broker's responses: one budget for data being read for responses and data that clients have not
received yet.

A response stays in memory until its client has received it, and the client decides when. A fetch therefore gets a share
of the free budget, and returns less than it asked for (KIP-74 allows that) if the share is smaller. A client that does
not read gets nothing more and holds one share. The more such clients there are, the smaller the shares become, so that
memory remains for the other clients.

What must stay true:
- A response counts until the socket has taken all of it: the transport frees its memory only then.
- No memory is counted twice or for ever: `reading` ends with the read, `handed_over` is called when the socket gets the
  response, `taken` when it has taken the last byte, and `gone` when the connection ends.
- Consumers leave a part of the budget to followers, which never wait: replication comes first.
- Stalled or slow clients cannot keep a used-up budget: clients that have taken nothing for `STALLED_AFTER_MS`, or not
  everything within `TAKEN_WITHIN_MS`, are disconnected, the first to stall first, until there is room. No client is
  disconnected while there is room.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Protocol

# A fetch gets this fraction of the free budget, so that later fetches get memory too.
SHARE_OF_FREE = 8
# The part of the budget that consumers leave to followers.
SHARE_OF_FOLLOWERS = 4
# The most bytes read for one response. A larger read would hold the loop for long, and larger pieces of memory cost
# three times as much, because the system takes them back after each use.
MAX_SHARE_BYTES = 8 * 1024 * 1024
# A consumer whose share would be smaller waits for room.
MIN_SHARE_BYTES = 64 * 1024
# How long the consumer waits; then the response has no records, as if there were none.
MAX_WAIT_MS = 500
STALLED_AFTER_MS = 2_000
# A client itself gives up after this time without a response (request.timeout.ms).
TAKEN_WITHIN_MS = 30_000


class Receiver(Protocol):
    """A connection, as this module needs it."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the connection's socket has not taken yet."""

    def disconnect(self, reason: str) -> None:
        """Ends the connection at once and drops the bytes that its socket has not taken."""


class _Untaken:
    """The responses that a client has not taken: `held_bytes` since `began_s`. The socket has not taken `left_bytes` of
    them, a number that has not changed since `since_s`."""

    __slots__ = ("began_s", "held_bytes", "left_bytes", "since_s")

    def __init__(self, held_bytes: int, left_bytes: int, now_s: float) -> None:
        self.held_bytes = held_bytes
        self.began_s = now_s
        self.left_bytes = left_bytes
        self.since_s = now_s

    def is_overdue(self, now_s: float) -> bool:
        return self.since_s <= now_s - STALLED_AFTER_MS / 1000 or self.began_s <= now_s - TAKEN_WITHIN_MS / 1000


class ResponseMemory:
    """The budget of one broker."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        # For each receiver, the bytes read for the response that it waits for.
        self._read: dict[Receiver, int] = {}
        self._untaken: dict[Receiver, _Untaken] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # -- records read by fetches ------------------------------------------------------------------------------------

    async def share(self, *, is_follower: bool) -> int:
        """How many bytes a fetch may read now. A consumer waits for room, and gets 0 when there is none in time."""
        if not is_follower:
            await self._room_within(MAX_WAIT_MS)
        if is_follower:
            return min(max(0, self.budget_bytes - self.held_bytes) // SHARE_OF_FREE, MAX_SHARE_BYTES)
        share = self._share_of_consumer()
        return share if share >= MIN_SHARE_BYTES else 0

    async def wait_for_room(self) -> None:
        """Waits for room before a large response of another API than Fetch is made, but no longer than it takes to
        disconnect stalled clients. The response may then exceed the budget by its own size."""
        await self._room_within(2 * STALLED_AFTER_MS)

    async def _room_within(self, max_wait_ms: int) -> None:
        if self._is_short:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max_wait_ms / 1000):
                    await self._room()

    def _share_of_consumer(self) -> int:
        free_bytes = self.budget_bytes - self.budget_bytes // SHARE_OF_FOLLOWERS - self.held_bytes
        return min(free_bytes // SHARE_OF_FREE, MAX_SHARE_BYTES)

    @contextlib.contextmanager
    def reading(self, size_bytes: int) -> Iterator[None]:
        """Reserves `size_bytes` during a read. The caller must report the bytes with `read` before other code runs."""
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self._free(size_bytes)

    def read(self, receiver: Receiver, size_bytes: int) -> None:
        """Counts the bytes read for a response, which is built and encoded next; a large response is encoded in
        steps."""
        self._read[receiver] = self._read.get(receiver, 0) + size_bytes
        self.held_bytes += size_bytes

    def handed_over(self, receiver: Receiver) -> None:
        """The response was passed to the socket."""
        size_bytes = self._read.pop(receiver, 0)
        if size_bytes:
            self._free(size_bytes)

    # -- responses that clients have not read -----------------------------------------------------------------------

    def untaken(self, receiver: Receiver, size_bytes: int) -> None:
        """The client has not yet taken all of a response of this size."""
        now_s = asyncio.get_running_loop().time()
        entry = self._untaken.get(receiver)
        if entry is None:
            entry = self._untaken[receiver] = _Untaken(0, 0, now_s)
        entry.held_bytes += size_bytes
        entry.left_bytes = receiver.unsent_bytes
        self.held_bytes += size_bytes
        if self._is_short:
            self._look_for_stalled()

    def taken(self, receiver: Receiver) -> None:
        """The socket has taken everything."""
        entry = self._untaken.pop(receiver, None)
        if entry is not None:
            self._free(entry.held_bytes)

    def gone(self, receiver: Receiver) -> None:
        """The connection has ended."""
        self.handed_over(receiver)
        self.taken(receiver)

    @property
    def untaken_count(self) -> int:
        """How many clients have not taken all of their responses."""
        return len(self._untaken)

    @property
    def _is_short(self) -> bool:
        return self._share_of_consumer() < MIN_SHARE_BYTES

    def _free(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        if self._waiters and not self._is_short:
            self._wake_one()

    # -- when there is no room --------------------------------------------------------------------------------------

    async def _room(self) -> None:
        """Returns when there is room again. Callers continue in the order of their arrival."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._look_for_stalled()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
        # Wakes the next caller only after this one has taken its share.
        asyncio.get_running_loop().call_soon(self._wake_next)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_next(self) -> None:
        if not self._is_short:
            self._wake_one()

    def _look_for_stalled(self) -> None:
        """Disconnects stalled and slow clients until there is room; checks again later while there is no room."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for receiver, entry in self._untaken.items():
            left_bytes = receiver.unsent_bytes
            if left_bytes < entry.left_bytes:
                entry.since_s = now_s
            entry.left_bytes = left_bytes
        overdue = [(receiver, entry) for receiver, entry in self._untaken.items() if entry.is_overdue(now_s)]
        for receiver, entry in sorted(overdue, key=lambda one: one[1].since_s):
            if not self._is_short:
                break
            receiver.disconnect(
                f"has taken nothing of its responses for {(now_s - entry.since_s) * 1000:.0f} ms, and not all within"
                f" {(now_s - entry.began_s) * 1000:.0f} ms, while klamm.queued.max.response.bytes={self.budget_bytes}"
                " is used up"
            )
            self.taken(receiver)
        if self._is_short and self._untaken:
            self._timer = loop.call_later(STALLED_AFTER_MS / 4000, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._is_short:
            self._look_for_stalled()
