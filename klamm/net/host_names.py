"""Which names of a Host header are a server's own. Pure.

A page of another site can make a browser ask a server of the browser's own machine or network: the site points its own
name at the server's address ("DNS rebinding"), and the browser then lets the page read the answers. Such a request has
the site's name in its Host header, so the attack does not reach a server that answers only to its own names. A request
by IP address is safe, because no site can have another machine's IP address.

What must stay true: the server answers requests by IP address, by the names of the loopback interface, by the names
that the machine has for itself, and by the configured names.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Final

ANY: Final = "*"
"""As a configured name: every name is the server's own."""

_HOST: Final = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)(?:%[\w.]+)?\]|(?P<name>[^\s:@/?#\[\]]+))(?::[0-9]*)?")


class OwnNames:
    """The names of a server that listens on `listens_on` ("" for all addresses). `configured` returns the operator's
    names, and is called for each request; `setting` is the setting in which an operator adds a name.
    `of_machine` are the names that the machine has for itself.

    A server on a loopback address answers to no IP address outside the loopback interface.
    """

    def __init__(
        self, listens_on: str, configured: Callable[[], Iterable[str]] = tuple, *, setting: str | None = None
    ) -> None:
        self._listens_on = listens_on
        self._configured = configured
        self._setting = setting
        self.of_machine: frozenset[str] = frozenset()

    def has(self, host: str) -> bool:
        """Whether a Host header names this server. The port is not compared: a tunnel may have another one."""
        found = _HOST.fullmatch(host.strip())
        if found is None:
            return False
        try:
            address = ipaddress.ip_address(found["ipv6"] or found["name"])
        except ValueError:
            return self._is_own_name(found["name"] or "")
        return address.is_loopback or not is_loopback(self._listens_on)

    def why_not(self, host: str) -> str:
        """The refusal of a Host header that names another server."""
        added = "" if self._setting is None else f"; {self._setting} adds names"
        return f"this server does not answer to the name {host[:100]!r}{added}"

    def _is_own_name(self, name: str) -> bool:
        name = _plain(name)
        own = {"localhost", _plain(self._listens_on), *map(_plain, self.of_machine), *map(_plain, self._configured())}
        # Resolvers complete a name with their search domain, so kafka-0 also names the machine kafka-0.kafka.example.
        return ANY in own or any(each == name or each.startswith(f"{name}.") for each in own)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
