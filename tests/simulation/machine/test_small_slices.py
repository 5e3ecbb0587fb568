"""Every pause of a broker is one that the simulator takes: the table of small slices is complete."""

import importlib
import pkgutil
import re

import klamm
from klamm.simulation.machine.small_slices import SMALL, small_slices

# What no simulated broker runs, or what has slices of its own.
ELSEWHERE = re.compile(
    r"klamm\.(access|cli|cockpit|diagnosis|processes|protocol|simulation|spark|testing|zookeeper\.server)\b"
)
NOT_PAUSES = {
    # The size of a piece of a topic's partitions, named there for PARTITIONS_IN_PIECE.
    ("klamm.controller.topic_deletion", "SLICE"),
    # Steps within one call of the worker, or of the loop that it stands for.
    ("klamm.storage.log.batch_inspection", "STEPS_PER_SLICE"),
    ("klamm.storage.log.timestamp_lookup", "STEPS_PER_SLICE"),
}


def test_every_size_of_a_slice_is_in_the_table() -> None:
    sizes = set()
    for found in pkgutil.walk_packages(klamm.__path__, "klamm."):
        if ELSEWHERE.match(found.name) is None:
            module = importlib.import_module(found.name)
            sizes |= {
                (found.name, name)
                for name, value in vars(module).items()
                if re.search(r"(^|_)(SLICE|PER_STEP)$", name) and isinstance(value, int)
            }
    assert sizes - NOT_PAUSES - {(module, name) for module, name, _ in SMALL} == set()


def test_slices_are_small_inside_and_as_they_were_outside() -> None:
    def sizes() -> list[int]:
        return [getattr(importlib.import_module(module), name) for module, name, _ in SMALL]

    usual = sizes()
    with small_slices():
        assert sizes() == [small for _, _, small in SMALL]
    assert sizes() == usual
