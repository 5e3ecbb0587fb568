"""The hook that decides how long a client is throttled after each response.

Quotas are not supported yet, so no client is throttled. A response leaves at once with its throttle time, and then the
connection is muted for that time (KIP-219).
"""

from typing import Protocol

from klamm.broker.security import Client
from klamm.protocol.messages import ApiKey


class Quotas(Protocol):
    """Decides how long a client must wait after a request."""

    def throttle_time_ms(self, api_key: ApiKey, client: Client, client_id: str | None, request_bytes: int) -> int:
        """Records one request of `request_bytes` and returns the time to mute the client, 0 for none."""
        ...


class NoQuotas:
    """Throttles no client."""

    def throttle_time_ms(self, api_key: ApiKey, client: Client, client_id: str | None, request_bytes: int) -> int:
        return 0
