"""Differences that stand: what each is, who is right, and where that is written.

A sequence ends at a difference after which the two programs are in different states. After any other it goes on, and
the rest of the answer is compared, too.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import BatchHeader, iterate_batches
from support.requests_beside.answers import CLOSED, NO_ANSWER, Difference
from support.requests_beside.step import Json, Step

FUTURE_REPLICA_ID = -3
LISTS_OF_PARTITIONS = ("topics", "partitions", "results_by_partition", "partition_responses")

Fits = Callable[[Step, Any, Difference], bool]


@dataclass(frozen=True)
class Known:
    """A difference that is explained. `fits` gets the step, the request as klamm got it, and where the answers differ
    first. `reason` begins with who is right."""

    name: str
    reason: str
    fits: Fits
    ends: bool = True


def _codes(api: ApiKey, *pairs: tuple[str, str]) -> Fits:
    """Kafka has the first error of a pair, klamm the second."""
    return lambda step, _, difference: step.api is api and (difference.kafka, difference.klamm) in pairs


def _epoch_is_negative(step: Step, request: Any, difference: Difference) -> bool:
    return (
        step.api is ApiKey.PRODUCE
        and difference.klamm == "INVALID_RECORD"
        and any(header.producer_id >= 0 > header.producer_epoch for header in _headers(request))
    )


def _headers(request: Any) -> Iterator[BatchHeader]:
    """Of the batches of a Produce request, as far as they can be read."""
    for data in (data for topic in request.topic_data for data in topic.partition_data):
        with suppress(KafkaError):
            for _, header in iterate_batches(data.records or b"", allow_partial_end=True):
                yield header


def _transactional_without_producer(step: Step, request: Any, difference: Difference) -> bool:
    return (
        step.api is ApiKey.PRODUCE
        and difference.klamm == "INVALID_RECORD"
        and any(header.producer_id < 0 and header.is_transactional for header in _headers(request))
    )


def _no_producer(step: Step, request: Any, difference: Difference) -> bool:
    if step.api is ApiKey.TXN_OFFSET_COMMIT:
        is_negative = request.producer_id < 0 or request.producer_epoch < 0
        return is_negative and difference.klamm in ("INVALID_PRODUCER_ID_MAPPING", "INVALID_PRODUCER_EPOCH")
    return (
        step.api is ApiKey.WRITE_TXN_MARKERS
        and difference.klamm == "INVALID_REQUEST"
        and any(marker.producer_id < 0 or marker.producer_epoch < 0 for marker in request.markers)
    )


def _named_twice_or_without_partitions(_: Step, __: Any, difference: Difference) -> bool:
    """The same partitions, some of them several times, or topics without partitions besides."""
    if not all(isinstance(one, list) for one in (difference.kafka, difference.klamm)):
        return False
    kafka, klamm = (
        {json.dumps(part, sort_keys=True) for one in of for part in _spread(one)}
        for of in (difference.kafka, difference.klamm)
    )
    return kafka == klamm


def _spread(value: Json) -> Iterator[Json]:
    """A topic once for each of its partitions; another value as it is."""
    lists = [name for name in value if name in LISTS_OF_PARTITIONS] if isinstance(value, dict) else []
    if lists:
        yield from (value | {lists[0]: part} for inner in value[lists[0]] for part in _spread(inner))
    else:
        yield value


def _offset_of_a_partition_named_twice(step: Step, request: Any, difference: Difference) -> bool:
    if step.api is not ApiKey.LIST_OFFSETS or difference.kafka != "INVALID_REQUEST":
        return False
    named = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
    number = difference.within["partition_index"]
    return any(named.count(one) > 1 for one in named if one[1] == number)


def _batch_of_a_partition_named_twice(step: Step, request: Any, difference: Difference) -> bool:
    """Kafka answers for one of the batches."""
    if step.api is not ApiKey.PRODUCE or not isinstance(difference.kafka, list):
        return False
    named = Counter((topic.name, data.index) for topic in request.topic_data for data in topic.partition_data)
    kafka, klamm = ([*map(json.dumps, _spread_all(of))] for of in (difference.kafka, difference.klamm))
    return len(named) < named.total() and set(kafka) <= set(klamm) and len(klamm) > len(kafka)


def _spread_all(values: list[Json]) -> Iterator[Json]:
    return (part for value in values for part in _spread(value))


def _type_named_twice(step: Step, request: Any, difference: Difference) -> bool:
    return (
        step.api is ApiKey.ALTER_CLIENT_QUOTAS
        and difference.path[-1:] == ("entity",)
        and all(part in difference.klamm for part in difference.kafka)
        and any(len({part.entity_type for part in one.entity}) < len(one.entity) for one in request.entries)
    )


def _session_without_partitions(step: Step, request: Any, difference: Difference) -> bool:
    return (
        step.api is ApiKey.FETCH
        and difference.path == ("session_id",)
        and difference.klamm == 0
        and not any(topic.partitions for topic in request.topics)
    )


def _aborted_after_the_records(step: Step, _: Any, difference: Difference) -> bool:
    """Of the transactions that klamm does not name, no record is in the answer."""
    if step.api is not ApiKey.FETCH or difference.path[-1:] != ("aborted_transactions",):
        return False
    end = max((batch["base_offset"] + batch["last_offset_delta"] for batch in difference.within["records"]), default=-1)
    more = [one for one in difference.kafka if one not in difference.klamm]
    return all(one in difference.kafka for one in difference.klamm) and all(one["first_offset"] > end for one in more)


def _prepared_for_ever(step: Step, _: Any, difference: Difference) -> bool:
    """It gets CONCURRENT_TRANSACTIONS each time that it asks again."""
    return (
        step.api in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID)
        and difference.kafka == NO_ANSWER
        and isinstance(difference.klamm, dict)
        and difference.klamm["error_code"] == "NONE"
    )


def _appended_to_nothing(step: Step, _: Any, difference: Difference) -> bool:
    return step.api is ApiKey.DESCRIBE_CONFIGS and difference.kafka == f",{difference.klamm}"


def _topic_without_a_name(step: Step, _: Any, difference: Difference) -> bool:
    return (
        step.api in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
        and (difference.kafka, difference.klamm) == ("INVALID_REQUEST", "UNKNOWN_TOPIC_OR_PARTITION")
        and difference.within["resource_name"] == ""
    )


def _no_records(step: Step, request: Any, difference: Difference) -> bool:
    return (
        step.api is ApiKey.PRODUCE
        and difference.kafka in ("UNKNOWN_SERVER_ERROR", CLOSED)
        and any(data.records is None for topic in request.topic_data for data in topic.partition_data)
    )


def _superseded(step: Step, _: Any, difference: Difference) -> bool:
    return (
        step.api in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
        and difference.kafka == NO_ANSWER
        and difference.klamm["error_code"] == "REBALANCE_IN_PROGRESS"
    )


def _unnamed_error(_: Step, __: Any, difference: Difference) -> bool:
    return difference.kafka == "UNKNOWN_SERVER_ERROR" and difference.klamm in ("INVALID_REQUEST", "INVALID_CONFIG")


def _partition_last(step: Step, _: Any, difference: Difference) -> bool:
    return (
        step.api is ApiKey.PRODUCE
        and difference.kafka == "UNKNOWN_TOPIC_OR_PARTITION"
        and difference.klamm in ("INVALID_REQUIRED_ACKS", "INVALID_RECORD")
    )


def _start_offset_of_odd_records(step: Step, request: Any, difference: Difference) -> bool:
    """There is not exactly one batch for each partition."""
    return (
        step.api is ApiKey.PRODUCE
        and "log_start_offset" in difference.path
        and difference.kafka == -1
        and len([*_headers(request)]) != sum(len(topic.partition_data) for topic in request.topic_data)
    )


def _as_another_replica(step: Step, request: Any, difference: Difference) -> bool:
    """A client says that it is a broker. The broker with id 1 is no replica."""
    if step.api is not ApiKey.FETCH:
        return False
    is_no_replica = request.replica_id > 0 and difference.klamm == "NOT_LEADER_OR_FOLLOWER"
    return is_no_replica or bool(request.replica_id == FUTURE_REPLICA_ID)


def _nothing_is_left(step: Step, _: Any, difference: Difference) -> bool:
    match step.api:
        case ApiKey.LIST_GROUPS:
            more = [group for group in difference.kafka if group not in difference.klamm]
            return all(group in difference.kafka for group in difference.klamm) and all(
                group.get("group_state", "Empty") == "Empty" for group in more
            )
        case ApiKey.OFFSET_COMMIT:
            return (difference.kafka, difference.klamm) == ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
        case ApiKey.DESCRIBE_GROUPS:
            return (difference.kafka, difference.klamm) == ("Empty", "Dead")
        case ApiKey.DELETE_GROUPS | ApiKey.OFFSET_DELETE:
            return (difference.kafka, difference.klamm) == ("NONE", "GROUP_ID_NOT_FOUND")
    return False


def _time_of_a_duplicate(step: Step, _: Any, difference: Difference) -> bool:
    return step.api is ApiKey.PRODUCE and "log_append_time_ms" in difference.path and difference.klamm == -1


KNOWN = [
    Known(
        "a producer that the log does not know",
        "klamm: docs/kafka-faults.md, Requests, `any sequence number for its first`",
        _codes(ApiKey.PRODUCE, ("NONE", "UNKNOWN_PRODUCER_ID")),
    ),
    Known(
        "a batch of a producer in a negative epoch",
        "klamm: docs/kafka-faults.md, Requests, `in epoch -1`",
        _epoch_is_negative,
    ),
    Known(
        "a transactional batch without a producer id",
        "klamm: docs/kafka-faults.md, Requests, `A transactional batch without a producer id`",
        _transactional_without_producer,
    ),
    Known(
        "an offset or a marker of a producer with a negative id or epoch",
        "klamm: docs/kafka-faults.md, Transactions, `negative id or epoch`",
        _no_producer,
    ),
    Known(
        "a partition that a request names twice, or a topic without partitions",
        "Kafka: docs/unsupported.md, Protocol, `named twice`",
        _named_twice_or_without_partitions,
        ends=False,
    ),
    Known(
        "an offset of a partition that a request names twice",
        "Kafka: docs/unsupported.md, Protocol, `ListOffsets refuses such a partition`",
        _offset_of_a_partition_named_twice,
    ),
    Known(
        "a batch for a partition that a request names twice",
        "Kafka: docs/unsupported.md, Protocol, `named twice`",
        _batch_of_a_partition_named_twice,
    ),
    Known(
        "a type of quota that an entity names twice",
        "Kafka: docs/unsupported.md, Protocol, `that an entity of AlterClientQuotas has named twice`",
        _type_named_twice,
    ),
    Known(
        "acks or records that are not allowed, for a partition that does not exist",
        "Kafka: docs/unsupported.md, Protocol, `for a partition that does not exist`",
        _partition_last,
        ends=False,
    ),
    Known(
        "the log start offset for two batches in one partition",
        "Kafka: docs/unsupported.md, Protocol, `two batches for a partition`",
        _start_offset_of_odd_records,
        ends=False,
    ),
    Known(
        "a message set in a version of Produce that has none",
        "klamm: docs/unsupported.md, Protocol, `record formats v0 and v1`",
        _codes(ApiKey.PRODUCE, ("INVALID_RECORD", "UNSUPPORTED_FOR_MESSAGE_FORMAT")),
        ends=False,
    ),
    Known(
        "records that are null",
        "klamm: docs/kafka-faults.md, Requests, `whose records are null`",
        _no_records,
    ),
    Known(
        "an error without a name",
        "klamm: docs/kafka-faults.md, Requests, `UNKNOWN_SERVER_ERROR`",
        _unnamed_error,
    ),
    Known(
        "a fetch as a broker that is no replica",
        "klamm: docs/kafka-faults.md, Replication and Requests, `that is no replica of a partition`",
        _as_another_replica,
    ),
    Known(
        "a session without partitions",
        "klamm: docs/kafka-faults.md, Replication and Requests, `that names no partition`",
        _session_without_partitions,
    ),
    Known(
        "aborted transactions after the records of a fetch",
        "klamm: docs/kafka-faults.md, Requests, `that begin after its last record`",
        _aborted_after_the_records,
        ends=False,
    ),
    Known(
        "a transaction with a partition that has a later epoch",
        "klamm: docs/kafka-faults.md, Transactions, `until another broker coordinates the id`",
        _prepared_for_ever,
    ),
    Known(
        "a list that was empty",
        "klamm: docs/kafka-faults.md, Configurations that change, `APPEND to a list that is empty`",
        _appended_to_nothing,
        ends=False,
    ),
    Known(
        "configurations of a topic without a name",
        "klamm: docs/kafka-faults.md, Configurations that change, `a topic without a name`",
        _topic_without_a_name,
        ends=False,
    ),
    Known(
        "a member that asks again while it waits",
        "klamm: docs/kafka-faults.md, Consumer groups, `never answered`",
        _superseded,
    ),
    Known(
        "a group that has nothing",
        "klamm: docs/kafka-faults.md, Consumer groups, `that has nothing`",
        _nothing_is_left,
        ends=False,
    ),
    Known(
        "members of a version that does not know instance ids",
        "klamm: docs/kafka-faults.md, Consumer groups, `before version 5`",
        _codes(ApiKey.JOIN_GROUP, ("UNSUPPORTED_VERSION", "NONE")),
    ),
    Known(
        "a producer that asks for its next epoch in its own transaction",
        "klamm: docs/kafka-faults.md, Transactions, `fenced by the abort that it has caused`",
        _codes(ApiKey.INIT_PRODUCER_ID, ("PRODUCER_FENCED", "NONE")),
    ),
    Known(
        "the time of a batch that comes again",
        "klamm: docs/kafka-faults.md, Requests, `a batch that comes again`",
        _time_of_a_duplicate,
        ends=False,
    ),
    Known(
        "a member with an id that it was only given, and an instance id",
        "klamm: docs/kafka-faults.md, Consumer groups, `an id that it was only given`",
        _codes(
            ApiKey.JOIN_GROUP,
            ("UNKNOWN_SERVER_ERROR", "UNKNOWN_MEMBER_ID"),
            ("UNKNOWN_SERVER_ERROR", "FENCED_INSTANCE_ID"),
        ),
    ),
]


def explain(step: Step, request: Any, difference: Difference) -> Known | None:
    return next((known for known in KNOWN if known.fits(step, request, difference)), None)
