"""The brokers that are compared: Apache Kafka 2.8.2, and klamm in a process of its own, maybe with a planted fault."""

import asyncio
import logging
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.one_broker import OneBroker
from support.oracles import RealKafka, RealZooKeeper, kafka_jars
from support.planted_faults.fault import PlantedFault
from support.requests_beside.play import PROPERTIES


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """The address of a broker of Apache Kafka 2.8.2."""
    jars = kafka_jars()
    with ExitStack() as stack:
        zookeeper = RealZooKeeper(jars, directory / "zookeeper")
        broker = RealKafka(jars, directory / "kafka", zookeeper.connect, properties=PROPERTIES)
        for server in (zookeeper, broker):
            stack.callback(server.kill)
            server.start()
        yield broker.bootstrap


@contextmanager
def klamm(directory: Path, fault: PlantedFault | None = None) -> Iterator[str]:
    """The address of a broker of klamm, which has this fault."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(ours, theirs, directory, fault), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join()


def _serve(parents: Connection, pipe: Connection, directory: Path, fault: PlantedFault | None) -> None:
    """Serves until the other end of the pipe is closed, however its process ends."""
    parents.close()
    logging.disable()

    async def serve() -> None:
        properties: dict[str, Any] = dict(PROPERTIES)
        async with OneBroker(directory, **properties) as cluster:
            host, port = cluster.broker.endpoints["PLAINTEXT"]
            pipe.send(f"{host}:{port}")
            await asyncio.to_thread(pipe.poll, None)

    with nullcontext() if fault is None else fault.planted():
        asyncio.run(serve())
