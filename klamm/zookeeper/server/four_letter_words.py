"""The four-letter words with which operators ask a ZooKeeper server about itself (`echo ruok | nc host port`).

The answers have ZooKeeper 3.5's lines, so that monitoring that reads them works unchanged.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import klamm

WORDS: Final = (b"ruok", b"srvr", b"stat", b"mntr", b"conf", b"envi", b"isro")


class ClientFigures(NamedTuple):
    """One connection: `host:port`, requests waiting, requests received, replies and events sent."""

    peer: str
    queued: int
    received: int
    sent: int


class Figures(NamedTuple):
    """The server's counts and state."""

    clients: Sequence[ClientFigures]
    latency_ms: tuple[int, float, int]  # least, average, most
    received: int
    sent: int
    outstanding: int
    zxid: int
    node_count: int
    watch_count: int
    ephemeral_count: int
    data_size_bytes: int
    configuration: Sequence[tuple[str, object]]


def is_four_letter_word(start: bytes) -> bool:
    """Whether these first bytes are a four-letter word. (As a frame's length, they are too large.)"""
    return start in WORDS


def answer(word: str, figures: Figures) -> bytes:
    """The text to send before closing."""
    return _ANSWERS[word](figures).encode()


# This server behaves like this version of ZooKeeper: clients (kazoo) choose their requests by the version.
_VERSION: Final = f"3.5.9-klamm-{klamm.__version__}, built on 01/01/1970 00:00 GMT"


def _srvr(figures: Figures, clients: str = "") -> str:
    least, average, most = figures.latency_ms
    return (
        f"Zookeeper version: {_VERSION}\n"
        f"{clients}"
        f"Latency min/avg/max: {least}/{average:.0f}/{most}\n"
        f"Received: {figures.received}\n"
        f"Sent: {figures.sent}\n"
        f"Connections: {len(figures.clients)}\n"
        f"Outstanding: {figures.outstanding}\n"
        f"Zxid: 0x{figures.zxid:x}\n"
        "Mode: standalone\n"
        f"Node count: {figures.node_count}\n"
    )


def _stat(figures: Figures) -> str:
    lines = [f" /{c.peer}[1](queued={c.queued},recved={c.received},sent={c.sent})\n" for c in figures.clients]
    return _srvr(figures, f"Clients:\n{''.join(lines)}\n")


def _mntr(figures: Figures) -> str:
    least, average, most = figures.latency_ms
    values = {
        "version": _VERSION,
        "avg_latency": f"{average:.0f}",
        "max_latency": most,
        "min_latency": least,
        "packets_received": figures.received,
        "packets_sent": figures.sent,
        "num_alive_connections": len(figures.clients),
        "outstanding_requests": figures.outstanding,
        "server_state": "standalone",
        "znode_count": figures.node_count,
        "watch_count": figures.watch_count,
        "ephemerals_count": figures.ephemeral_count,
        "approximate_data_size": figures.data_size_bytes,
    }
    return "".join(f"zk_{name}\t{value}\n" for name, value in values.items())


_ANSWERS: Final[dict[str, Callable[[Figures], str]]] = {
    "ruok": lambda figures: "imok",
    "envi": lambda figures: f"Environment:\nzookeeper.version={_VERSION}\n",
    "isro": lambda figures: "rw",
    "srvr": _srvr,
    "stat": _stat,
    "mntr": _mntr,
    "conf": lambda figures: "".join(f"{name}={value}\n" for name, value in figures.configuration),
}
