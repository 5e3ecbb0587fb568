"""Shared by the modules of `pages`: their inputs, the parameters of requests, and answers, also to errors of the
cluster.

What must stay true: a request ends within `TIMEOUT_S`, and at most `AT_ONCE` requests ask the cluster at a time, so
that neither a broker that hangs nor a page that asks too much exhausts the memory of this process.
"""

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.access.clients import error_line
from klamm.base import json_bytes
from klamm.base.visible import visible
from klamm.client.retries import RetryPolicy
from klamm.cockpit.controller_records import ControllerRecords
from klamm.cockpit.page_json import encoded_json
from klamm.cockpit.partition_map import PartitionMap
from klamm.cockpit.source import Source
from klamm.diagnosis.problem_groups import MOST_GROUPS, problem_groups
from klamm.net.client import ClientError
from klamm.net.http import JSON, Answer, Handler, Request
from klamm.processes.tool_errors import ToolError
from klamm.protocol.encode_errors import UnencodableMessage
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.reassignments import PartitionReassignment
    from klamm.client.cluster import ClusterClient

TIMEOUT_S: Final = 20.0
AT_ONCE: Final = 4
# How long transient errors are retried while a person waits for the answer.
PATIENCE: Final = RetryPolicy(deadline_ms=3_000)
MAX_INT64: Final = 2**63 - 1
MAX_INT32: Final = 2**31 - 1

_UNKNOWN: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
)
_BAD: Final = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_REQUEST})


@dataclass(frozen=True)
class Cockpit:
    """The pages' data source, and whether pages may change anything.

    `brokers_options` and `zookeeper_options` are the options by which a klamm command reaches the same cluster.
    `state_change_logs` is a directory with the brokers' state-change logs. `records` are the controllers' records.
    """

    source: Source
    allow_changes: bool = False
    brokers_options: tuple[str, ...] = ()
    zookeeper_options: tuple[str, ...] = ()
    state_change_logs: Path | None = None
    records: ControllerRecords = field(default_factory=ControllerRecords)


def json_response(value: Any, status: int = 200) -> Answer:
    """A JSON answer; see `encoded_json`."""
    return Answer(status, encoded_json(value), JSON)


def map_response(found: PartitionMap) -> Answer:
    """A map of partitions: one line of JSON (`PartitionMap.head`) and then a byte for each partition and broker, row by
    row. Takes some thirty milliseconds for a megabyte: call it in a thread, on a `snapshot`."""
    body = gzip.compress(json_bytes.encode(found.head()) + b"\n" + bytes(found.cells), 1)
    return Answer(200, body, "application/octet-stream", {"Content-Encoding": "gzip"})


def problems_response(found: PartitionMap) -> Answer:
    """The partitions with problems, in groups. Looks at all partitions: call it in a thread, on a `snapshot`."""
    groups = problem_groups(found.topics(), found.live)
    return json_response({"count": len(groups), "groups": [each.value() for each in groups[:MOST_GROUPS]]})


def error_response(status: int, why: str) -> Answer:
    """{"error": why}: what was wrong, and what is allowed."""
    return json_response({"error": why}, status)


class BadRequest(Exception):
    """A parameter is invalid; the message names it and what is allowed."""


def with_errors(handler: Handler, turn: asyncio.Semaphore | None = None) -> Handler:
    """The handler with an answer to each error: 400 for an invalid parameter, 404 for a missing topic or the like, 502
    for an error of the cluster, 504 when the cluster does not answer."""
    turns = turn or asyncio.Semaphore(AT_ONCE)

    async def answer(request: Request) -> Answer:
        try:
            async with turns, asyncio.timeout(TIMEOUT_S):
                return await handler(request)
        except BadRequest as error:
            return error_response(400, visible(str(error)))
        except KafkaError as error:
            status = 404 if error.code in _UNKNOWN else 400 if error.code in _BAD else 502
            return error_response(status, visible(error_line(error)))
        except TimeoutError:
            return error_response(504, f"The cluster did not answer within {TIMEOUT_S:g} s.")
        except (ClientError, ToolError, UnencodableMessage) as error:
            return error_response(502, visible(str(error)))

    return answer


def live_client(cockpit: Cockpit) -> "ClusterClient":
    """Raises BadRequest for a recording."""
    if cockpit.source.client is None:
        raise BadRequest("A recording has no records, groups or configurations: open a live cluster for that.")
    return cockpit.source.client


async def moving_of(cockpit: Cockpit) -> "Mapping[TopicPartition, PartitionReassignment]":
    """The reassignments in progress of a live cluster. If the controller does not list them now, those that it listed
    last."""
    if cockpit.source.reassignments is None:
        return {}
    return (await cockpit.source.reassignments.read()).moving


def text(request: Request, name: str) -> str:
    """A required parameter. Raises BadRequest."""
    value = request.parameters.get(name)
    if not value:
        raise BadRequest(f"The parameter {name} is missing.")
    return value


def number(request: Request, name: str, default: int | None = None, *, least: int = 0, most: int = MAX_INT64) -> int:
    """A numeric parameter. Raises BadRequest."""
    value = request.parameters.get(name)
    if value is None and default is not None:
        return default
    try:
        found = int(value or "")
    except ValueError:
        found = least - 1
    if not least <= found <= most or len(value or "") > len(str(MAX_INT64)) + 1:
        raise BadRequest(f"{name}={value!r} is not a number from {least} to {most}.")
    return found


def partition(request: Request) -> TopicPartition:
    """The parameters topic and partition. Raises BadRequest."""
    return TopicPartition(text(request, "topic"), number(request, "partition", most=MAX_INT32))
