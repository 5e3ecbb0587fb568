"""Every key of a broker's configuration (Kafka 2.8's server.properties), one field each.

Defaults, types, allowed values and update modes are Kafka's. The attribute has the type that the
broker works with: for a few keys a parsed value (`listeners` is a string in the file and `Listener`s here). Where Kafka
falls back on another key, the attribute already has that key's value (`log_retention_ms`). `BrokerConfig` does both.
`without_effect` gives the reason for a key that klamm accepts and stores, and that changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.config.definition import (
    CLUSTER_WIDE,
    DOUBLE_MAX,
    HIGH,
    INT_MAX,
    LONG_MAX,
    LOW,
    PER_BROKER,
    Validator,
    all_of,
    at_least,
    between,
    boolean,
    class_name,
    double,
    integer,
    list_of,
    long,
    one_of,
    password,
    short,
    string,
)
from klamm.config.listeners import Listener
from klamm.config.versions import ANY_VERSION, SUPPORTED_VERSION, ApiVersion
from klamm.config.without_effect import (
    CLEANER_WINDOWS,
    COUNTERS,
    JAVA_REPORTERS,
    JAVA_SECURITY,
    NO_LONGER_READ,
    NO_PURGE,
    ONE_FORMAT,
    ONE_LOOP,
    PASSWORDS,
    SASL,
    SECURITY,
    TLS,
    TOKENS,
)

COMPRESSION_TYPES = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
MILLISECONDS_OR_UNLIMITED = Validator("at least 1, or -1 for unlimited", lambda value: value >= 1 or value == -1)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BrokerKeys:
    """The attributes of a broker's configuration."""

    # -- ZooKeeper ------------------------------------------------------------------------------------------------
    zookeeper_connect: str = string(
        None, "The ensemble as host:port,host:port with an optional /chroot.", importance=HIGH
    )
    zookeeper_session_timeout_ms: int = integer(
        18000, "Silence after which ZooKeeper ends the session.", importance=HIGH
    )
    zookeeper_connection_timeout_ms: int = integer(
        None, "Longest wait for the first connection; the session timeout when not set.", importance=HIGH
    )
    zookeeper_max_in_flight_requests: int | None = integer(
        10,
        "Unanswered requests allowed before the client waits; 500 when not set.",
        at_least(1),
        importance=HIGH,
    )
    zookeeper_set_acl: bool = boolean(
        False, "Protect the cluster's znodes by ACLs.", importance=HIGH, without_effect=SECURITY
    )
    zookeeper_sync_time_ms: int = integer(
        2000, "How far a follower of ZooKeeper may be behind.", importance=LOW, without_effect=NO_LONGER_READ
    )
    zookeeper_ssl_client_enable: bool = boolean(False, "Speak TLS to ZooKeeper.", without_effect=TLS)
    zookeeper_clientCnxnSocket: str | None = string(
        None, "Java class of the client's socket.", without_effect=JAVA_SECURITY
    )
    zookeeper_ssl_keystore_location: str | None = string(None, "File of the client's key store.", without_effect=TLS)
    zookeeper_ssl_keystore_password: str | None = password(None, "Password of the key store.", without_effect=TLS)
    zookeeper_ssl_keystore_type: str | None = string(None, "Format of the key store.", without_effect=TLS)
    zookeeper_ssl_truststore_location: str | None = string(None, "File of the trust store.", without_effect=TLS)
    zookeeper_ssl_truststore_password: str | None = password(None, "Password of the trust store.", without_effect=TLS)
    zookeeper_ssl_truststore_type: str | None = string(None, "Format of the trust store.", without_effect=TLS)
    zookeeper_ssl_protocol: str = string("TLSv1.2", "TLS version to negotiate.", importance=LOW, without_effect=TLS)
    zookeeper_ssl_enabled_protocols: tuple[str, ...] | None = list_of(
        None, "TLS versions allowed.", importance=LOW, without_effect=TLS
    )
    zookeeper_ssl_cipher_suites: tuple[str, ...] | None = list_of(
        None, "Cipher suites allowed.", importance=LOW, without_effect=TLS
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = string(
        "HTTPS", "How the server's host name is checked; empty turns it off.", importance=LOW, without_effect=TLS
    )
    zookeeper_ssl_crl_enable: bool = boolean(False, "Check revocation lists.", importance=LOW, without_effect=TLS)
    zookeeper_ssl_ocsp_enable: bool = boolean(False, "Check revocation by OCSP.", importance=LOW, without_effect=TLS)

    # -- identity -------------------------------------------------------------------------------------------------
    broker_id: int = integer(-1, "The broker's id; -1 generates one.", importance=HIGH)
    broker_id_generation_enable: bool = boolean(True, "Generate an id for a broker whose broker.id is -1.")
    reserved_broker_max_id: int = integer(1000, "Generated ids are greater than this.", at_least(0))
    broker_rack: str | None = string(None, "The broker's rack; replicas are spread over racks.")
    inter_broker_protocol_version: ApiVersion = string(  # noqa: RUF009 - it declares a field
        "2.8-IV1",
        "Version of the protocol between brokers; raise it when all brokers run the new version.",
        SUPPORTED_VERSION,
    )

    # -- network --------------------------------------------------------------------------------------------------
    listeners: tuple[Listener, ...] = string(
        None, "Where to listen: NAME://host:port, comma separated.", importance=HIGH, update_mode=PER_BROKER
    )
    advertised_listeners: tuple[Listener, ...] = string(
        None,
        "The addresses that clients connect to; the listeners when not set.",
        importance=HIGH,
        update_mode=PER_BROKER,
    )
    listener_security_protocol_map: Mapping[str, str] = string(
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The security protocol of each listener name.",
        importance=LOW,
        update_mode=PER_BROKER,
    )
    inter_broker_listener_name: str = string(None, "The listener that brokers use among themselves.")
    security_inter_broker_protocol: str = string(
        "PLAINTEXT",
        "Names the brokers' listener by its protocol instead of by inter.broker.listener.name.",
    )
    control_plane_listener_name: str | None = string(
        None, "A separate listener for the controller's requests.", importance=HIGH
    )
    host_name: str = string("", "Old form of listeners: the host.", importance=HIGH)
    port: int = integer(9092, "Old form of listeners: the port.", importance=HIGH)
    advertised_host_name: str | None = string(None, "Old form of advertised.listeners: the host.", importance=HIGH)
    advertised_port: int | None = integer(None, "Old form of advertised.listeners: the port.", importance=HIGH)
    socket_send_buffer_bytes: int = integer(
        102400, "SO_SNDBUF of connections; -1, or when not set, leaves it to the system.", importance=HIGH
    )
    socket_receive_buffer_bytes: int = integer(
        102400, "SO_RCVBUF of connections; -1, or when not set, leaves it to the system.", importance=HIGH
    )
    socket_request_max_bytes: int = integer(104857600, "Largest request accepted.", at_least(1), importance=HIGH)
    socket_connection_setup_timeout_ms: int = long(
        10000, "Longest wait for an outgoing connection; doubled after each failure."
    )
    socket_connection_setup_timeout_max_ms: int = long(
        30000, "Longest wait for an outgoing connection, however often it has failed."
    )
    connections_max_idle_ms: int = long(600000, "Time after which an idle connection is closed; negative for never.")
    connection_failed_authentication_delay_ms: int = integer(
        100, "Wait before a failed login is answered.", at_least(0), importance=LOW, without_effect=SASL
    )
    connections_max_reauth_ms: int = long(0, "Longest lifetime of a login; 0 for no limit.", without_effect=SASL)
    max_connections: int = integer(INT_MAX, "Connections allowed in all.", at_least(0), update_mode=CLUSTER_WIDE)
    max_connections_per_ip: int = integer(
        INT_MAX, "Connections allowed from one address.", at_least(0), update_mode=CLUSTER_WIDE
    )
    max_connections_per_ip_overrides: Mapping[str, int] = string(
        "",
        "Exceptions to max.connections.per.ip: host:count, comma separated.",
        update_mode=CLUSTER_WIDE,
    )
    max_connection_creation_rate: int = integer(
        INT_MAX, "New connections allowed per second.", at_least(0), update_mode=CLUSTER_WIDE
    )
    queued_max_requests: int = integer(500, "Requests waiting before clients are muted.", at_least(1), importance=HIGH)
    queued_max_request_bytes: int = long(
        -1, "Bytes of requests in memory before clients are muted; -1: 256 MB or socket.request.max.bytes."
    )
    # klamm's own key. Kafka's brokers hand files to the system and keep no responses in memory.
    klamm_queued_max_response_bytes: int = long(
        128 * 1024 * 1024,
        "Bytes of responses in memory, read or waiting for clients to take them, before fetches get less.",
        at_least(1024 * 1024),
    )
    request_timeout_ms: int = integer(30000, "Longest wait for another broker's answer.", importance=HIGH)
    num_network_threads: int = integer(
        3,
        "Threads that read requests and write responses.",
        at_least(1),
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
        without_effect=ONE_LOOP,
    )
    num_io_threads: int = integer(
        8,
        "Threads that process requests.",
        at_least(1),
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
        without_effect=ONE_LOOP,
    )
    background_threads: int = integer(
        10,
        "Threads for background work.",
        at_least(1),
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
        without_effect=ONE_LOOP,
    )

    # -- topics ---------------------------------------------------------------------------------------------------
    num_partitions: int = integer(1, "Partitions of a topic created without a count.", at_least(1))
    default_replication_factor: int = integer(1, "Replicas of a topic created without a count.")
    auto_create_topics_enable: bool = boolean(True, "Create a topic when a client asks for it.", importance=HIGH)
    delete_topic_enable: bool = boolean(True, "Allow topics to be deleted.", importance=HIGH)
    create_topic_policy_class_name: str | None = class_name(
        None, "Python class, module:Class, that may refuse new topics.", importance=LOW
    )
    alter_config_policy_class_name: str | None = class_name(
        None, "Python class, module:Class, that may refuse changes of configurations.", importance=LOW
    )

    # -- log ------------------------------------------------------------------------------------------------------
    log_dir: str = string("/tmp/kafka-logs", "Directory of the logs, when log.dirs is not set.", importance=HIGH)
    log_dirs: tuple[str, ...] = string(None, "Directories of the logs, comma separated.", importance=HIGH)
    message_max_bytes: int = integer(
        1048588, "Largest record batch accepted.", at_least(0), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    min_insync_replicas: int = integer(
        1, "In-sync replicas that acks=all needs.", at_least(1), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    compression_type: str = string(
        "producer",
        "Compression of stored batches; producer keeps theirs.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    log_segment_bytes: int = integer(
        1 << 30, "Size at which a segment is closed.", at_least(14), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    log_roll_ms: int = long(
        None,
        "Age at which a segment is closed; log.roll.hours when not set.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    log_roll_hours: int = integer(168, "Age at which a segment is closed.", at_least(1), importance=HIGH)
    log_roll_jitter_ms: int = long(
        None,
        "Random part of log.roll.ms; log.roll.jitter.hours when not set.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    log_roll_jitter_hours: int = integer(0, "Random part of log.roll.hours.", at_least(0), importance=HIGH)
    log_retention_ms: int = long(
        None,
        "Age at which records are deleted; log.retention.minutes when not set; -1 never.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    log_retention_minutes: int | None = integer(
        None, "Age at which records are deleted; log.retention.hours when not set.", importance=HIGH
    )
    log_retention_hours: int = integer(168, "Age at which records are deleted.", importance=HIGH)
    log_retention_bytes: int = long(
        -1,
        "Size of a partition above which old segments are deleted; -1 for no limit.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms: int = long(300000, "How often old segments are looked for.", at_least(1))
    log_segment_delete_delay_ms: int = long(
        60000, "Wait between a file's removal and its deletion.", at_least(0), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    log_cleanup_policy: tuple[str, ...] = list_of(
        ("delete",),
        "Delete old records, compact by key, or both.",
        all_of("compact", "delete"),
        update_mode=CLUSTER_WIDE,
    )
    log_index_size_max_bytes: int = integer(10485760, "Largest index file.", at_least(4), update_mode=CLUSTER_WIDE)
    log_index_interval_bytes: int = integer(
        4096, "Bytes of records between two index entries.", at_least(0), update_mode=CLUSTER_WIDE
    )
    log_flush_interval_messages: int = long(
        LONG_MAX, "Records after which the log is synced.", at_least(1), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    log_flush_interval_ms: int = long(
        None,
        "Time after which the log is synced; log.flush.scheduler.interval.ms when not set.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms: int = long(LONG_MAX, "How often logs to sync are looked for.", importance=HIGH)
    log_flush_offset_checkpoint_interval_ms: int = integer(
        60000, "How often recovery points are written.", at_least(0), importance=HIGH
    )
    log_flush_start_offset_checkpoint_interval_ms: int = integer(
        60000, "How often log start offsets are written.", at_least(0), importance=HIGH
    )
    log_preallocate: bool = boolean(False, "Reserve a segment's space at once.", update_mode=CLUSTER_WIDE)
    log_message_format_version: str = string(
        "2.8-IV1", "Record format of old clients.", ANY_VERSION, without_effect=ONE_FORMAT
    )
    log_message_timestamp_type: str = string(
        "CreateTime",
        "Whether records keep the producer's time or get the broker's.",
        one_of("CreateTime", "LogAppendTime"),
        update_mode=CLUSTER_WIDE,
    )
    log_message_timestamp_difference_max_ms: int = long(
        LONG_MAX, "How far a producer's time may be from the broker's.", update_mode=CLUSTER_WIDE
    )
    log_message_downconversion_enable: bool = boolean(
        True,
        "Convert records for old clients.",
        importance=LOW,
        update_mode=CLUSTER_WIDE,
        without_effect=ONE_FORMAT,
    )
    num_recovery_threads_per_data_dir: int = integer(
        1, "Logs loaded at once in each directory.", at_least(1), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    num_replica_alter_log_dirs_threads: int = integer(
        None, "Replicas that are copied to other log directories at once.", importance=HIGH
    )

    # -- log cleaner ----------------------------------------------------------------------------------------------
    log_cleaner_enable: bool = boolean(True, "Compact the topics that ask for it.")
    log_cleaner_threads: int = integer(1, "Logs that are compacted at once.", at_least(0), update_mode=CLUSTER_WIDE)
    log_cleaner_io_max_bytes_per_second: float = double(
        DOUBLE_MAX, "Bytes per second that cleaners read and write at most.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size: int = long(
        134217728, "Memory for the keys of all cleaners.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size: int = integer(
        524288,
        "Memory for the reads and writes of all cleaners.",
        at_least(0),
        update_mode=CLUSTER_WIDE,
        without_effect=CLEANER_WINDOWS,
    )
    log_cleaner_io_buffer_load_factor: float = double(0.9, "How full the key table may be.", update_mode=CLUSTER_WIDE)
    log_cleaner_backoff_ms: int = long(
        15000, "Wait when there is nothing to clean.", at_least(0), update_mode=CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio: float = double(
        0.5, "Uncleaned share from which a log is cleaned.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_delete_retention_ms: int = long(
        86400000, "How long tombstones stay after cleaning.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        0, "Age below which a record is not compacted.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        LONG_MAX, "Age from which a record must be compacted.", update_mode=CLUSTER_WIDE
    )

    # -- fetch and produce ----------------------------------------------------------------------------------------
    fetch_max_bytes: int = integer(57671680, "Largest response to a fetch.", at_least(1024))
    max_incremental_fetch_session_cache_slots: int = integer(1000, "Fetch sessions kept.", at_least(0))
    fetch_purgatory_purge_interval_requests: int = integer(
        1000, "Completed operations after which a purgatory is purged.", without_effect=NO_PURGE
    )
    producer_purgatory_purge_interval_requests: int = integer(
        1000, "Completed operations after which a purgatory is purged.", without_effect=NO_PURGE
    )
    delete_records_purgatory_purge_interval_requests: int = integer(
        1, "Completed operations after which a purgatory is purged.", without_effect=NO_PURGE
    )

    # -- replication ----------------------------------------------------------------------------------------------
    replica_lag_time_max_ms: int = long(30000, "A follower behind for longer leaves the ISR.", importance=HIGH)
    replica_socket_timeout_ms: int = integer(30000, "Longest wait for the leader.", importance=HIGH)
    replica_socket_receive_buffer_bytes: int = integer(
        65536, "SO_RCVBUF of fetchers; -1, or when not set, leaves it to the system.", importance=HIGH
    )
    replica_fetch_max_bytes: int = integer(1048576, "Largest size of a follower's fetch, per partition.", at_least(0))
    replica_fetch_wait_max_ms: int = integer(500, "Longest wait of a fetch.", importance=HIGH)
    replica_fetch_min_bytes: int = integer(1, "Bytes that a fetch waits for.", importance=HIGH)
    replica_fetch_response_max_bytes: int = integer(10485760, "Largest size of a follower's fetch.", at_least(0))
    replica_fetch_backoff_ms: int = integer(1000, "Wait after a failed fetch.", at_least(0))
    num_replica_fetchers: int = integer(
        1, "Fetchers for each leader broker.", at_least(1), importance=HIGH, update_mode=CLUSTER_WIDE
    )
    replica_high_watermark_checkpoint_interval_ms: int = long(
        5000, "How often high watermarks are written.", importance=HIGH
    )
    replica_selector_class: str | None = string(
        None,
        "What chooses the replica that a consumer reads from: Kafka's RackAwareReplicaSelector, or module:Class.",
    )

    # -- controller -----------------------------------------------------------------------------------------------
    controller_socket_timeout_ms: int = integer(30000, "Longest wait of the controller for a broker.")
    # Kafka 2.8 cannot change these three while it runs.
    auto_leader_rebalance_enable: bool = boolean(
        True,
        "Bring leadership back to preferred replicas.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10,
        "Share of partitions not led by their preferred replica that triggers a rebalance.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    leader_imbalance_check_interval_seconds: int = long(
        300, "How often the balance is checked.", importance=HIGH, update_mode=CLUSTER_WIDE
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Let a replica lead that may lack records.",
        importance=HIGH,
        update_mode=CLUSTER_WIDE,
    )
    controlled_shutdown_enable: bool = boolean(True, "Hand leaderships over before stopping.")
    controlled_shutdown_max_retries: int = integer(3, "Attempts to hand over.")
    controlled_shutdown_retry_backoff_ms: int = long(5000, "Wait between two attempts.")

    # -- consumer groups ------------------------------------------------------------------------------------------
    group_min_session_timeout_ms: int = integer(6000, "Shortest session of a member.")
    group_max_session_timeout_ms: int = integer(1800000, "Longest session of a member.")
    group_initial_rebalance_delay_ms: int = integer(3000, "First wait for members of a new group.")
    group_max_size: int = integer(INT_MAX, "Members allowed in a group.", at_least(1))
    offset_metadata_max_bytes: int = integer(4096, "Largest metadata of a committed offset.", importance=HIGH)
    offsets_load_buffer_size: int = integer(
        5242880, "Batch size when offsets are loaded.", at_least(1), importance=HIGH
    )
    offsets_topic_replication_factor: int = short(3, "Replicas of the offsets topic.", at_least(1), importance=HIGH)
    offsets_topic_num_partitions: int = integer(50, "Partitions of the offsets topic.", at_least(1), importance=HIGH)
    offsets_topic_segment_bytes: int = integer(
        104857600, "Segment size of the offsets topic.", at_least(1), importance=HIGH
    )
    offsets_topic_compression_codec: int = integer(
        0,
        "Compression of the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
        importance=HIGH,
    )
    offsets_retention_minutes: int = integer(
        10080, "How long an empty group's offsets are kept.", at_least(1), importance=HIGH
    )
    offsets_retention_check_interval_ms: int = long(
        600000, "How often expired offsets are looked for.", at_least(1), importance=HIGH
    )
    offsets_commit_timeout_ms: int = integer(5000, "Longest wait of an offset commit.", at_least(1), importance=HIGH)
    offsets_commit_required_acks: int = short(-1, "Acks of an offset commit.", between(-1, 1), importance=HIGH)

    # -- transactions ---------------------------------------------------------------------------------------------
    transactional_id_expiration_ms: int = integer(
        604800000, "An unused producer is forgotten after this.", at_least(1), importance=HIGH
    )
    transaction_max_timeout_ms: int = integer(900000, "Longest transaction allowed.", at_least(1), importance=HIGH)
    transaction_state_log_replication_factor: int = short(
        3, "Replicas of the transaction topic.", at_least(1), importance=HIGH
    )
    transaction_state_log_min_isr: int = integer(
        2, "min.insync.replicas of the transaction topic.", at_least(1), importance=HIGH
    )
    transaction_state_log_num_partitions: int = integer(
        50, "Partitions of the transaction topic.", at_least(1), importance=HIGH
    )
    transaction_state_log_segment_bytes: int = integer(
        104857600, "Segment size of the transaction topic.", at_least(1), importance=HIGH
    )
    transaction_state_log_load_buffer_size: int = integer(
        5242880, "Batch size when transactions are loaded.", at_least(1), importance=HIGH
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10000, "How often overdue transactions are aborted.", at_least(1), importance=LOW
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        3600000,
        "How often unused transactional ids are removed.",
        at_least(1),
        importance=LOW,
    )

    # -- quotas ---------------------------------------------------------------------------------------------------
    quota_producer_default: int = long(LONG_MAX, "Bytes per second for each producer.", at_least(1), importance=HIGH)
    quota_consumer_default: int = long(LONG_MAX, "Bytes per second for each consumer.", at_least(1), importance=HIGH)
    quota_window_num: int = integer(11, "Samples of client quotas.", at_least(1), importance=LOW)
    quota_window_size_seconds: int = integer(1, "Length of a sample.", at_least(1), importance=LOW)
    replication_quota_window_num: int = integer(11, "Samples of replication quotas.", at_least(1), importance=LOW)
    replication_quota_window_size_seconds: int = integer(1, "Length of a sample.", at_least(1), importance=LOW)
    alter_log_dirs_replication_quota_window_num: int = integer(
        11, "Samples of directory moves.", at_least(1), importance=LOW
    )
    alter_log_dirs_replication_quota_window_size_seconds: int = integer(
        1, "Length of a sample.", at_least(1), importance=LOW
    )
    controller_quota_window_num: int = integer(11, "Samples of controller quotas.", at_least(1), importance=LOW)
    controller_quota_window_size_seconds: int = integer(1, "Length of a sample.", at_least(1), importance=LOW)
    client_quota_callback_class: str | None = class_name(
        None, "Java class that sets client quotas.", importance=LOW, without_effect=SECURITY
    )

    # -- metrics --------------------------------------------------------------------------------------------------
    # klamm's own key. Kafka's brokers offer their metrics through JMX.
    klamm_metrics_port: int = integer(
        -1,
        "HTTP port for metrics and the state of the controller; 0 takes any free port, -1 none.",
        between(-1, 65535),
        importance=LOW,
    )
    klamm_metrics_allowed_hosts: tuple[str, ...] = list_of(
        (),
        "More names that this port answers to in Host headers, beside those of the listeners and of the machine; * is"
        " any name.",
        importance=LOW,
        update_mode=CLUSTER_WIDE,
    )
    metric_reporters: tuple[str, ...] = list_of(
        (), "Java classes that report metrics.", importance=LOW, update_mode=CLUSTER_WIDE, without_effect=JAVA_REPORTERS
    )
    metrics_num_samples: int = integer(2, "Samples of a rate.", at_least(1), importance=LOW, without_effect=COUNTERS)
    metrics_sample_window_ms: int = long(
        30000, "Length of a sample.", at_least(1), importance=LOW, without_effect=COUNTERS
    )
    metrics_recording_level: str = string("INFO", "Detail of Kafka's metrics.", importance=LOW, without_effect=COUNTERS)
    kafka_metrics_reporters: tuple[str, ...] = list_of(
        (), "Java classes that report metrics.", importance=LOW, without_effect=JAVA_REPORTERS
    )
    kafka_metrics_polling_interval_secs: int = integer(
        10, "How often kafka.metrics.reporters report.", at_least(1), importance=LOW, without_effect=JAVA_REPORTERS
    )

    # -- security -------------------------------------------------------------------------------------------------
    authorizer_class_name: str = string(
        "", "Java class that decides what users may do.", importance=LOW, without_effect=SECURITY
    )
    principal_builder_class: str | None = class_name(
        None, "Java class that names users.", update_mode=PER_BROKER, without_effect=JAVA_SECURITY
    )
    security_providers: str | None = string(
        None, "Java classes of security providers.", importance=LOW, without_effect=JAVA_SECURITY
    )
    ssl_protocol: str = string("TLSv1.3", "TLS version to negotiate.", update_mode=PER_BROKER, without_effect=TLS)
    ssl_enabled_protocols: tuple[str, ...] = list_of(
        ("TLSv1.2", "TLSv1.3"), "TLS versions allowed.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_provider: str | None = string(
        None, "Java's TLS provider.", update_mode=PER_BROKER, without_effect=JAVA_SECURITY
    )
    ssl_cipher_suites: tuple[str, ...] = list_of(
        (), "Cipher suites allowed; all when empty.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_keystore_type: str = string("JKS", "Format of the key store.", update_mode=PER_BROKER, without_effect=TLS)
    ssl_keystore_location: str | None = string(
        None, "File of the key store.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_keystore_password: str | None = password(
        None, "Password of the key store.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_keystore_key: str | None = password(None, "Private key in PEM.", update_mode=PER_BROKER, without_effect=TLS)
    ssl_keystore_certificate_chain: str | None = password(
        None, "Certificates in PEM.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_key_password: str | None = password(
        None, "Password of the private key.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_truststore_type: str = string("JKS", "Format of the trust store.", update_mode=PER_BROKER, without_effect=TLS)
    ssl_truststore_location: str | None = string(
        None, "File of the trust store.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_truststore_password: str | None = password(
        None, "Password of the trust store.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_truststore_certificates: str | None = password(
        None, "Trusted certificates in PEM.", update_mode=PER_BROKER, without_effect=TLS
    )
    ssl_keymanager_algorithm: str = string(
        "SunX509", "Java's key manager.", update_mode=PER_BROKER, without_effect=JAVA_SECURITY
    )
    ssl_trustmanager_algorithm: str = string(
        "PKIX", "Java's trust manager.", update_mode=PER_BROKER, without_effect=JAVA_SECURITY
    )
    ssl_endpoint_identification_algorithm: str = string(
        "https",
        "How host names are checked; empty turns it off.",
        importance=LOW,
        update_mode=PER_BROKER,
        without_effect=TLS,
    )
    ssl_secure_random_implementation: str | None = string(
        None, "Java's random generator.", importance=LOW, update_mode=PER_BROKER, without_effect=JAVA_SECURITY
    )
    ssl_client_auth: str = string(
        "none",
        "Whether clients need a certificate.",
        one_of("required", "requested", "none"),
        update_mode=PER_BROKER,
        without_effect=TLS,
    )
    ssl_principal_mapping_rules: str = string(
        "DEFAULT", "How certificates become user names.", importance=LOW, without_effect=TLS
    )
    ssl_engine_factory_class: str | None = class_name(
        None, "Java class that makes TLS engines.", importance=LOW, update_mode=PER_BROKER, without_effect=JAVA_SECURITY
    )
    sasl_mechanism_inter_broker_protocol: str = string(
        "GSSAPI", "Mechanism between brokers.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_enabled_mechanisms: tuple[str, ...] = list_of(
        ("GSSAPI",), "Mechanisms that clients may use.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_jaas_config: str | None = password(None, "Login settings.", update_mode=PER_BROKER, without_effect=SASL)
    sasl_server_callback_handler_class: str | None = class_name(
        None, "Java class that checks logins.", without_effect=JAVA_SECURITY
    )
    sasl_client_callback_handler_class: str | None = class_name(
        None, "Java class that logs in.", without_effect=JAVA_SECURITY
    )
    sasl_login_class: str | None = class_name(None, "Java class of a login.", without_effect=JAVA_SECURITY)
    sasl_login_callback_handler_class: str | None = class_name(
        None, "Java class that fetches credentials.", without_effect=JAVA_SECURITY
    )
    sasl_server_max_receive_size: int = integer(524288, "Largest message before login.", without_effect=SASL)
    sasl_kerberos_service_name: str | None = string(
        None, "Kerberos name of the brokers.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_kerberos_kinit_cmd: str = string(
        "/usr/bin/kinit", "Path of kinit.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_kerberos_ticket_renew_window_factor: float = double(
        0.8, "Share of a ticket's life before its renewal.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_kerberos_ticket_renew_jitter: float = double(
        0.05, "Random part of the moment of a ticket's renewal.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_kerberos_min_time_before_relogin: int = long(
        60000, "Shortest time between two logins.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = list_of(
        ("DEFAULT",), "How principals become user names.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_login_refresh_window_factor: float = double(
        0.8, "Share of a credential's life before its renewal.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_login_refresh_window_jitter: float = double(
        0.05, "Random part of the moment of a credential's renewal.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_login_refresh_min_period_seconds: int = short(
        60, "Shortest time between two renewals.", update_mode=PER_BROKER, without_effect=SASL
    )
    sasl_login_refresh_buffer_seconds: int = short(
        300, "Time left before a credential ends.", update_mode=PER_BROKER, without_effect=SASL
    )
    delegation_token_master_key: str | None = password(None, "Old name of the secret key.", without_effect=TOKENS)
    delegation_token_secret_key: str | None = password(None, "Key that signs tokens.", without_effect=TOKENS)
    delegation_token_max_lifetime_ms: int = long(
        604800000, "Longest life of a token.", at_least(1), without_effect=TOKENS
    )
    delegation_token_expiry_time_ms: int = long(
        86400000, "Life of a token between renewals.", at_least(1), without_effect=TOKENS
    )
    delegation_token_expiry_check_interval_ms: int = long(
        3600000, "How often expired tokens are removed.", at_least(1), importance=LOW, without_effect=TOKENS
    )
    password_encoder_secret: str | None = password(
        None, "Key that encrypts stored passwords.", without_effect=PASSWORDS
    )
    password_encoder_old_secret: str | None = password(
        None, "The password.encoder.secret before it was changed.", without_effect=PASSWORDS
    )
    password_encoder_keyfactory_algorithm: str | None = string(
        None, "How the key is derived.", importance=LOW, without_effect=JAVA_SECURITY
    )
    password_encoder_cipher_algorithm: str = string(
        "AES/CBC/PKCS5Padding", "Cipher of stored passwords.", importance=LOW, without_effect=PASSWORDS
    )
    password_encoder_key_length: int = integer(
        128, "Bits of the key.", at_least(8), importance=LOW, without_effect=PASSWORDS
    )
    password_encoder_iterations: int = integer(
        4096, "Rounds of the derivation.", at_least(1024), importance=LOW, without_effect=PASSWORDS
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DynamicOnlyKeys:
    """Keys that a file cannot have: they can only be set while brokers run."""

    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        "Bytes per second that a leader sends for throttled replicas.",
        at_least(0),
        update_mode=CLUSTER_WIDE,
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        "Bytes per second that a follower fetches for throttled replicas.",
        at_least(0),
        update_mode=CLUSTER_WIDE,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = long(
        LONG_MAX,
        "Bytes per second moved between log directories.",
        at_least(0),
        update_mode=CLUSTER_WIDE,
    )
