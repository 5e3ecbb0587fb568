"""The status of one channel of the controller. Pure."""

from typing import NamedTuple

from klamm.base.metrics import Histogram


class SendQueue(NamedTuple):
    """One broker's channel at a moment.

    `size` requests wait behind the one being sent, which is `sending` (None without one) for `sending_for_ms`.
    `trouble` is the reason why it was sent again, "" if it was not. `time_ms` (Kafka's RequestRateAndQueueTimeMs): how
    long requests waited for their turn.
    """

    size: int
    sending: str | None
    sending_for_ms: float
    trouble: str
    time_ms: Histogram
