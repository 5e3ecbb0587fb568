"""One entry of `log.dirs`: its lock, its identity, its file names, and whether its disk still works.

What must stay true:
- A directory belongs to one broker of one cluster (meta.properties) and to one process at a time (.lock).
- After a disk error that is not transient (`disk_errors.py`), a directory is offline for good: nothing is written to
  it, and its logs answer KAFKA_STORAGE_ERROR. A failed fsync is such an error and is never retried.
- The clean-shutdown file says that all logs of the directory were closed in order. It is removed before the logs are
  loaded.

Source: kafka.log.LogManager, Log (directory names), kafka.server.BrokerMetadataCheckpoint, PartitionMetadataFile.
"""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from klamm.base.environment import File, FileSystem
from klamm.config.properties import PropertiesError, format_properties, parse_properties
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.storage.segments.disk_errors import PASSING

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
PARTITION_METADATA_FILE = "partition.metadata"

DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"

_MAX_NAME_LENGTH = 255
_PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]{1,10})")
_MARKED_NAME = re.compile(r"(?P<name>.+)\.(?P<unique>[0-9a-f]{32})(?P<suffix>-delete|-future|-stray)")
_UUID_SIZE_BYTES = 16


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The broker and the cluster that own a directory."""

    cluster_id: str
    broker_id: int


class LogDirectory:
    """A log directory of this broker. `on_failure` is called once, with the error that took it offline."""

    def __init__(self, file_system: FileSystem, path: str, on_failure: Callable[[str, OSError], None]) -> None:
        self.path = path
        self.file_system = file_system
        self.failure: OSError | None = None
        self._on_failure = on_failure
        self._lock: File | None = None

    @property
    def is_online(self) -> bool:
        return self.failure is None

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def storage_error(self, error: OSError, action: str) -> KafkaError:
        """The error to raise after `error` stopped `action`. Takes the directory offline unless it is transient."""
        if error.errno in PASSING:
            return _storage_error(self.path, f"{action} failed: {error}")
        return self.fail(error, action)

    def fail(self, error: OSError, action: str) -> KafkaError:
        """Takes the directory offline because `error` stopped `action`. Returns the error to raise."""
        if self.failure is None:
            self.failure = error
            self._on_failure(self.path, error)
        return _storage_error(self.path, f"{action} failed: {error}")

    def check_online(self) -> None:
        """Raises KafkaError(KAFKA_STORAGE_ERROR) after a failure."""
        if self.failure is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {self.path} is offline since: {self.failure}"
            )

    def acquire(self) -> None:
        """Creates the directory if necessary and locks it.

        Raises KafkaError(KAFKA_STORAGE_ERROR) when another process holds the lock; OSError.
        """
        self.file_system.make_durable_directories(self.path)
        try:
            self._lock = self.file_system.lock(self.file(LOCK_FILE))
        except BlockingIOError:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"log directory {self.path} is in use by another process (it holds {LOCK_FILE})",
            ) from None

    def release(self) -> None:
        """Unlocks the directory for other processes."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def consume_clean_shutdown_file(self) -> bool:
        """Removes the file. Returns whether it existed: then the last shutdown was clean. Raises OSError."""
        path = self.file(CLEAN_SHUTDOWN_FILE)
        if not self.file_system.exists(path):
            return False
        self.file_system.remove(path)
        self.file_system.sync_directory(self.path)
        return True

    def write_clean_shutdown_file(self) -> None:
        """Raises OSError."""
        self.file_system.open(self.file(CLEAN_SHUTDOWN_FILE), create=True).close()
        self.file_system.sync_directory(self.path)


# Names


def partition_directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def is_possible_directory_name(name: str) -> bool:
    """Whether file systems accept the name. The longest topic name leaves room for a partition of five digits."""
    return len(name) <= _MAX_NAME_LENGTH


def delete_directory_name(topic: str, partition: int, unique: UUID) -> str:
    """The directory name of a deleted log until its removal. Cuts a topic name that is too long."""
    return _cut_name(topic, f"-{partition}.{unique.hex}{DELETE_SUFFIX}")


def stray_directory_name(topic: str, partition: int, unique: UUID) -> str:
    """The directory name of a log that a start has set aside (`duplicate_logs.py`). Cuts a topic name that is too
    long."""
    return _cut_name(topic, f"-{partition}.{unique.hex}{STRAY_SUFFIX}")


def _cut_name(topic: str, tail: str) -> str:
    return topic[: _MAX_NAME_LENGTH - len(tail)] + tail


def future_directory_name(topic: str, partition: int, unique: UUID) -> str:
    """The name of a future log's directory. May be longer than file systems accept (`is_possible_directory_name`)."""
    return f"{topic}-{partition}.{unique.hex}{FUTURE_SUFFIX}"


def unique_id(name: str) -> UUID | None:
    """The unique id in the name of a deleted, a future or a stray log; None in any other name."""
    marked = _MARKED_NAME.fullmatch(name)
    return None if marked is None else UUID(hex=marked["unique"])


def parse_directory_name(name: str) -> tuple[str, int, str] | None:
    """(topic, partition, suffix: "", "-delete", "-future" or "-stray"). None when the name is not a log directory's."""
    suffix = ""
    if name.endswith((DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX)):
        marked = _MARKED_NAME.fullmatch(name)
        if marked is None:
            return None
        name, suffix = marked["name"], marked["suffix"]
    match = _PARTITION_NAME.fullmatch(name)
    if match is None or int(match["partition"]) >= 2**31:
        return None
    return match["topic"], int(match["partition"]), suffix


# meta.properties


def read_meta_properties(file_system: FileSystem, directory: str) -> MetaProperties | None:
    """None when the directory is new. Raises KafkaError(KAFKA_STORAGE_ERROR) when malformed, OSError."""
    path = f"{directory}/{META_PROPERTIES_FILE}"
    if not file_system.exists(path):
        return None
    try:
        properties = parse_properties(file_system.read_file(path))
    except PropertiesError as error:
        raise _storage_error(path, str(error)) from None
    version = properties.get("version", "0")
    if version != "0":
        raise _storage_error(path, f"version is {version}, only 0 is known")
    broker_id, cluster_id = properties.get("broker.id", ""), properties.get("cluster.id", "")
    if not re.fullmatch(r"[0-9]{1,10}", broker_id) or int(broker_id) >= 2**31:
        raise _storage_error(path, f"broker.id is {broker_id!r}, not a number from 0 to 2147483647")
    if not cluster_id:
        raise _storage_error(path, "cluster.id is missing")
    return MetaProperties(cluster_id, int(broker_id))


def write_meta_properties(file_system: FileSystem, directory: str, meta: MetaProperties) -> None:
    """Creates the directory if necessary. Raises OSError."""
    file_system.make_directories(directory)
    pairs = {"version": "0", "broker.id": str(meta.broker_id), "cluster.id": meta.cluster_id}
    file_system.replace_file(f"{directory}/{META_PROPERTIES_FILE}", format_properties(pairs))


def check_meta_properties(file_system: FileSystem, directory: str, expected: MetaProperties) -> None:
    """Checks that the directory belongs to this broker. A directory without meta.properties becomes this broker's.

    Raises KafkaError: INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION (it belongs to another broker),
    KAFKA_STORAGE_ERROR when the file is malformed; OSError.
    """
    found = read_meta_properties(file_system, directory)
    if found is None:
        write_meta_properties(file_system, directory, expected)
        return
    if found.cluster_id != expected.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"{directory} belongs to cluster {found.cluster_id}, this is cluster {expected.cluster_id}",
        )
    if found.broker_id != expected.broker_id:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"{directory} belongs to broker {found.broker_id}, this is broker {expected.broker_id}",
        )


# partition.metadata


def parse_partition_metadata(content: bytes, path: str) -> UUID | None:
    """The topic id; None for an empty file, which a machine crash may leave. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
    if not content:
        return None
    match = re.fullmatch(rb"version: 0\r?\ntopic_id: ([A-Za-z0-9_-]{22})\r?\n?", content)
    if match is None:
        raise _storage_error(path, "not of the form 'version: 0', 'topic_id: <22 characters of base64>'")
    topic_id = parse_topic_id(match[1].decode())
    if topic_id is None or topic_id.int == 0:
        raise _storage_error(path, f"{match[1].decode()} is not a topic id")
    return topic_id


def format_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {format_topic_id(topic_id)}".encode()


def parse_topic_id(text: str) -> UUID | None:
    """A topic id as Kafka writes it (URL-safe base64 without padding). None when the text is not a topic id."""
    try:
        raw = base64.urlsafe_b64decode(text + "==")
    except binascii.Error:
        return None
    return UUID(bytes=raw) if len(raw) == _UUID_SIZE_BYTES else None


def format_topic_id(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _storage_error(path: str, what: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {what}")
