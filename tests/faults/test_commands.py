"""The JSON form of commands, and the sentences about what is wrong with one."""

from dataclasses import dataclass
from json import dumps
from typing import Any, Literal

import pytest

from klamm.faults.commands import FailAnswers, Fault, Server, command, from_json
from klamm.faults.commands.codec import MAX_CHARACTERS, MAX_INTEGER, MAX_ITEMS
from klamm.faults.wire import MAX_LINE_BYTES


@command("toy.rain")
@dataclass(frozen=True)
class Rain(Fault):
    where: tuple[int, ...]
    drops_ms: float = 1.5
    kind_of: Literal["fine", "heavy"] = "fine"
    server: Server | None = None
    warm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drops_ms < 0:
            raise ValueError(f"{self.kind}: drops_ms={self.drops_ms} is not allowed; allowed: 0 or more")


@pytest.mark.parametrize(
    ("rain", "json"),
    [
        (Rain((1, 2)), {"kind": "toy.rain", "where": [1, 2]}),
        (Rain((), 3, "heavy"), {"kind": "toy.rain", "where": [], "drops_ms": 3, "kind_of": "heavy"}),
        (Rain((), server="zookeeper"), {"kind": "toy.rain", "where": [], "server": "zookeeper"}),
        (Rain((), server=0, warm=True), {"kind": "toy.rain", "where": [], "server": 0, "warm": True}),
    ],
)
def test_a_command_and_its_json_form_are_each_others_inverse(rain: Rain, json: Any) -> None:
    assert rain.to_json() == json
    assert from_json(json) == rain


@pytest.mark.parametrize(
    ("json", "sentence"),
    [
        (5, 'a command is an object such as {"kind": "network.cut", ...}, not 5'),
        ({}, 'a command is an object such as {"kind": "network.cut", ...}, not {}'),
        (
            {"kind": "toy.rain"},
            "toy.rain needs the field where: a list of at most 10,000 items, each an integer of 64 bits",
        ),
        (
            {"kind": "toy.rain", "where": [], "warn": True},
            "toy.rain has no field 'warn'; allowed: warm, where, drops_ms, kind_of, server",
        ),
        (
            {"kind": "toy.rain", "where": [], "kind_of": "red"},
            "toy.rain: kind_of='red' is not allowed; allowed: 'fine', 'heavy'",
        ),
        (
            {"kind": "toy.rain", "where": [True]},
            "toy.rain: where=(True,) is not allowed;"
            " allowed: a list of at most 10,000 items, each an integer of 64 bits",
        ),
        (
            {"kind": "toy.rain", "where": [], "drops_ms": float("nan")},
            "toy.rain: drops_ms=nan is not allowed; allowed: a number",
        ),
        (
            {"kind": "toy.rain", "where": [], "drops_ms": 10**400},
            f"toy.rain: drops_ms={10**79}... is not allowed; allowed: a number",
        ),
        (
            {"kind": "toy.rain", "where": [2**63]},
            "toy.rain: where=(9223372036854775808,) is not allowed;"
            " allowed: a list of at most 10,000 items, each an integer of 64 bits",
        ),
        ({"kind": "toy.rain", "where": [], "drops_ms": -1}, "toy.rain: drops_ms=-1 is not allowed; allowed: 0 or more"),
        (
            {"kind": "toy.rain", "where": [], "server": "x" * 99},
            f"toy.rain: server='{'x' * 79}... is not allowed; allowed: an integer of 64 bits or 'zookeeper' or nothing",
        ),
    ],
)
def test_what_is_wrong_with_a_command_is_named_with_what_is_allowed(json: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        from_json(json)
    assert str(error.value) == sentence


def test_an_unknown_command_gets_the_nearest_name_first() -> None:
    with pytest.raises(ValueError, match=r"^there is no command 'toy\.rian'; allowed: toy\.rain"):
        from_json({"kind": "toy.rian"})


def test_a_command_fits_into_a_line_of_an_agent_whatever_it_says() -> None:
    text = "\U0001f525" * MAX_CHARACTERS
    longest = FailAnswers(
        api="Produce",
        error="UNKNOWN_SERVER_ERROR",
        on_call=(MAX_INTEGER,) * MAX_ITEMS,
        topic=text,
        client_id=text,
        transactional_id=text,
    )
    assert len(dumps(longest.to_json())) < MAX_LINE_BYTES - 1000
    with pytest.raises(ValueError, match=r"topic='.* is not allowed; allowed: a string of at most 10,000 characters"):
        FailAnswers(api="Produce", error="UNKNOWN_SERVER_ERROR", topic=text + "x")
