"""The environment of a broker under faults: its disk and its wall clock obey the cluster's owner.

Disk faults also hold in the processes of `run_in_background` (the log cleaner's). The faults that are installed when a
piece of work begins hold until it ends, but waits for a slow disk end with the fault. Work of `run_in_worker` uses
neither disk nor clock.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from klamm.base.environment import FileSystem
from klamm.base.system_environment import SystemEnvironment
from klamm.faults.agent import Agent
from klamm.faults.clock import FaultyClock
from klamm.faults.commands import Json
from klamm.faults.commands.clock import ShiftClock
from klamm.faults.commands.disk import DiskFault, FailDisk, FullDisk, SlowDisk
from klamm.faults.file_system import Active, DiskFaults, FaultyFileSystem
from klamm.faults.tally import Tally

T = TypeVar("T")


class EnvironmentUnderFaults(SystemEnvironment):
    """The machine as the broker sees it. `directory` holds the files that the servers of the cluster share."""

    def __init__(self, directory: str, log_directories: Sequence[str]) -> None:
        super().__init__()
        self._directory = directory
        self._log_directories = log_directories
        self._disk = DiskFaults(log_directories)
        self._clock = FaultyClock(self.true_now_ms)
        self.file_system = FaultyFileSystem(self._disk)

    def register(self, agent: Agent) -> None:
        """Registers the faults of the disk and the clock with the agent."""
        for kind in (SlowDisk, FailDisk, FullDisk):
            agent.installs(kind, self._disk.install)
        agent.installs(ShiftClock, self._clock.install)

    def true_now_ms(self) -> int:
        """The wall clock without faults."""
        return super().now_ms()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def run_in_background(self, work: Callable[..., Generator[float, None, T]], *arguments: object) -> T:
        installed = self._disk.installed
        if not installed:
            return await super().run_in_background(work, *arguments)
        given = [_Given(active.number, active.fault, active.bytes_left, active.hits) for active in installed]
        outcome: _Outcome = await super().run_in_background(
            _under_faults, given, self._directory, self._log_directories, work, arguments
        )
        for active in installed:
            for calls, details in outcome.calls.get(active.number, ()):
                active.tally.calls += calls
                if details is not None:
                    active.tally.struck(**details)
            active.bytes_left += outcome.freed_bytes.get(active.number, 0)
        if outcome.error is not None:
            raise outcome.error
        result: T = outcome.result  # type: ignore[assignment]
        return result


class _Given(NamedTuple):
    """A fault as passed to a process."""

    number: int
    fault: DiskFault
    bytes_left: int
    hits: int


class _Outcome(NamedTuple):
    """The answer of a process: the result or error of its work, and the strikes and counts of the faults."""

    result: object
    error: Exception | None
    calls: Mapping[int, list[tuple[int, Mapping[str, Json] | None]]]
    freed_bytes: Mapping[int, int]


def _under_faults(
    _file_system: FileSystem,
    given: list[_Given],
    directory: str,
    log_directories: Sequence[str],
    work: Callable[..., Generator[float, None, object]],
    arguments: tuple[object, ...],
) -> Generator[float, None, _Outcome]:
    """Runs the work in its process."""
    strikes: dict[int, list[tuple[int, Mapping[str, Json] | None]]] = {}

    def struck(tally: Tally, details: Mapping[str, Json]) -> None:
        strikes.setdefault(tally.number, []).append((0, details))

    disk = DiskFaults(log_directories)
    for one in given:
        disk.begin(Active(one.number, one.fault, Tally(one.number, directory, struck), one.bytes_left, one.hits))
    result, error = None, None
    try:
        result = yield from work(FaultyFileSystem(disk), *arguments)
    except Exception as failure:
        error = failure
    for active in disk.installed:
        strikes.setdefault(active.number, []).append((active.tally.calls, None))
    freed = {one.number: active.bytes_left - one.bytes_left for one, active in zip(given, disk.installed, strict=True)}
    return _Outcome(result, error, strikes, freed)
