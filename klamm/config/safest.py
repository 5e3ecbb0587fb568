"""What counts where a stored configuration cannot be read: what was known last, or what is safest for records. Pure.

A znode may hold what nobody can read, or a single value in it may be wrong, because somebody wrote it by hand. What its
owner wanted is then not known, and the next level (the broker's configuration, the file, the default) may want less: a
leader elected that lacks records, records deleted earlier, an answer before enough replicas have the records.

What must stay true: a configuration that cannot be read makes no broker less safe than the values that it may hold.
Values that guard no record, such as the size of segments, are those of the next level.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from klamm.config.definition import INT_MAX

# As a value of min.insync.replicas: acks=all needs all replicas of the partition, however many there are.
ALL_REPLICAS = INT_MAX

# The keys of a topic that guard records, with their safest values as text. Without a policy nothing is deleted or
# compacted, whatever the retention is.
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
    """What counts for those `keys` whose values cannot be read. `known` was read last; None: nothing was."""
    values = safest if known is None else known
    return {key: values[key] for key in keys if key in values}
