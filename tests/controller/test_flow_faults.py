"""Flows of the controller that come upon something halfway: another request, a death, a failed disk."""

from pathlib import Path

from controller_scene import Scene, play

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
