"""Names the follower that a consumer should read from instead of the leader (KIP-392).

What must stay true:
- Only a live follower in the ISR that has the consumer's offset is named. Otherwise a follower that has fallen behind
  would be named again and again, and its consumer would lag, too.
- A consumer that sends no leader epoch reads from the leader. Otherwise a follower of a newer leader could serve it,
  and an old leader could then answer OFFSET_OUT_OF_RANGE, so that the consumer would lose its position.
- If a selector raises, or selects a replica that was not offered, the consumer reads from the leader.
"""

import logging
from collections.abc import Callable

from klamm.plugins.replica_selection import ClientMetadata, PartitionView, ReplicaSelector, ReplicaView
from klamm.protocol.apis.fetch import FetchPartition
from klamm.protocol.vocabulary import INVALID_PREFERRED_REPLICA_ID, NO_EPOCH
from klamm.replication.partition.partition import Partition

# Host, port and rack of a live broker on a listener; None if it is not alive or has no such listener.
ReplicaAddress = Callable[[int, str], tuple[str, int, str | None] | None]

_log = logging.getLogger(__name__)


class ReadReplicas:
    """Asks the selector of replica.selector.class."""

    def __init__(self, selector: ReplicaSelector, address: ReplicaAddress) -> None:
        self._selector = selector
        self._address = address
        self._failures: dict[str, None] = {}

    def choose(self, client: ClientMetadata, partition: Partition, want: FetchPartition) -> int:
        """The follower for a consumer of a partition that this broker leads, or INVALID_PREFERRED_REPLICA_ID."""
        if want.current_leader_epoch == NO_EPOCH:
            return INVALID_PREFERRED_REPLICA_ID
        offset = want.fetch_offset
        followers = [
            (replica.broker_id, replica.log_end_offset, partition.clock_ms() - replica.last_caught_up_ms)
            for replica in partition.remote_replicas.values()
            if replica.broker_id in partition.isr and replica.log_start_offset <= offset <= replica.log_end_offset
        ]
        candidates = []
        for broker_id, log_end_offset, lag_ms in ((partition.leader_id, partition.log.log_end_offset, 0), *followers):
            address = self._address(broker_id, client.listener_name)
            if address is not None:
                candidates.append(ReplicaView(broker_id, *address, log_end_offset, lag_ms))
        views = tuple(candidates)  # A tuple, which a selector cannot change.
        if len(views) < 2 or views[0].broker_id != partition.leader_id:
            return INVALID_PREFERRED_REPLICA_ID
        try:
            selected = self._selector.select(client, PartitionView(partition.topic, partition.partition, views))
            if selected is not None and selected not in views:
                raise ValueError(f"it selected {selected}, which is none of the replicas {views}")
        except BaseException as error:  # also SystemExit: a selector does not end the broker
            self._report(error)
            return INVALID_PREFERRED_REPLICA_ID
        return INVALID_PREFERRED_REPLICA_ID if selected is None or selected == views[0] else selected.broker_id

    def _report(self, error: BaseException) -> None:
        """Logs each kind of failure once, because consumers fetch many times a second."""
        name = type(error).__name__
        if name not in self._failures:
            self._failures[name] = None
            _log.exception("%s has failed; consumers read from leaders", type(self._selector).__name__)
