"""Makes long work yield after every element, as it does with thousands of elements.

A cluster in the simulator is small: there, klamm's long work fits into one slice, and no other event comes in between.
Inside `small_slices` the slices are as small as possible. With `SimulatedLoop.turns` each pause between two slices
takes time, so connections end, timers run out and requests arrive in the middle of long work.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

# Module, name of the constant, its value inside the context. A name that does not exist is an error, so the table
# cannot become outdated.
SMALL = (
    ("klamm.broker.metadata_updates", "TOPICS_PER_SLICE", 1),
    ("klamm.broker.handlers.altered_resources", "RESOURCES_PER_SLICE", 1),
    ("klamm.broker.handlers.create_topics", "TOPICS_PER_SLICE", 1),
    ("klamm.broker.handlers.delete_groups", "GROUPS_PER_SLICE", 1),
    ("klamm.broker.handlers.delete_records", "DELETIONS_PER_SLICE", 1),
    ("klamm.broker.handlers.describe_configs", "RESOURCES_PER_SLICE", 1),
    ("klamm.broker.handlers.describe_groups", "GROUPS_PER_SLICE", 1),
    ("klamm.broker.handlers.describe_log_dirs", "LOGS_PER_SLICE", 1),
    ("klamm.broker.handlers.describe_producers", "PRODUCERS_PER_SLICE", 1),
    ("klamm.broker.handlers.describe_transactions", "CHEAP_SLICE", 1),
    ("klamm.broker.handlers.describe_transactions", "TRANSACTIONS_PER_SLICE", 1),
    ("klamm.broker.handlers.fetch", "PARTITIONS_PER_SLICE", 1),
    ("klamm.broker.handlers.join_group", "MEMBERS_PER_SLICE", 1),
    ("klamm.broker.handlers.list_offsets", "PARTITIONS_PER_SLICE", 1),
    ("klamm.broker.handlers.metadata", "PARTITIONS_PER_SLICE", 1),
    ("klamm.broker.handlers.by_partition", "CHEAP_SLICE", 1),
    ("klamm.broker.handlers.offset_fetch", "PARTITIONS_PER_SLICE", 1),
    ("klamm.broker.handlers.produce", "ANSWERS_PER_SLICE", 1),
    ("klamm.broker.handlers.produce", "BATCHES_PER_SLICE", 1),
    ("klamm.broker.handlers.produce", "CHECKS_PER_SLICE", 1),
    ("klamm.broker.handlers.produce", "PIECE_BYTES", 90),
    ("klamm.broker.handlers.write_txn_markers", "CHEAP_SLICE", 1),
    ("klamm.broker.requests.fetch_session", "PARTITIONS_PER_SLICE", 1),
    ("klamm.broker.coordinators.marker_appends", "MARKERS_PER_SLICE", 1),
    ("klamm.broker.metadata.metadata_cache", "PARTITIONS_PER_SLICE", 1),
    ("klamm.broker.coordinators.transaction_markers", "CHEAP_SLICE", 1),
    ("klamm.broker.coordinators.coordinator_log", "BATCHES_PER_SLICE", 1),
    ("klamm.broker.metrics.prometheus_text", "VALUES_PER_SLICE", 1),
    ("klamm.broker.metrics.metrics_endpoint", "PIECES_PER_SLICE", 1),
    ("klamm.broker.metrics.prometheus_text", "DISTRIBUTIONS_PER_SLICE", 1),
    ("klamm.broker.topics.topic_admin", "TOPICS_PER_SLICE", 1),
    ("klamm.broker.configs.topics", "TOPICS_PER_SLICE", 1),
    ("klamm.controller.broker_flows", "CHEAP_SLICE", 1),
    ("klamm.controller.coalescing", "CHEAP_SLICE", 1),
    ("klamm.controller.context", "CHEAP_SLICE", 1),
    ("klamm.controller.controller_status", "COUNTED_SLICE", 1),
    ("klamm.controller.controller_status", "SORTED_SLICE", 1),
    ("klamm.controller.event_flows", "CHEAP_SLICE", 1),
    ("klamm.controller.reassignment", "SLICE", 1),
    ("klamm.controller.replica_state_machine", "CHEAP_SLICE", 1),
    ("klamm.controller.channels.request_batch", "CHEAP_SLICE", 1),
    ("klamm.controller.state_change_log", "SLICE", 1),
    ("klamm.controller.topic_deletion", "CHEAP_SLICE", 1),
    ("klamm.controller.topic_deletion", "PARTITIONS_IN_PIECE", 1),
    ("klamm.controller.topic_flows", "CHEAP_SLICE", 1),
    ("klamm.controller.topic_ids", "CHEAP_SLICE", 1),
    ("klamm.controller.topic_flows", "TOPICS_PER_SLICE", 1),
    ("klamm.coordinator.groups.group", "MEMBERS_PER_SLICE", 1),
    ("klamm.coordinator.groups.group_coordinator", "MEMBERS_PER_SLICE", 1),
    ("klamm.coordinator.groups.group_coordinator", "OFFSETS_PER_SLICE", 1),
    ("klamm.coordinator.groups.group_loader", "RECORDS_PER_SLICE", 2),
    ("klamm.coordinator.groups.group_metadata_manager", "GROUPS_PER_SLICE", 1),
    ("klamm.coordinator.groups.group_metadata_manager", "OFFSETS_PER_SLICE", 1),
    ("klamm.coordinator.groups.group_records", "MEMBERS_PER_SLICE", 1),
    ("klamm.coordinator.groups.offset_expiration", "OFFSETS_PER_SLICE", 1),
    ("klamm.coordinator.groups.rebalance", "MEMBERS_PER_SLICE", 1),
    ("klamm.coordinator.transactions.coordinator", "TRANSACTIONS_PER_SLICE", 1),
    ("klamm.coordinator.transactions.loader", "RECORDS_PER_SLICE", 2),
    ("klamm.coordinator.transactions.marker_manager", "PARTITIONS_PER_SLICE", 1),
    ("klamm.coordinator.transactions.state_manager", "TRANSACTIONS_PER_SLICE", 1),
    ("klamm.client.metadata", "PARTITIONS_PER_STEP", 1),
    ("klamm.faults.answers", "CHEAP_SLICE", 1),
    ("klamm.faults.request_subjects", "CHEAP_SLICE", 1),
    ("klamm.net.server.connection_quotas", "CLOSED_PER_SLICE", 1),
    ("klamm.net.http", "EVENTS_PER_STEP", 1),
    ("klamm.net.server.server", "CONNECTIONS_PER_SLICE", 1),
    ("klamm.net.server.server_connection", "REQUESTS_PER_SLICE", 1),
    ("klamm.protocol.consumer_protocol", "TOPICS_PER_STEP", 1),
    ("klamm.base.purgatory", "KEYS_PER_SLICE", 1),
    ("klamm.base.purgatory", "OPERATIONS_PER_SLICE", 1),
    ("klamm.replication.fetcher.fetcher", "PARTITIONS_PER_SLICE", 1),
    ("klamm.replication.fetcher.fetcher", "PIECE_BYTES", 90),
    ("klamm.replication.fetcher.log_truncation", "PARTITIONS_PER_SLICE", 1),
    ("klamm.replication.partition.isr_changes", "MAX_CHANGES_IN_ROUND", 1),
    ("klamm.replication.log_dir_moves", "MIN_PIECE_BYTES", 1),
    ("klamm.replication.log_dir_moves", "SHORT_PIECE_S", 0),  # pieces stay small
    ("klamm.replication.log_dir_moves", "BYTES_PER_SYNC", 5_000),
    ("klamm.replication.fetched_records", "PARTITIONS_PER_SLICE", 1),
    ("klamm.replication.replica_manager", "APPENDS_PER_SLICE", 1),
    ("klamm.replication.replica_manager", "LOOK_SLICE", 1),
    ("klamm.replication.replica_manager", "PARTITIONS_PER_SLICE", 1),
    ("klamm.replication.replica_manager", "SLICE", 1),
    ("klamm.replication.state_changes", "ANSWERS_PER_SLICE", 1),
    ("klamm.replication.state_changes", "SLICE", 1),
    ("klamm.replication.partition.topic_metrics", "CHEAP_SLICE", 1),
    ("klamm.storage.log.follower_batches", "BATCHES_PER_SLICE", 2),
    ("klamm.storage.log.follower_batches", "BYTES_PER_SLICE", 200),
    ("klamm.storage.log.durability", "SEGMENTS_PER_SLICE", 1),
    ("klamm.storage.log.log", "DELETED_PER_SLICE", 1),
    ("klamm.storage.log.log", "SEGMENTS_PER_SLICE", 1),
    ("klamm.storage.log.log_reader", "ABORTED_PER_SLICE", 1),
    ("klamm.storage.log.log_reader", "SEGMENTS_PER_SLICE", 1),
    ("klamm.storage.log.producer_state", "CHEAP_SLICE", 1),
    ("klamm.storage.log.producer_state", "ENTRIES_PER_SLICE", 1),
    ("klamm.storage.log.producer_state", "PRODUCERS_AT_ONCE", 1),
    ("klamm.storage.directories.log_cleaner", "LOGS_PER_SLICE", 1),
    ("klamm.storage.directories.log_manager", "LOGS_PER_SLICE", 1),
    ("klamm.storage.directories.shared_sync", "LOGS_PER_SLICE", 1),
    ("klamm.storage.directories.directory_loader", "NAMES_PER_SLICE", 1),
    ("klamm.storage.directories.duplicate_logs", "NAMES_PER_SLICE", 1),
    ("klamm.storage.directories.directory_checkpoints", "OFFSETS_PER_SLICE", 1),
    ("klamm.storage.log.log_reader", "HEADERS_PER_SLICE", 1),
    ("klamm.storage.segments.segment", "ENTRIES_AT_ONCE", 1),
    ("klamm.storage.log.timestamp_lookup", "HEADERS_PER_SLICE", 1),
    ("klamm.storage.log.timestamp_lookup", "SEGMENTS_PER_SLICE", 1),
    ("klamm.storage.segments.transaction_index", "BLOCK_FIELDS", 40),  # ten entries: blocks are skipped, too
    ("klamm.storage.log.truncation", "BATCHES_PER_SLICE", 10),
    ("klamm.storage.log.written_ahead", "PIECE_BYTES", 90),
    ("klamm.base.slices", "CHEAP_SLICE", 1),
    ("klamm.base.slices", "SLICE", 1),
    ("klamm.zookeeper.client.operations", "CHEAP_SLICE", 1),
    ("klamm.zookeeper.client.watches", "PATHS_PER_SLICE", 1),
    ("klamm.zookeeper.server.cnxn", "LONG_REQUEST_BYTES", 1),
    ("klamm.zookeeper.server.cnxn", "REQUESTS_PER_SLICE", 1),
    ("klamm.zookeeper.server.outbox", "HELD_PER_SLICE", 1),
    ("klamm.zookeeper.server.server", "EVENTS_PER_SLICE", 1),
    ("klamm.zookeeper.server.server", "MANY_CHILDREN", 1),
    ("klamm.zookeeper.jute", "CHEAP_SLICE", 1),
    ("klamm.znodes.controller_store", "PARTITIONS_PER_SLICE", 1),
    ("klamm.znodes.store", "PARTITIONS_PER_SLICE", 1),
)


@contextmanager
def small_slices() -> Iterator[None]:
    """Inside, all slices of `SMALL` are small."""
    places = [(importlib.import_module(module), name, small) for module, name, small in SMALL]
    usual = [getattr(module, name) for module, name, _ in places]
    for module, name, small in places:
        setattr(module, name, small)
    try:
        yield
    finally:
        for (module, name, _), value in zip(places, usual, strict=True):
            setattr(module, name, value)
