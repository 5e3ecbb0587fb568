"""Substitutes for stored configurations that cannot be read: the last known or the safest values. Pure.

A znode that was written by hand may be malformed, or a single value in it may be invalid. The intended value is then
unknown, and the value of the next level (the broker's configuration, the file, the default) may be less safe: it may
elect a leader that lacks records, delete records earlier, or answer before enough replicas have the records.

What must stay true: a configuration that cannot be read never makes a broker less safe than the intended values would.
Keys that do not protect records, such as the size of segments, get the value of the next level.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from klamm.config.definition import INT_MAX

# As a value of min.insync.replicas: acks=all needs all replicas of the partition, however many there are.
ALL_REPLICAS = INT_MAX

# The keys of a topic that protect records, with their safest values as text. Without a cleanup.policy nothing is
# deleted or compacted, whatever the retention is.
SAFEST_TOPIC_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "",
        "flush.messages": "1",
        "flush.ms": "0",
        "min.insync.replicas": str(ALL_REPLICAS),
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "unclean.leader.election.enable": "false",
    }
)


def values_instead(keys: Iterable[str], known: Mapping[str, str] | None, safest: Mapping[str, str]) -> dict[str, str]:
    """The values for those `keys` that cannot be read. `known` has the last values read; None if none were read."""
    values = safest if known is None else known
    return {key: values[key] for key in keys if key in values}
