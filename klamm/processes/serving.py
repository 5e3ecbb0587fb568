"""Runs one server in this process until it is told to stop; `klamm broker`, `klamm zookeeper` and every process of
`klamm up` use this module.

What must stay true:
- SIGTERM and SIGINT stop the server cleanly; a second signal ends the process at once.
- A server whose parent is gone stops by itself: the parent holds one end of a pipe (the lifeline) and never writes.
- A server that fails stops the process with an error, never silently.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from klamm.base.system_environment import raise_open_file_limit
from klamm.processes.garbage import GarbageCollection
from klamm.processes.kafka_logs import KafkaFormatter
from klamm.processes.tool_errors import EXIT_INTERRUPTED, ToolError, describe_os_error

_log = logging.getLogger(__name__)


class Server(Protocol):
    """A server that `run_server` can run."""

    new_event_loop: Callable[[], asyncio.AbstractEventLoop]
    """Makes the loop on which the server runs."""

    async def start(self) -> Mapping[str, Any]:
        """Returns when clients are served; the result holds the server's ports and addresses (JSON values).

        Raises ToolError or OSError when the server cannot start for a reason outside the program.
        """

    async def failed(self) -> BaseException:
        """Returns when the server cannot continue, with the reason."""

    async def stop(self) -> None:
        """Stops cleanly, also after a start that failed or was interrupted."""


def configure_logging() -> None:
    """Log lines on stderr, with time, level and logger, as Kafka writes them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KafkaFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def run_server(server: Server, on_ready: Callable[[Mapping[str, Any]], None], lifeline: int | None = None) -> None:
    """Serves until a signal, or the end of `lifeline` (a descriptor), and returns after a clean stop.

    Raises ToolError when the server cannot start or has failed.
    """
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=server.new_event_loop) as runner:
        runner.run(_serve(server, on_ready, lifeline))


async def _serve(server: Server, on_ready: Callable[[Mapping[str, Any]], None], lifeline: int | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def stop_or_leave(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(EXIT_INTERRUPTED)
        _log.info("%s: stopping", number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_leave, number)
    if lifeline is not None:

        def parent_gone() -> None:
            loop.remove_reader(lifeline)
            _log.warning("the parent process is gone: stopping")
            stop.set()

        loop.add_reader(lifeline, parent_gone)

    garbage_collection = GarbageCollection(loop)
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.wait((stopping, starting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        on_ready(await starting)
        failing = asyncio.ensure_future(server.failed())
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise ToolError(f"stopped by a failure: {_one_line(failing.result())}")
        failing.cancel()
    except OSError as error:
        raise ToolError(describe_os_error(error)) from error
    finally:
        stopping.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await server.stop()
        garbage_collection.stop()


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError):
        return describe_os_error(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
