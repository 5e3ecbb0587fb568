"""What klamm controllers have recorded: whom is asked when, and what a foreign program at a port can do."""

from types import SimpleNamespace
from typing import Any

import pytest

from klamm.access.controller import ControllerAddress
from klamm.cockpit import story
from klamm.cockpit.controller_records import ControllerRecords, is_record
from klamm.cockpit.page_api import Cockpit
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition
from support.cockpit import Browser, FixedSource


def record(epoch: int, sequence: int, **changes: Any) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "time_ms": 1_000 - epoch,
        "controller": epoch % 3,
        "epoch": epoch,
        "kind": "partition",
        "topic": "t",
        "partition": 0,
        "from": "OnlinePartition",
        "to": "OnlinePartition",
        "leader": 1,
        "leader_epoch": epoch,
        "isr": [1, 2],
        "failed": False,
        "why": "",
        "event": "BrokerChange",
    } | changes


class Brokers:
    """Brokers with records; one of them does not answer. Both as the znodes show them and as their ports answer."""

    def __init__(self, records: dict[int, list[Any]]) -> None:
        self.records = records
        self.asked: list[int] = []

    async def live_brokers(self) -> dict[int, Any]:
        place = SimpleNamespace(endpoints=[SimpleNamespace(host="h")], jmx_port=1)
        return {each: SimpleNamespace(registration=place) for each in (*self.records, 9)}

    def look(self, address: ControllerAddress, timeout_s: float) -> list[Any]:
        self.asked.append(address.broker_id)
        if address.broker_id == 9:
            raise ToolError("it does not answer")
        return self.records[address.broker_id]


async def test_former_controllers_are_asked_once_for_each_epoch() -> None:
    brokers = Brokers({1: [record(1, 5), record(4, 0)], 2: [record(2, 3), record(2, 1)]})
    records = ControllerRecords(brokers.look)
    followed = [record(4, 0), record(4, 1), record(4, 2, kind="event")]
    expected = [(1, 5), (2, 1), (2, 3), (4, 0), (4, 1), (4, 2)]
    for _ in range(3):
        found = await records.read(brokers, followed)  # type: ignore[arg-type]
        assert [(each["epoch"], each["sequence"]) for each in found] == expected
    assert sorted(brokers.asked) == [1, 2, 9]
    await records.read(brokers, [record(5, 0)])  # type: ignore[arg-type]
    assert len(brokers.asked) == 6
    # Without a stream nothing says that there are no newer ones.
    await records.read(brokers, None)  # type: ignore[arg-type]
    await records.read(brokers, None)  # type: ignore[arg-type]
    assert len(brokers.asked) == 12


async def test_the_story_has_the_order_of_epochs_whatever_the_clocks_say() -> None:
    brokers = Brokers({1: [record(3, 0), record(1, 0)], 2: [record(2, 7), record(2, 6)]})
    found = await ControllerRecords(brokers.look).read(brokers, None)  # type: ignore[arg-type]
    entries = story.of_records(found, TopicPartition("t", 0))
    assert [each.controller_epoch for each in entries] == [1, 2, 2, 3]
    assert [each.time_ms for each in entries] == [999, 998, 998, 997]


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": "1"},
        {"sequence": None},
        {"topic": 5},
        {"isr": "12"},
        {"isr": [[]]},
        {"leader": {}},
        {"event": []},
        {"kind": []},
        {"kind": "replica"},
        {"kind": "event", "state": None},
    ],
    ids=str,
)
async def test_what_a_foreign_program_says_is_left_out(changes: dict[str, Any]) -> None:
    wrong = record(1, 1) | changes
    assert not is_record(wrong)
    brokers = Brokers({1: [wrong, record(1, 2), {}]})
    found = await ControllerRecords(brokers.look).read(brokers, None)  # type: ignore[arg-type]
    assert [each["sequence"] for each in found] == [2]


def test_kinds_of_later_versions_are_records() -> None:
    assert is_record({"sequence": 1, "time_ms": 2, "controller": 3, "epoch": 4, "kind": "something new"})


class Followed(FixedSource):
    """A source that has followed records."""

    def followed(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [record(4, number) for number in range(10)]


def test_a_page_that_is_opened_later_asks_for_earlier_records() -> None:
    browser = Browser(Cockpit(Followed({"cluster": {"id": "c", "kind": "klamm"}, "brokers": []}))).opened()

    def sequences(query: str) -> tuple[list[int], int]:
        found = browser.get(f"/api/controller/records{query}").json()
        return [each["sequence"] for each in found["records"]], found["earlier"]

    assert sequences("") == (list(range(10)), 0)
    assert sequences("?limit=3") == ([7, 8, 9], 7)
    assert sequences("?limit=3&before=4.1.7") == ([4, 5, 6], 4)
    assert sequences("?before=4.1.0") == ([], 0)
    for query, why in (
        ("before=4.1", "before='4.1' is not EPOCH.CONTROLLER.SEQUENCE, such as 7.1.20."),
        ("limit=1001", "limit='1001' is not a number from 1 to 1000."),
    ):
        answer = browser.get(f"/api/controller/records?{query}")
        assert (answer.status, answer.json()) == (400, {"error": why})
