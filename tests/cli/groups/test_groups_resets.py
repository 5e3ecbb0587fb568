"""Which offsets a reset gives, and what it is told with: times, topics, files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from klamm.cli.groups.group_resets import (
    Plan,
    Reset,
    Scenario,
    export_csv,
    parse_csv,
    parse_datetime,
    parse_duration,
    parse_topic,
    plan,
)
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


@dataclass
class Logs:
    """The logs of t-0 to t-2: from 10 to 20 with a record each second, and nothing in t-2."""

    asked: list[int] = field(default_factory=list)

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        assert group == "g"
        return {P0: 12, P1: 18}

    def at(self, partitions: Sequence[TopicPartition], timestamp: int) -> Mapping[TopicPartition, int]:
        self.asked.append(timestamp)
        return {each: self._at(each, timestamp) for each in partitions}

    def _at(self, partition: TopicPartition, timestamp: int) -> int:
        first, end = (0, 0) if partition == P2 else (10, 20)
        if timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
            return first if timestamp == EARLIEST_TIMESTAMP else end
        offset = max(first, -(-timestamp // 1000))
        return offset if offset < end else -1


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (Reset(Scenario.TO_EARLIEST), [10, 10, 0]),
        (Reset(Scenario.TO_LATEST), [20, 20, 0]),
        (Reset(Scenario.TO_CURRENT), [12, 18, 0]),
        (Reset(Scenario.TO_DATETIME, 12_500), [13, 13, 0]),
        (Reset(Scenario.BY_DURATION, 99_000), [20, 20, 0]),
        (Reset(Scenario.TO_DATETIME, -2), [10, 10, 0]),
    ],
)
def test_scenarios(reset: Reset, expected: list[int]) -> None:
    assert plan(reset, "g", [P2, P1, P0, P0], Logs()) == Plan(dict(zip([P0, P1, P2], expected, strict=True)))


def test_times_before_1970_are_no_other_question() -> None:
    logs = Logs()
    plan(Reset(Scenario.TO_DATETIME, -1), "g", [P0], logs)
    assert logs.asked[0] == 0


def test_offsets_are_kept_within_the_logs() -> None:
    planned = plan(Reset(Scenario.SHIFT_BY, 5), "g", [P0, P1], Logs())
    assert planned.offsets == {P0: 17, P1: 20}
    assert planned.warnings == [
        "New offset (23) is higher than latest offset for topic partition t-1. Value will be set to 20"
    ]
    planned = plan(Reset(Scenario.TO_OFFSET, 3), "g", [P0, P2], Logs())
    assert planned.offsets == {P0: 10, P2: 0}
    assert planned.warnings == [
        "New offset (3) is lower than earliest offset for topic partition t-0. Value will be set to 10",
        "New offset (3) is higher than latest offset for topic partition t-2. Value will be set to 0",
    ]


def test_what_is_not_committed_is_not_shifted() -> None:
    with pytest.raises(ToolError, match="Cannot shift offset for partition t-2 since there is no current committed"):
        plan(Reset(Scenario.SHIFT_BY, 1), "g", [P0, P2], Logs())


def test_a_file_says_for_itself_which_partitions() -> None:
    reset = Reset(Scenario.FROM_FILE, plans={"g": {P1: 15, P0: 1}, "h": {P0: 3}})
    planned = plan(reset, "g", [P2], Logs())
    assert planned.offsets == {P0: 10, P1: 15}
    assert len(planned.warnings) == 1


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"), [("t", ("t", None)), ("t:0", ("t", [0])), ("a.b-c_D:2,10", ("a.b-c_D", [2, 10]))]
)
def test_topics(text: str, parsed: tuple[str, list[int] | None]) -> None:
    assert parse_topic(text) == parsed


@pytest.mark.parametrize("text", ["", ":", ":1", "t:", "t:x", "t:-1", "t:1,", "t:1:2", "t:1 2", "t:99999999999"])
def test_bad_topics(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a topic or topic:partition,partition"):
        parse_topic(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00.001", 1),
        ("1970-01-01T00:00:00.000Z", 0),
        ("1969-12-31T23:59:59.999", -1),
        ("2021-02-03T04:05:06.789", 1612325106789),
        ("2021-02-03T04:05:06.789+05:30", 1612325106789 - 19_800_000),
        ("2021-02-03T04:05:06.789-08", 1612325106789 + 28_800_000),
    ],
)
def test_datetimes(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2021-02-03", "2021-02-03T04:05:06", "2021-02-03T04:05:06.7", "2021-02-30T04:05:06.789"),
        *("2021-02-03T24:05:06.789", "2021-02-03 04:05:06.789", "2021-02-03T04:05:06.789+0530"),
        "٢021-02-03T04:05:06.789",
    ],
)
def test_bad_datetimes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not of the form YYYY-MM-DDTHH:mm:SS\.sss"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("P2D", 172_800_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt1m", 60_000),
        ("-PT1M", -60_000),
        ("PT-1M", -60_000),
        ("-PT-1M", 60_000),
        ("P-1DT25H", 3_600_000),
        ("PT-0.5S", -500),
        ("PT0.0001S", 1),
        ("PT1,5S", 1500),
        ("PT1.S", 1000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "-PT", "P1", "1D", "PT1D", "P1H", "PT1.5H", "P1Y", "PT 1S", "P1DT", f"P{10**11}D"]
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not of the form PnDTnHnMnS"):
        parse_duration(text)


@given(st.text(max_size=20))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for parse in (parse_topic, parse_datetime, parse_duration):
        try:
            parse(text)
        except typer.BadParameter as error:
            assert repr(text) in str(error)


# -- files ------------------------------------------------------------------------------------------------------------


def test_what_is_quoted() -> None:
    plans = {'g "1", 2': {TopicPartition("t" * 24, 0): 1, TopicPartition("t" * 25, 0): 2}}
    assert export_csv(plans, with_group=False) == f'{"t" * 24},0,1\n"{"t" * 25}",0,2\n'
    assert export_csv(plans, with_group=True).startswith('"g ""1"", 2",')
    assert export_csv({}, with_group=True) == ""


partitions = st.builds(TopicPartition, st.from_regex("[a-zA-Z0-9._-]{1,40}", fullmatch=True), st.integers(0, 2**31 - 1))
groups = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs", "Cc"]), min_size=1)
offsets = st.dictionaries(partitions, st.integers(0, 2**63 - 1), min_size=1, max_size=4)


@given(st.dictionaries(groups, offsets, min_size=1, max_size=3))
def test_what_is_exported_is_read_again(plans: dict[str, dict[TopicPartition, int]]) -> None:
    assert parse_csv(export_csv(plans, with_group=True) + "\n", None, "file") == plans
    for group, of_group in plans.items():
        alone = {group: of_group}
        assert parse_csv(export_csv(alone, with_group=False), group, "file") == alone
        # The rows of a file of several groups are also read when only one is named.
        assert parse_csv(export_csv(plans, with_group=True), group, "file") == plans


@pytest.mark.parametrize(
    ("text", "single_group", "message"),
    [
        ("", "g", "file: line 1: '' is not group,topic,partition,offset"),
        ("t,0,1\nt,1\n", "g", "file: line 2: 't,1' is not topic,partition,offset"),
        ("t,0,1\n", None, "file: line 1: 't,0,1' is not group,topic,partition,offset"),
        ("g,t,0,x\n", None, "file: line 1: 'g,t,0,x' is not group,topic,partition,offset"),
        ("t,0,-1\n", "g", "file: line 1: 't,0,-1' is not topic,partition,offset"),
        ("t,0,99999999999999999999\n", "g", "file: line 1: 't,0,99999999999999999999' is not topic,partition,offset"),
        ('"t,0,1\n', "g", "file: line 1: '\"t,0,1' is not group,topic,partition,offset"),
    ],
)
def test_bad_files(text: str, single_group: str | None, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_csv(text, single_group, "file")
    assert str(caught.value) == message


@given(st.text(), st.sampled_from([None, "g"]))
def test_any_file_is_read_or_refused(text: str, single_group: str | None) -> None:
    try:
        parse_csv(text, single_group, "file")
    except ToolError as error:
        assert str(error).startswith("file: line ")


def test_lines_may_end_as_on_windows() -> None:
    assert parse_csv("t,0,1\r\nt,1,2\r\n\r\n", "g", "file") == {"g": {P0: 1, P1: 2}}
