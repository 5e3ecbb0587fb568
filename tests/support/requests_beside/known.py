"""Differences that stand: what each is, who is right, and where that is written.

A sequence ends at a difference after which the two programs are in different states. After any other it goes on, and
the rest of the answer is compared, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.record.record_batch import iterate_batches
from support.requests_beside.answers import Difference
from support.requests_beside.step import Step

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
        and any(
            header.producer_id >= 0 > header.producer_epoch
            for topic in request.topic_data
            for data in topic.partition_data
            for _, header in iterate_batches(data.records or b"", allow_partial_end=True)
        )
    )


def _time_of_a_duplicate(step: Step, _: Any, difference: Difference) -> bool:
    return step.api is ApiKey.PRODUCE and difference.path[-1] == "log_append_time_ms" and difference.klamm == -1


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
        "the time of a batch that comes again",
        "klamm: docs/kafka-faults.md, Requests, `a batch that comes again`",
        _time_of_a_duplicate,
        ends=False,
    ),
    Known(
        "a member with an id that it was only given, and an instance id",
        "klamm: docs/kafka-faults.md, Consumer groups, `an id that it was only given`",
        _codes(ApiKey.JOIN_GROUP, ("UNKNOWN_SERVER_ERROR", "UNKNOWN_MEMBER_ID")),
    ),
]


def explain(step: Step, request: Any, difference: Difference) -> Known | None:
    return next((known for known in KNOWN if known.fits(step, request, difference)), None)
