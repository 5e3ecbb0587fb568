"""Elects the next leader of a partition (Kafka's `Election`). Pure functions of plain data.

`replicas` are the brokers of the partition, the preferred leader first; `online` are all the brokers on which its
replica would be online. None means that no replica can be elected and nothing changes.

| strategy            | leader: the first of                             | ISR                | recipients          |
|---------------------|--------------------------------------------------|--------------------|---------------------|
| offline             | replicas that are online and in the ISR          | its online members | online replicas     |
| offline, unclean    | else: replicas that are online                   | the leader         | online replicas     |
| reassign            | target replicas that are online and in the ISR   | unchanged          | all target replicas |
| preferred replica   | only the first replica, if online and in the ISR | unchanged          | all replicas        |
| controlled shutdown | replicas online, in the ISR, not shutting down   | those that stay    | online replicas     |
| topic id            | the leader, unless its replica has another id;   | without those with | online replicas     |
|                     | then online ISR members that have the topic's    | another id         |                     |

Under controlled shutdown, brokers that are shutting down count as online. The topic id is a reason of klamm's own (see
topic_ids.py). The decision about replicas that have bounced is not a strategy that requests can name; its table is in
bounces.py.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey


class ElectionStrategy(Enum):
    """The reason for an election."""

    OFFLINE = "OfflinePartitionLeaderElectionStrategy(false)"
    OFFLINE_ALLOW_UNCLEAN = "OfflinePartitionLeaderElectionStrategy(true)"  # Regardless of the topic's configuration.
    REASSIGN = "ReassignPartitionLeaderElectionStrategy"
    PREFERRED_REPLICA = "PreferredReplicaPartitionLeaderElectionStrategy"
    CONTROLLED_SHUTDOWN = "ControlledShutdownPartitionLeaderElectionStrategy"
    TOPIC_ID = "TopicIdPartitionLeaderElectionStrategy"


ElectionResults = dict[PartitionKey, int | KafkaError]
"""The result of an ElectLeaders request: the elected leader of each partition, or why none was elected."""


class Election(NamedTuple):
    """The leader, the ISR, and the recipients of LeaderAndIsr. `unclean`: the leader may lack records."""

    leader: int
    isr: tuple[int, ...]
    recipients: tuple[int, ...]
    unclean: bool = False


def offline_partition_leader_election(
    replicas: Sequence[int], isr: Sequence[int], online: Collection[int], unclean: bool
) -> Election | None:
    """The leader died, or the partition had none. `unclean`: a replica outside the ISR may lead if no member can."""
    online_replicas = tuple(broker_id for broker_id in replicas if broker_id in online)
    for broker_id in online_replicas:
        if broker_id in isr:
            return Election(broker_id, tuple(member for member in isr if member in online), online_replicas)
    if unclean and online_replicas:
        return Election(online_replicas[0], online_replicas[:1], online_replicas, unclean=True)
    return None


def reassign_partition_leader_election(
    target_replicas: Sequence[int], isr: Sequence[int], online: Collection[int]
) -> Election | None:
    """A reassignment removes the leader, or the leader of a reassigned partition died."""
    for broker_id in target_replicas:
        if broker_id in online and broker_id in isr:
            return Election(broker_id, tuple(isr), tuple(target_replicas))
    return None


def preferred_replica_partition_leader_election(
    replicas: Sequence[int], isr: Sequence[int], online: Collection[int]
) -> Election | None:
    """Leadership goes back to the first replica."""
    if replicas and replicas[0] in online and replicas[0] in isr:
        return Election(replicas[0], tuple(isr), tuple(replicas))
    return None


def controlled_shutdown_partition_leader_election(
    replicas: Sequence[int],
    isr: Sequence[int],
    online_or_shutting_down: Collection[int],
    shutting_down: Collection[int],
) -> Election | None:
    """The leader is about to stop."""
    recipients = tuple(broker_id for broker_id in replicas if broker_id in online_or_shutting_down)
    for broker_id in recipients:
        if broker_id in isr and broker_id not in shutting_down:
            return Election(broker_id, tuple(member for member in isr if member not in shutting_down), recipients)
    return None


def topic_id_partition_leader_election(
    replicas: Sequence[int], leader: int, isr: Sequence[int], online: Collection[int], has_id: Mapping[int, bool]
) -> Election | None:
    """Some replicas belong to another topic of the same name. `has_id`: broker id -> whether its replica has the
    topic's id, if that is known.

    Nothing changes before an online ISR member has the topic's id: this member has all committed records.
    """
    able = [broker_id for broker_id in replicas if broker_id in isr and broker_id in online and has_id.get(broker_id)]
    if not able:
        return None
    stays = leader in online and has_id.get(leader, True)
    recipients = tuple(broker_id for broker_id in replicas if broker_id in online)
    return Election(
        leader if stays else able[0], tuple(member for member in isr if has_id.get(member, True)), recipients
    )


def bounced_replica_leader_election(
    replicas: Sequence[int], leader: int, isr: Sequence[int], online: Collection[int], bounced: Collection[int]
) -> tuple[int, tuple[int, ...]]:
    """The new leader and ISR after some replicas have bounced and may have lost records (see bounces.py).

    The leader is NO_LEADER if no replica of the new ISR is online.
    """
    reliable = tuple([member for member in isr if member in online and member not in bounced])
    back = [member for member in isr if member in bounced]
    if reliable:
        new_isr = reliable
    elif back:
        # No replica is known to have all records. The leader at least has the records that it acknowledged alone.
        new_isr = (leader if leader in back else next(member for member in (*replicas, *back) if member in back),)
    else:
        return leader, tuple(isr)
    if leader in new_isr and leader in online:
        return leader, new_isr
    able = [broker_id for broker_id in replicas if broker_id in new_isr and broker_id in online]
    return (able[0] if able else NO_LEADER), new_isr
