"""How long the work for a request holds the loop.

What must stay true: a watch that is never paused reads the clock only at its start.
"""

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stopwatch:
    """How long the work for a request has held the loop. A new watch runs.

    A running watch has run since `began_s`, which moves on with each pause. A paused watch (`began_s` is None) has run
    for `spent_s`.
    """

    __slots__ = ("_clock_s", "began_s", "spent_s")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.began_s: float | None = clock_s()
        self.spent_s: float

    def pause(self) -> None:
        """Idempotent."""
        if self.began_s is not None:
            self.has_waited()
            self.spent_s = self._clock_s() - self.began_s
            self.began_s = None

    def has_waited(self) -> None:
        """For subclasses: the watch is about to be paused."""

    def resume(self) -> None:
        """Idempotent."""
        if self.began_s is None:
            self.began_s = self._clock_s() - self.spent_s

    def read_s(self) -> float:
        """How long the watch has run. The watch runs afterwards."""
        self.pause()
        self.resume()
        return self.spent_s

    @coroutine
    def measured(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Runs the work. The watch must be paused, and runs only during the steps of the work."""
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
