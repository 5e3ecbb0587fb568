"""Sequences of requests, drawn by seeds: klamm answers as Apache Kafka 2.8.2 does (`support.requests_beside`)."""

from collections.abc import Iterator

import pytest

from support.long_rows import long
from support.oracles import RealKafka
from support.requests_beside import brokers
from support.requests_beside.play import Pair
from support.requests_beside.runs import run_seeds

SHORT, WHOLE, IN_A_ROW = 8, 500, 50


@pytest.fixture(scope="module")
def klamm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with brokers.klamm(tmp_path_factory.mktemp("klamm")) as address:
        yield address


@pytest.mark.parametrize(
    "seeds",
    [range(SHORT), *long(*(range(first, first + IN_A_ROW) for first in range(SHORT, WHOLE, IN_A_ROW)))],
    ids=lambda seeds: f"from {seeds.start}",
)
async def test_klamm_answers_as_kafka_does(seeds: range, klamm: str, coordinating_kafka: RealKafka) -> None:
    report = await run_seeds(Pair(coordinating_kafka.bootstrap, klamm), seeds)
    assert not report.found, "\n".join(map(str, report.found))
    assert len(report.passing) <= len(seeds) // 10, report.passing
