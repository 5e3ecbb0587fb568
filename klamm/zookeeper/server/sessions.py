"""The sessions that are alive, and when each client was last heard of.

What must stay true:
- A session expires when nothing has been heard from it for its timeout, and never earlier. A request only assigns a
  time; the timer checks the deadline and, if the session was heard meanwhile, waits for the rest.
- After a restart every session has its whole timeout again.
- The server's own slowness does not expire sessions: when a timer comes late, received requests are read first. A
  client whose replies wait for the disk may be muted, so it does not count as silent.
"""

import asyncio
from collections.abc import Callable, Iterator

# A timer that comes later than this shows that the process stood still.
_LATE_S = 0.5


class Session:
    """A session that has neither been closed nor expired."""

    __slots__ = ("id", "last_heard_s", "password", "timeout_ms", "timer")

    def __init__(self, session_id: int, timeout_ms: int, password: bytes) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.password = password
        self.last_heard_s = 0.0
        self.timer: asyncio.TimerHandle | None = None


class SessionTracker:
    """Watches the deadlines of all sessions and calls `on_expired(session)` once for each that falls silent.

    `is_held_up(session)` says whether replies to the session wait for the disk.
    """

    def __init__(self, on_expired: Callable[[Session], None], is_held_up: Callable[[Session], bool]) -> None:
        self._on_expired = on_expired
        self._is_held_up = is_held_up
        self._sessions: dict[int, Session] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session_id: int) -> Session | None:
        return self._sessions.get(session_id)

    def add(self, session: Session) -> None:
        """Adds a session; its timeout runs from now."""
        self._sessions[session.id] = session
        session.last_heard_s = self._loop.time()
        session.timer = self._loop.call_later(session.timeout_ms / 1000, self._check, session)

    def change_timeout(self, session: Session, timeout_ms: int) -> None:
        """Takes over the timeout that the session negotiated when it attached to a new connection."""
        self._stop_timer(session)
        session.timeout_ms = timeout_ms
        self.add(session)

    def remove(self, session: Session) -> None:
        del self._sessions[session.id]
        self._stop_timer(session)

    def stop(self) -> None:
        for session in self._sessions.values():
            self._stop_timer(session)

    def _check(self, session: Session) -> None:
        now_s = self._loop.time()
        deadline_s = session.last_heard_s + session.timeout_ms / 1000
        if now_s < deadline_s:
            session.timer = self._loop.call_at(deadline_s, self._check, session)
        elif self._is_held_up(session):
            session.timer = self._loop.call_later(session.timeout_ms / 1000, self._check, session)
        elif now_s > deadline_s + _LATE_S:
            session.timer = self._loop.call_later(_LATE_S / 2, self._check_again, session, session.last_heard_s)
        else:
            self._on_expired(session)

    def _check_again(self, session: Session, last_heard_s: float) -> None:
        if session.last_heard_s == last_heard_s:
            self._on_expired(session)
        else:
            self._check(session)

    @staticmethod
    def _stop_timer(session: Session) -> None:
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
