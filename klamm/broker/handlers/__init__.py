"""The APIs that a broker serves: one module per API key, each registering itself in `klamm.broker.registry`."""

from klamm.broker.handlers import (
    alter_isr,
    alter_partition_reassignments,
    api_versions,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    elect_leaders,
    fetch,
    find_coordinator,
    init_producer_id,
    leader_and_isr,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    update_features,
    update_metadata,
)
from klamm.broker.registry import registered

# Every API, by ascending key; complete, because all handler modules have been imported above.
APIS = registered()

__all__ = [
    "APIS",
    "alter_isr",
    "alter_partition_reassignments",
    "api_versions",
    "controlled_shutdown",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_log_dirs",
    "elect_leaders",
    "fetch",
    "find_coordinator",
    "init_producer_id",
    "leader_and_isr",
    "list_offsets",
    "list_partition_reassignments",
    "metadata",
    "offset_for_leader_epoch",
    "produce",
    "stop_replica",
    "update_features",
    "update_metadata",
]
