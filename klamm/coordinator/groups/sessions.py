"""The session timeouts of group members (Kafka's `DelayedHeartbeat`).

What must stay true:
- Each member and each pending member id has at most one timer; Dead groups have no timers.
- A member that waits for the coordinator's answer cannot send heartbeats and does not expire; the answer restarts its
  session. New members are the exception: the coordinator may not notice when they disconnect, so they wait for a
  limited time (KAFKA-7610).
"""

from collections.abc import Callable

from klamm.base.purgatory import DelayedOperation, Purgatory
from klamm.coordinator.groups.group import Group, Member

# How long a new member waits for its first generation. A constant in Kafka, too.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


class DelayedHeartbeat(DelayedOperation):
    """Waits for a heartbeat. A check of its key means that a heartbeat came or is no longer needed."""

    def is_ready(self) -> bool:
        return True


class Sessions:
    """The sessions of the members of all groups. `on_expired` is called for a member whose session has expired."""

    def __init__(self, on_expired: Callable[[Group, str], None]) -> None:
        self._on_expired = on_expired
        self.purgatory: Purgatory[tuple[Group, str]] = Purgatory()

    def __len__(self) -> int:
        return len(self.purgatory)

    def renew(self, group: Group, member: Member) -> None:
        """Restarts the member's session after a request from it or an answer to it."""
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._expect(group, member.member_id, timeout_ms)

    def expect_join(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Starts the time in which a client must join with its newly assigned member id (KIP-394)."""
        self._expect(group, member_id, session_timeout_ms)

    def end(self, group: Group, member_id: str) -> None:
        self.purgatory.check((group, member_id))

    def _expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        key = group, member_id
        self.purgatory.check(key)

        def on_done(was_heard_of: bool) -> None:
            if not was_heard_of:
                self._expired(group, member_id)

        self.purgatory.put(DelayedHeartbeat(), [key], timeout_ms, on_done)

    def _expired(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            if member_id in group.pending_members:
                self._on_expired(group, member_id)
        elif member.is_new or not (member.is_awaiting_join or member.is_awaiting_sync):
            self._on_expired(group, member_id)
