"""A znode of the server's tree, and what a path may be."""

import re
from typing import Final

from klamm.zookeeper.messages import Acl, Stat

# The znodes that every ZooKeeper has. They can neither be created nor deleted.
CONFIG_PATH: Final = "/zookeeper/config"
RESERVED_PATHS: Final = ("/", "/zookeeper", "/zookeeper/quota", CONFIG_PATH)

# The owner that marks a container znode (EphemeralType.CONTAINER_EPHEMERAL_OWNER); clients see 0.
CONTAINER_OWNER: Final = -(2**63)

# The characters that PathUtils.validatePath forbids. Characters beyond the basic plane are surrogates in Java, which it
# forbids too.
_VALID_PATH: Final = re.compile(
    "/|(?:/(?!\\.\\.?(?:/|\\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]+)+"
)


class Node:
    """A znode. `cversion` counts the creations of children; clients see creations and deletions together."""

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "ctime",
        "cversion",
        "czxid",
        "data",
        "ephemeral_owner",
        "mtime",
        "mzxid",
        "pzxid",
        "version",
    )

    def __init__(
        self, data: bytes | None, acl: tuple[Acl, ...], zxid: int = 0, time_ms: int = 0, ephemeral_owner: int = 0
    ) -> None:
        self.data = data
        self.acl = acl
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.cversion = self.aversion = 0
        self.ephemeral_owner = ephemeral_owner
        self.children: dict[str, None] | None = None  # most znodes are leaves

    @property
    def child_count(self) -> int:
        return len(self.children) if self.children else 0

    def stat(self) -> Stat:
        child_count = len(self.children) if self.children else 0
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            int32(self.cversion * 2 - child_count),
            self.aversion,
            0 if self.ephemeral_owner == CONTAINER_OWNER else self.ephemeral_owner,
            len(self.data) if self.data else 0,
            child_count,
            self.pzxid,
        )


def parent_of(path: str) -> str:
    """The parent's path."""
    return path[: path.rindex("/")] or "/"


def is_valid_path(path: str) -> bool:
    """Whether ZooKeeper allows this path for a znode (PathUtils.validatePath)."""
    return _VALID_PATH.fullmatch(path) is not None


def int32(number: int) -> int:
    """The number as a version: versions wrap around like Java's integers."""
    return (number + 2**31) % 2**32 - 2**31
