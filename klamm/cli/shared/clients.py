"""How a command reaches a Kafka cluster, and how it reports that it cannot."""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, ParamSpec, TypeVar

import typer

from klamm.access.clients import cluster_errors, gap_text, reach_cluster, silence_text
from klamm.cli.shared.output import print_line
from klamm.processes.tool_errors import EXIT_INCOMPLETE
from klamm.protocol.error_codes import KafkaError

if TYPE_CHECKING:
    import asyncio
    from typing import Concatenate

    from klamm.client.cluster import ClusterClient
    from klamm.client.options import ClientOptions

T = TypeVar("T")
P = ParamSpec("P")


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# After this time, a command prints what it is waiting for.
TELL_AFTER_S: Final = 2.0
LOOK_AGAIN_S: Final = 0.5


@contextmanager
def client_in_thread(options: "ClientOptions") -> Iterator["ClientInThread"]:
    """A client whose event loop runs in another thread, for commands that wait for input or print meanwhile.

    Prints on stderr what it waits for, if that takes long. Raises ToolError when no broker can be reached, and for
    errors of the cluster.
    """
    from klamm.client import threads

    async def begin(shared: "ClusterClient") -> "tuple[ClusterClient, asyncio.Task[None]]":
        import asyncio

        client = shared.another()
        teller = asyncio.ensure_future(_tell_waits(client))
        try:
            await reach_cluster(client, options)
        except BaseException:
            teller.cancel()
            await client.close()
            raise
        return client, teller

    async def end() -> None:
        teller.cancel()
        await client.close()

    with cluster_errors():
        client, teller = threads.call(options, begin)
        try:
            yield ClientInThread(options, client)
        finally:
            threads.call(options, lambda _: end())


async def _tell_waits(client: "ClusterClient") -> None:
    """Prints once for each broker and reason what the client waits for, after `TELL_AFTER_S`."""
    import asyncio

    if not sys.stderr.isatty():
        return
    told: set[str] = set()
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        for what in client.waits(TELL_AFTER_S).values():
            if what not in told:
                told.add(what)
                print_line(f"klamm: waiting: {what}", file=sys.stderr)


class ClientInThread:
    """Runs coroutines on the loop of a client. A coroutine has ended when `call` returns."""

    def __init__(self, options: "ClientOptions", client: "ClusterClient") -> None:
        self._options = options
        self._client = client

    def call(
        self,
        request: "Callable[Concatenate[ClusterClient, P], Awaitable[T]]",
        *arguments: "P.args",
        **named: "P.kwargs",
    ) -> T:
        """The result of `request(client, ...)`. Raises ToolError. An interrupt of the caller cancels the request."""
        from klamm.client import threads

        with cluster_errors():
            return threads.call(self._options, lambda _: request(self._client, *arguments, **named))


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within this context SIGTERM works like Ctrl-C: the command reports what it has done, and leaves its group."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def exit_incomplete(silent: Mapping[int, str], gap: KafkaError | None = None) -> None:
    """Prints which brokers have not answered and what else is missing, and ends the command if there is anything. Call
    it after the results are printed."""
    for broker_id, why in sorted(silent.items()):
        print_line(f"klamm: {silence_text(broker_id, why)}", file=sys.stderr)
    if gap is not None:
        print_line(f"klamm: {gap_text(gap)}", file=sys.stderr)
    if silent or gap is not None:
        raise typer.Exit(EXIT_INCOMPLETE)
