"""klamm pipeline load: its options, figures, text and page. No cluster and no Spark session."""

import json
import re
from xml.etree import ElementTree

import pytest
import typer

from klamm.cli import main
from klamm.cli.pipeline.load.choice import choose
from klamm.cli.pipeline.load.figures import Skew, figures, figures_value, key_text, skew
from klamm.cli.pipeline.load.html import columns, page
from klamm.cli.pipeline.load.text import parse_time, parse_window, report_lines, window_text
from klamm.cli.reassign.load_file import format_load, parse_load
from klamm.cli.reassign.planning.goals import PartitionLoad
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.pipelines.hot_keys import Estimate
from klamm.spark.pipelines.load import ClusterCount, Counted, HotKey, PartitionCount
from klamm.spark.pipelines.load_options import MAX_GIVEN_WINDOWS, LoadOptions
from klamm.spark.pipelines.load_windows import Traffic, Windows

NOW_MS = 10_000_000
MINUTE_MS = 60_000


def partition(replicas: tuple[int, ...], sizes: dict[int, int], *, is_cut: bool = False) -> PartitionCount:
    """`sizes` has the bytes of windows of a minute; a record has 10 bytes."""
    counted = Counted(Windows(MINUTE_MS))
    for number, size in sizes.items():
        counted.add(number * MINUTE_MS, Traffic(1, size // 10, size))
    return PartitionCount(replicas, counted, is_cut)


def cluster() -> ClusterCount:
    """Topic `t` has three partitions, of which one has most; `quiet` has nothing, and broker 4 no replica."""
    return ClusterCount(
        {
            TopicPartition("t", 0): partition((1, 2), {10: 600, 11: 200}),
            TopicPartition("t", 1): partition((2, 3), {10: 100}),
            TopicPartition("t", 2): partition((1, 3), {11: 300}),
            TopicPartition("quiet", 0): partition((3, 1), {}),
        },
        brokers=(1, 2, 3, 4),
    )


# -- options ----------------------------------------------------------------------------------------------------------


def test_times_and_widths_are_parsed() -> None:
    assert parse_time("1970-01-01T00:01:00", "--start-time") == 60_000
    assert parse_time("1970-01-02", "--start-time") == 86_400_000
    assert parse_time("1970-01-01T01:00:00.250+01:00", "--start-time") == 250
    assert [parse_window(text) for text in ("30s", "5m", "1h", "2d")] == [30_000, 300_000, 3_600_000, 172_800_000]
    assert [window_text(width) for width in (30_000, 90_000, 3_600_000, 172_800_000)] == ["30s", "90s", "1h", "2d"]


def test_by_default_the_last_hour_counts() -> None:
    choice = choose("t.*", None, None, None, now_ms=NOW_MS)
    assert choice.options == LoadOptions(NOW_MS - 3_600_000, None, MINUTE_MS)
    assert [choice.matches(name) for name in ("t1", "at1")] == [True, False]
    every = choose(".*", "earliest", None, "5m", 7, now_ms=NOW_MS).options
    assert every == LoadOptions(None, None, 5 * MINUTE_MS, MAX_GIVEN_WINDOWS, 7)
    assert choose(".*", "earliest", None, None, now_ms=NOW_MS).options == LoadOptions()
    ended = choose(".*", None, "1970-01-01T02:00:00", None, now_ms=NOW_MS).options
    assert (ended.start_ms, ended.end_ms) == (3_600_000, 7_200_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "("], "is not a valid regular expression"),
        (["--window", "5"], "is not a number with s, m, h or d, such as 5m"),
        (["--start-time", "yesterday"], "is not of the form 2021-02-03T04:05:06"),
        (["--start-time", "1969-01-01"], "is not of the form 2021-02-03T04:05:06"),
        (["--start-time", "2021-01-02", "--end-time", "2021-01-01"], "is not before the end"),
        (["--hot-keys", "-1"], "--hot-keys"),
        (["--output", "/nowhere/load.json"], "/nowhere/load.json is not a file in a directory that exists"),
        (["--report", "/"], "/ is not a file in a directory that exists"),
    ],
)
def test_a_wrong_call_ends_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main.run(["pipeline", "load", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_bad_times_name_their_option() -> None:
    with pytest.raises(typer.BadParameter) as raised:
        parse_time("x", "--end-time")
    assert raised.value.param_hint == "--end-time"


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Skew(1.0, 0.0)),
        ([0, 0], Skew(1.0, 0.0)),
        ([5, 5, 5], Skew(1.0, 0.0)),
        ([0, 0, 0, 8], Skew(4.0, 0.75)),
        ([1, 3], Skew(1.5, 0.25)),
    ],
)
def test_skew(values: list[int], expected: Skew) -> None:
    found = skew(values)
    assert (found.max_to_mean, found.gini) == pytest.approx((expected.max_to_mean, expected.gini))


def test_a_brokers_load_is_that_of_its_replicas() -> None:
    found = figures(cluster(), LoadOptions(0, None), NOW_MS)
    rows = [(each.broker, each.leads, each.follows, each.leader_bytes, each.follower_bytes) for each in found.brokers]
    assert rows == [(1, 2, 1, 1100, 0), (2, 1, 1, 100, 800), (3, 1, 2, 0, 400), (4, 0, 0, 0, 0)]
    assert found.brokers[1].window_bytes == {10: 700, 11: 200}
    assert (found.size_bytes, found.records, found.batches) == (1200, 120, 4)


def test_a_topics_hot_partitions_are_named() -> None:
    found = figures(cluster(), LoadOptions(0, None), NOW_MS)
    assert [(each.topic, each.size_bytes, each.hot) for each in found.topics] == [
        ("t", 1200, ((0, 2.0),)),
        ("quiet", 0, ()),
    ]


def test_rates_are_for_the_chosen_time_and_begin_later_where_retention_has_removed_records() -> None:
    count = ClusterCount(
        {
            TopicPartition("t", 0): partition((1,), {100: 6000}),
            TopicPartition("t", 1): partition((1,), {100: 6000}, is_cut=True),
        }
    )
    found = figures(count, LoadOptions(0, 101 * MINUTE_MS), NOW_MS)
    assert [each.seconds for each in found.partitions] == [6060, 60]
    assert [each.bytes_in_per_s for each in found.partitions] == pytest.approx([6000 / 6060, 100])
    # Without a chosen start, time begins with the first batch of all.
    found = figures(count, LoadOptions(None, None), 200 * MINUTE_MS)
    assert (found.start_ms, found.partitions[0].seconds) == (100 * MINUTE_MS, 6000)


def test_the_load_file_is_read_by_reassign() -> None:
    found = figures(cluster(), LoadOptions(NOW_MS - 100_000, NOW_MS), NOW_MS)
    load = parse_load(format_load(found.load()), "load.json")
    assert load[TopicPartition("t", 0)] == PartitionLoad(8.0, 0.0)
    assert len(load) == 4


def test_a_partition_that_was_not_read_is_a_failure() -> None:
    count = cluster()
    count.partitions[TopicPartition("t", 1)].counted.failure = "not read from offset 7 on; no broker answers"
    count.skipped.append(("gone", "UNKNOWN"))
    found = figures(count, LoadOptions(), NOW_MS)
    assert found.failures == [("gone", "UNKNOWN"), ("t-1", "not read from offset 7 on; no broker answers")]
    assert "t-1: not read from offset 7 on; no broker answers" in list(report_lines(found))


def test_keys_that_are_no_text_are_hexadecimal() -> None:
    assert [key_text(key) for key in (b"a", b"", b"\xff\x00", b"a\nb")] == ["a", "", "0xff00", "0x610a62"]


# -- text, JSON and HTML ----------------------------------------------------------------------------------------------


def test_the_text() -> None:
    lines = list(report_lines(figures(cluster(), LoadOptions(NOW_MS - 100_000, NOW_MS), NOW_MS)))
    assert lines[0] == (
        "120 records in 4 batches of 1.2 KB, 4 partitions, 1970-01-01 02:45:00 to 1970-01-01 02:46:40 UTC,"
        " windows of 1m."
    )
    assert lines[2:8] == [
        "broker  leads  follows  leader bytes  follower bytes  written  of all",
        "     1      2        1        1.1 KB             0 B   11 B/s  45.8 %",
        "     2      1        1         100 B           800 B    9 B/s  37.5 %",
        "     3      1        2           0 B           400 B    4 B/s  16.7 %",
        "     4      0        0           0 B             0 B    0 B/s   0.0 %",
        "Brokers: the largest has 1.83 times the mean, Gini 0.40.",
    ]
    assert lines[9:12] == [
        "topic  partitions  records   bytes  max/mean  gini  hot partitions",
        "t               3      120  1.2 KB      2.00  0.39  0 (2.0x)",
        "quiet           1        0     0 B      1.00  0.00  -",
    ]
    assert lines[13:15] == [
        "partition  replicas  records  bytes   rate",
        "t-0        1,2            80  800 B  8 B/s",
    ]


def test_nothing_in_the_chosen_time_is_said() -> None:
    found = figures(ClusterCount({TopicPartition("t", 0): partition((1,), {})}), LoadOptions(0, None), NOW_MS)
    assert any("--start-time earliest" in line for line in report_lines(found))
    assert "No batch has a time" in page(found, "localhost:9092")


def test_the_json_has_every_window() -> None:
    count = cluster()
    count.hot_keys = [HotKey(TopicPartition("t", 0), b"\xff", Estimate(10.0, 8.0, 12.0))]
    value = json.loads(json.dumps(figures_value(figures(count, LoadOptions(), NOW_MS))))
    (found,) = (each for each in value["partitions"] if each["topic"] == "t" and each["partition"] == 0)
    assert found["windows"] == [[600_000, 1, 60, 600], [660_000, 1, 20, 200]]
    assert value["hot_keys"] == [
        {"topic": "t", "partition": 0, "key": "0xff", "records": 10.0, "at_least": 8.0, "at_most": 12.0}
    ]


def test_the_columns_of_a_plot_leave_out_long_gaps() -> None:
    assert columns([5, 7, 100]) == [5, 6, 7, None, 100]
    assert columns([]) == []


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    count = cluster()
    count.hot_keys = [HotKey(TopicPartition("t", 0), b"<script>alert(1)</script>", Estimate(10.0, 8.0, 12.0))]
    text = page(figures(count, LoadOptions(), NOW_MS), "localhost:9092")
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?:", text)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    bars, heat = map(ElementTree.fromstring, drawings)
    leaders = [float(each.get("width", "0")) for each in bars.iter("rect") if each.get("class") == "leader"][1:]
    assert leaders[0] == pytest.approx(11 * leaders[1], rel=0.01)
    tips = [each.text for each in heat.iter("title")]
    assert tips == [
        "t-0, 1970-01-01 00:10:00: 600 B, 60 records",
        "t-0, 1970-01-01 00:11:00: 200 B, 20 records",
        "t-2, 1970-01-01 00:11:00: 300 B, 30 records",
        "t-1, 1970-01-01 00:10:00: 100 B, 10 records",
    ]


def test_a_page_with_many_windows_has_wider_columns() -> None:
    sizes = {number: 10 for number in range(1000)}
    found = figures(ClusterCount({TopicPartition("t", 0): partition((1,), sizes)}), LoadOptions(), NOW_MS)
    text = page(found, "localhost:9092")
    assert "A column is 15m" in text
    assert text.count("<title>t-0") == 67
    # The page's columns are the page's own.
    assert found.partitions[0].windows.width_ms == MINUTE_MS
