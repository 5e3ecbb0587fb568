"""The options that commands of `klamm reassign` share, and how they reach the cluster.

Every call of `klamm` imports this module.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from klamm.access.clients import command_properties
from klamm.access.zookeeper import run_with_zookeeper
from klamm.cli.shared.clients import client_in_thread
from klamm.cli.shared.confirm import Yes
from klamm.cli.shared.options import ZooKeeperOptions
from klamm.processes.tool_errors import EXIT_INCOMPLETE

if TYPE_CHECKING:
    from klamm.cli.reassign.access import Access
    from klamm.client.cluster import ClusterClient
    from klamm.znodes.store import KafkaZooKeeper

T = TypeVar("T")

# An execution gives up on a broker that does not answer after this time, and tries again at the next look.
RETRY_TIMEOUT_MS: Final = 3_000
REQUEST_TIMEOUT_MS: Final = 10_000

ReassignmentFile = Annotated[
    Path,
    typer.Option(
        "--reassignment-json-file", metavar="FILE", exists=True, dir_okay=False, help="The plan, in Kafka's JSON."
    ),
]
LogDirThrottle = Annotated[
    int | None,
    typer.Option(
        "--replica-alter-log-dirs-throttle",
        min=1,
        metavar="BYTES/S",
        help="Limit what each broker copies between its log directories.",
    ),
]
PreserveThrottles = Annotated[
    bool, typer.Option("--preserve-throttles", help="Leave the throttles of topics and brokers as they are.")
]


@dataclass(frozen=True)
class Reached(ZooKeeperOptions):
    """The cluster of a command: its brokers, or its znodes if `zookeeper` is given.

    `unread` are the topics and brokers that were left out because their znodes are damaged, and why.
    """

    unread: dict[str, str] = field(default_factory=dict, init=False)

    def with_access(self, work: "Callable[[Access], Awaitable[T]]", *, looks_again: bool = False) -> T:
        """The result of `work`. Requests of a `work` that `looks_again` by itself fail early. Raises ToolError."""
        from klamm.cli.reassign.access import CONTROLLER_AWAITED_MS, BrokerAccess, ZnodeAccess
        from klamm.client.properties import API_TIMEOUT

        if self.zookeeper is None:

            async def over_brokers(client: "ClusterClient") -> T:
                return await work(BrokerAccess(client))

            options = self.client_options(REQUEST_TIMEOUT_MS)
            if looks_again:
                options = replace(options, retry_timeout_ms=RETRY_TIMEOUT_MS)
            elif API_TIMEOUT not in command_properties(self.command_config):
                options = replace(options, retry_timeout_ms=CONTROLLER_AWAITED_MS)
            with client_in_thread(options) as client:
                return client.call(over_brokers)

        async def over_znodes(znodes: "KafkaZooKeeper") -> T:
            access = ZnodeAccess(znodes)
            try:
                return await work(access)
            finally:
                self.unread.update(access.unread)

        return run_with_zookeeper(self.zookeeper, over_znodes)

    def exit_if_unread(self) -> None:
        """Ends the command if topics or brokers were left out. They were named on stderr when they were read."""
        if self.unread:
            raise typer.Exit(EXIT_INCOMPLETE)


@dataclass(frozen=True)
class ReachedByBrokers(Reached):
    """The cluster of a command that only brokers can carry out."""

    zookeeper: str | None = field(default=None, init=False)


@dataclass(frozen=True)
class ExecuteOptions:
    """How a plan is executed."""

    throttle: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES/S", help="Limit what each broker sends and receives for copies.")
    ] = None
    log_dir_throttle: LogDirThrottle = None
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Partitions that each broker copies at a time; all by default.")
    ] = None
    batch_bytes: Annotated[
        int | None, typer.Option(min=1, help="Bytes that each broker copies at a time; all by default.")
    ] = None
    timeout_ms: Annotated[
        int,
        typer.Option(
            "--timeout",
            min=0,
            metavar="MS",
            help="Give up when all remaining partitions have waited this long, for a dead broker for example.",
        ),
    ] = 60_000
    no_wait: Annotated[
        bool, typer.Option(help="Begin everything and return, as Kafka's tool does; verify removes the throttle.")
    ] = False
    yes: Yes = False


@dataclass(frozen=True)
class DecommissionOptions(ExecuteOptions):
    """How brokers are emptied."""

    log_dir_throttle: int | None = field(default=None, init=False)
    no_wait: bool = field(default=False, init=False)
