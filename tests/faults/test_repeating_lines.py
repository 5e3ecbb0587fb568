"""A report has, for each fault and action, the line of Python that repeats it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.faults import commands
from klamm.faults.commands import (
    Action,
    Command,
    CorruptBatch,
    CutLinks,
    DelayAnswers,
    DelayLinks,
    DisconnectClients,
    DropAnswers,
    Elect,
    ExpireSession,
    ExpireTransaction,
    FailAnswers,
    FailDisk,
    Fault,
    ForceRebalance,
    FullDisk,
    HalfOpenConnections,
    MoveController,
    ResetConnections,
    ShiftClock,
    SlowDisk,
    SlowLinks,
)
from klamm.testing.faults.answers import AnswerFaults
from klamm.testing.faults.clock import Clock
from klamm.testing.faults.disk import Disk
from klamm.testing.faults.faults import Faults
from klamm.testing.faults.network import Network
from klamm.testing.faults.servers import ServerFaults

LINES: list[tuple[Command, str]] = [
    (
        FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER", broker=1, times=1),
        "c.fail(api='Produce', broker=1, times=1, error='NOT_LEADER_OR_FOLLOWER')",
    ),
    (
        DelayAnswers(api="Fetch", delay_ms=50, topic="t", partition=0, after=True),
        "c.delay(api='Fetch', after=True, topic='t', partition=0, delay_ms=50)",
    ),
    (
        DropAnswers(api="Produce", probability=0.1, seed=7, client_id="x"),
        "c.drop(api='Produce', client_id='x', probability=0.1, seed=7)",
    ),
    (DisconnectClients(api="Heartbeat", on_call=(3, 5)), "c.disconnect(api='Heartbeat', on_call=(3, 5))"),
    (SlowDisk(ms=5, operations=("write",), broker=0), "c.disk.slow(broker=0, operations=('write',), ms=5)"),
    (
        FailDisk(topic="t", file="*.index", on_call=(1,)),
        "c.disk.fail(broker=None, topic='t', file='*.index', on_call=(1,))",
    ),
    (FullDisk(bytes_left=9, directory="/d"), "c.disk.full(broker=None, directory='/d', bytes_left=9)"),
    (ShiftClock(ms=-5, broker=2), "c.clock.shift(broker=2, ms=-5)"),
    (CutLinks(one=(0,), other=(1, 2), one_way=True), "c.network.cut(one=(0,), other=(1, 2), one_way=True)"),
    (
        DelayLinks(one=("clients",), other=(1,), ms=5, jitter_ms=2.5, seed=3, client_id="x"),
        "c.network.delay(one=('clients',), other=(1,), client_id='x', ms=5, jitter_ms=2.5, seed=3)",
    ),
    (
        SlowLinks(one=(0,), other=("zookeeper",), bytes_per_s=10),
        "c.network.rate(one=(0,), other=('zookeeper',), bytes_per_s=10)",
    ),
    (ResetConnections(one=(0,), other=("clients",)), "c.network.reset(one=(0,), other=('clients',))"),
    (
        HalfOpenConnections(one=("brokers",), other=("clients",), client_id="x"),
        "c.network.half_open(one=('brokers',), other=('clients',), client_id='x')",
    ),
    (ExpireSession(broker=1), "c.expire_session(1)"),
    (Elect(topic="t", to=2, unclean=True), "c.unclean_election('t', 0, to=2)"),
    (Elect(topic="t", partition=3), "c.elect('t', 3)"),
    (MoveController(), "c.move_controller()"),
    (ForceRebalance(group="g"), "c.force_rebalance('g')"),
    (ExpireTransaction(transactional_id="x"), "c.expire_transaction('x')"),
    (CorruptBatch(topic="t", offset=5, broker=1), "c.corrupt('t', 0, offset=5, broker=1)"),
]


class Recorder:
    """Takes what a cluster would install and perform."""

    def __init__(self) -> None:
        self.taken: list[Command] = []

    def install(self, fault: Fault) -> Any:
        self.taken.append(fault)
        return SimpleNamespace(fault=fault, _control=None, _run=None, _number=1, hits=1, calls=1, remove=lambda: None)

    def perform(self, _server: object, action: Action) -> Any:
        self.taken.append(action)
        return {"controller": 0, "leader": 0, "path": ""}


class RecordingCluster(AnswerFaults, ServerFaults):
    def __init__(self) -> None:
        self.recorder = Recorder()
        self.disk, self.clock = Disk(self.faults), Clock(self.faults)
        self.network = Network(self.faults, lambda: [SimpleNamespace(id=number, paused=False) for number in range(3)])

    @property
    def faults(self) -> Faults:
        return cast(Faults, self.recorder)

    def broker(self, broker: int) -> Any:
        return SimpleNamespace(running=True)

    def data_directory(self, server: int) -> Path:
        return Path()


@pytest.mark.parametrize(("what", "line"), LINES, ids=[line for _, line in LINES])
def test_the_line_of_a_fault_makes_the_same_fault(what: Command, line: str) -> None:
    written = what.python(None) if isinstance(what, Action) else cast(Fault, what).python()
    assert written == line
    c = RecordingCluster()
    eval(line, {"c": c})
    assert c.recorder.taken == [what]


def test_every_fault_and_action_has_such_a_line() -> None:
    ours = {cls for cls in commands.kinds().values() if cls.__module__.startswith("klamm.")}
    assert {type(what) for what, _ in LINES} == ours
