"""The addresses of hosts, in the form in which connections name their peers."""

import asyncio
import socket


async def addresses_of(host: str) -> list[str]:
    """The addresses of a host; an IP address is returned as it is. Raises OSError for an unknown host."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return [socket.inet_ntop(family, socket.inet_pton(family, host))]
        except (OSError, ValueError):
            continue
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except ValueError as error:  # A label that is too long, or a zero byte.
        raise OSError(str(error)) from error
    return [str(address[0]) for *_, address in found]
