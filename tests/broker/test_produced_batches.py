"""Which batches of producers are accepted: the table that Apache Kafka answers too, in tests/interop."""

import asyncio
from pathlib import Path

import pytest
from one_broker import Client, OneBroker, run
from produced_batches import HEADERS, NOT_AUTHORIZED, Case, send_all, topic_of

from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.produce import ProduceRequest
from klamm.protocol.record_batch import Record, build_batch


def answers_of(tmp_path: Path, cases: dict[str, Case]) -> dict[str, ErrorCode]:
    answers = {}

    async def scenario(cluster: OneBroker, client: Client) -> None:
        for name, case in cases.items():
            await client.create_topic(topic_of(name), **case.configs)
        host, port = cluster.broker.endpoints["PLAINTEXT"]
        answers.update(await send_all(f"{host}:{port}", cases, cluster.environment.now_ms()))

    run(tmp_path, scenario)
    return answers


def test_what_a_header_may_say(tmp_path: Path) -> None:
    answers = answers_of(tmp_path, HEADERS)
    assert {name: ErrorCode(answer.error_code) for name, answer in answers.items()} == {
        name: case.answer_of_klamm for name, case in HEADERS.items()
    }


@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_a_transactional_batch_refuses_its_request_and_holds_no_reader_up(
    tmp_path: Path, transactional_id: str | None
) -> None:
    """Nobody could ever end the transaction, so the last stable offset would stay where it is."""
    plain = build_batch([Record(None, b"plain")])
    opening = build_batch([Record(None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def scenario(cluster: OneBroker, client: Client) -> None:
        await client.create_topic("t", partitions=2)
        body = ProduceRequest(transactional_id, -1, 1000, [("t", [(0, plain), (1, opening)])])
        (_, answers) = (await client.request(ApiKey.PRODUCE, 9, body)).topics[0]
        assert {ErrorCode(answer.error_code) for answer in answers} == {NOT_AUTHORIZED}
        fetched = await client.fetch("t", 0, 0, isolation_level=1)
        assert (fetched.high_watermark, fetched.last_stable_offset) == (0, 0)
        assert (await client.produce("t", 1, build_batch([Record(None, b"plain")]))).base_offset == 0
        fetched = await client.fetch("t", 1, 0, isolation_level=1)
        assert (fetched.high_watermark, fetched.last_stable_offset) == (1, 1)

    run(tmp_path, scenario)


def test_a_transactional_batch_that_nobody_waits_for_closes_the_connection(tmp_path: Path) -> None:
    opening = build_batch([Record(None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)

    async def scenario(cluster: OneBroker, client: Client) -> None:
        await client.create_topic("t")
        asking = asyncio.create_task(client.produce("t", 0, opening, acks=0))
        with pytest.raises(asyncio.IncompleteReadError):
            await asking
        other = await cluster.connect()
        assert (await other.fetch("t", 0, 0)).high_watermark == 0

    run(tmp_path, scenario)
