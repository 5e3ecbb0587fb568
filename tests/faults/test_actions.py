"""The actions of a cluster as values, and the search for the server that can carry one out."""

from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemFileSystem
from klamm.faults.agent import Agent
from klamm.faults.commands import Action, Json, from_json
from klamm.faults.commands.actions import (
    CorruptBatch,
    Elect,
    ExpireSession,
    ExpireTransaction,
    ForceRebalance,
    MoveController,
)
from klamm.faults.control import Control
from klamm.faults.corruption import corrupt_batch
from klamm.faults.wire import Elsewhere, FaultError


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (ExpireSession(broker=1), "c.expire_session(1)"),
        (Elect(topic="t"), "c.elect('t', 0)"),
        (Elect(topic="t", partition=1, to=2, unclean=True), "c.unclean_election('t', 1, to=2)"),
        (MoveController(), "c.move_controller()"),
        (ForceRebalance(group="g"), "c.force_rebalance('g')"),
        (ExpireTransaction(transactional_id="x"), "c.expire_transaction('x')"),
        (CorruptBatch(topic="t", offset=3, broker=0), "c.corrupt('t', 0, offset=3, broker=0)"),
    ],
)
def test_an_action_has_a_json_form_and_a_line_of_python(action: Action, line: str) -> None:
    assert from_json(action.to_json()) == action
    assert action.python(None) == line


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"kind": "sessions.expire"}, "sessions.expire needs the field broker"),
        ({"kind": "sessions.expire", "broker": "zookeeper"}, "broker='zookeeper' is not allowed"),
        ({"kind": "elections.elect", "topic": "t", "unclean": True}, "an unclean election needs the field to"),
        ({"kind": "elections.elect", "topic": "t", "to": -1}, "to=-1 is not allowed; allowed: at least 0"),
        ({"kind": "logs.corrupt", "topic": "t", "offset": -1}, "offset=-1 is not allowed"),
        ({"kind": "logs.corrupt", "topic": "t", "partition": -1, "offset": 0}, "partition=-1 is not allowed"),
        ({"kind": "groups.rebalance", "group": None}, "group=None is not allowed"),
    ],
)
def test_an_action_that_cannot_be_is_refused(form: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        from_json(form)


async def test_an_action_finds_the_server_that_can_perform_it(tmp_path: Path) -> None:
    control = Control(tmp_path / "faults", lambda: 0)
    await control.open()
    asked = []

    def agent(server: int, answer: Exception | str) -> Agent:
        async def perform(_: MoveController) -> Json:
            asked.append(server)
            if isinstance(answer, str):
                return answer
            raise answer

        agent = Agent(server, str(control.directory))
        agent.performs(MoveController, perform)
        return agent

    agents = [agent(0, Elsewhere("no controller here")), agent(1, "moved"), agent(2, FaultError("broken"))]
    try:
        for one in agents:
            await one.connect()
        assert await control.perform(None, MoveController()) == "moved"
        assert asked == [0, 1]
        await agents[1].close()
        with pytest.raises(FaultError, match=r"^broker 2: broken$"):
            await control.perform(None, MoveController())
        with pytest.raises(FaultError, match=r"^no running server, paused ones apart, can perform sessions\.expire$"):
            await control.perform(None, ExpireSession(broker=7))
    finally:
        for one in agents:
            await one.close()
        await control.close()


def test_a_batch_that_is_not_there_cannot_be_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with pytest.raises(FaultError, match=rf"^there is no log of t-0 in {tmp_path}$"):
        corrupt_batch(SystemFileSystem(), str(directory), 0)
    directory.mkdir()
    with pytest.raises(FaultError, match=r"^t-0 has no offset 0; its log begins at 0$"):
        corrupt_batch(SystemFileSystem(), str(directory), 0)
    log = directory / "00000000000000000007.log"
    log.touch()
    with pytest.raises(FaultError, match=r"^t-0 has no offset 6; its log begins at 7$"):
        corrupt_batch(SystemFileSystem(), str(directory), 6)
    with pytest.raises(FaultError, match=r"^t-0 has no batch with offset 9223372036854775807$"):
        corrupt_batch(SystemFileSystem(), str(directory), 2**63 - 1)
    log.write_bytes(bytes(100))
    with pytest.raises(FaultError, match=r"00000000000000000007\.log is damaged before offset 7: "):
        corrupt_batch(SystemFileSystem(), str(directory), 7)
    assert log.read_bytes() == bytes(100)
