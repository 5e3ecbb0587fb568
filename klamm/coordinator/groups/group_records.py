"""Encodes and decodes the records of `__consumer_offsets`: committed offsets, and groups. Pure.

Each key and each value begins with its version (int16). Text is int16 length and UTF-8 (-1: null), bytes and arrays
begin with an int32 length or count.

| record | key                                     | value                                                        |
|--------|-----------------------------------------|--------------------------------------------------------------|
| offset | 0, 1: group, topic, partition int32     | offset int64, leader epoch int32 (3), metadata,              |
|        |                                         | commit timestamp int64, expire timestamp int64 (1)           |
| group  | 2: group                                | protocol type, generation int32, protocol?, leader?,         |
|        |                                         | state timestamp int64 (2+), members [id, instance id? (3+),  |
|        |                                         | client id, client host, rebalance timeout int32 (1+),        |
|        |                                         | session timeout int32, subscription bytes, assignment bytes] |

What must stay true:
- All versions can be read: keys 0 to 2, values 0 to 3. Records are written in the versions that Kafka uses from
  inter.broker.protocol.version 2.4 on, the oldest that klamm supports: keys 1 and 2, value 3. An offset with its own
  expire timestamp is written in value version 1, although that version has no leader epoch.
- Records about the same partition of a group have equal keys, so that a later one replaces an earlier one.
- Invalid bytes raise ValueError with the reason. Bytes after the end are ignored, as in Kafka.

Source: GroupMetadataManager (offsetCommitKey to readGroupMessageValue), OffsetCommitKey.json, OffsetCommitValue.json,
GroupMetadataKey.json, GroupMetadataValue.json.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from klamm.base.slices import Slices, Steps, in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import MEMBERS_PER_SLICE, Group, Member
from klamm.protocol.primitives import MAX_STRING_BYTES, InvalidFrame, read_nullable_string, read_string
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_VALUE_VERSION = 3

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_INT64 = struct.Struct(">qq")
# Version 3 without metadata, the form of nearly every commit.
_PLAIN_OFFSET_V3 = struct.Struct(">hqihq")
_NO_STRING = _INT16.pack(-1)

# Texts may have up to 32,767 bytes. Texts longer than a topic name are not cached, so clients cannot fill the cache.
MAX_CACHED_CHARACTERS = 249

T = TypeVar("T")


class OffsetKey(NamedTuple):
    """The key of a group's committed offset for a partition."""

    group_id: str
    partition: PartitionKey


class GroupKey(NamedTuple):
    """The key of a group."""

    group_id: str


class UnknownKey(NamedTuple):
    """The key of a record kind from a Kafka version after 2.8."""

    version: int


Key = OffsetKey | GroupKey | UnknownKey


# -- writing ----------------------------------------------------------------------------------------------------------


def offset_commit_key(group_id: str, partition: PartitionKey) -> bytes:
    prefix = _cached_key_prefix if len(group_id) <= MAX_CACHED_CHARACTERS else _offset_key_prefix
    suffix = _cached_key_suffix if len(partition[0]) <= MAX_CACHED_CHARACTERS else _offset_key_suffix
    return prefix(group_id) + suffix(partition)


def offset_commit_value(offset: OffsetAndMetadata) -> bytes:
    if not offset.metadata and offset.expire_timestamp_ms is None:
        return _PLAIN_OFFSET_V3.pack(
            OFFSET_VALUE_VERSION, offset.offset, offset.leader_epoch, 0, offset.commit_timestamp_ms
        )
    metadata = _string(offset.metadata)
    if offset.expire_timestamp_ms is None:
        head = struct.pack(">hqi", OFFSET_VALUE_VERSION, offset.offset, offset.leader_epoch)
        return head + metadata + _INT64.pack(offset.commit_timestamp_ms)
    head = struct.pack(">hq", EXPIRING_OFFSET_VALUE_VERSION, offset.offset)
    return head + metadata + _TWO_INT64.pack(offset.commit_timestamp_ms, offset.expire_timestamp_ms)


def group_metadata_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_KEY_VERSION) + _string(group_id)


def group_metadata_value(group: Group, assignments: Mapping[str, bytes]) -> bytes:
    """The group with the assignment of each member (by id).

    Raises LookupError for a member without an assignment. A group with members must have a protocol.
    """
    return in_one_go(group_metadata_steps(group, assignments))


def group_metadata_steps(group: Group, assignments: Mapping[str, bytes]) -> Steps[bytes]:
    """Like `group_metadata_value`, in steps. The members are those of the first step."""
    slices = Slices(MEMBERS_PER_SLICE)
    timestamp_ms = NO_TIMESTAMP if group.state_timestamp_ms is None else group.state_timestamp_ms
    parts = [
        _INT16.pack(GROUP_VALUE_VERSION),
        _string(group.protocol_type or ""),
        _INT32.pack(group.generation_id),
        _nullable_string(group.protocol_name),
        _nullable_string(group.leader_id),
        _INT64.pack(timestamp_ms),
        _INT32.pack(len(group.members)),
    ]
    protocol_name = group.protocol_name
    for member_id, member in list(group.members.items()):
        assert protocol_name is not None, f"group {group.group_id} has members but no protocol"
        parts += (
            _string(member_id),
            _nullable_string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.metadata(protocol_name)),
            _bytes(assignments[member_id]),
        )
        if slices.spend():
            yield
    return b"".join(parts)


def _offset_key_prefix(group_id: str) -> bytes:
    return _INT16.pack(OFFSET_KEY_VERSION) + _string(group_id)


def _offset_key_suffix(partition: PartitionKey) -> bytes:
    topic, number = partition
    return _string(topic) + _INT32.pack(number)


# Consumers commit the same partitions in the same groups again and again.
_cached_key_prefix = lru_cache(maxsize=10_000)(_offset_key_prefix)
_cached_key_suffix = lru_cache(maxsize=10_000)(_offset_key_suffix)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"text of {len(data)} bytes, allowed are {MAX_STRING_BYTES}: {text[:50]}...")
    return _INT16.pack(len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return _NO_STRING if text is None else _string(text)


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


# -- reading ----------------------------------------------------------------------------------------------------------


def read_key(data: bytes) -> Key:
    """Decodes a record's key. ValueError for an invalid key."""
    return _whole(_read_key, data)


class OffsetKeyReader:
    """Reads offset keys like `read_key`, but decodes parts that several keys share only once, into shared objects."""

    def __init__(self) -> None:
        self._group_ids: dict[bytes, str] = {}
        self._partitions: dict[bytes, PartitionKey] = {}

    def read(self, data: bytes) -> tuple[str, PartitionKey]:
        """The group and the partition. ValueError for an invalid offset key."""
        end = 4 + int.from_bytes(data[2:4])
        group_id, partition = self._group_ids.get(data[:end]), self._partitions.get(data[end:])
        if group_id is not None and partition is not None:
            return group_id, partition
        key = read_key(data)
        if not isinstance(key, OffsetKey):
            raise InvalidFrame(f"not the key of an offset but {key}", 0)
        return self._group_ids.setdefault(data[:end], key[0]), self._partitions.setdefault(data[end:], key[1])


def read_offset_value(data: bytes) -> OffsetAndMetadata:
    """Decodes the value of a record with an `OffsetKey`. ValueError for an unknown version or invalid bytes."""
    if len(data) == _PLAIN_OFFSET_V3.size:
        version, offset, leader_epoch, length, commit_timestamp_ms = _PLAIN_OFFSET_V3.unpack(data)
        if version == OFFSET_VALUE_VERSION and length == 0:
            return OffsetAndMetadata(offset, leader_epoch, "", commit_timestamp_ms)
    return _whole(_read_offset_value, data)


def read_group_value(group_id: str, data: bytes) -> Group:
    """Decodes the value of a record with a `GroupKey`: the group without offsets, Stable if it has members, else Empty.

    ValueError for an unknown version or invalid bytes.
    """
    return in_one_go(read_group_steps(group_id, data))


def read_group_steps(group_id: str, data: bytes) -> Steps[Group]:
    """Like `read_group_value`, in steps."""
    try:
        return (yield from _read_group_value(group_id, data))
    except struct.error:
        raise InvalidFrame("the record ends too early", len(data)) from None


def _whole(read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except struct.error:
        raise InvalidFrame("the record ends too early", len(data)) from None


def _read_key(data: bytes) -> Key:
    (version,) = _INT16.unpack_from(data)
    if version in (0, OFFSET_KEY_VERSION):
        group_id, position = read_string(data, 2)
        topic, position = read_string(data, position)
        return OffsetKey(group_id, (topic, _INT32.unpack_from(data, position)[0]))
    if version == GROUP_KEY_VERSION:
        return GroupKey(read_string(data, 2)[0])
    if version < 0:
        raise InvalidFrame(f"a key of version {version}", 0)
    return UnknownKey(version)


def _read_offset_value(data: bytes) -> OffsetAndMetadata:
    version = _value_version(data, OFFSET_VALUE_VERSION)
    leader_epoch = NO_EPOCH
    (offset,) = _INT64.unpack_from(data, 2)
    position = 10
    if version >= 3:
        (leader_epoch,) = _INT32.unpack_from(data, position)
        position += 4
    metadata, position = read_string(data, position)
    (commit_timestamp_ms,) = _INT64.unpack_from(data, position)
    expire_timestamp_ms = None
    if version == EXPIRING_OFFSET_VALUE_VERSION:
        (expire_timestamp_ms,) = _INT64.unpack_from(data, position + 8)
        if expire_timestamp_ms == NO_TIMESTAMP:
            expire_timestamp_ms = None
    return OffsetAndMetadata(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


def _read_group_value(group_id: str, data: bytes) -> Steps[Group]:
    slices = Slices(MEMBERS_PER_SLICE)
    version = _value_version(data, GROUP_VALUE_VERSION)
    protocol_type, position = read_string(data, 2)
    (generation_id,) = _INT32.unpack_from(data, position)
    protocol, position = read_nullable_string(data, position + 4)
    leader, position = read_nullable_string(data, position)
    state_timestamp_ms = None
    if version >= 2:
        (timestamp_ms,) = _INT64.unpack_from(data, position)
        state_timestamp_ms = None if timestamp_ms == NO_TIMESTAMP else timestamp_ms
        position += 8
    (count,) = _INT32.unpack_from(data, position)
    position += 4
    if count < 0:
        raise InvalidFrame(f"a count of {count} members", position)
    if count and protocol is None:
        raise InvalidFrame(f"{count} members, but no protocol", position)
    members = []
    for _ in range(count):
        member, position = _read_member(data, position, version, protocol_type, protocol or "")
        members.append(member)
        if slices.spend():
            yield
    if len({member.member_id for member in members}) < count:
        raise InvalidFrame("a member that is there twice", position)
    return (
        yield from Group.load_steps(
            group_id, generation_id, protocol_type, protocol, leader, state_timestamp_ms, members
        )
    )


def _read_member(data: bytes, position: int, version: int, protocol_type: str, protocol: str) -> tuple[Member, int]:
    member_id, position = read_string(data, position)
    instance_id = None
    if version >= 3:
        instance_id, position = read_nullable_string(data, position)
    client_id, position = read_string(data, position)
    client_host, position = read_string(data, position)
    (session_timeout_ms,) = _INT32.unpack_from(data, position)
    rebalance_timeout_ms = session_timeout_ms
    position += 4
    if version >= 1:
        (session_timeout_ms,) = _INT32.unpack_from(data, position)
        position += 4
    subscription, position = _read_bytes(data, position)
    assignment, position = _read_bytes(data, position)
    member = Member(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        protocol_type,
        [(protocol, subscription)],
        assignment,
    )
    return member, position


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _INT32.unpack_from(data, position)
    position += 4
    if not 0 <= length <= len(data) - position:
        raise InvalidFrame(f"{length} bytes of data, but {len(data) - position} are left", position)
    return data[position : position + length], position + length


def _value_version(data: bytes, highest: int) -> int:
    version: int = _INT16.unpack_from(data)[0]
    if not 0 <= version <= highest:
        raise InvalidFrame(f"a value of version {version}, known are 0 to {highest}", 0)
    return version
