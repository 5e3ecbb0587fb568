"""How a command reaches the znodes of a cluster directly, with `--zookeeper`."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from klamm.access.zookeeper import open_znodes

if TYPE_CHECKING:
    from klamm.znodes.store import KafkaZooKeeper

T = TypeVar("T")


ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,.../CHROOT",
        help="Work on ZooKeeper's znodes at this address, instead of through the brokers.",
    ),
]


def run_with_zookeeper(connect: str, work: "Callable[[KafkaZooKeeper], Awaitable[T]]") -> T:
    """The result of `work(znodes)`. Raises ToolError as `open_znodes`, and for a KafkaError."""
    import asyncio

    from klamm.access.clients import cluster_errors

    async def run() -> T:
        async with open_znodes(connect) as znodes:
            return await work(znodes)

    with cluster_errors():
        return asyncio.run(run())
