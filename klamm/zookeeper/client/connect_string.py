"""ZooKeeper's connect string (`zookeeper.connect`): the servers, and the chroot that every path is below. Pure.

What must stay true:
- Any other text than a list of servers and an absolute path is refused with an error that names the invalid part.
"""

import re
from typing import NamedTuple

DEFAULT_PORT = 2181


class ConnectString(NamedTuple):
    """`zookeeper.connect`: the servers and the chroot, which is "" or begins with a slash."""

    servers: tuple[tuple[str, int], ...]
    chroot: str


def parse_connect_string(text: str) -> ConnectString:
    """Parses `host1:2181,host2,[::1]:2183/chroot`. Raises ValueError that names the invalid part."""
    hosts, slash, chroot = text.partition("/")
    chroot = (slash + chroot).rstrip("/")
    if "//" in chroot or any(part in (".", "..") for part in chroot.split("/")):
        raise ValueError(f"the chroot {chroot!r} in {text!r} is not an absolute path without empty, . or .. parts")
    return ConnectString(tuple(_parse_server(server.strip(), text) for server in hosts.split(",")), chroot)


def _parse_server(server: str, text: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        host, port = server, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not _HOST.fullmatch(host) or not (_PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise ValueError(f"{server!r} in {text!r} is not host or host:port with a port from 1 to 65535")
    return host, int(port)


_HOST = re.compile(r"[0-9A-Za-z_-]{1,63}(\.[0-9A-Za-z_-]{1,63})*\.?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(%[0-9A-Za-z_.-]+)?")
"""A host name, or an IPv4 or IPv6 address."""
_PORT = re.compile("[0-9]{1,5}")
