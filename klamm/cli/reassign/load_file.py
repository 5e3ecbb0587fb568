"""The load of partitions, as `klamm pipeline load` writes it and `klamm reassign generate --load` reads it. Pure.

    {"version":1,"partitions":[{"topic":"t","partition":0,"bytes_in_per_s":1200.5,"bytes_out_per_s":2400}]}

| field | meaning |
|---|---|
| bytes_in_per_s | what producers write to the partition; every replica writes as much to its disk |
| bytes_out_per_s | what consumers read from its leader; 0 when the field is left out, because batches do not show it |

A partition that the file does not name has no load. A partition that no longer exists is ignored, because a load file
may be older than the plan that uses it.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from klamm.cli.reassign.json_form import fail, format_partitions, partitions_of, shown
from klamm.cli.reassign.planning.goals import PartitionLoad
from klamm.protocol.vocabulary import TopicPartition


def format_load(load: Mapping[TopicPartition, PartitionLoad]) -> str:
    return format_partitions(
        {
            key: {"bytes_in_per_s": each.bytes_in_per_s, "bytes_out_per_s": each.bytes_out_per_s}
            for key, each in load.items()
        }
    )


def parse_load(text: str | bytes, source: str) -> dict[TopicPartition, PartitionLoad]:
    """The load of each partition. Raises ToolError that names `source` and the entry."""
    return {
        key: PartitionLoad(
            _rate(entry["bytes_in_per_s"], f"{where}: bytes_in_per_s"),
            _rate(entry.get("bytes_out_per_s", 0), f"{where}: bytes_out_per_s"),
        )
        for key, where, entry in partitions_of(text, {"bytes_in_per_s"}, {"bytes_out_per_s"}, source)
    }


def _rate(value: Any, where: str) -> float:
    # A bool is an int in Python, and an int may be too large for a float.
    if type(value) not in (int, float) or not 0 <= value < 1e300 or not isfinite(value):
        fail(f"{where} must be a number of bytes per second, at least 0, not {shown(value)}")
    return float(value)
