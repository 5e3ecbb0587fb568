"""The errors that the client retries, and how long it retries.

What must stay true: retries end. No attempt begins after the policy's deadline.
"""

import asyncio
from dataclasses import dataclass

from klamm.protocol.error_codes import ErrorCode

# Error codes that a retry may resolve (Kafka's RetriableException).
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a request is retried, and the waits between attempts (doubling from the first to the last)."""

    deadline_ms: int = 30_000
    backoff_ms: int = 50
    max_backoff_ms: int = 1_000


class Attempts:
    """The attempts of one call under a policy, with the waits between them."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + policy.deadline_ms / 1000
        self._backoff_s = policy.backoff_ms / 1000
        self._max_backoff_s = policy.max_backoff_ms / 1000

    @property
    def are_over(self) -> bool:
        """Whether no time is left for another attempt."""
        return self._loop.time() + self._backoff_s >= self._deadline_s

    async def pause(self) -> None:
        """Waits before the next attempt."""
        await asyncio.sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, self._max_backoff_s)
