"""The verification of one partition from the answers of its replicas. Pure.

A `PartitionCheck` tells which replicas to fetch from and where (`active`, `position`), and takes their answers. It
decides which replicas wait for others and which no longer count.

What must stay true:
- Only records below the high watermark of every counting replica are compared. So an uncommitted tail, which a
  truncation may remove, is never a difference.
- A replica without a usable answer for `patience_s` is set aside, with the reason and the offset, and the others
  continue without it. A replica that only lags is set aside once the others have waited that long.
- Records that retention removes meanwhile are skipped.
- Replicas remove old records at different times. Records that at least two replicas have are compared, without replicas
  whose log begins later; these are reported.
- A check `is_verified` only if all its replicas were compared to its end. Whatever prevents this is noted.
- A check with a target ends: each answer advances it, or brings a replica closer to being set aside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.client.verification.compare import (
    Compared,
    Difference,
    DifferenceKind,
    Differences,
    Window,
    compare,
    first_batch_holds,
)
from klamm.client.verification.newest_values import NewestValues
from klamm.protocol.vocabulary import TopicPartition

PATIENCE_S = 10.0
_UNREADABLE = "its records cannot be read"
# A check that follows tries a replica again after this multiple of its patience.
REST = 3


class OutOfRange(NamedTuple):
    """The replica's log does not have the position. It begins and ends at these offsets."""

    log_start_offset: int
    log_end_offset: int


class Failed(NamedTuple):
    """Why the replica gave no answer. If this `is_final`, another attempt would not help. With `is_corrupt` its broker
    says that the bytes there are not batches."""

    reason: str
    is_final: bool = False
    is_corrupt: bool = False


Answer = Window | OutOfRange | Failed


@dataclass(frozen=True, slots=True)
class SetAside:
    """From `offset` on, the partition is verified without this replica. With `is_lag` the replica only lags."""

    offset: int
    reason: str
    is_lag: bool = False
    is_broken: bool = False


@dataclass(slots=True)
class PartitionCheck:
    """`replicas` are in the order of their comparison, the leader first. The check begins at `start_offset`.

    `target` is the offset where the check ends. The default is the highest high watermark of the first answers. A check
    that `follows` has no end, and takes back replicas that were set aside. A replica that is not `in_sync` (None: all
    are) gets no time to catch up.
    """

    partition: TopicPartition
    replicas: Sequence[int]
    start_offset: int
    in_sync: Sequence[int] | None = None
    is_compacted: bool = False
    follows: bool = False
    target: int | None = None
    patience_s: float = PATIENCE_S
    position: int = field(init=False)
    high_watermarks: dict[int, int] = field(default_factory=dict)
    set_aside: dict[int, SetAside] = field(default_factory=dict)
    differences: Differences = field(default_factory=Differences)
    # Why there is nothing left to verify: the topic was deleted.
    gone: str | None = None
    # The log start offsets of replicas that lack older records of another replica.
    begins_later: dict[int, int] = field(default_factory=dict)
    # Why this may be a loss, for each replica without retention as a known reason.
    unexplained: dict[int, str] = field(default_factory=dict)
    # Offsets that retention removed before they were compared.
    removed_offsets: int = 0
    batches: int = 0
    compacted_batches: int = 0
    size_bytes: int = 0
    # Only for a compacted topic, when the check reads all records from its start to the end of the partition.
    newest: NewestValues | None = None
    # Whether a further reading, which was needed to find lost values, could not be finished.
    is_unconfirmed: bool = False
    # The size of each replica's last window before the position. For readers of files.
    consumed_bytes: dict[int, int] = field(default_factory=dict)
    # The replicas that should be asked for this partition alone, because their last answer had no whole batch.
    hungry: set[int] = field(default_factory=set)
    # Since when a replica has not answered, or its answers have not advanced the check.
    _failing_since_s: dict[int, float] = field(default_factory=dict)
    _stalled_since_s: dict[int, float] = field(default_factory=dict)
    _set_aside_at_s: dict[int, float] = field(default_factory=dict)
    _empty_to: dict[int, int] = field(default_factory=dict)
    _log_starts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.position = self.start_offset

    @property
    def active(self) -> list[int]:
        """The replicas that count, in their order."""
        return [replica for replica in self.replicas if replica not in self.set_aside]

    def to_ask(self, now_s: float) -> list[int]:
        """The counting replicas that have the position. A check that follows also asks replicas that it set aside, from
        time to time."""

        def is_due(replica: int) -> bool:
            rest_s = REST * self.patience_s
            return self.follows and now_s - self._set_aside_at_s.get(replica, now_s) >= rest_s

        return [
            replica
            for replica in self.replicas
            if not self._is_later(replica)
            and (replica not in self.set_aside or (is_due(replica) and not self.set_aside[replica].is_broken))
        ]

    @property
    def is_done(self) -> bool:
        if self.gone is not None:
            return True
        if self.follows:
            return False
        return not self.active or (self.target is not None and self.position >= self.target)

    @property
    def is_waiting(self) -> bool:
        """Whether the last answers have not advanced the check."""
        return bool(self._failing_since_s or self._stalled_since_s)

    @property
    def is_compared(self) -> bool:
        """Whether at least two replicas count, or the partition has only one. A lagging replica counts too."""
        lagging = sum(each.is_lag for each in self.set_aside.values())
        return len(self.active) + lagging >= min(2, len(self.replicas))

    @property
    def is_verified(self) -> bool:
        """Whether every replica was compared, from the start to the target."""
        is_read = self.gone is None and bool(self.replicas) and not (self.set_aside or self.unexplained)
        return is_read and not self.is_undecided

    @property
    def is_undecided(self) -> bool:
        """Whether replicas of a compacted topic lack records that may be lost."""
        if self.newest is None:
            return self.compacted_batches > 0
        return self.is_unconfirmed or self.newest.is_full or (bool(self.newest) and not self._is_whole)

    @property
    def has_broken_replica(self) -> bool:
        return any(each.is_broken for each in self.set_aside.values())

    @property
    def lag(self) -> int:
        """How far the comparison is behind the highest high watermark."""
        return max(0, max(self.high_watermarks.values(), default=0) - self.position)

    def lag_of(self, replica: int) -> int | None:
        """How far the replica's high watermark is behind the highest, or None if it is unknown."""
        if replica not in self.high_watermarks:
            return None
        return max(self.high_watermarks.values()) - self.high_watermarks[replica]

    def feed(self, answers: Mapping[int, Answer], now_s: float) -> list[Difference]:
        """Takes the answers of the replicas in `to_ask` to a fetch from `position`. Returns new differences."""
        self._take_in_again(answers, now_s)
        answers = {replica: answer for replica, answer in answers.items() if replica not in self.set_aside}
        self.consumed_bytes = {}
        windows = {replica: answer for replica, answer in answers.items() if isinstance(answer, Window)}
        for replica, window in windows.items():
            self.high_watermarks[replica] = window.high_watermark
            self._failing_since_s.pop(replica, None)
        later = self._find_later(answers)
        here = [replica for replica in self.active if replica not in later]
        if later and len(here) < 2:
            # Nothing older can be compared.
            self._skip_to(min(later.values()))
            return []
        for replica in here:
            answer = answers.get(replica)
            if isinstance(answer, Failed):
                reason, is_final, is_corrupt = answer
            elif isinstance(answer, OutOfRange):
                reason, is_final, is_corrupt = self._out_of_range(answer), False, False
            else:
                continue
            if is_final or self._is_over(self._failing_since_s, replica, now_s):
                reason = f"{_UNREADABLE}: {reason}" if is_corrupt else reason
                self._put_aside(replica, reason, now_s, is_broken=is_corrupt)
        here = [replica for replica in here if replica not in self.set_aside]
        if not here or any(replica not in windows for replica in here):
            return []
        windows = {replica: windows[replica] for replica in here}
        if self.target is None:
            self.target = max(window.high_watermark for window in windows.values())
        if self.is_done:
            return []
        if later:
            limit = min(later.values())
            windows = {
                replica: window._replace(high_watermark=min(window.high_watermark, limit))
                for replica, window in windows.items()
            }
            if any(first_batch_holds(window.records, self.position, limit) for window in windows.values()):
                # A log may begin within a batch.
                self._skip_to(limit)
                return []
        return self._compare(windows, now_s)

    def give_up(self, reason: str) -> None:
        """Ends the check, unless it follows, because none of its replicas can be read."""
        for replica in self.active:
            self.put_aside(replica, reason)

    def put_aside(self, replica: int, reason: str) -> None:
        """Continues without a replica."""
        self.set_aside[replica] = SetAside(self.position, reason)

    def forget(self, reason: str) -> None:
        """Ends the check, because there is nothing left to verify."""
        self.gone = reason

    @property
    def has_unreplaced_values(self) -> bool:
        """Whether a further reading must find out if values are lost. Only if all replicas were read to the end."""
        return self._is_whole and bool(self.newest)

    @property
    def _is_whole(self) -> bool:
        return self.gone is None and not (self.set_aside or self.begins_later or self.removed_offsets)

    def again(self) -> "PartitionCheck":
        """A further reading, from the first value that a replica may have lost."""
        assert self.newest is not None
        return PartitionCheck(
            self.partition,
            self.replicas,
            self.newest.first_offset,
            self.in_sync,
            is_compacted=True,
            patience_s=self.patience_s,
            newest=NewestValues(),
        )

    def confirm(self, again: "PartitionCheck") -> None:
        """Takes the result of a further reading."""
        assert self.newest is not None and again.newest is not None
        self.is_unconfirmed |= not again._is_whole
        self.newest.keep_confirmed(NewestValues() if self.is_unconfirmed else again.newest)

    def conclude(self) -> list[Difference]:
        """Makes differences of the lost values. Returns the new differences."""
        assert self.newest is not None
        lost = [
            Difference(DifferenceKind.LOST, value.offset, value.offset, replica, value.replica)
            for value in self.newest.take()
            for replica in value.lacking
        ]
        return [difference for difference in lost if self.differences.add(difference)]

    def reassigned(self, replicas: Sequence[int]) -> None:
        """Sets the replicas after a reassignment. New replicas were not compared from the start."""
        for replica in replicas:
            if replica not in self.replicas and not self.follows:
                self.set_aside[replica] = SetAside(self.start_offset, "it became a replica meanwhile")
        kept = [replica for replica in self.replicas if replica in replicas]
        self.replicas = kept + [replica for replica in replicas if replica not in kept]
        for replica in [each for each in self.set_aside if each not in replicas]:
            del self.set_aside[replica]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _take_in_again(self, answers: Mapping[int, Answer], now_s: float) -> None:
        """A replica that was set aside counts again when it answers."""
        for replica in [replica for replica in self.set_aside if replica in answers]:
            if isinstance(answers[replica], Window):
                del self.set_aside[replica]
            else:
                self._set_aside_at_s[replica] = now_s

    def _find_later(self, answers: Mapping[int, Answer]) -> dict[int, int]:
        """The log start offsets of replicas whose logs begin behind the position."""
        ends = {
            replica: answer.high_watermark if isinstance(answer, Window) else answer.log_end_offset
            for replica, answer in answers.items()
            if not isinstance(answer, Failed)
        }
        for replica, answer in answers.items():
            if isinstance(answer, OutOfRange):
                others = [end for other, end in ends.items() if other != replica]
                # Retention cannot have moved a log's start behind the end of all other replicas.
                if not others or answer.log_start_offset <= max(others):
                    self._log_starts[replica] = answer.log_start_offset
        later = {replica: self._log_starts[replica] for replica in self.active if self._is_later(replica)}
        for replica in later:
            self._failing_since_s.pop(replica, None)
        if any(isinstance(answer, Window) for answer in answers.values()):
            self.begins_later |= later
        return later

    def _is_later(self, replica: int) -> bool:
        return self._log_starts.get(replica, self.position) > self.position

    def _out_of_range(self, answer: OutOfRange) -> str:
        if answer.log_start_offset > self.position:
            return f"its log begins at offset {answer.log_start_offset}, behind the high watermark of the others"
        return f"its log ends at offset {answer.log_end_offset}, before offset {self.position}"

    def _skip_to(self, offset: int) -> None:
        if self.target is not None and not self.follows:
            offset = min(offset, self.target)
        if self.position == self.start_offset:
            self.start_offset = offset
        else:
            self.removed_offsets += offset - self.position
        self.position = offset
        self._has_moved()

    def _compare(self, windows: Mapping[int, Window], now_s: float) -> list[Difference]:
        filled = {
            replica: window._replace(is_complete=self._empty_to.get(replica, -1) >= window.high_watermark)
            for replica, window in windows.items()
        }
        compared = compare(self.position, filled, is_compacted=self.is_compacted, newest=self.newest)
        self.batches += compared.batches
        self.compacted_batches += compared.compacted_batches
        for replica, reason in compared.broken.items():
            self._put_aside(replica, f"{_UNREADABLE}: {reason}", now_s, is_broken=True)
        if compared.next_offset > self.position:
            self.position = compared.next_offset
            self.consumed_bytes = compared.consumed_bytes
            self.size_bytes += sum(compared.consumed_bytes.values())
            self._has_moved()
        elif not compared.broken:
            self._explain(compared, windows, now_s)
        return [difference for difference in compared.differences if self.differences.add(difference)]

    def _explain(self, compared: Compared, windows: Mapping[int, Window], now_s: float) -> None:
        """Notes the replicas that the others wait for."""
        least = min(compared.known_to.values())
        for replica in [each for each, known_to in compared.known_to.items() if known_to == least]:
            window = windows[replica]
            is_lag = window.high_watermark <= least
            was_alone = replica in self.hungry
            if not is_lag:
                self.hungry.add(replica)
            if is_lag and self.follows:
                continue
            is_late = is_lag and self.in_sync is not None and replica not in self.in_sync
            if not is_late and not self._is_over(self._stalled_since_s, replica, now_s):
                continue
            if not is_lag and not was_alone:
                continue
            if is_lag:
                self._put_aside(replica, f"its high watermark is {window.high_watermark}", now_s, is_lag=True)
            elif window.records:
                reason = f"it answered without a whole batch at offset {self.position}"
                self._put_aside(replica, reason, now_s, is_broken=True)
            else:
                # Even asked alone and for this long, the replica has nothing there. `compare` decides what this means.
                self._empty_to[replica] = window.high_watermark

    def _has_moved(self) -> None:
        self._failing_since_s.clear()
        self._stalled_since_s.clear()
        self.hungry.clear()

    def _is_over(self, since_s: dict[int, float], replica: int, now_s: float) -> bool:
        """Whether the patience with this replica, which began now or earlier, is over."""
        return now_s - since_s.setdefault(replica, now_s) >= self.patience_s

    def _put_aside(
        self, replica: int, reason: str, now_s: float, *, is_lag: bool = False, is_broken: bool = False
    ) -> None:
        self._failing_since_s.pop(replica, None)
        self._stalled_since_s.pop(replica, None)
        self.set_aside[replica] = SetAside(self.position, reason, is_lag, is_broken)
        self._set_aside_at_s[replica] = now_s


def merged(checks: Sequence[PartitionCheck]) -> PartitionCheck:
    """Merges checks of ranges of the same partition, in the order of their offsets.

    A batch across the end of a range was compared twice; a difference in it counts once.
    """
    ordered = sorted(checks, key=lambda check: check.start_offset)
    first, last = ordered[0], ordered[-1]
    whole = PartitionCheck(first.partition, first.replicas, first.start_offset, first.in_sync, first.is_compacted)
    whole.position, whole.target = last.position, last.target
    whole.gone = next((check.gone for check in ordered if check.gone is not None), None)
    for check in ordered:
        whole.high_watermarks |= check.high_watermarks
        for replica, aside in check.set_aside.items():
            whole.set_aside.setdefault(replica, aside)
        for difference in check.differences.found:
            whole.differences.add(difference)
        whole.begins_later |= check.begins_later
        whole.unexplained |= check.unexplained
        whole.removed_offsets += check.removed_offsets
        whole.batches += check.batches
        whole.compacted_batches += check.compacted_batches
        whole.size_bytes += check.size_bytes
    return whole
