"""The in-sync replica set of a partition, as its leader sees it, and the rules that use it. Pure.

A leader proposes a change of the set to the controller. The change is in flight until the controller answers (KIP-497),
and there is at most one:

| state            | the controller may have written  | maximal ISR            |
|------------------|----------------------------------|------------------------|
| CommittedIsr     | isr                              | isr                    |
| PendingExpandIsr | isr, or isr with the new replica | isr and the new replica |
| PendingShrinkIsr | isr, or isr without some         | isr                    |

What must stay true: the maximal ISR has every replica that the controller could elect from the written ISR. A record is
committed once every member of the maximal ISR has it. So no answer of the controller, received or lost, can elect a
replica that lacks a committed record.

Source: kafka.cluster.IsrState, kafka.cluster.Partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from klamm.protocol.vocabulary import UNKNOWN_OFFSET
from klamm.replication.partition.replica import Replica


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """No change is in flight."""

    isr: tuple[int, ...]

    is_inflight = False

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.isr


@dataclass(frozen=True, slots=True)
class PendingExpandIsr:
    """A replica is about to join."""

    isr: tuple[int, ...]
    new_in_sync_replica_id: int

    is_inflight = True

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return (*self.isr, self.new_in_sync_replica_id)

    @property
    def proposed_isr(self) -> tuple[int, ...]:
        return self.maximal_isr


@dataclass(frozen=True, slots=True)
class PendingShrinkIsr:
    """Replicas are about to leave. They count until the controller has decided."""

    isr: tuple[int, ...]
    out_of_sync_replica_ids: tuple[int, ...]

    is_inflight = True

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.isr

    @property
    def proposed_isr(self) -> tuple[int, ...]:
        return tuple(replica_id for replica_id in self.isr if replica_id not in self.out_of_sync_replica_ids)


PendingIsr = PendingExpandIsr | PendingShrinkIsr
IsrState = CommittedIsr | PendingIsr


class IsrStatistics:
    """Counts the outcomes of the proposals of a broker's partitions."""

    __slots__ = ("expands", "failed_updates", "shrinks")

    def __init__(self) -> None:
        self.expands = self.shrinks = self.failed_updates = 0

    def decided(self, proposal: PendingIsr) -> None:
        """The controller has written the proposal."""
        if isinstance(proposal, PendingExpandIsr):
            self.expands += 1
        else:
            self.shrinks += 1


def high_watermark(
    log_end_offset: int, replicas: Iterable[Replica], maximal_isr: tuple[int, ...], now_ms: float, max_lag_ms: float
) -> int:
    """The lowest end offset among the replicas that count: the leader, the maximal ISR, and every replica that was
    caught up less than `max_lag_ms` ago.

    The last ones are about to join the ISR. If they did not count, they might never catch up with the high watermark.
    """
    offset = log_end_offset
    for replica in replicas:
        if replica.log_end_offset < offset and (
            replica.broker_id in maximal_isr or now_ms - replica.last_caught_up_ms <= max_lag_ms
        ):
            offset = replica.log_end_offset
    return offset


def may_join(
    state: IsrState, replica: Replica, high_watermark: int, leader_epoch_start_offset: int, log_start_offset: int
) -> bool:
    """Whether a replica may join the ISR: it has every committed record, has reached the current leader epoch, and has
    deleted all records that the leader has deleted.

    A replica behind the epoch's start could lack records that an earlier leader committed above this leader's high
    watermark. A replica with deleted records would bring them back as the next leader.
    """
    return (
        not state.is_inflight
        and replica.broker_id not in state.isr
        and replica.log_end_offset >= high_watermark
        and replica.log_end_offset >= leader_epoch_start_offset
        and (replica.log_start_offset >= log_start_offset or replica.log_start_offset == UNKNOWN_OFFSET)
    )


def out_of_sync(
    state: IsrState,
    leader_id: int,
    log_end_offset: int,
    replicas: Mapping[int, Replica],
    now_ms: float,
    max_lag_ms: float,
) -> tuple[int, ...]:
    """The ISR members that are behind and were last caught up more than `max_lag_ms` ago. Empty while a change is in
    flight."""
    if state.is_inflight:
        return ()
    return tuple(
        replica_id
        for replica_id in state.isr
        if replica_id != leader_id and _is_out_of_sync(replicas.get(replica_id), log_end_offset, now_ms, max_lag_ms)
    )


def _is_out_of_sync(replica: Replica | None, log_end_offset: int, now_ms: float, max_lag_ms: float) -> bool:
    if replica is None:
        return True  # no longer a replica of the partition
    return replica.log_end_offset != log_end_offset and now_ms - replica.last_caught_up_ms > max_lag_ms
