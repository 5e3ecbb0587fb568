"""Schedules of faults: what is drawn, how it is shrunk, and how it is played."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import find, given, settings

from klamm.faults.commands import Fault
from klamm.faults.commands.answers import FailAnswers
from klamm.faults.commands.network import CutLinks
from klamm.testing.faults.faults import FaultHandle, Faults
from klamm.testing.hypothesis import ClusterLike, Kill, Pause, Schedule, Span, Stop, Trouble, fault_schedules

FAULT = FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)


class RecordingFaults(Faults):
    def __init__(self, done: list[str]) -> None:
        self._done = done

    def install(self, fault: Fault) -> FaultHandle:
        self._done.append(f"install {fault.kind}")
        return RecordingHandle(self._done, fault)


class RecordingHandle(FaultHandle):
    def __init__(self, done: list[str], fault: Fault) -> None:
        self._done, self._what = done, fault

    def remove(self) -> None:
        self._done.append(f"remove {self._what.kind}")


class RecordingCluster(ClusterLike):
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def faults(self) -> Faults:
        return RecordingFaults(self.done)

    def kill(self, server: int) -> None:
        self.done.append(f"kill {server}")

    def stop(self, server: int) -> None:
        self.done.append(f"stop {server}")

    def start(self, server: int) -> None:
        self.done.append(f"start {server}")

    def pause(self, server: int) -> None:
        self.done.append(f"pause {server}")

    def resume(self, server: int) -> None:
        self.done.append(f"resume {server}")

    def heal(self) -> None:
        self.done.append("heal")


def test_troubles_begin_and_end_before_their_steps_and_the_cluster_is_whole_at_the_end() -> None:
    spans = (Span(Pause(2), 0, 1), Span(Kill(1), 1, 3), Span(FAULT, 1, 2), Span(Stop(0), 3, 9))
    cluster = RecordingCluster()
    with Schedule(spans).on(cluster) as run:
        for _ in range(4):
            cluster.done.append(f"- {run.steps}")
            run.step()
    assert cluster.done == [
        "- 0",
        "pause 2",
        "- 1",
        "resume 2",
        "kill 1",
        "install answers.fail",
        "- 2",
        "remove answers.fail",
        "- 3",
        "start 1",
        "stop 0",
        "heal",
    ]


def test_the_cluster_is_whole_after_a_failure() -> None:
    cluster = RecordingCluster()
    with pytest.raises(ZeroDivisionError), Schedule((Span(Kill(1), 0, 3),)).on(cluster) as run:
        run.step()
        _ = 1 / 0
    assert cluster.done == ["kill 1", "heal"]


def _down(trouble: Trouble) -> int | None:
    if isinstance(trouble, Kill | Stop | Pause):
        return trouble.broker
    return trouble.one[0] if isinstance(trouble, CutLinks) else None  # type: ignore[return-value]


@settings(max_examples=200)
@given(schedule=fault_schedules(brokers=4, steps=6, max_faults=8, max_down=2))
def test_at_most_so_many_brokers_are_in_trouble_at_once(schedule: Schedule) -> None:
    for step in range(12):
        now = [span.trouble for span in schedule.spans if span.begin <= step < span.end]
        down = [broker for trouble in now if (broker := _down(trouble)) is not None]
        assert len(down) == len(set(down)) <= 2
    # A broker that starts waits until all know each other.
    cuts = [span for span in schedule.spans if isinstance(span.trouble, CutLinks)]
    starts = [span.end for span in schedule.spans if isinstance(span.trouble, Kill | Stop)]
    assert not any(cut.begin < start <= cut.end for start in starts for cut in cuts)
    assert all(0 <= span.begin < 6 for span in schedule.spans)
    assert len(schedule.spans) <= 8


@pytest.mark.parametrize(
    ("wanted", "least"),
    [
        (lambda trouble: isinstance(trouble, Kill), Span(Kill(0), 0, 1)),
        (lambda trouble: isinstance(trouble, Pause) and trouble.broker == 2, Span(Pause(2), 0, 1)),
        (lambda trouble: isinstance(trouble, FailAnswers), Span(FAULT, 0, 1)),
        (lambda trouble: isinstance(trouble, CutLinks), Span(CutLinks(one=(0,), other=("zookeeper",)), 0, 1)),
    ],
    ids=["kill", "pause", "answers", "network"],
)
def test_a_failing_schedule_shrinks_to_the_one_trouble_that_matters(
    wanted: Callable[[Trouble], bool], least: Span
) -> None:
    found = find(fault_schedules(), lambda schedule: any(wanted(span.trouble) for span in schedule.spans))
    assert found == Schedule((least,))
    # As hypothesis prints it, it is Python that makes the same schedule.
    names = {kind.__name__: kind for kind in (Schedule, Span, Kill, Pause, FailAnswers, CutLinks)}
    assert eval(repr(found), names) == found
    assert len(repr(found)) < 130


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"brokers": 0}, "brokers=0 is not allowed; allowed: at least 1"),
        ({"steps": 0}, "steps=0 is not allowed; allowed: at least 1"),
        ({"max_down": 4}, "max_down=4 is not allowed; allowed: from 0 to brokers=3"),
        ({"kinds": ["disks"]}, r"kinds=\['disks'\] is not allowed; allowed: servers, answers, network"),
        ({"kinds": []}, r"kinds=\[\] is not allowed; allowed: servers, answers, network"),
    ],
)
def test_a_wrong_argument_is_told(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        fault_schedules(**arguments)
