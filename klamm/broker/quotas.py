"""The one hook through which every response learns how long its client is throttled.

Quotas themselves come later: until then nobody is throttled. A response goes out at once with its throttle time, and
the connection is muted for as long (KIP-219).
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
    """Throttles nobody."""

    def throttle_time_ms(self, api_key: ApiKey, client: Client, client_id: str | None, request_bytes: int) -> int:
        return 0
