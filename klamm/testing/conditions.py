"""Waits for a condition; if it does not become true, the message says what the condition saw.

While a condition is evaluated, each of its calls to a cluster is noted with the result. So the message for a condition
such as `lambda: c.leader("orders", 0) == 2` names the actual leader, not only that the condition was false.
"""

import linecache
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from klamm.testing.cluster_errors import ClusterError, NotInTime

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.1


@dataclass
class Evaluation:
    """One evaluation of a condition: its value or its error, and its calls to the cluster."""

    value: Any = None
    error: Exception | None = None
    noted: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        seen = repr(self.value) if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return ", ".join([seen, *(f"{question} = {answer}" for question, answer in self.noted.items())])


_current: ContextVar[Evaluation | None] = ContextVar("klamm_look", default=None)


def note(question: str, *arguments: object, answer: object) -> None:
    """Notes a call and its result for the `Wait` that evaluates a condition, if any."""
    look = _current.get()
    if look is not None:
        look.noted[f"{question}({', '.join(map(repr, arguments))})"] = repr(answer)


class Wait:
    """One wait for a condition. `explain` returns more text for the message of NotInTime.

    wait = Wait(condition, timeout_s, explain)
    while True:
        with wait.look() as look:
            look.value = condition()
        if look.value:
            return look.value
        time.sleep(wait.pause_s())
    """

    def __init__(self, condition: Callable[[], Any], timeout_s: float, explain: Callable[[], str]) -> None:
        self._condition = condition
        self._timeout_s = timeout_s
        self._explain = explain
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = FIRST_PAUSE_S
        self._last = Evaluation()

    @contextmanager
    def look(self) -> Iterator[Evaluation]:
        """The context of one evaluation. A failed assertion, or a cluster that cannot answer, counts as false."""
        self._last = look = Evaluation()
        token = _current.set(look)
        try:
            yield look
        except (AssertionError, ClusterError) as error:
            look.value, look.error = None, error
        finally:
            _current.reset(token)

    def pause_s(self) -> float:
        """The pause before the next evaluation. Raises NotInTime when the time is over."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            message = f"not within {self._timeout_s:g} s: {_source(self._condition)}\nlast seen: {self._last}"
            raise NotInTime(f"{message}\n{self._explain()}") from self._last.error
        pause_s, self._pause_s = min(self._pause_s, left_s), min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s


def _source(condition: Callable[[], Any]) -> str:
    """The condition as the message shows it: a function's name, or a lambda's source line."""
    name = getattr(condition, "__qualname__", repr(condition))
    code = getattr(condition, "__code__", None)
    if code is None or not name.endswith("<lambda>"):
        return str(name)
    return linecache.getline(code.co_filename, code.co_firstlineno).strip() or str(name)
