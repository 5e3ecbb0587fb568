"""Flows of the controller that come upon something halfway: another request, a death, a failed disk."""

from pathlib import Path

import pytest
from controller_scene import Scene, play

from klamm.controller.leader_election import ElectionType
from klamm.protocol.errors import ErrorCode
from klamm.znodes.requests import REASSIGN_PARTITIONS_PATH, encode_reassignment

T0 = ("t", 0)


async def move(scene: Scene, *target: int) -> ErrorCode:
    results = await scene.controller.alter_partition_reassignments({T0: target or None})
    error = results[T0]
    return ErrorCode.NONE if error is None else error.code


# -- reassignments ----------------------------------------------------------------------------------------------------


def test_a_refused_reassignment_leaves_the_znode_as_it_is(tmp_path: Path) -> None:
    """What began by the znode goes on; a tool that looks at the znode must not take it for finished."""

    async def scenario(scene: Scene) -> None:
        await scene.start(9, 1, 2, 3)
        await scene.create("t", [1])
        await scene.store.client.create(REASSIGN_PARTITIONS_PATH, encode_reassignment({T0: [2, 3]}))
        await scene.settled()
        await scene.alter_isr("t", [1, 2])
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (2, (2,))
        # Only broker 2 has everything.
        assert await move(scene) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await scene.store.partition_reassignment(lambda: None) == {T0: (2, 3)}
        assert list(await scene.controller.list_partition_reassignments(None)) == [T0]

    play(tmp_path, scenario)


def test_an_unclean_election_may_complete_a_reassignment(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.start(9, 1, 2)
        await scene.create("t", [1])
        await scene.store.update_config("topics/t", lambda _: {"unclean.leader.election.enable": "true"})
        assert await move(scene, 2) is ErrorCode.NONE
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (2, (2,))
        assert await scene.controller.list_partition_reassignments(None) == {}

    play(tmp_path, scenario)


@pytest.mark.parametrize("by", ["request", "configuration"])
def test_an_unclean_election_that_is_asked_for_may_complete_a_reassignment(tmp_path: Path, by: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.start(9, 1, 2)
        await scene.create("t", [1])
        assert await move(scene, 2) is ErrorCode.NONE
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (-1, (1,))
        if by == "request":
            assert await scene.controller.elect_leaders([T0], ElectionType.UNCLEAN) == {T0: 2}
        else:
            await scene.store.update_config("topics/t", lambda _: {"unclean.leader.election.enable": "true"})
            scene.controller.enable_topic_unclean_leader_election("t")
            await scene.settled()
        assert (await scene.state("t"))[::2] == (2, (2,))
        assert await scene.controller.list_partition_reassignments(None) == {}

    play(tmp_path, scenario)


def test_a_reassignment_that_a_deletion_waits_for_survives_the_death_of_the_leader(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.start(9, 1, 2)
        await scene.create("t", [1])
        assert await move(scene, 2) is ErrorCode.NONE
        await scene.store.mark_topic_for_deletion("t")
        await scene.settled()
        await scene.kill(1)
        await scene.start(1)
        assert (await scene.state("t"))[::2] == (1, (1,))
        await scene.alter_isr("t", [1, 2])
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)

    play(tmp_path, scenario)
