"""Access control lists: which identities a caller has proven, and what an ACL permits them. Pure.

What must stay true:
- A znode that anyone may change has the tuple `OPEN_ACL` itself, so that `permits` recognises it by identity.
- An entry that no caller could ever match is refused when the ACL is set.

Source: PrepRequestProcessor.fixupACL and the authentication providers of ZooKeeper 3.5.9.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from klamm.zookeeper import keeper_exceptions
from klamm.zookeeper.messages import OPEN_ACL, Acl


class Identity(NamedTuple):
    """A proven identity of a connection: scheme `ip`, `digest` or `super`."""

    scheme: str
    id: str


class Caller(NamedTuple):
    """The caller: its session and the identities that its connection has proven."""

    session_id: int
    identities: Sequence[Identity]


def permits(acl: Sequence[Acl], permissions: int, identities: Sequence[Identity]) -> bool:
    """Whether an ACL gives one of these identities at least one of the permissions."""
    if not acl or acl is OPEN_ACL or any(identity.scheme == "super" for identity in identities):
        return True
    for granted, scheme, name in acl:
        if granted & permissions:
            if (scheme, name) == _ANYONE:
                return True
            matches = _MATCHES.get(scheme)
            if matches and any(identity.scheme == scheme and matches(identity.id, name) for identity in identities):
                return True
    return False


def digest_identity(credentials: bytes) -> Identity:
    """The identity that `addauth digest user:password` proves: the user and base64(sha1(credentials))."""
    user = credentials.split(b":", 1)[0].decode("utf-8", "replace")
    digest = base64.b64encode(hashlib.sha1(credentials, usedforsecurity=False).digest()).decode("ascii")
    return Identity("digest", f"{user}:{digest}")


def _ip_address(text: str) -> int | None:
    """An IPv4 address as a number."""
    parts = text.split(".")
    if len(parts) != 4 or not all(_IS_BYTE.fullmatch(part) and int(part) < 256 for part in parts):
        return None
    return int.from_bytes(bytes(map(int, parts)), "big")


def _ip_network(text: str) -> tuple[int, int] | None:
    """The address in `1.2.3.4` or `1.2.3.4/24`, and the number of its low bits that are ignored."""
    address_text, slash, bits_text = text.partition("/")
    address = _ip_address(address_text)
    if address is None:
        return None
    if not slash:
        return address, 0
    if not _IS_BYTE.fullmatch(bits_text) or int(bits_text) > 32:
        return None
    return address, 32 - int(bits_text)


def _ip_matches(name: str, expression: str) -> bool:
    network = _ip_network(expression)
    address = _ip_address(name)
    return network is not None and address is not None and address >> network[1] == network[0] >> network[1]


_IS_BYTE: Final = re.compile("[0-9]{1,3}")
_ANYONE: Final = ("world", "anyone")
_MATCHES: Final[dict[str, Callable[[str, str], bool]]] = {"digest": str.__eq__, "ip": _ip_matches}
_IS_VALID_ID: Final[dict[str, Callable[[str], bool]]] = {
    "digest": lambda text: len(text.rstrip(":").split(":")) == 2,
    "ip": lambda text: _ip_network(text) is not None,
}


def expand_acl(path: str, acl: Sequence[Acl], identities: Sequence[Identity]) -> tuple[Acl, ...]:
    """The ACL to store: without repetitions, and with `auth` replaced by the caller's authenticated identities.

    Raises InvalidACL if it is empty or an entry is not usable (PrepRequestProcessor.fixupACL).
    """
    if acl == OPEN_ACL:
        return OPEN_ACL  # one tuple for all, which `permits` recognises by identity
    expanded: dict[Acl, None] = {}
    for entry in acl:
        if (entry.scheme, entry.id) == _ANYONE:
            expanded[entry] = None
        elif entry.scheme == "auth":
            own = [identity for identity in identities if identity.scheme == "digest"]
            if not own:
                raise keeper_exceptions.InvalidACL(path, "auth without having authenticated")
            expanded.update(dict.fromkeys(Acl(entry.permissions, *identity) for identity in own))
        else:
            is_valid_id = _IS_VALID_ID.get(entry.scheme)
            if is_valid_id is None or not is_valid_id(entry.id):
                raise keeper_exceptions.InvalidACL(path, f"{entry.scheme}:{entry.id}")
            expanded[entry] = None
    if not expanded:
        raise keeper_exceptions.InvalidACL(path, "empty")
    return tuple(expanded)
