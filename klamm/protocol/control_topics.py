"""The common part of LeaderAndIsr, UpdateMetadata and StopReplica: the states of partitions, topic by topic.

All three have the same history: first every partition names its topic, then partitions are grouped by topic, then the
encoding is flexible, then topics have ids. `ControlTopics` gets the versions of these changes and the layout of a
partition from its user. Responses that name the topic with every partition's error are also alike.

What must stay true: large messages are read in steps, and a step is a tight loop over partitions. A topic or a state
does not change once it is encoded, because its encoding is kept with it.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from klamm.base.slices import Steps
from klamm.protocol.primitives import (
    PARTITIONS_PER_STEP,
    Buffer,
    InvalidFrame,
    check_count,
    compact_string,
    length_prefix,
    read_compact_string,
    read_count,
    read_string,
    read_uuid,
    skip_tagged_fields,
    string,
    uuid_bytes,
)

# Arrays of fewer broker ids than this are read and written together with the rest of their partition.
SHORT_ARRAY = 64

_INT32 = struct.Struct(">i")
_ERROR = struct.Struct(">ih")
_FLEXIBLE_ERROR = struct.Struct(">ihB")


class ControlState(Protocol):
    """A partition's state. `_encoded` is (version, the state's encoding in that version)."""

    _encoded: tuple[int, bytes] | None


State = TypeVar("State", bound=ControlState)


@dataclass(slots=True)
class ControlTopic(Generic[State]):
    """The partitions of one topic. `topic_id` is None where the version or the controller does not know it."""

    topic: str
    topic_id: UUID | None
    partitions: list[State]
    _encoded: tuple[int, bytes] | None = field(default=None, init=False, repr=False, compare=False)


Topic = TypeVar("Topic", bound=ControlTopic[Any])


@contextmanager
def complaints_about(message: str, position: Callable[[], int]) -> Iterator[None]:
    """Code in this context raises only InvalidFrame, whose path begins with the message's name.

    `position` returns the reader's position, for a frame that ends too early.
    """
    try:
        yield
    except InvalidFrame as error:
        error.path.insert(0, message)
        raise
    except (struct.error, IndexError):
        raise InvalidFrame("the frame ends within a field", position(), message) from None


@dataclass(frozen=True, slots=True)
class ControlTopics(Generic[Topic, State]):
    """Reads and writes the topics of one kind of request.

    The functions define the layout of a partition (without its topic's name). `read_state` and `encode_state` know
    every version. `read_flexible_states` adds partitions of a flexible version to a list; None means that
    `_read_states` does so. `partition_bytes` is the smallest size of a partition, `flexible_partition_bytes` that of a
    flexible version.
    """

    topic_class: Callable[[str, UUID | None, list[State]], Topic]
    read_state: Callable[[int, Buffer, int, list[int]], tuple[State, int]]
    read_flexible_states: Callable[[int, Buffer, int, list[int], int, list[State]], int] | None
    encode_state: Callable[[int, State], bytes]
    grouped_from: int
    flexible_from: int
    topic_ids_from: int
    partition_bytes: int
    flexible_partition_bytes: int

    def read(self, version: int, frame: Buffer, position: int, elements: list[int]) -> Steps[tuple[list[Topic], int]]:
        """Reads the topics, in steps of `PARTITIONS_PER_STEP`. Returns them and the position after them."""
        if version < self.grouped_from:
            return self._read_ungrouped(version, frame, position, elements)
        return self._read_grouped(version, frame, position, elements)

    def _read_grouped(
        self, version: int, frame: Buffer, position: int, elements: list[int]
    ) -> Steps[tuple[list[Topic], int]]:
        flexible = version >= self.flexible_from
        read_text = read_compact_string if flexible else read_string
        read_states = self.read_flexible_states if flexible and self.read_flexible_states else self._read_states
        partition_bytes = self.flexible_partition_bytes if flexible else self.partition_bytes
        topics = []
        topic_count, position = read_count(frame, position, flexible)
        check_count(topic_count, 3 if flexible else 6, frame, position, elements)
        left_in_step = PARTITIONS_PER_STEP
        for _ in range(topic_count):
            topic, position = read_text(frame, position)
            topic_id = None
            if version >= self.topic_ids_from:
                topic_id, position = read_uuid(frame, position)
            left, position = read_count(frame, position, flexible)
            check_count(left, partition_bytes, frame, position, elements)
            states: list[State] = []
            while left > 0:
                count = min(left, left_in_step)
                position = read_states(version, frame, position, elements, count, states)
                left -= count
                left_in_step -= count
                if not left_in_step:
                    yield
                    left_in_step = PARTITIONS_PER_STEP
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            topics.append(self.topic_class(topic, topic_id, states))
        return topics, position

    def _read_ungrouped(
        self, version: int, frame: Buffer, position: int, elements: list[int]
    ) -> Steps[tuple[list[Topic], int]]:
        read_state = self.read_state
        topics: dict[str, Topic] = {}
        count, position = read_count(frame, position, False)
        check_count(count, 2 + self.partition_bytes, frame, position, elements)
        for index in range(count):
            topic, position = read_string(frame, position)
            state, position = read_state(version, frame, position, elements)
            topics.setdefault(topic, self.topic_class(topic, None, [])).partitions.append(state)
            if index % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield
        return list(topics.values()), position

    def _read_states(
        self, version: int, frame: Buffer, position: int, elements: list[int], count: int, states: list[State]
    ) -> int:
        """Adds `count` partitions to `states`. Returns the position after them."""
        read_state = self.read_state
        for _ in range(count):
            state, position = read_state(version, frame, position, elements)
            states.append(state)
        return position

    def encode(self, version: int, topics: Sequence[Topic]) -> list[bytes]:
        """The parts of the array of topics, or of partitions in a version that does not group them."""
        if version >= self.grouped_from:
            parts = [length_prefix(len(topics), version >= self.flexible_from)]
            parts += [self.encode_topic(version, topic) for topic in topics]
            return parts
        parts = [_INT32.pack(sum(len(topic.partitions) for topic in topics))]
        for topic in topics:
            name = string(topic.topic)
            for state in self.encode_states(version, topic.partitions):
                parts += (name, state)
        return parts

    def encode_topic(self, version: int, topic: Topic) -> bytes:
        """A topic's encoding in a version that groups by topics; does nothing in other versions.

        The encoding is kept with the topic and its states, so a large request can be encoded topic by topic first.
        """
        encoded = topic._encoded
        if encoded is not None and encoded[0] == version:
            return encoded[1]
        states = self.encode_states(version, topic.partitions)
        if version < self.grouped_from:
            return b""
        flexible = version >= self.flexible_from
        parts = [(compact_string if flexible else string)(topic.topic)]
        if version >= self.topic_ids_from:
            parts.append(uuid_bytes(topic.topic_id))
        parts.append(length_prefix(len(topic.partitions), flexible))
        parts += states
        if flexible:
            parts.append(b"\0")
        whole = b"".join(parts)
        topic._encoded = (version, whole)
        return whole

    def encode_states(self, version: int, states: Sequence[State]) -> list[bytes]:
        """The partitions' encoding in this version. It is kept with them, for requests to other brokers."""
        encode_state = self.encode_state
        encoded_states = []
        for state in states:
            encoded = state._encoded
            if encoded is None or encoded[0] != version:
                encoded = state._encoded = (version, encode_state(version, state))
            encoded_states.append(encoded[1])
        return encoded_states


def read_errors_by_name(
    flexible: bool, frame: Buffer, position: int, elements: list[int]
) -> Steps[tuple[dict[str, list[tuple[int, int]]], int]]:
    """Reads an array of (topic, partition, error code), in steps. Returns it by topic, and the position after it."""
    read_text = read_compact_string if flexible else read_string
    topics: dict[str, list[tuple[int, int]]] = {}
    count, position = read_count(frame, position, flexible)
    check_count(count, 8, frame, position, elements)
    for index in range(count):
        topic, position = read_text(frame, position)
        error: tuple[int, int] = _ERROR.unpack_from(frame, position)
        position += _ERROR.size
        if flexible:
            position = skip_tagged_fields(frame, position, elements)
        errors = topics.get(topic)
        if errors is None:
            errors = topics[topic] = []
        errors.append(error)
        if index % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
            yield
    return topics, position


def encode_errors_by_name(
    flexible: bool, topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
) -> Steps[list[bytes]]:
    """The encoding that `read_errors_by_name` reads, in parts, and in steps."""
    parts = [length_prefix(sum(len(errors) for _, errors in topics), flexible)]
    left_in_step = PARTITIONS_PER_STEP
    for topic, errors in topics:
        name = compact_string(topic) if flexible else string(topic)
        for partition, error_code in errors:
            if flexible:
                parts.append(name + _FLEXIBLE_ERROR.pack(partition, error_code, 0))
            else:
                parts.append(name + _ERROR.pack(partition, error_code))
            left_in_step -= 1
            if not left_in_step:
                yield
                left_in_step = PARTITIONS_PER_STEP
    return parts


def count_pairs_steps(
    error_code: int, topics: Iterable[Sequence[tuple[int, int]]], counts: dict[int, int]
) -> Steps[None]:
    """As `messages.count_errors_steps`, for an error code and the (partition, error code) pairs of topics."""
    counts[error_code] = counts.get(error_code, 0) + 1
    left_in_step = PARTITIONS_PER_STEP
    for errors in topics:
        for _, code in errors:
            counts[code] = counts.get(code, 0) + 1
            left_in_step -= 1
            if not left_in_step:
                yield
                left_in_step = PARTITIONS_PER_STEP
