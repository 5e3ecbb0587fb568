"""The judge of requests (`support.requests_beside`): two brokers of klamm answer the same, and a wrong answer of one of
them is found and shrunk."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from support.long_rows import long
from support.paths import ROOT
from support.requests_beside import brokers
from support.requests_beside.answers import Difference
from support.requests_beside.known import KNOWN, Known, explain
from support.requests_beside.planted import FAULTS
from support.requests_beside.play import Pair
from support.requests_beside.runs import run_seeds
from support.requests_beside.step import Spoil, Step, symbol
from support.requests_beside.stories import Grammar

SEEDS = 6
IN_SHORT = ("gap", "fenced-code")


@pytest.fixture
def sound(tmp_path: Path) -> Iterator[str]:
    with brokers.klamm(tmp_path / "sound") as address:
        yield address


@pytest.fixture
def planted(fault: str, tmp_path: Path) -> Iterator[str]:
    with brokers.klamm(tmp_path / "planted", FAULTS[fault]) as address:
        yield address


@pytest.fixture
def other(tmp_path: Path) -> Iterator[str]:
    with brokers.klamm(tmp_path / "other") as address:
        yield address


async def test_two_brokers_of_one_program_answer_the_same(sound: str, other: str) -> None:
    report = await run_seeds(Pair(sound, other), range(SEEDS))
    assert not report.found, report.found[0]
    assert report.known == {}
    assert report.requests > 30 * SEEDS


@pytest.mark.parametrize("fault", [*IN_SHORT, *long(*(name for name in FAULTS if name not in IN_SHORT))])
async def test_a_wrong_answer_is_found_and_shrunk(fault: str, sound: str, planted: str) -> None:
    report = await run_seeds(Pair(sound, planted), range(FAULTS[fault].within), stops=True)
    (found,) = report.found
    assert re.search(FAULTS[fault].symptom, found.difference.place), found
    assert len(found.steps) < 10, found


def test_a_seed_draws_the_same_steps_again_and_they_are_json() -> None:
    for seed in range(50):
        steps = Grammar(seed).steps()
        assert steps == Grammar(seed).steps()
        assert [Step.from_json(json.loads(json.dumps(step.to_json()))) for step in steps] == steps


def test_each_step_is_a_request() -> None:
    for seed in range(200):
        for step in Grammar(seed).steps():
            assert messages.encode_request(step.api, step.version, 1, "c", step.message("r-", {}))


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_reason_of_a_difference_that_stands_is_written_down(known: Known) -> None:
    found = re.fullmatch(r"(klamm|Kafka): (docs/\S+\.md), .*`(.+)`", known.reason)
    assert found is not None
    assert found[3] in (ROOT / found[2]).read_text(encoding="utf-8")


@pytest.mark.parametrize(("first_offset", "is_known"), [(4, False), (5, True)])
def test_an_aborted_transaction_that_is_left_out_is_known_only_after_the_records(
    first_offset: int, is_known: bool
) -> None:
    aborted = [{"producer_id": "producer 0", "first_offset": first_offset}]
    within = {"records": [{"base_offset": 2, "last_offset_delta": 2}]}
    step = Step(0, ApiKey.FETCH, 12, {"topics": []})
    difference = Difference(0, "Fetch", ("responses", 0, "aborted_transactions"), aborted, [], within)
    known = explain(step, step.message("", {}), difference)
    assert (known is not None) == is_known


def test_topics_and_partitions_that_are_named_twice_are_known_if_they_say_the_same() -> None:
    once = [{"name": "t", "partitions": [{"index": 0, "error": 3}, {"index": 1, "error": 0}]}]
    twice = [
        {"name": "t", "partitions": [{"index": 0, "error": 3}]},
        {"name": "t", "partitions": [{"index": 0, "error": 3}, {"index": 1, "error": 0}]},
        {"name": "u", "partitions": []},
    ]
    step = Step(0, ApiKey.ADD_PARTITIONS_TO_TXN, 3, {})
    assert explain(step, None, Difference(0, "", ("topics",), once, twice)) is not None
    twice[1]["partitions"][1]["error"] = 5  # type: ignore[index]
    assert explain(step, None, Difference(0, "", ("topics",), once, twice)) is None


def test_a_symbol_is_what_its_own_program_has_given() -> None:
    fields = {"transactional_id": "~x", "producer_id": symbol("p0", "id"), "producer_epoch": symbol("p0", "epoch", 1)}
    step = Step(0, ApiKey.END_TXN, 3, fields | {"committed": True}, spoils=(Spoil(("committed",), False),))
    message = step.message("r7-", {"p0.id": 44, "p0.epoch": 2})
    assert (message.transactional_id, message.producer_id, message.producer_epoch) == ("r7-x", 44, 3)
    assert message.committed is False
