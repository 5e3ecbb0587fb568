"""What a controller makes of answers, requests and znodes that it should never get."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.stop_replica import StopReplicaResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.znodes.brokers import broker_path
from klamm.znodes.topics import TopicAssignment, topic_path
from klamm.zookeeper.keeper_exceptions import BadArguments
from support.controller.scene import playing


@pytest.mark.parametrize("code", [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.NONE])
async def test_a_refusal_that_names_no_partition_ends_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    """The replica counts as not deleted, so that the deletion goes on when its broker comes back."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        answer = scene.response

        def refuse(broker_id: int, api_key: ApiKey, body: Any) -> Any:
            if api_key is ApiKey.STOP_REPLICA and broker_id == 2:
                return StopReplicaResponse(code)
            return answer(broker_id, api_key, body)

        monkeypatch.setattr(scene, "response", refuse)
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: "t" in scene.controller.context.topics_ineligible_for_deletion)
        monkeypatch.setattr(scene, "response", answer)
        await scene.kill(2)
        await scene.start(2)
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)


async def test_an_isr_is_never_written_at_any_version(tmp_path: Path) -> None:
    """To ZooKeeper, version -1 stands for any."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        error, [item] = await scene.alter_isr("t", [1], version=-1)
        assert (error, item.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION)
        assert await scene.state("t") == (1, 0, (1, 2))


async def test_a_broker_whose_registration_was_mended_is_taken_up(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        registration, path = scene.brokers[1].registration, broker_path(7)
        await scene.store.client.create(path, b"garbage")
        await scene.settled()
        await scene.store.client.set(path, registration.encode())
        await scene.until(lambda: 7 in scene.controller.context.live_broker_ids)


async def test_a_timer_that_is_early_elects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may call back a rounding error before the time that was asked for; nothing would come back to it."""
    async with playing(tmp_path) as scene:
        await scene.start(1)
        controller, loop = scene.controller, asyncio.get_running_loop()
        call_at = loop.call_at

        def early(when: float, callback: Any, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            # The clock stands still until the election is over.
            return call_at(when - 0.9, callback, *args, **kwargs)

        async def fail() -> None:
            raise BadArguments("/brokers/topics", "refused")

        monkeypatch.setattr(controller._parts.store, "topic_names", lambda _watch: fail())
        monkeypatch.setattr(loop, "call_at", early)
        await scene.store.client.create(topic_path("t"), TopicAssignment({0: (1,)}).encode())
        await scene.until(lambda: controller._retry is not None)
        monkeypatch.undo()
        await scene.until(lambda: controller.is_active and controller.context.epoch == 2)


async def test_a_proposal_from_before_a_bounce_is_refused(tmp_path: Path) -> None:
    """What the leader knew of the follower was of its former life: the machine may have lost what was not synced."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        await scene.alter_isr("t", [1])
        proposed = (await scene.states(("t", 0)))["t", 0]
        # The proposal that 2 joins is in flight when 2 bounces.
        await scene.kill(2)
        await scene.start(2)
        error, [item] = await scene.alter_isr(
            "t", [1, 2], leader_epoch=proposed.leader_epoch, version=proposed.zk_version
        )
        assert (error, item.error_code) == (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
        assert await scene.state("t") == (1, proposed.leader_epoch + 1, (1,))
        # One that was made since is taken.
        error, [item] = await scene.alter_isr("t", [1, 2])
        assert (error, item.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
