"""The shape of one run of random faults, drawn from its seed: the number of brokers, their protocols, the guarantees,
the clients.

Each run leaves out half of the clients. A run with few kinds of clients is short, and the remaining kinds interact more
often than in a run with all kinds: Groce et al., "Swarm Testing", 2012.

What must stay true: no shape demands more than klamm guarantees. Any number of machines may die only where logs flush
before they acknowledge.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

# With three brokers and three replicas every broker has every partition; with more brokers partitions can move.
BROKERS = (3, 3, 4, 5)
REPLICATION_FACTORS = (3, 3, 2)
MIN_INSYNC_REPLICAS = (2, 2, 1)
REPLICA_FETCHERS = (1, 1, 3)
LAGGING_SHARES = (0.0, 0.3)
PROTOCOLS = (("2.8",), ("2.8",), ("2.8",), ("2.4",), ("2.4", "2.8"), ("2.7",))
# A producer and a consumer of a partition of `events`, by its number.
ACKS_ALL_CLIENTS = ("events-0", "events-1", "events-2")
CLIENTS = (*ACKS_ALL_CLIENTS, "events-3", "unclean", "group", "trimming", "compacting", "transactions")
SHARE_OF_CLIENTS = 0.5
# The load is light: load slows a run down, and finds fewer bugs than faults do.
PRODUCER_PAUSES_S = (0.4, 1.2)


@dataclass(frozen=True, slots=True)
class RunShape:
    """See the module. `protocols` are the brokers' inter.broker.protocol.versions in turn."""

    brokers: int
    replication_factor: int
    min_insync_replicas: int
    protocols: Sequence[str]
    logs_flush: bool
    # The brokers that are served by the lagging member of the ZooKeeper ensemble.
    lagging: Sequence[int]
    # Long work yields after every element, and a yield takes time, so other events do happen between two slices.
    small_slices: bool
    # Brokers and consumers are in racks, and consumers read from the followers in their rack.
    has_racks: bool
    # num.replica.fetchers.
    replica_fetchers: int
    # log.preallocate.
    preallocates: bool
    # The wall clocks of the brokers differ, drift, and are set forward and back.
    clocks_drift: bool
    # Some of CLIENTS.
    clients: Sequence[str] = CLIENTS
    # The longest pause between two batches of a producer.
    producer_pause_s: float = PRODUCER_PAUSES_S[0]

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw_shape(
    chance: random.Random, *, brokers: int | None = None, protocols: Sequence[str] | None = None
) -> RunShape:
    """A random shape; given arguments replace the drawn values."""
    # All values are drawn, even those that are given, so that the rest of the run stays the same.
    drawn_brokers, drawn_protocols = chance.choice(BROKERS), chance.choice(PROTOCOLS)
    replication_factor = chance.choice(REPLICATION_FACTORS)
    min_insync_replicas = chance.choice(MIN_INSYNC_REPLICAS)
    logs_flush, small_slices = chance.random() < 0.5, chance.random() < 0.5
    lagging_share = chance.choice(LAGGING_SHARES)
    # Drawn last, since the number of brokers decides how many values are drawn.
    brokers = brokers or drawn_brokers
    lagging = tuple(broker_id for broker_id in range(brokers) if chance.random() < lagging_share)
    has_racks, replica_fetchers = chance.random() < 0.5, chance.choice(REPLICA_FETCHERS)
    preallocates = chance.random() < 0.3
    clocks_drift = chance.random() < 0.5
    producer = chance.choice(ACKS_ALL_CLIENTS)
    clients = tuple(each for each in CLIENTS if chance.random() < SHARE_OF_CLIENTS or each == producer)
    return RunShape(
        brokers,
        replication_factor=min(brokers, replication_factor),
        min_insync_replicas=min(brokers, min_insync_replicas),
        protocols=tuple(protocols or drawn_protocols),
        logs_flush=logs_flush,
        lagging=lagging,
        small_slices=small_slices,
        has_racks=has_racks,
        replica_fetchers=replica_fetchers,
        preallocates=preallocates,
        clocks_drift=clocks_drift,
        clients=clients,
        producer_pause_s=chance.choice(PRODUCER_PAUSES_S),
    )
