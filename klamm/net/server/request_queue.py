"""The requests of a broker that have arrived and wait for an earlier one of their connection (queued.max.requests).

Kafka's network threads stop reading when this many requests wait for its request handlers. A broker of klamm handles a
request as soon as the earlier requests of its connection are answered, so only pipelined requests wait. While too many
wait, a connection is read only when it has no other request: a connection may always have one.
"""

UNLIMITED = 2**31 - 1


class RequestQueue:
    """Counts the waiting requests of all connections."""

    __slots__ = ("_length", "_max_requests", "is_full")

    def __init__(self, max_requests: int = UNLIMITED) -> None:
        self._max_requests = max_requests
        self._length = 0
        self.is_full = False

    def __len__(self) -> int:
        """How many requests wait."""
        return self._length

    def add(self, requests: int) -> None:
        """Counts this many more waiting requests; a negative number counts fewer."""
        self._length += requests
        self.is_full = self._length >= self._max_requests
