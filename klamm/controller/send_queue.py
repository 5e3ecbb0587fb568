"""What a channel of the controller tells about itself. Pure."""

from typing import NamedTuple

from klamm.metrics import Histogram


class SendQueue(NamedTuple):
    """One broker's channel at a moment.

    `size` requests wait for the one that is being sent, `sending` (None: none is), since `sending_for_ms`. `trouble` is
    why it had to be sent again, "" if it had not. `time_ms` (Kafka's RequestRateAndQueueTimeMs): how long requests
    waited for their turn.
    """

    size: int
    sending: str | None
    sending_for_ms: float
    trouble: str
    time_ms: Histogram
