"""The schedule of a run's faults and operator actions, as data: drawn from a seed, printed, shortened and replayed.

What must stay true: each step has its own source of chance (`step_chance`) for its brokers, links and outages. So a
step does the same whatever steps come before it, as far as the state of the cluster allows it.
"""

import json
import random
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

from klamm.simulation.workloads.run_shape import RunShape


@dataclass(frozen=True, slots=True)
class Step:
    """After a pause, a fault or a piece of operators' work begins. `number` seeds the choices that it makes."""

    pause_s: float
    action: str
    number: int

    def __str__(self) -> str:
        return f"after {self.pause_s:.1f} s {self.action} ({self.number})"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that a run depends on. `seed` decides the choices of the steps, and how long everything takes."""

    seed: int
    shape: RunShape
    steps: tuple[Step, ...]

    def with_steps(self, steps: Sequence[Step]) -> "Schedule":
        return replace(self, steps=tuple(steps))

    def to_json(self) -> str:
        lines = ",\n    ".join(json.dumps(asdict(step)) for step in self.steps)
        shape = json.dumps(asdict(self.shape))
        return f'{{\n  "seed": {self.seed},\n  "shape": {shape},\n  "steps": [\n    {lines}\n  ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> "Schedule":
        """ValueError when the text is not a schedule."""
        try:
            content: dict[str, Any] = json.loads(text)
            shape: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in content["shape"].items()
            }
            return cls(content["seed"], RunShape(**shape), tuple(Step(**step) for step in content["steps"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a schedule of the simulation: {error!r}") from None


_CHANCE: ContextVar[random.Random] = ContextVar("klamm_simulated_step")


def begin_step(seed: int, step: Step) -> None:
    """From now on `step_chance` returns the step's chance in this task and in all tasks that it starts."""
    _CHANCE.set(random.Random(f"{seed}/step/{step.number}"))


def step_chance(default: random.Random) -> random.Random:
    """The chance of the step that the current task belongs to; `default` outside of all steps."""
    return _CHANCE.get(default)
