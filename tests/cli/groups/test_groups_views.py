"""What klamm groups prints."""

import pytest

from klamm.cli.groups.group_views import (
    Line,
    LineKind,
    assignment_text,
    deletion_lines,
    list_lines,
    list_value,
    member_lines,
    offset_deletion_lines,
    offset_lines,
    offsets_value,
    reset_lines,
    reset_value,
    state_lines,
)
from klamm.client.admin.groups import Coordinator, GroupDescription, GroupListing, Member
from klamm.diagnosis.groups import members_value, partition_rows, state_value
from klamm.protocol.vocabulary import TopicPartition

COORDINATOR = Coordinator(1, "host", 9092)
ONE = Member("one-1", None, "/127.0.0.1", "one", [TopicPartition("t", 2)])
TWO = Member("two-2", None, "/127.0.0.1", "two", [TopicPartition("t", 0), TopicPartition("t", 1)])


def group(state: str = "Stable", *members: Member, name: str = "g") -> GroupDescription:
    return GroupDescription(name, state, "range", COORDINATOR, members)


def texts(lines: list[Line]) -> list[str]:
    return "\n".join(line.text for line in lines).split("\n")


def test_lists() -> None:
    listings = [GroupListing("g", "consumer", "Stable"), GroupListing("a-group-with-a-name", "", "")]
    assert texts(list(list_lines(listings, with_state=False))) == ["g", "a-group-with-a-name"]
    assert texts(list(list_lines(listings, with_state=True))) == [
        "GROUP               STATE",
        "g                   Stable",
        "a-group-with-a-name -",
    ]
    assert texts(list(list_lines([], with_state=True))) == ["GROUP           STATE"]
    assert list_value(listings)[0] == {"group": "g", "protocol_type": "consumer", "state": "Stable"}


def test_rows_are_those_of_members_then_those_without() -> None:
    committed = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 4, TopicPartition("u", 0): 9}
    ends = {TopicPartition("t", 0): 5, TopicPartition("t", 2): 7, TopicPartition("u", 0): 9}
    stable = group("Stable", ONE, TWO)
    rows = partition_rows(stable, committed, ends)
    assert texts(list(offset_lines(stable, rows))) == [
        "",
        "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID    "
        " HOST            CLIENT-ID",
        "g               t               0          3               5               2               two-2          "
        " /127.0.0.1      two",
        "g               t               1          4               -               -               two-2          "
        " /127.0.0.1      two",
        "g               t               2          -               7               -               one-1          "
        " /127.0.0.1      one",
        "g               u               0          9               9               0               -              "
        " -               -",
    ]
    value = offsets_value(stable, rows)
    assert (value["group"], value["state"]) == ("g", "Stable")
    assert value["partitions"][2] == {
        "topic": "t",
        "partition": 2,
        "current_offset": None,
        "log_end_offset": 7,
        "lag": None,
        "consumer_id": "one-1",
        "host": "/127.0.0.1",
        "client_id": "one",
    }
    assert value["partitions"][3]["lag"] == 0


EMPTY = Line("", LineKind.NOTE)


@pytest.mark.parametrize(
    ("state", "notes"),
    [
        ("Empty", [EMPTY, Line("Consumer group 'g' has no active members.", LineKind.NOTE)]),
        ("PreparingRebalance", [EMPTY, Line("Warning: Consumer group 'g' is rebalancing.", LineKind.NOTE)]),
        ("CompletingRebalance", [EMPTY, Line("Warning: Consumer group 'g' is rebalancing.", LineKind.NOTE)]),
        ("Dead", [Line("klamm: Consumer group 'g' does not exist.", LineKind.ERROR)]),
    ],
)
def test_notes_about_the_state(state: str, notes: list[Line]) -> None:
    assert list(offset_lines(group(state), [])) == notes
    assert list(member_lines(group(state), verbose=True)) == notes
    assert list(state_lines(group(state)))[: len(notes)] == notes
    assert list(state_lines(group("Dead"))) == [Line("klamm: Consumer group 'g' does not exist.", LineKind.ERROR)]


def test_members() -> None:
    idle = Member("a-consumer-with-a-name", None, "/10.0.0.100", "c")
    assert texts(list(member_lines(group("Stable", TWO, idle), verbose=False))) == [
        "",
        "GROUP           CONSUMER-ID            HOST            CLIENT-ID       #PARTITIONS     ",
        "g               two-2                  /127.0.0.1      two             2               ",
        "g               a-consumer-with-a-name /10.0.0.100     c               0               ",
    ]
    assert texts(list(member_lines(group("Stable", TWO, idle), verbose=True)))[1:] == [
        "GROUP           CONSUMER-ID            HOST            CLIENT-ID       #PARTITIONS     ASSIGNMENT",
        "g               two-2                  /127.0.0.1      two             2               t(0,1)",
        "g               a-consumer-with-a-name /10.0.0.100     c               0               -",
    ]


def test_static_members() -> None:
    static = Member("i-1", "i", "/h", "c", [TopicPartition("t", 0)])
    assert texts(list(member_lines(group("Stable", static, ONE), verbose=False)))[1:] == [
        "GROUP           CONSUMER-ID     GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     ",
        "g               i-1             i                 /h              c               1               ",
        "g               one-1                             /127.0.0.1      one             1               ",
    ]
    value = members_value(group("Stable", static))
    assert value["members"] == [
        {
            "consumer_id": "i-1",
            "group_instance_id": "i",
            "host": "/h",
            "client_id": "c",
            "assignment": [{"topic": "t", "partition": 0}],
        }
    ]


def test_assignments_are_ordered_by_number() -> None:
    partitions = [TopicPartition("u", 10), TopicPartition("t", 1), TopicPartition("u", 9)]
    assert assignment_text(partitions) == "t(1), u(9,10)"
    assert assignment_text([]) == "-"


def test_states() -> None:
    assert texts(list(state_lines(group("Stable", ONE, TWO)))) == [
        "",
        "GROUP                     COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE           #MEMBERS",
        "g                         host:9092 (1)             range                Stable          2",
    ]
    assert state_value(group("Stable", ONE)) == {
        "group": "g",
        "state": "Stable",
        "coordinator": {"broker_id": 1, "host": "host", "port": 9092},
        "assignment_strategy": "range",
        "members": 1,
    }


def test_deletions() -> None:
    assert list(deletion_lines({"g": None, "h": None})) == [
        Line("Deletion of requested consumer groups ('g', 'h') was successful.")
    ]
    assert list(deletion_lines({"g": None, "h": "NON_EMPTY_GROUP: so"})) == [
        Line("klamm: Deletion of some consumer groups failed:", LineKind.ERROR),
        Line("* Group 'h' could not be deleted due to: NON_EMPTY_GROUP: so", LineKind.ERROR),
        Line(""),
        Line("These consumer groups were deleted successfully: 'g'"),
    ]


@pytest.mark.parametrize(
    ("whole", "results", "told"),
    [
        (None, {("t", 0): None}, "Request succeed for deleting offsets with topic t, u:0 group g"),
        (
            None,
            {("t", 0): None, ("u", 0): "X"},
            "klamm: Encounter some partition level error, see the follow-up details:",
        ),
        ("INVALID_GROUP_ID", {}, "klamm: 'g' is not valid."),
        ("GROUP_ID_NOT_FOUND", {}, "klamm: 'g' does not exist."),
        ("GROUP_AUTHORIZATION_FAILED", {}, "klamm: Access to 'g' is not authorized."),
        (
            "NON_EMPTY_GROUP",
            {},
            "klamm: Deleting offsets of a consumer group 'g' is forbidden if the group is not empty.",
        ),
        ("ODD", {}, "klamm: Encounter some unknown error: ODD"),
    ],
)
def test_deletions_of_offsets(whole: str | None, results: dict[tuple[str, int | None], str | None], told: str) -> None:
    assert next(offset_deletion_lines("g", ["t", "u:0"], whole, results)).text == told


def test_deleted_offsets_are_listed() -> None:
    results = {("nope", None): "UNKNOWN: so", ("t", 0): None}
    assert texts(list(offset_deletion_lines("g", ["t"], None, results)))[-3:] == [
        "TOPIC                          PARTITION       STATUS         ",
        "nope                           Not Provided    Error: UNKNOWN: so",
        "t                              0               Successful     ",
    ]


def test_resets() -> None:
    plans = {"g": {TopicPartition("t", 0): 5}, "empty": {}}
    assert texts(list(reset_lines(plans))) == [
        "",
        "GROUP                          TOPIC                          PARTITION  NEW-OFFSET     ",
        "g                              t                              0          5              ",
    ]
    assert list(reset_lines({})) == []
    assert reset_value(plans, executed=True) == [
        {"group": "g", "executed": True, "offsets": [{"topic": "t", "partition": 0, "new_offset": 5}]},
        {"group": "empty", "executed": True, "offsets": []},
    ]
