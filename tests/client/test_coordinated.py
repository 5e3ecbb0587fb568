"""Lists of what coordinators know, and of topics, from brokers that may not know all of it."""

import pytest

from klamm.client.admin.topics import describe_topics
from klamm.client.cluster import ClusterClient
from klamm.client.coordinated import MOST_LISTS, listed
from klamm.client.fan_out import CoordinatorType
from klamm.diagnosis.cluster_view import read_cluster
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from support.scripted_cluster import ScriptedCluster

NO_CONTROLLER = -1


async def gap(cluster: ScriptedCluster, *changes: list[int]) -> tuple[int, KafkaError | None]:
    """How often the groups were listed, and what may be missing. With each list the leaders change to the next ones."""
    left = list(changes)
    asked = 0

    async def ask(client: ClusterClient) -> None:
        nonlocal asked
        asked += 1
        if left:
            cluster.topics[GROUP_METADATA_TOPIC_NAME] = left.pop(0)

    _, found = await listed(cluster.client(), CoordinatorType.GROUP, ask)
    return asked, found


@pytest.mark.parametrize(
    ("leaders", "changes", "asked", "missing"),
    [
        ([0, 1], [], 1, None),
        ([0, -1], [], 1, "no broker leads 1 of the 2 partitions of __consumer_offsets: 1"),
        # A broker that coordinated nothing when it was asked coordinates some of them now.
        ([0, -1], [[0, 1]], 2, None),
        ([0, 1], [[0, 0]], 2, None),
        ([0, 1], [[0, -1]], 2, "no broker leads 1 of the 2 partitions of __consumer_offsets: 1"),
        ([0, 1], [[0, 0], [0, 1], [1, 1]], MOST_LISTS, "the leaders of __consumer_offsets change all the time"),
        ([-1] * 50, [], 1, "no broker leads 50 of the 50 partitions of __consumer_offsets: 0, 1, 2"),
    ],
)
async def test_a_list_is_complete_when_the_same_brokers_coordinate_all_before_and_after(
    leaders: list[int], changes: list[list[int]], asked: int, missing: str | None
) -> None:
    async with ScriptedCluster(topics={GROUP_METADATA_TOPIC_NAME: leaders}) as cluster:
        times, found = await gap(cluster, *changes)
    assert times == asked
    assert (found is None) == (missing is None)
    if found is not None and missing is not None:
        assert (found.code, found.message.startswith(missing)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, True)


async def test_nothing_was_ever_coordinated_if_a_broker_says_so_that_knows_the_topics() -> None:
    async with ScriptedCluster() as cluster:
        assert await gap(cluster) == (1, None)
        cluster.controllers = [NO_CONTROLLER]
        _, found = await gap(cluster)
        assert found is not None and "has not heard of a controller" in found.message


async def test_a_broker_that_has_not_heard_of_a_controller_does_not_say_that_there_are_no_topics() -> None:
    async with ScriptedCluster() as cluster:
        assert await describe_topics(cluster.client()) == {}
        cluster.controllers = [NO_CONTROLLER]
        for look in (describe_topics, read_cluster):
            with pytest.raises(KafkaError, match="knows no topics"):
                await look(cluster.client())
        # The command that says that there is no controller needs a view all the same.
        assert (await read_cluster(cluster.client(), reassignments={})).controller_id == NO_CONTROLLER
        # Another broker knows more.
        cluster.controllers = [NO_CONTROLLER, 0]
        assert await describe_topics(cluster.client()) == {}
        cluster.controllers, cluster.topics = [NO_CONTROLLER], {"t": [0]}
        assert list(await describe_topics(cluster.client())) == ["t"]
