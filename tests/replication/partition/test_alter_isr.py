"""The way of ISR proposals to the controller: batched, one request at a time, until they are decided."""

import asyncio
from typing import Any

import pytest

from klamm.net.client import Disconnected
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.replication.partition.alter_isr import AlterIsrManager
from klamm.replication.ports import IsrChange, WrittenIsr
from support.replicas import settle

pytestmark = pytest.mark.loop("virtual")

Response = messages.response_class(ApiKey.ALTER_ISR)


class Controller:
    """Answers when the test says so."""

    def __init__(self):
        self.requests = []
        self.times = []
        self.broker_epoch = 77
        self.failures = []
        self._answer: Any = None

    def manager(self):
        return AlterIsrManager(self.send, 1, lambda: self.broker_epoch, self.failures.append)

    async def send(self, request):
        loop = asyncio.get_running_loop()
        assert self._answer is None or self._answer.done(), "two requests at once"
        self.requests.append(request)
        self.times.append(loop.time())
        self._answer = loop.create_future()
        return await self._answer

    async def answer(self, *partitions, error_code=0):
        """`partitions`: (topic, partition, error code, leader epoch, isr, version)."""
        topics = {}
        for topic, number, code, epoch, isr, version in partitions:
            topics.setdefault(topic, []).append(
                Response.TopicData.PartitionData(
                    partition_index=number,
                    error_code=code,
                    leader_id=1,
                    leader_epoch=epoch,
                    isr=list(isr),
                    current_isr_version=version,
                )
            )
        data = [Response.TopicData(name=name, partitions=parts) for name, parts in topics.items()]
        self._answer.set_result(Response(error_code=error_code, topics=data))
        await settle()

    async def fail(self, error):
        self._answer.set_exception(error)
        await settle()

    def sent(self, index=-1):
        return [
            (topic.name, part.partition_index, part.leader_epoch, tuple(part.new_isr), part.current_isr_version)
            for topic in self.requests[index].topics
            for part in topic.partitions
        ]


def change(results, partition=0, isr=(1, 2), epoch=0, version=0, topic="t"):
    return IsrChange((topic, partition), epoch, isr, version, 1, lambda result: results.append((partition, result)))


def scenario(function):
    async def test():
        controller = Controller()
        manager = controller.manager()
        await function(controller, manager, [])
        await manager.stop()
        assert not controller.failures

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


@scenario
async def test_what_is_pending_goes_together_one_request_at_a_time(controller, manager, results):
    manager.submit(change(results, 0, (1, 2), epoch=3, version=4))
    manager.submit(change(results, 1, (1,)))
    manager.submit(change(results, 0, (1, 3), topic="u"))
    await settle()
    assert controller.sent() == [("t", 0, 3, (1, 2), 4), ("t", 1, 0, (1,), 0), ("u", 0, 0, (1, 3), 0)]
    request = controller.requests[0]
    assert (request.broker_id, request.broker_epoch) == (1, 77)
    manager.submit(change(results, 2))
    manager.submit(change(results, 3))
    await settle()
    assert len(controller.requests) == 1
    await controller.answer(
        ("t", 0, 0, 3, (1, 2), 5), ("t", 1, ErrorCode.FENCED_LEADER_EPOCH, -1, (), -1), ("u", 0, 0, 0, (1, 3), 1)
    )
    assert results == [(0, WrittenIsr(3, (1, 2), 5)), (1, ErrorCode.FENCED_LEADER_EPOCH), (0, WrittenIsr(0, (1, 3), 1))]
    assert [sent[1] for sent in controller.sent()] == [2, 3]
    assert controller.times[1] == controller.times[0]


@scenario
async def test_very_many_changes_go_in_rounds_and_those_left_undecided_let_the_others_pass(
    controller, manager, results
):
    for partition in range(2_500):
        manager.submit(change(results, partition))
    await settle()
    assert [sent[1] for sent in controller.sent()] == list(range(1_000))
    retried = ("t", 0, ErrorCode.REQUEST_TIMED_OUT, -1, (), -1)
    await controller.answer(retried, *[("t", partition, 0, 0, (1, 2), 1) for partition in range(1, 1_000)])
    assert [partition for partition, _ in results] == list(range(1, 1_000))
    await asyncio.sleep(0.05)
    assert [sent[1] for sent in controller.sent()] == list(range(1_000, 2_000))
    await controller.answer(*[("t", partition, 0, 0, (1, 2), 1) for partition in range(1_000, 2_000)])
    assert [sent[1] for sent in controller.sent()] == [*range(2_000, 2_500), 0]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
async def test_final_errors_are_told_and_not_sent_again(code):
    @scenario
    async def run(controller, manager, results):
        manager.submit(change(results))
        await settle()
        await controller.answer(("t", 0, code, -1, (), -1))
        await asyncio.sleep(1)
        assert results == [(0, code)]
        assert len(controller.requests) == 1

    await run()


@scenario
async def test_another_error_of_a_partition_sends_it_again_after_a_while(controller, manager, results):
    manager.submit(change(results, 0))
    manager.submit(change(results, 1))
    await settle()
    await controller.answer(("t", 0, ErrorCode.UNKNOWN_SERVER_ERROR, -1, (), -1), ("t", 1, 0, 0, (1, 2), 1))
    assert results == [(1, WrittenIsr(0, (1, 2), 1))]
    await asyncio.sleep(0.06)
    assert controller.sent() == [("t", 0, 0, (1, 2), 0)]
    assert controller.times[1] - controller.times[0] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.CLUSTER_AUTHORIZATION_FAILED],
)
async def test_errors_of_the_whole_request_send_it_again_after_a_while(code):
    @scenario
    async def run(controller, manager, results):
        manager.submit(change(results))
        await settle()
        controller.broker_epoch = 78
        await controller.answer(error_code=code)
        assert len(controller.requests) == 1
        await asyncio.sleep(0.06)
        assert controller.requests[1].broker_epoch == 78
        assert controller.sent() == [("t", 0, 0, (1, 2), 0)]
        assert not results

    await run()


@scenario
async def test_without_an_answer_it_is_sent_again(controller, manager, results):
    manager.submit(change(results))
    await settle()
    await controller.fail(Disconnected("gone"))
    await asyncio.sleep(0.06)
    assert len(controller.requests) == 2
    await controller.answer(("t", 0, 0, 0, (1, 2), 1))
    assert results == [(0, WrittenIsr(0, (1, 2), 1))]


@scenario
async def test_a_partition_that_the_answer_leaves_out_is_sent_again(controller, manager, results):
    manager.submit(change(results))
    await settle()
    await controller.answer()
    await asyncio.sleep(0.06)
    assert len(controller.requests) == 2


@scenario
async def test_what_has_become_void_is_not_sent_and_its_answer_reaches_nobody(controller, manager, results):
    manager.submit(change(results, 0, epoch=0))
    await settle()
    manager.clear_pending(("t", 0))
    manager.submit(change(results, 0, (1, 3), epoch=1))
    manager.submit(change(results, 1))
    manager.clear_pending(("t", 1))
    await controller.answer(("t", 0, 0, 0, (1, 2), 1))
    assert results == []
    assert controller.sent() == [("t", 0, 1, (1, 3), 0)]
    await controller.answer(("t", 0, 0, 1, (1, 3), 2))
    assert results == [(0, WrittenIsr(1, (1, 3), 2))]


@scenario
async def test_whoever_hears_an_answer_may_propose_the_next_change_at_once(controller, manager, results):
    following = change(results, 0, (1, 2, 3))
    manager.submit(IsrChange(("t", 0), 0, (1, 2), 0, 1, lambda result: manager.submit(following)))
    await settle()
    await controller.answer(("t", 0, 0, 0, (1, 2), 1))
    assert controller.sent() == [("t", 0, 0, (1, 2, 3), 0)]


@scenario
async def test_two_changes_of_one_partition_are_a_fault(controller, manager, results):
    manager.submit(change(results))
    with pytest.raises(RuntimeError, match="in flight"):
        manager.submit(change(results))


@scenario
async def test_after_its_end_nothing_is_sent(controller, manager, results):
    manager.submit(change(results))
    await settle()
    await manager.stop()
    manager.submit(change(results))
    await settle()
    assert len(controller.requests) == 1
