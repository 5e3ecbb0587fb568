"""How long the work for a request holds the loop.

What must stay true: a watch that is never paused reads the clock only at its start.
"""

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stopwatch:
    """How long the work for a request has held the loop: `spent_s`, and since `began_s` while it runs. It runs when it
    is made."""

    __slots__ = ("_clock_s", "began_s", "spent_s", "started_s")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.spent_s = 0.0
        self.started_s = clock_s()
        self.began_s: float | None = self.started_s

    def pause(self) -> None:
        """Idempotent."""
        if self.began_s is not None:
            self.spent_s += self._clock_s() - self.began_s
            self.began_s = None

    def resume(self) -> None:
        self.pause()
        self.began_s = self._clock_s()

    @coroutine
    def measured(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Runs the work; the watch, which is paused, runs with each of its steps."""
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            self.resume()
            try:
                waits_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.pause()
            try:
                sent, thrown = (yield waits_for), None
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                thrown = error
