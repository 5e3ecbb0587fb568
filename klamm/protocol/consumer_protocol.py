"""The data that consumers of a group exchange through their coordinator: subscriptions and assignments; assignors.

What must stay true:
- Any bytes give a value or a ValueError, because any client may have sent them. No length is trusted before it has been
  compared with the available bytes.
- Later versions only add fields at the end, so the fields that are read here are the same in all versions.
- A broker reads the subscriptions of a group only when it needs them, in steps, and only if they have at most
  `MAX_SUBSCRIBED_TOPICS` topics together.

Versions of a subscription: 1 owned partitions (KIP-429).

Source: org.apache.kafka.clients.consumer.internals.ConsumerProtocol.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from klamm.base.slices import Steps
from klamm.protocol.vocabulary import TopicPartition

# Subscriptions are known only for groups of this protocol type.
CONSUMER_PROTOCOL_TYPE: Final = "consumer"

# The most topics that are read from the subscriptions of all members of a group: a third of a second, in steps.
MAX_SUBSCRIBED_TOPICS = 1_000_000
TOPICS_PER_STEP = 5_000

_VERSION = 1
_NO_USER_DATA = struct.pack(">i", -1)


def encode_subscription(topics: Sequence[str], owned: Iterable[TopicPartition] = ()) -> bytes:
    """The subscription of a member that owns these partitions while it joins."""
    names = b"".join(_text(topic) for topic in topics)
    return struct.pack(">hi", _VERSION, len(topics)) + names + _NO_USER_DATA + _partitions(owned)


def subscribed_topics(subscription: bytes) -> list[str]:
    """The topics of a subscription: an array of text after an int16 version. Raises ValueError."""
    try:
        version, count = struct.unpack_from(">hi", subscription)
        if version < 0 or count < 0:
            raise ValueError(f"a subscription of version {version} with {count} topics")
        topics, position = [], 6
        for _ in range(count):
            topic, position = _read_text(subscription, position)
            topics.append(topic)
    except struct.error:
        raise ValueError(f"a subscription that ends after {len(subscription)} bytes") from None
    return topics


def subscribed_among(subscriptions: Sequence[bytes], topics: Iterable[str]) -> Steps[dict[str, None]]:
    """The topics that are in at least one of the subscriptions, in steps. Raises ValueError for a subscription in
    another format, and for subscriptions with more than `MAX_SUBSCRIBED_TOPICS` topics together."""
    wanted: dict[bytes, str] = {}
    for topic in topics:
        wanted[topic.encode()] = topic
        if len(wanted) % TOPICS_PER_STEP == 0:
            yield
    found: dict[str, None] = {}
    left = MAX_SUBSCRIBED_TOPICS
    until_next_step = TOPICS_PER_STEP
    for subscription in subscriptions:
        until_next_step -= 1
        try:
            version, count = struct.unpack_from(">hi", subscription)
            left -= count
            if version < 0 or count < 0 or left < 0:
                raise ValueError(f"a subscription of version {version} with {count} topics")
            position = 6
            for _ in range(count):
                (length,) = struct.unpack_from(">h", subscription, position)
                start, position = position + 2, position + 2 + length
                if length < 0 or position > len(subscription):
                    raise ValueError(f"a topic of {length} bytes at {start - 2}")
                name = subscription[start:position]
                if name in wanted:
                    found[wanted[name]] = None
                until_next_step -= 1
                if until_next_step <= 0:
                    until_next_step = TOPICS_PER_STEP
                    yield
        except struct.error:
            raise ValueError(f"a subscription that ends after {len(subscription)} bytes") from None
    return found


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The encoded assignment of these partitions to a member."""
    return struct.pack(">h", _VERSION) + _partitions(partitions) + _NO_USER_DATA


def decode_assignment(assignment: bytes) -> list[TopicPartition]:
    """The partitions of an assignment; empty bytes mean no partitions. Raises ValueError.

    After an int16 version come, for each topic, its name and an array of int32.
    """
    if not assignment:
        return []
    partitions = []
    try:
        _, count = struct.unpack_from(">hi", assignment)
        position = 6
        for _ in range(count):
            topic, position = _read_text(assignment, position)
            (length,) = struct.unpack_from(">i", assignment, position)
            position += 4
            if not 0 <= length <= (len(assignment) - position) // 4:
                raise ValueError(f"{length} partitions at {position}")
            numbers = struct.unpack_from(f">{length}i", assignment, position)
            position += 4 * length
            partitions += [TopicPartition(topic, number) for number in numbers]
    except struct.error:
        raise ValueError(f"the data end after {len(assignment)} bytes") from None
    return sorted(partitions)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    parts = [struct.pack(">i", len(topics))]
    for topic, numbers in topics.items():
        parts += _text(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, position)
    end = position + 2 + length
    if length < 0 or end > len(data):
        raise ValueError(f"a topic of {length} bytes at {position}")
    return data[position + 2 : end].decode(), end


# -- assignors --------------------------------------------------------------------------------------------------------


class Subscriber:
    """A member and the topics that it subscribes to. Members have the order of Java's `AbstractPartitionAssignor`."""

    __slots__ = ("group_instance_id", "member_id", "topics")

    def __init__(self, member_id: str, topics: Iterable[str], group_instance_id: str | None = None) -> None:
        self.member_id = member_id
        self.topics: Collection[str] = dict.fromkeys(topics)
        self.group_instance_id = group_instance_id

    @property
    def place(self) -> tuple[bool, str]:
        """The sort key: static members by their instance ids, then the other members by their member ids."""
        if self.group_instance_id is None:
            return True, self.member_id
        return False, self.group_instance_id


Assignments = dict[str, list[TopicPartition]]
"""The partitions of each member, by its id."""


def assign_range(members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Assignments:
    """`RangeAssignor`: every member gets consecutive partitions of each topic; the first members may get one more."""
    ordered = sorted(members, key=lambda member: member.place)
    assigned: Assignments = {member.member_id: [] for member in members}
    for topic in sorted(partition_counts):
        owners = [member.member_id for member in ordered if topic in member.topics]
        start = 0
        for place, member_id in enumerate(owners):
            count = partition_counts[topic] // len(owners) + (place < partition_counts[topic] % len(owners))
            assigned[member_id] += [TopicPartition(topic, number) for number in range(start, start + count)]
            start += count
    return assigned


def assign_round_robin(members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Assignments:
    """`RoundRobinAssignor`: the members that subscribe to a partition's topic take turns."""
    ordered = sorted(members, key=lambda member: member.place)
    assigned: Assignments = {member.member_id: [] for member in members}
    turn = 0
    for topic in sorted(partition_counts):
        if not any(topic in member.topics for member in ordered):
            continue
        for number in range(partition_counts[topic]):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            assigned[ordered[turn % len(ordered)].member_id].append(TopicPartition(topic, number))
            turn += 1
    return assigned


ASSIGNORS = {"range": assign_range, "roundrobin": assign_round_robin}
"""The assignors by the names that members use to agree on one."""
