"""Incremental fetch sessions (KIP-227): a client names its partitions once, and then only the changes.

A request has a session id and an epoch. Epoch 0 asks for a new session, and -1 for no session. Any other epoch
continues a session, whose partitions are those of earlier requests with the changes applied. The answer of a continued
session only has partitions with news.

What must stay true:
- A session's epoch counts its requests: 1, 2, ..., 2^31-1, 1, ... A request out of turn gets
  INVALID_FETCH_SESSION_EPOCH, an unknown session FETCH_SESSION_ID_NOT_FOUND.
- There are never more sessions than slots. A session is evicted for another only if it is stale or less valuable:
  followers before consumers, larger before smaller.
- A session that was unused for ten minutes is forgotten when the next session is created. Kafka keeps it until all
  slots are taken: a follower that restarts can leave up to 1,000 sessions with all its partitions behind.
- All sessions together have at most `MAX_PARTITIONS`, one session at most `MAX_SESSION_PARTITIONS`. A new session
  without room is not created, and a session that grows beyond a limit is forgotten: its client then names its
  partitions in each request. Kafka has no such limit, so one client can fill the memory, with many sessions or with one
  that grows.
- Partitions that were answered with records move to the end of their session, so that no partition starves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from klamm.base.environment import Random
from klamm.base.metrics import MetricName, Metrics
from klamm.base.slices import Slices, Steps, mapped
from klamm.protocol import messages
from klamm.protocol.apis.fetch import FetchPartition, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.schema import Size
from klamm.protocol.vocabulary import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_PREFERRED_REPLICA_ID,
    INVALID_SESSION_ID,
    UNKNOWN_OFFSET,
    PartitionKey,
)
from klamm.replication.replica_manager import Wanted

# The slice of requests that begin or change a session, of about a millisecond.
PARTITIONS_PER_SLICE = 1_000
MAX_ID = 2**31 - 1
# A partition takes a third of a kilobyte.
MAX_PARTITIONS = 500_000
# The most partitions that one request can name. A client that must begin again names all its partitions.
MAX_SESSION_PARTITIONS = messages.MAX_ELEMENTS[Size.WHOLE]
# A session that was unused for this time may be evicted for any session, other sessions only for a more valuable one.
EVICTION_MS = 120_000
# A connection without requests is closed after this time (connections.max.idle.ms). A client that still comes back
# names its partitions once more.
ABANDONED_MS = 600_000


@dataclass(slots=True)
class _CachedPartition:
    """The client's request for a partition, and the last values that were sent to it."""

    wanted: FetchPartition
    high_watermark: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET

    def must_answer(self, result: PartitionData) -> bool:
        """Whether the answer has news for the client; remembers the answer as sent."""
        must = (
            bool(result.records)
            or self.high_watermark != result.high_watermark
            or self.log_start_offset != result.log_start_offset
            or result.error_code != ErrorCode.NONE
            or result.diverging_epoch is not None
            or result.preferred_read_replica != INVALID_PREFERRED_REPLICA_ID
        )
        # After an error the partition must be in the next answer, so its high watermark counts as never sent.
        self.high_watermark = -1 if result.error_code != ErrorCode.NONE else result.high_watermark
        self.log_start_offset = result.log_start_offset
        return must


@dataclass(slots=True)
class _Session:
    id: int
    is_follower: bool
    created_ms: float
    used_ms: float
    epoch: int
    partitions: dict[PartitionKey, _CachedPartition] = field(default_factory=dict)

    @property
    def value(self) -> tuple[bool, int, int]:
        return self.is_follower, len(self.partitions), self.id


@dataclass(slots=True)
class FetchExchange:
    """One fetch request, with or without a session: the partitions to read, and which answers to send."""

    session_id: int
    wanted: Sequence[Wanted]
    _session: _Session | None
    _incremental: bool

    @property
    def is_continued(self) -> bool:
        """Whether the session existed before."""
        return self._incremental

    def must_answer(self, topic: str, result: PartitionData) -> bool:
        """Whether the answer for a partition of `wanted` is sent. Call it once for each partition, in their order."""
        if self._session is None:
            return True
        partitions = self._session.partitions
        key = (topic, result.partition_index)
        cached = partitions.get(key)
        if cached is None:  # another connection has used the session meanwhile
            return False
        if not cached.must_answer(result) and self._incremental:
            return False
        if result.records and self._incremental:
            partitions[key] = partitions.pop(key)
        return True


class FetchSessionCache:
    """The sessions of one broker. `now_ms` is the loop's clock."""

    def __init__(self, max_slots: int, chance: Random, now_ms: Callable[[], float]) -> None:
        self._max_slots = max_slots
        self._chance = chance
        self._now_ms = now_ms
        # In the order of their last use, the least recently used first.
        self._sessions: dict[int, _Session] = {}
        self._partition_count = 0
        self._evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def register(self, metrics: Metrics) -> None:
        """Under Kafka's names."""
        for name, documentation, read in (
            ("NumIncrementalFetchSessions", "Fetch sessions.", lambda: len(self)),
            (
                "NumIncrementalFetchPartitionsCached",
                "Partitions in fetch sessions, counted for each session.",
                lambda: self._partition_count,
            ),
        ):
            metrics.gauge(MetricName("kafka.server", "FetchSessionCache", name), documentation, read)
        metrics.meter(
            MetricName("kafka.server", "FetchSessionCache", "IncrementalFetchSessionEvictionsPerSec"),
            "Fetch sessions that had to make room for others.",
            lambda: self._evictions,
        )

    def begin(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[Wanted],
        forgotten: Iterable[PartitionKey],
        *,
        is_follower: bool,
    ) -> Steps[FetchExchange]:
        """Finds or creates the session of a fetch request.

        Raises KafkaError FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
        """
        if epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            return (yield from self._continue(session_id, epoch, wanted, forgotten))
        self._forget(session_id)
        session = None
        if epoch == INITIAL_EPOCH:
            session = yield from self._create(wanted, is_follower)
        return FetchExchange(INVALID_SESSION_ID if session is None else session.id, wanted, session, False)

    def partitions_of(self, session_id: int, epoch: int) -> Sequence[PartitionKey]:
        """The partitions of a session; empty if there is no such session in this epoch."""
        session = self._sessions.get(session_id)
        return () if session is None or session.epoch != epoch else tuple(session.partitions)

    def throttled(self, exchange: FetchExchange) -> int:
        """The session id of an answer without partitions, because the client is throttled. A client that asked for a
        new session asks again, so it gets no session now (KIP-219)."""
        if exchange.is_continued:
            return exchange.session_id
        self._forget(exchange.session_id)
        return INVALID_SESSION_ID

    def _continue(
        self,
        session_id: int,
        epoch: int,
        wanted: Iterable[Wanted],
        forgotten: Iterable[PartitionKey],
    ) -> Steps[FetchExchange]:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"fetch session {session_id} is at {session.epoch}, not {epoch}"
            )
        # Comes first, so that no other connection can continue from the same epoch meanwhile.
        session.epoch = 1 if session.epoch == MAX_ID else session.epoch + 1
        session.used_ms = self._now_ms()
        self._sessions[session_id] = self._sessions.pop(session_id)
        slices = Slices(PARTITIONS_PER_SLICE)
        for topic, want in wanted:
            cached = session.partitions.get((topic, want.partition))
            if cached is not None:
                cached.wanted = want
            elif self._partition_count >= MAX_PARTITIONS or len(session.partitions) >= MAX_SESSION_PARTITIONS:
                self._forget(session_id)
                raise KafkaError(
                    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} has grown too large"
                )
            else:
                session.partitions[topic, want.partition] = _CachedPartition(want)
                self._count(session, 1)
            if slices.spend():
                yield
        for key in forgotten:
            if session.partitions.pop(key, None) is not None:
                self._count(session, -1)
            if slices.spend():
                yield
        # A copy: another connection may use the session meanwhile.
        kept = list(session.partitions.items())
        partitions = yield from mapped(lambda one: (one[0][0], one[1].wanted), kept, slices)
        if not partitions:
            self._forget(session_id)
            return FetchExchange(INVALID_SESSION_ID, partitions, None, False)
        return FetchExchange(session_id, partitions, session, True)

    def _create(self, wanted: Sequence[Wanted], is_follower: bool) -> Steps[_Session | None]:
        if not wanted or len(wanted) > MAX_SESSION_PARTITIONS:
            return None
        partitions = {}
        slices = Slices(PARTITIONS_PER_SLICE)
        for topic, want in wanted:
            partitions[topic, want.partition] = _CachedPartition(want)
            if slices.spend():
                yield
        self._forget_abandoned()
        if not self._make_room(is_follower, len(partitions)) or not self._make_slot(is_follower, len(wanted)):
            return None
        session_id = self._chance.randint(1, MAX_ID)
        while session_id in self._sessions:
            session_id = self._chance.randint(1, MAX_ID)
        now_ms = self._now_ms()
        session = _Session(session_id, is_follower, now_ms, now_ms, INITIAL_EPOCH + 1, partitions)
        self._sessions[session_id] = session
        self._partition_count += len(partitions)
        return session

    def _count(self, session: _Session, change: int) -> None:
        # Another request may have ended the session between the steps of this request.
        if self._sessions.get(session.id) is session:
            self._partition_count += change

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)

    def _forget_abandoned(self) -> None:
        oldest_ms = self._now_ms() - ABANDONED_MS
        while self._sessions:
            stalest = next(iter(self._sessions.values()))
            if stalest.used_ms >= oldest_ms:
                return
            self._forget(stalest.id)

    def _make_room(self, is_follower: bool, size: int) -> bool:
        """Makes room for the partitions of a session: evicts stale sessions and, for a follower's session, consumers'
        sessions, the largest first. Returns whether there is room."""
        stale_ms = self._now_ms() - EVICTION_MS
        while self._partition_count + size > MAX_PARTITIONS:
            leaving = next(iter(self._sessions.values()), None)
            if leaving is not None and leaving.used_ms >= stale_ms:
                consumers = (session for session in self._sessions.values() if is_follower and not session.is_follower)
                leaving = max(consumers, key=lambda session: session.value, default=None)
            if leaving is None:
                return False
            self._forget(leaving.id)
            self._evictions += 1
        return True

    def _make_slot(self, is_follower: bool, size: int) -> bool:
        if len(self._sessions) < self._max_slots:
            return True
        if not self._sessions:
            return False
        now_ms = self._now_ms()
        stalest = next(iter(self._sessions.values()))
        if now_ms - stalest.used_ms > EVICTION_MS:
            self._forget(stalest.id)
            self._evictions += 1
            return True
        # A follower may take the place of any young consumer; all others are protected for their first two minutes.
        evictable = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (is_follower and not session.is_follower)
        ]
        cheapest = min(evictable, key=lambda session: session.value, default=None)
        if cheapest is None or (is_follower, size, 0) < cheapest.value:
            return False
        self._forget(cheapest.id)
        self._evictions += 1
        return True
