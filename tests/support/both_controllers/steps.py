"""The steps of a sequence: one thing that an operator, a broker or the machine does. Values that JSON can hold.

What must stay true: a step that cannot be done in the present state does nothing, and does the same nothing on both
sides, so that a shorter sequence is a sequence, too. What a step needs to know of the cluster (the leader, the ISR's
version) it takes from its own side when it is done.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """`kind` is the name of a method of `Side`, `arguments` are its arguments."""

    kind: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(json.dumps(argument) for argument in self.arguments)})"


class Scenario(NamedTuple):
    """`brokers` recorders, which are alive at the beginning, and what happens then."""

    brokers: int
    steps: tuple[Step, ...]

    def with_steps(self, steps: Sequence[Step]) -> "Scenario":
        return self._replace(steps=tuple(steps))

    def encode(self) -> str:
        return json.dumps({"brokers": self.brokers, "steps": [[step.kind, *step.arguments] for step in self.steps]})

    @classmethod
    def decode(cls, text: str) -> "Scenario":
        values = json.loads(text)
        return cls(values["brokers"], tuple(Step(kind, tuple(rest)) for kind, *rest in values["steps"]))


# Steps after which another controller may have taken over. It tells every broker everything: only what each has been
# told last is compared.
FAILOVERS = frozenset({"move_controller", "expire_controller", "kill_controller"})
