"""The file with the load of partitions."""

import pytest

from klamm.cli.reassign.load_file import format_load, parse_load
from klamm.cli.reassign.planning.goals import PartitionLoad
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_load_is_written_sorted_and_read_back() -> None:
    load = {T1: PartitionLoad(3.0, 0.0), T0: PartitionLoad(1.5, 2.0)}
    text = format_load(load)
    assert text == (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"bytes_in_per_s":1.5,"bytes_out_per_s":2.0},'
        '{"topic":"t","partition":1,"bytes_in_per_s":3.0,"bytes_out_per_s":0.0}]}'
    )
    assert parse_load(text, "f") == load


def test_what_is_read_from_a_partition_may_be_left_out() -> None:
    text = '{"partitions":[{"topic":"t","partition":0,"bytes_in_per_s":7}]}'
    assert parse_load(text, "f") == {T0: PartitionLoad(7.0, 0.0)}


@pytest.mark.parametrize("rate", ["-1", '"7"', "true", "null", "NaN", "1e999", "1" + "0" * 400])
def test_a_rate_that_is_not_a_number_from_0_is_an_error_that_names_the_partition(rate: str) -> None:
    with pytest.raises(ToolError, match=r"f: partitions\[0\] \(t-0\): bytes_in_per_s must be a number of bytes per"):
        parse_load(f'{{"partitions":[{{"topic":"t","partition":0,"bytes_in_per_s":{rate}}}]}}', "f")


def test_a_partition_that_is_named_twice_is_an_error() -> None:
    entry = '{"topic":"t","partition":0,"bytes_in_per_s":7}'
    with pytest.raises(ToolError, match=r"f: partitions\[1\] \(t-0\): the partition is named twice"):
        parse_load(f'{{"partitions":[{entry},{entry}]}}', "f")
