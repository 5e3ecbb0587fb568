"""What `klamm produce` counts, with a stub for the client."""

import threading
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, NotLeaderForPartitionError
from kafka.future import Future

from klamm.processes.errors import ToolError
from klamm.tools import produce
from klamm.tools.produce import Deliveries


class StubProducer:
    """Keeps futures; refuses every value that is an exception's name in `refusals`."""

    def __init__(self, refusals: dict[bytes, Exception] | None = None) -> None:
        self.futures: list[Future] = []
        self._refusals = refusals or {}

    def send(self, topic: str, *, value: bytes, **_: Any) -> Future:
        if value in self._refusals:
            raise self._refusals[value]
        self.futures.append(Future())
        return self.futures[-1]


def send(producer: StubProducer, *lines: bytes) -> Deliveries:
    deliveries = Deliveries()
    produce._send(producer, deliveries, "t", None, iter(lines), None, False)
    return deliveries


def test_deliveries_and_failures_are_counted_by_reason() -> None:
    producer = StubProducer()
    deliveries = send(producer, b"1", b"2", b"3", b"4")
    assert deliveries.pending == 4
    producer.futures[0].success(None)
    producer.futures[1].failure(NotLeaderForPartitionError("moved"))
    producer.futures[2].failure(NotLeaderForPartitionError("moved"))
    producer.futures[3].failure(KafkaTimeoutError("too late"))
    deliveries.wait_for_all()
    assert (deliveries.delivered, deliveries.failed, deliveries.pending) == (1, 3, 0)
    with pytest.raises(ToolError) as error:
        deliveries.require_success()
    assert str(error.value) == (
        "2 records were not delivered: NOT_LEADER_FOR_PARTITION (6): moved;"
        " 1 records were not delivered: KafkaTimeoutError: too late"
    )


def test_a_record_that_cannot_be_sent_ends_the_reading_and_takes_no_other_with_it() -> None:
    producer = StubProducer({b"2": KafkaTimeoutError("no metadata")})
    deliveries = send(producer, b"1", b"2", b"3")
    producer.futures[0].success(None)
    deliveries.wait_for_all()
    with pytest.raises(ToolError) as error:
        deliveries.require_success()
    assert str(error.value) == "record 2: KafkaTimeoutError: no metadata; the 1 records before it were delivered"


@pytest.mark.parametrize(("limit", "value"), [("PENDING_LIMIT_RECORDS", 2), ("PENDING_LIMIT_BYTES", 2)])
def test_reading_waits_for_acknowledgements(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(produce, limit, value)
    producer = StubProducer()
    sender = threading.Thread(target=send, args=(producer, b"1", b"2", b"3"))
    sender.start()
    while len(producer.futures) < 2:
        sender.join(0.01)
    sender.join(0.05)
    assert len(producer.futures) == 2
    producer.futures[0].success(None)
    sender.join(10)
    assert len(producer.futures) == 3
