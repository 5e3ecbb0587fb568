"""A recorded run is the same run, and its recording has the state of ZooKeeper at every moment."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol.vocabulary import NO_LEADER
from klamm.recording.difference import apply, difference
from klamm.recording.reader import Recording
from klamm.recording.state import State
from klamm.simulation import __main__ as sweep
from klamm.simulation.cluster.cluster import SimulatedZooKeeper
from klamm.simulation.cluster.ensemble import EnsembleServer
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.witnesses.state_checker import StateChecker


def what_zookeeper_has(state: StateChecker) -> Any:
    """The part of a state that the checker knows."""
    made: Any = State()
    made.cluster["controller"] = state.controller_id()
    made.brokers = dict.fromkeys(state.live_brokers())
    made.partitions = {
        (topic, partition): (
            replicas,
            None if (found := state.partitions().get((topic, partition))) is None else (found.leader, found.isr),
        )
        for topic in state.topics()
        for partition, replicas in state.replicas(topic).items()
    }
    return made


def what_was_recorded(moment: State) -> Any:
    made: Any = State()
    made.cluster["controller"] = -1 if moment.controller is None else moment.controller
    made.brokers = dict.fromkeys(sorted(moment.brokers))
    made.partitions = {
        key: (
            value.replicas,
            None if value.leader_epoch < 0 else (NO_LEADER if value.leader is None else value.leader, value.isr),
        )
        for key, value in moment.partitions.items()
    }
    return made


def run(seed: int, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> sweep.Outcome:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    return sweep.run_seed(sweep._arguments(), seed)


# Both have small slices; the first is one of the shortest runs.
@pytest.mark.parametrize("seed", [1, pytest.param(8, marks=pytest.mark.long)])
def test_a_recording_of_a_seed_is_what_zookeeper_had_at_each_moment(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[tuple[int, State]] = []
    applied = SimulatedZooKeeper._on_transaction

    def looked_at(self: SimulatedZooKeeper, server: EnsembleServer, zxid: int, transaction: str) -> None:
        applied(self, server, zxid, transaction)
        recorder = self._world.recorder
        if recorder is not None:
            known.append((recorder._writer.entries - 1, what_zookeeper_has(self._checker)))

    arguments = ["--steps", "3", "--brokers", "3"]
    plain = run(seed, arguments, monkeypatch)
    monkeypatch.setattr(SimulatedZooKeeper, "_on_transaction", looked_at)
    path = tmp_path / "seed"
    recorded = run(seed, [*arguments, "--record", str(path)], monkeypatch)
    assert recorded == plain  # the traces' hashes are in the text
    assert plain.went_well

    with Recording(path) as recording:
        assert recording.trouble is None
        assert recording.about == f"seed {seed} of python -m klamm.simulation"
        assert len(known) > 30
        for number, state in known:
            assert what_was_recorded(recording.moment(number)) == state, recording.entry(number)
        entries = recording.entries(0, recording.count)
        assert {"znode", "partition", "replica", "request", "event", "fault"} <= {one.entry["kind"] for one in entries}
        one, other = (recording.moment(number) for number in random.Random(1).choices(range(recording.count), k=2))
        assert apply(difference(one, other), one) == other


def test_a_failed_run_is_recorded_up_to_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise SimulationFailure("records are missing")

    monkeypatch.setattr(StateChecker, "changed", fails)
    path = tmp_path / "seed"
    assert not run(1, ["--steps", "1", "--brokers", "3", "--record", str(path)], monkeypatch).went_well
    with Recording(path) as recording:
        assert recording.entry(recording.count - 1).entry["text"].startswith("The run failed: records are missing")
