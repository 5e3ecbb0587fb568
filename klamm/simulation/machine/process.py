"""Processes of the simulation: which process's code is running, and what remains of a process after its death.

A context variable names the process. asyncio copies the context into every task, timer and callback, so every task of a
process carries its name.

What must stay true:
- A killed process takes no further step: the loop drops its callbacks and timers instead of running them.
- A stalled process takes no step either, but its callbacks wait for it, in the order in which they became due.
- The coroutines of a killed process are kept until the world ends. If they were collected earlier, Python would throw
  GeneratorExit into them, and their `finally` blocks would change the world after the death of their process.
"""

import asyncio
import contextvars
import itertools
import weakref
from collections.abc import Iterator
from typing import Any


class SimulationFailure(AssertionError):
    """The run failed: a fault of the code under test, a deadlock, or a step outside the simulator's seams."""


class ProcessDead(RuntimeError):
    """Raised by the disk and the environment of a process that has been killed, and to tasks that wait for its work."""


class Process:
    """One life of a simulated program, from its start to its death. `host` is the name of the machine it runs on."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.stalled = False
        self.open_files = 0
        self._tasks: dict[int, weakref.ref[asyncio.Task[Any]]] = {}
        self._numbers = itertools.count()
        self._kept: list[object] = []

    def __str__(self) -> str:
        return self.name

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Remembers a task without keeping it alive: a task without any reference is a fault that must show."""
        number = next(self._numbers)
        tasks = self._tasks
        tasks[number] = weakref.ref(task, lambda _: tasks.pop(number, None))

    def tasks(self) -> "Iterator[asyncio.Task[Any]]":
        """The tasks that are not done yet, oldest first."""
        for reference in list(self._tasks.values()):
            task = reference()
            if task is not None and not task.done():
                yield task

    def kill(self) -> None:
        """Ends the process at its current instruction."""
        self.alive = False
        self._kept.extend(self.tasks())

    def keep(self, remains: object) -> None:
        """Keeps an object of a dead process from being finalized while the world continues."""
        self._kept.append(remains)

    def check_alive(self) -> None:
        """ProcessDead once the process has been killed."""
        if not self.alive:
            raise ProcessDead(f"{self.name} has been killed")


CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("klamm_simulated_process")


def context_of(process: Process) -> contextvars.Context:
    """A new context in which `process` is the current one."""
    context = contextvars.copy_context()
    context.run(CURRENT.set, process)
    return context
