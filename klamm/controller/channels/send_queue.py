"""The status of one channel of the controller. Pure."""

from typing import NamedTuple

from klamm.base.metrics import Histogram


class SendQueue(NamedTuple):
    """One broker's channel at a moment.

    `sending` is the request being sent (None without one), since `sending_for_ms`. `size` requests wait behind it.
    `trouble` is the reason for its last retry, "" without a retry. `time_ms` (Kafka's RequestRateAndQueueTimeMs): how
    long requests waited for their turn.
    """

    size: int
    sending: str | None
    sending_for_ms: float
    trouble: str
    time_ms: Histogram
