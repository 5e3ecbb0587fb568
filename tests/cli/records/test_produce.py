"""What `klamm produce` counts, with a stub for the producer."""

from typing import Any

import pytest

from klamm.cli.main import run
from klamm.cli.records.produce import Lines
from klamm.client.producer.producer import OnCompletion, ProducerRecord
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.net.client import Disconnected
from klamm.processes.tool_errors import EXIT_INCOMPLETE, ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError


class StubProducer(TransactionalProducer):
    """Keeps what is to be told of each record; refuses the values in `refusals`."""

    def __init__(self, refusals: dict[bytes, Exception] | None = None) -> None:
        self.completions: list[Any] = []
        self._refusals = refusals or {}

    async def send(self, record: ProducerRecord, on_completion: OnCompletion | None = None) -> None:
        if record.value in self._refusals:
            raise self._refusals[record.value]
        self.completions.append(on_completion)


async def sent(producer: StubProducer, *values: bytes) -> Lines:
    lines = Lines(producer, "t", None, None, False)
    await lines.send(values)
    return lines


async def test_deliveries_and_failures_are_counted_by_reason() -> None:
    producer = StubProducer()
    lines = await sent(producer, b"1", b"2", b"3", b"4")
    assert lines.pending == 4
    outcomes = [
        None,
        KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "writing needs Write"),
        KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "writing needs Write"),
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too late"),
    ]
    for completed, outcome in zip(producer.completions, outcomes, strict=True):
        completed(None, outcome)
    assert (lines.delivered, lines.failed, lines.pending) == (1, 3, 0)
    with pytest.raises(ToolError) as error:
        lines.require_success()
    assert str(error.value) == (
        "2 records were not delivered: TOPIC_AUTHORIZATION_FAILED (29): writing needs Write;"
        " 1 records were not delivered: REQUEST_TIMED_OUT (7): too late"
    )


async def test_a_record_that_cannot_be_sent_ends_the_reading_and_takes_no_other_with_it() -> None:
    producer = StubProducer({b"2": KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "a record needs 2 bytes")})
    lines = await sent(producer, b"1", b"2", b"3")
    producer.completions[0](None, None)
    with pytest.raises(ToolError) as error:
        lines.require_success()
    assert str(error.value) == (
        "record 2: MESSAGE_TOO_LARGE (10): a record needs 2 bytes; the 1 records before it were delivered"
    )


async def test_a_few_reasons_are_told_and_the_others_are_counted() -> None:
    producer = StubProducer()
    lines = await sent(producer, *[b"%d" % number for number in range(100)])
    for number, completed in enumerate(producer.completions):
        completed(None, KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {number} bytes"))
    with pytest.raises(ToolError, match=r"a batch of 4 bytes; 95 records were not delivered: other reasons$"):
        lines.require_success()


async def test_a_commit_without_an_answer_leaves_open_what_became_of_the_records() -> None:
    class Unanswered(StubProducer):
        async def commit(self) -> None:
            raise Disconnected("broker:9092: the broker closed the connection")

    lines = await sent(Unanswered(), b"1", b"2")
    with pytest.raises(ToolError, match="broker closed the connection; all 2 records are committed, or none") as error:
        await lines.end()
    assert error.value.exit_code == EXIT_INCOMPLETE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("produce", "--transactional-id", "x", "--acks", "1"), "needs --acks all and --idempotence"),
        (("produce", "--transactional-id", "x", "--no-idempotence"), "needs --acks all and --idempotence"),
        (("produce", "--transactional-id", ""), "a transactional id has 1 to 32767 bytes"),
        (("consume", "--isolation-level", "x"), "'x' is not one of read_uncommitted, read_committed"),
    ],
)
def test_options_for_transactions_that_cannot_be_used(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--topic", "t"]) == 2
    assert message in capsys.readouterr().err
