"""`klamm record`: records a live cluster into a file for `klamm cockpit FILE`.

Any cluster with ZooKeeper can be recorded: its znodes are watched. A klamm controller's records are followed as well.

What must stay true: the cluster is only read. A recording holds every znode as it was when the recorder was told to
stop, unless ZooKeeper does not answer at that time. A killed recorder leaves a file that lacks the last seconds.
"""

import threading  # the controller's stream is read by blocking calls
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.access.zookeeper import SESSION_TIMEOUT_MS
from klamm.cli.shared.options import ZooKeeperOptions
from klamm.cli.shared.output import print_line
from klamm.processes.tool_errors import ToolError, describe_os_error

if TYPE_CHECKING:
    from typing import BinaryIO

# How often entries are written, and how often the recorder looks for a controller that has records.
TURN_S: Final = 0.5
LOOK_EVERY_S: Final = 1.0
# The recording begins after this time at the latest, even if the controller does not answer.
FIRST_LOOK_S: Final = 5.0
# At the end, the recorder waits at most this long for earlier writes to ZooKeeper to arrive.
CATCH_UP_S: Final = 2.0
# At most this many records of the controller wait to be written.
MAX_WAITING: Final = 200_000


@dataclass(frozen=True)
class RecordOptions(ZooKeeperOptions):
    """The cluster to record. There is no --json."""

    as_json: bool = field(default=False, init=False)


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    cluster: RecordOptions,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="End after this many seconds; by default at Ctrl-C.", show_default=False),
    ] = None,
) -> None:
    """Record what happens in a cluster with ZooKeeper, until Ctrl-C; klamm cockpit FILE shows each moment of it."""
    import asyncio

    from klamm.access.controller import zookeeper_of_brokers

    connect = cluster.zookeeper or cluster.call(zookeeper_of_brokers)
    try:
        opened = open(file, "xb")  # noqa: SIM115  # closed below
    except FileExistsError:
        raise ToolError(f"{file} exists; name a file that does not") from None
    except OSError as error:
        raise ToolError(describe_os_error(error)) from None
    with opened:
        count = asyncio.run(_record(connect, opened, seconds))
    print_line(f"{file} has {count} entries. To open it: klamm cockpit {file}")


async def _record(connect: str, file: "BinaryIO", seconds: float | None) -> int:
    """Records until a signal or the end of the time. Returns the number of entries."""
    import asyncio
    import signal

    from klamm.base.system_environment import SystemEnvironment
    from klamm.recording.entries import znode_entry
    from klamm.recording.ordering import Ordering
    from klamm.recording.writer import RecordingWriter
    from klamm.znodes.watch import Znode, ZnodeWatch
    from klamm.zookeeper.keeper_exceptions import ZooKeeperError

    environment = SystemEnvironment(blocking_workers=1)
    now_ms = environment.now_ms
    writer = RecordingWriter(file, "live", f"the cluster at ZooKeeper {connect}", now_ms())
    ordering = Ordering(writer)
    has_begun = False

    def seen(znode: Znode) -> None:
        if has_begun:
            ordering.add(znode_entry(znode), now_ms(), now_ms())
        else:
            writer.add(znode_entry(znode), now_ms(), is_news=False)

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    watch = ZnodeWatch(environment, connect, SESSION_TIMEOUT_MS, seen)
    stream = _Stream(connect, now_ms())
    ends_s = None if seconds is None else time.monotonic() + seconds
    try:
        async with asyncio.timeout(SESSION_TIMEOUT_MS / 1000):
            await watch.start()
        has_begun = True
        writer.flush()
        stream.start()
        await environment.run_blocking(stream.wait)
        print_line(f"Recording the cluster at ZooKeeper {connect}; Ctrl-C ends it.", flush=True)
        while not stopping.is_set() and (ends_s is None or time.monotonic() < ends_s):
            try:
                async with asyncio.timeout(TURN_S):
                    await stopping.wait()
            except TimeoutError:
                pass
            for entry in stream.take():
                ordering.add(entry, entry.get("time_ms", now_ms()), now_ms())
            ordering.release(now_ms())
            writer.flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await watch.catch_up()
        for entry in stream.take():
            ordering.add(entry, entry.get("time_ms", now_ms()), now_ms())
    except TimeoutError:
        raise ToolError(f"ZooKeeper at {connect} does not answer within {SESSION_TIMEOUT_MS // 1000} s") from None
    except (ZooKeeperError, ValueError) as error:
        raise ToolError(f"ZooKeeper at {connect}: {error}") from error
    except OSError as error:
        raise ToolError(describe_os_error(error)) from error
    finally:
        await watch.close()
        environment.close()
    ordering.release_all()
    writer.flush()
    return writer.entries


class _Stream:
    """Follows the records of klamm controllers, from `since_ms` on, in a thread of its own that ends with the program.

    While the controller is Apache Kafka's, which has no records, nothing is read.
    """

    def __init__(self, connect: str, since_ms: int) -> None:
        self._connect = connect
        self._since_ms = since_ms
        self._waiting: deque[dict[str, Any]] = deque()
        self._missed = 0
        self._has_looked = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._follow, name="klamm-record", daemon=True).start()

    def wait(self) -> None:
        """Returns when the controller's records are followed, or when the controller is known to have no records."""
        self._has_looked.wait(FIRST_LOOK_S)

    def take(self) -> list[dict[str, Any]]:
        """The records that have come since the last call."""
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._missed:
            taken.append({"kind": "missed", "records": self._missed})
            self._missed = 0
        return taken

    def _follow(self) -> None:
        from klamm.cli.cluster.controller import controller_records

        while True:
            try:
                for found in controller_records(self._connect, True, lambda text: None):
                    self._has_looked.set()
                    if found["kind"] != "missed" and found["time_ms"] < self._since_ms:
                        continue
                    if len(self._waiting) < MAX_WAITING:
                        self._waiting.append(found)
                    else:
                        self._missed += 1
            except ToolError:
                self._has_looked.set()
                time.sleep(LOOK_EVERY_S)
