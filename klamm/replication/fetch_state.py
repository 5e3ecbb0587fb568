"""What the replica manager tells the follower fetchers about a partition.

A module of its own because both sides need it and neither the other.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InitialFetchState:
    """Where a partition's leader is reached, and in which epoch it leads. The log itself says where to fetch from."""

    leader_id: int
    host: str
    port: int
    current_leader_epoch: int
