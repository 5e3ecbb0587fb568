"""The gauges of the logs, of the logs still to be recovered (KIP-831), of log directories, and of open files."""

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter

from klamm.base.metrics import MetricName, Metrics
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log import Log


def register(metrics: Metrics, manager: LogManager) -> None:
    for name, documentation, read in (
        ("Size", "Bytes of the log's segments.", attrgetter("size_bytes")),
        ("LogStartOffset", "The log start offset.", attrgetter("log_start_offset")),
        ("LogEndOffset", "The log end offset.", attrgetter("log_end_offset")),
        ("NumLogSegments", "Segments of the log.", attrgetter("segment_count")),
    ):
        metrics.gauges(
            MetricName("kafka.log", "Log", name),
            documentation,
            ("topic", "partition"),
            partial(_of_each, manager, read),
        )
    metrics.histogram(
        MetricName("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs"),
        "How long syncs of logs took.",
        manager.flush_times_ms,
    )
    metrics.gauge(
        MetricName("kafka.log", "LogManager", "OfflineLogDirectoryCount"),
        "Log directories that have failed.",
        lambda: sum(not directory.is_online for directory in manager.directories),
    )
    metrics.gauges(
        MetricName("kafka.log", "LogManager", "LogDirectoryOffline"),
        "1 for a log directory that has failed.",
        "logDirectory",
        lambda: {directory.path: int(not directory.is_online) for directory in manager.directories},
    )
    metrics.gauges(
        MetricName("kafka.log", "LogManager", "remainingLogsToRecover"),
        "Logs that are still to be recovered after an unclean shutdown.",
        "dir",
        manager.remaining_logs_to_recover,
    )
    metrics.gauge(
        MetricName("klamm", "LogManager", "OpenLogFiles"),
        "Log files that are kept open.",
        lambda: len(manager.open_files),
    )


def _of_each(manager: LogManager, read: Callable[[Log], float]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The value of each log, without future logs."""
    for log in list(manager.logs.values()):
        yield (log.topic, str(log.partition)), read(log)
