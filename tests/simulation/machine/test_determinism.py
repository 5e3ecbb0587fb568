import os

import pytest

from klamm.simulation.machine.determinism import NotDeterministic, assert_same_trace
from klamm.simulation.machine.trace import first_difference
from klamm.simulation.machine.world import World
from support import simulated_toys as toys

TOYS = os.path.abspath(toys.__file__)


def test_two_processes_trace_the_same(capsys):
    trace = assert_same_trace(f"{TOYS}:counter_scenario", seed=7)
    assert len(trace) > 300
    assert f"{len(trace)} lines, sha256 " in capsys.readouterr().out


def test_the_order_of_a_set_is_found():
    with pytest.raises(NotDeterministic, match="the traces part at line"):
        assert_same_trace(f"{TOYS}:set_order_scenario", seed=7)


def test_a_failing_scenario_is_reported():
    with pytest.raises(NotDeterministic, match="no_such_scenario"):
        assert_same_trace(f"{TOYS}:no_such_scenario", seed=7)


def test_the_seed_decides():
    def hash_of(seed):
        world = World(seed)
        world.run(toys.counter_scenario(world))
        return world.trace.hash()

    assert hash_of(1) == hash_of(1)
    assert hash_of(1) != hash_of(2)


def test_first_difference():
    assert first_difference(["a"], ["a"]) is None
    assert first_difference(["a", "b"], ["a", "c"]) == "the traces part at line 2 of 2 and 2:\n  a\n- b\n+ c"
    assert first_difference(["a"], ["a", "b"]) == "the traces part at line 2 of 1 and 2:\n  a\n+ b"
