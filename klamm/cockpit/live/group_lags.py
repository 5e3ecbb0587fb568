"""The consumer groups of a cluster with their lags, for the page's overview.

What must stay true: only the first `MOST_GROUPS` groups are described, so that a look stays bounded.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from klamm.protocol.error_codes import KafkaError

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient

MOST_GROUPS: Final = 200


async def read_groups(client: "ClusterClient") -> Sequence[Mapping[str, Any]]:
    """{"group", "state", "members", "lag"} of each group, by name. `lag` is the number of records between the group's
    committed offsets and the end offsets of their partitions; an unknown lag is null, with `why_not`.

    Raises ClientError and KafkaError.
    """
    from klamm.client.admin.groups import describe_groups, list_groups
    from klamm.client.consumer.offsets import list_consumer_group_offsets, list_offsets
    from klamm.protocol.vocabulary import LATEST_TIMESTAMP

    listed = await list_groups(client)
    names = [each.group for each in listed[:MOST_GROUPS]]
    described = await describe_groups(client, names)
    committed = await list_consumer_group_offsets(client, names)
    keys = sorted({key for found in committed.values() if not isinstance(found, KafkaError) for key in found})
    ends = await list_offsets(client, dict.fromkeys(keys, LATEST_TIMESTAMP)) if keys else {}
    groups = []
    for listing in listed[:MOST_GROUPS]:
        group, offsets = described.get(listing.group), committed.get(listing.group)
        lag, why_not = None, None
        if isinstance(offsets, KafkaError):
            why_not = str(offsets)
        elif offsets:
            lags = []
            for key, each in offsets.items():
                end = ends.get(key)
                if end is None or isinstance(end, KafkaError):
                    why_not = f"the end of {key} is not known"
                else:
                    lags.append(max(0, end.offset - each.offset))
            lag = sum(lags) if lags else None
        else:
            why_not = "the group has committed no offset"
        known = None if group is None or isinstance(group, KafkaError) else group
        groups.append(
            {
                "group": listing.group,
                "state": listing.state if known is None else known.state,
                "members": None if known is None else len(known.members),
                "lag": lag,
                "why_not": why_not,
            }
        )
    if len(listed) > MOST_GROUPS:
        groups.append(
            {"group": None, "state": None, "members": None, "lag": None, "why_not": f"{len(listed)} groups in all"}
        )
    return groups
