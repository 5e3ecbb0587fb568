"""How this broker serves one API: a row of the table in `registry`, which `services` passes on.

What must stay true:
- A row never changes, and has everything that the dispatcher must know before it calls the handler.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from klamm.broker.requests.request_metrics import ApiStatistics, VersionStatistics
from klamm.broker.requests.security import Operation
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType


@dataclass(frozen=True, slots=True)
class Api:
    """How this broker serves one API key.

    A client must be authorized for `operation` on a resource of `resource_type`; None needs no authorization.
    `error_response` makes the answer when `handle` raises a KafkaError. A `pipelined` request may start while earlier
    requests of the same API on the connection are unanswered, because its effect comes before its response. A request
    that `ends_with_client` is cancelled at any point when its client disconnects, because it only reads or makes all
    changes in one step. Any other request runs to its end.

    If the work grows with the request, `handle` and `error_response` are generators of steps.
    """

    key: ApiKey
    min_version: int
    max_version: int
    operation: Operation | None
    resource_type: ResourceType | None
    handle: Callable[[Any], Any]
    error_response: Callable[[Any, KafkaError], Any]
    pipelined: bool
    ends_with_client: bool


@dataclass(frozen=True, slots=True)
class CountedApi(Api):
    """The row of one broker, which counts the requests of the API: `measurements` by version."""

    statistics: ApiStatistics
    measurements: tuple[VersionStatistics, ...]
    error_codes: list[int]
