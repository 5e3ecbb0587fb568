"""Lists of groups and of transactional ids, and whether they are complete.

A list has the groups or ids of all coordinators. Groups in a partition without a leader have no coordinator and are in
no list, as if they did not exist. A broker that has not heard of a controller knows no partitions.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import CoordinatorType, error_of
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME

T = TypeVar("T")

TOPICS: Final = {
    CoordinatorType.GROUP: GROUP_METADATA_TOPIC_NAME,
    CoordinatorType.TRANSACTION: TRANSACTION_STATE_TOPIC_NAME,
}
# A list is made again if the leaders have changed meanwhile, with this many attempts in all.
MOST_LISTS: Final = 3
# An error names at most this many partitions.
NAMED: Final = 10


class _Leaders(NamedTuple):
    """The leader and leader epoch of each partition of a coordinators' topic, and an error if leaders are missing."""

    leaders: Mapping[int, tuple[int, int]]
    gap: KafkaError | None = None


async def listed(
    client: ClusterClient, of: CoordinatorType, ask: Callable[[ClusterClient], Awaitable[T]]
) -> tuple[T, KafkaError | None]:
    """The list that `ask(client)` gets from all coordinators, and why it may be incomplete, or None.

    Raises the errors of `ask`, and ClientError.
    """
    before = await _look(client, of)
    for _ in range(MOST_LISTS):
        found = await ask(client)
        after = await _look(client, of)
        if after.leaders == before.leaders:
            return found, before.gap or after.gap
        before = after
    return found, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the leaders of {TOPICS[of]} change all the time")


async def _look(client: ClusterClient, of: CoordinatorType) -> _Leaders:
    name = TOPICS[of]
    metadata = await client.refresh_metadata([name])
    topic = metadata.topics.get(name)
    if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        # If the broker knows the topics, the coordinators' topic was never created, so there are no groups or ids.
        unknown = "the broker that was asked knows no topics, because it has not heard of a controller"
        return _Leaders({}, _unavailable(unknown) if metadata.controller_id < 0 else None)
    leaders = {number: (each.leader, each.leader_epoch) for number, each in topic.partitions.items()}
    gap = error_of(topic.error_code, f"topic {name}")
    if gap is None and (without := sorted(number for number, (leader, _) in leaders.items() if leader < 0)):
        named = ", ".join(map(str, without[:NAMED])) + (" ..." if len(without) > NAMED else "")
        gap = _unavailable(f"no broker leads {len(without)} of the {len(leaders)} partitions of {name}: {named}")
    return _Leaders(leaders, gap)


def _unavailable(why: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
