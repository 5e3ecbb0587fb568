"""The reassignments in progress, read once for all pages and all readings of a cockpit.

What must stay true:
- The controller is asked when a page or a reading needs the list, at most every `EVERY_S`, and not at all while its
  status says that there are no reassignments: each request is an event in the queue that people watch.
- A controller that does not answer delays no reader longer than that reader's patience.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.base.tasks import OnFailure, start_task
from klamm.diagnosis.cluster_facts import list_reassignments
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.reassignments import PartitionReassignment
    from klamm.client.cluster import ClusterClient

EVERY_S: Final = 5.0
# Listing many reassignments takes a controller a part of a second.
PATIENCE_S: Final = 1.0


class Listed(NamedTuple):
    """The reassignments that the controller listed last, and why the newest request failed, if it did."""

    moving: "Mapping[TopicPartition, PartitionReassignment]"
    error: KafkaError | None = None


class Reassignments:
    """`has_none` says whether the controller is known to have no reassignments."""

    def __init__(
        self, client: "ClusterClient", on_failure: OnFailure, has_none: Callable[[], bool] = lambda: False
    ) -> None:
        self._client = client
        self._on_failure = on_failure
        self._has_none = has_none
        self._listed = Listed({}, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the controller has not answered yet"))
        self._asking: asyncio.Task[None] | None = None
        self._due_s = 0.0

    async def read(self, patience_s: float = PATIENCE_S) -> Listed:
        """The reassignments, at most about `EVERY_S` old, or older if the controller does not answer in time."""
        if self._has_none():
            return Listed({})
        if self._asking is None and asyncio.get_running_loop().time() >= self._due_s:
            self._asking = start_task(self._ask(), self._on_failure)
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=patience_s)
        return self._listed

    def forget(self) -> None:
        """Makes the next reader ask, after a change of the reassignments."""
        self._due_s = 0.0

    def close(self) -> None:
        """Cancels a pending request."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        self._due_s = asyncio.get_running_loop().time() + EVERY_S
        try:
            moving, error = await list_reassignments(self._client)
        except ClientError as failure:
            moving, error = {}, KafkaError(ErrorCode.NETWORK_EXCEPTION, str(failure))
        finally:
            self._asking = None
        self._listed = Listed(moving if error is None else self._listed.moving, error)
