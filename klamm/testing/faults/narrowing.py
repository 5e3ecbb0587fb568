"""Handles of faults that their methods narrow: `c.fail(...).when(topic="orders").once()`.

Such an expression describes one fault, and `c.fail(...)` alone holds when it returns. So each of these calls looks at
the bytecode of its caller: if the caller next calls one of these methods on the result, the fault is only described,
and not installed yet.

What must stay true:
- An expression installs one fault, fully described: a half-described fault would strike a client that sends meanwhile.
- If the caller's bytecode does not show the next call, the fault is installed at once. A method of an installed fault
  then replaces it by the narrower one.
"""

import dis
import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from types import FrameType
from typing import Any, ClassVar, Self, cast

from klamm.faults.commands import Fault
from klamm.testing.faults.faults import FaultHandle, Faults


class Narrowable(ABC):
    """The methods that the handles for threads and for asyncio share."""

    def once(self) -> Self:
        """Only the first call is struck, in the whole cluster unless the fault is for one broker."""
        return self.times(1)

    def times(self, times: int) -> Self:
        """At most `times` calls are struck."""
        return self._narrow(times=times)

    def on_call(self, *calls: int) -> Self:
        """Only these calls are struck; the first is 1."""
        return self._narrow(on_call=calls)

    @abstractmethod
    def _narrow(self, **changes: Any) -> Self: ...


class NarrowableHandle(Narrowable, FaultHandle):
    """A fault that is installed by the last call of the expression that describes it."""

    methods: ClassVar[tuple[str, ...]] = ("once", "times", "on_call")
    """The methods that narrow it."""

    def __init__(self, faults: Faults, fault: Fault) -> None:
        self._faults = faults
        self._is_installed = False
        self._describe(fault)

    def _narrow(self, **changes: Any) -> Self:
        self._describe(replace(cast(Any, self._described), **changes))
        return self

    def _describe(self, fault: Fault) -> None:
        self._described = fault
        if _calls_next(self.methods):
            return
        if self._is_installed:
            self.replace(fault)
            return
        installed = self._faults.install(fault)
        super().__init__(installed._control, installed._run, installed._number)
        self._is_installed = True


def _calls_next(methods: tuple[str, ...]) -> bool:
    """Whether the caller of this package next looks up one of these methods on the returned value."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        frame = frame.f_back
    if frame is None:
        return False
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti and instruction.opname != "EXTENDED_ARG":
            return instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and instruction.argval in methods
    return False
