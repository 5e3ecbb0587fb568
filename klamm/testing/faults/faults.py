"""The faults of a cluster under test, and a handle for each of them.

Everything that a test can inject goes through `Faults.install` and `Faults.perform`, which know only the vocabulary
(`klamm.faults.commands`).
"""

import contextlib
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from klamm.faults.commands import Action, Fault, Json, Server
from klamm.faults.control import Control, Installed
from klamm.testing.cluster_errors import ClusterEnded, NotInTime

T = TypeVar("T")

WAIT_TIMEOUT_S = 30.0


class Run(Protocol):
    """Runs a coroutine on the cluster's own loop; raises ClusterError for what the cluster cannot do."""

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


class Faults:
    """The faults of one cluster."""

    def __init__(self, control: Control, run: Run) -> None:
        self._control = control
        self._run = run

    def install(self, fault: Fault) -> "FaultHandle":
        """Installs a fault; returns when it holds in every server that it concerns.

        A server that starts later has the fault from its start. Raises ClusterError.
        """
        return FaultHandle(self._control, self._run, self._run(self._control.install(fault)))

    def perform(self, server: Server | None, action: Action) -> Json:
        """Has a running server carry out an action and returns the result. None as `server` means the server that can,
        such as the controller. Raises ClusterError.
        """
        return self._run(self._control.perform(server, action))

    def performed(self, server: Server, action: Action, result: Json) -> None:
        """Notes in the history what was done to a server that does not run."""
        self._run(self._control.performed(server, action, result))

    @property
    def active(self) -> "list[FaultHandle]":
        """The installed faults, oldest first."""
        return [FaultHandle(self._control, self._run, installed.number) for installed in self._control.active]

    def remove_all(self) -> None:
        """Ends all faults."""
        self._run(self._control.remove_all())


class FaultHandle:
    """One installed fault. A handle stays valid after the fault's end, and then holds the fault's last counts."""

    def __init__(self, control: Control, run: Run, number: int) -> None:
        self._control = control
        self._run = run
        self._number = number

    @property
    def fault(self) -> Fault:
        """The fault itself."""
        return self._installed.fault

    @property
    def calls(self) -> int:
        """How often the fault was asked whether it strikes, in all servers together."""
        self._count()
        return self._installed.calls

    @property
    def hits(self) -> int:
        """How often the fault has struck, in all servers together."""
        self._count()
        return self._installed.hits

    def wait(self, timeout: float = WAIT_TIMEOUT_S, *, hits: int = 1) -> None:
        """Returns when the fault has struck `hits` times. Raises NotInTime after `timeout` seconds, and ClusterError
        when the fault is removed before that."""
        try:
            self._run(self._control.wait_struck(self._number, hits, timeout))
        except TimeoutError:
            raise NotInTime(f"not within {timeout:g} s: {hits} hits of {self.fault}; it has {self.hits}") from None

    def remove(self) -> None:
        """Ends the fault; returns when no server has it any longer. Idempotent."""
        with contextlib.suppress(ClusterEnded):  # The faults end with the cluster.
            self._run(self._control.remove(self._number))

    def replace(self, fault: Fault) -> None:
        """Replaces this fault by another one, without a gap between them; the counts begin at 0."""
        self._number = self._run(self._control.install(fault, instead_of=self._number))

    def _count(self) -> None:
        with contextlib.suppress(ClusterEnded):
            self._run(self._control.count())

    @property
    def _installed(self) -> Installed:
        return self._control.faults[self._number]
