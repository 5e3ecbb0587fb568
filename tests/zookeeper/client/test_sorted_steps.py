"""The children of a znode are sorted in steps, and no step sorts many of them."""

import pytest

from klamm.base.slices import CHEAP_SLICE, in_one_go
from klamm.simulation.machine.small_slices import small_slices
from klamm.zookeeper.client.operations import sorted_steps


@pytest.mark.parametrize("size", range(10))
def test_what_is_sorted_in_steps_is_sorted(size: int) -> None:
    names = [f"{7 * number % 10}{number}" for number in range(size)]
    with small_slices():
        assert in_one_go(sorted_steps(names)) == sorted(names)


def test_no_step_sorts_many_times_what_a_slice_has() -> None:
    names = [f"{number * 31 % 9973}" for number in range(8 * CHEAP_SLICE + 1)]
    steps = sorted_steps(names)
    # Nine pieces; then five, three, two and one that are merged.
    assert sum(1 for _ in steps) == 8 + 5 + 3 + 2 + 1
    assert in_one_go(sorted_steps(names)) == sorted(names)
