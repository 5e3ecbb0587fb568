"""The part of a log that the modules around it may read. Only the log itself changes it."""

from typing import Protocol

from klamm.protocol.error_codes import KafkaError
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.producer_snapshots import ProducerSnapshots
from klamm.storage.log.producer_state import ProducerState
from klamm.storage.segments.log_directory import LogDirectory
from klamm.storage.segments.log_segments import LogSegments


class LogView(Protocol):
    """Part of `Log`, which documents these methods."""

    config: LogConfig
    log_directory: LogDirectory
    snapshots: ProducerSnapshots

    @property
    def name(self) -> str: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def segments(self) -> LogSegments: ...

    @property
    def producer_state(self) -> ProducerState: ...

    @property
    def generation(self) -> int: ...

    def check_usable(self) -> None: ...

    def storage_error(self, error: OSError, action: str) -> KafkaError: ...
