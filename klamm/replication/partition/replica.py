"""A follower as its leader knows it: its log end offset, and when it was last caught up. Pure.

Times are milliseconds of the loop's clock.

Source: kafka.cluster.Replica.
"""

from klamm.protocol.vocabulary import UNKNOWN_OFFSET

NEVER_MS = float("-inf")


class Replica:
    """A remote replica of one partition, as its fetches show it."""

    __slots__ = ("_last_fetch_leader_end_offset", "_last_fetch_ms", "broker_id", "last_caught_up_ms", "log_end_offset",
                 "log_start_offset")  # fmt: skip

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        # The replica's last fetch offset. The replica has every record before this offset.
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        # The latest time at which the replica is known to have had every record of the leader.
        self.last_caught_up_ms = NEVER_MS
        self._last_fetch_leader_end_offset = 0
        self._last_fetch_ms = NEVER_MS

    def update_fetch_state(
        self, fetch_offset: int, log_start_offset: int, now_ms: float, leader_end_offset: int
    ) -> None:
        """The replica fetched from `fetch_offset` while the leader's log ended at `leader_end_offset`.

        A fetch from at least the leader's end at the previous fetch shows that the replica was caught up at that time.
        Under a steady load a replica never reaches the leader's current end.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self._last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self._last_fetch_leader_end_offset = leader_end_offset
        self._last_fetch_ms = now_ms

    def leader_epoch_started(
        self, leader_end_offset: int, now_ms: float, *, in_sync: bool, forget_offsets: bool
    ) -> None:
        """A new leader epoch began: a member of the ISR has the usual time to catch up. `forget_offsets` is true when
        the replica's log may have changed since its last fetch."""
        if forget_offsets:
            self.log_end_offset = self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = now_ms if in_sync else NEVER_MS
        self._last_fetch_leader_end_offset = leader_end_offset
        self._last_fetch_ms = now_ms
