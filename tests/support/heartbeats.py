"""Heartbeats: the smallest requests, for tests of connections."""

from collections.abc import Callable
from typing import Any

from klamm.client.retries import RetryPolicy
from klamm.protocol.messages import ApiKey, request_class, response_class
from support.scripted_broker import Asked

FAST = RetryPolicy(deadline_ms=5_000, backoff_ms=1, max_backoff_ms=5)


def heartbeat(group: str = "g") -> Callable[[int], Any]:
    return lambda version: request_class(ApiKey.HEARTBEAT)(group_id=group, generation_id=1, member_id="m")


def heartbeat_response(version: int, error_code: int = 0) -> Any:
    return response_class(ApiKey.HEARTBEAT)(throttle_time_ms=0, error_code=error_code)


def echo_group_length(asked: Asked) -> Any:
    """A script: the error code is the length of the group's name."""
    return heartbeat_response(asked.header.api_version, len(asked.body.group_id))
