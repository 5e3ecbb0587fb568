"""Converts between lists of partitions and Kafka's messages, which list partitions by topic.

What must stay true:
- All functions work in steps: a request may name 100,000 partitions.
- The struct of a topic in a response begins with the topic and ends with its partitions.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from klamm.base.slices import CHEAP_SLICE, Slices, Steps
from klamm.broker.requests.registry import Request
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.schema import Struct
from klamm.protocol.vocabulary import PartitionKey

Topic = TypeVar("Topic", bound=Struct)
Named = TypeVar("Named")
"""A partition in a request: its number, or a struct."""
Value = TypeVar("Value")


def named_partitions(topics: Iterable[tuple[str, Iterable[Named]]]) -> Steps[list[tuple[str, Named]]]:
    """The partitions of (topic, partitions), each with its topic."""
    named: list[tuple[str, Named]] = []
    slices = Slices(CHEAP_SLICE)
    for topic, partitions in topics:
        for partition in partitions:
            named.append((topic, partition))
            if slices.spend():
                yield
        if slices.spend():
            yield
    return named


def by_partition(
    response: type[Topic], topics: Iterable[tuple[str, Iterable[Named]]], answer: Callable[[str, Named], Any]
) -> Steps[list[Topic]]:
    """The topics of a response that answers each partition of (topic, partitions), in the same order."""
    answers = []
    slices = Slices()
    for name, partitions in topics:
        answered: list[Any] = []
        answers.append(_topic(response, name, answered))
        for partition in partitions:
            answered.append(answer(name, partition))
            if slices.spend():
                yield
        if slices.spend():
            yield
    return answers


def by_topic(
    response: type[Topic], answers: Iterable[tuple[str, Any]], slices: Slices | None = None
) -> Steps[list[Topic]]:
    """The topics of a response with these (topic, answer for a partition), in their order.

    Nested loops share `slices`.
    """
    topics: list[Topic] = []
    answered: dict[str, list[Any]] = {}
    slices = slices or Slices()
    for name, answer in answers:
        partitions = answered.get(name)
        if partitions is None:
            partitions = answered[name] = []
            topics.append(_topic(response, name, partitions))
        partitions.append(answer)
        if slices.spend():
            yield
    return topics


def _topic(response: type[Topic], name: str, partitions: list[Any]) -> Topic:
    fields = response.__slots__
    return response(**{fields[0]: name, fields[-1]: partitions})


def sorted_out(
    request: Request[Any],
    topics: Iterable[tuple[str, Iterable[Named]]],
    allows: Callable[[str], bool],
    accept: Callable[[Named], Value],
) -> Steps[tuple[dict[PartitionKey, ErrorCode], dict[PartitionKey, Value]]]:
    """The refused partitions, which do not exist or belong to a topic that `allows` forbids, and the other partitions
    with the results of `accept`."""
    known = request.services.metadata_cache.snapshot.topics
    refused: dict[PartitionKey, ErrorCode] = {}
    accepted: dict[PartitionKey, Value] = {}
    slices = Slices()
    for topic, partitions in topics:
        allowed, numbers = allows(topic), known.get(topic, ())
        for partition in partitions:
            number = partition if isinstance(partition, int) else partition.partition_index  # type: ignore[attr-defined]
            if not allowed:
                refused[topic, number] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif number not in numbers:
                refused[topic, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                accepted[topic, number] = accept(partition)
            if slices.spend():
                yield
        if slices.spend():
            yield
    return refused, accepted
