"""The entries of a recording. An entry is a JSON object with its `kind`; the file adds the time. Pure.

- `znode`, `znode_deleted`: a version of a znode of the cluster's state.
- `partition`, `replica`, `request`, `controller`, `event`, `missed`: a record of the controller, as its HTTP port
  returns it.
- The kinds of `klamm.faults.entries`: actions of the cluster's owner, and reports of servers.
- `fault`: a fault of a simulated run.
- `recording`: the first entry of a file, which says what is recorded.

What must stay true: an entry contains no configurations, no credentials and no records of a topic.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeAlias

from klamm.faults.entries import ChronicleEntry
from klamm.znodes.watch import Znode

Json: TypeAlias = dict[str, Any]

ZNODE, ZNODE_DELETED, FAULT = "znode", "znode_deleted", "fault"
RECORD_KINDS = frozenset(("partition", "replica", "request", "controller", "event", "missed"))


class EntryError(ValueError):
    """This version of klamm does not write such an entry. The message says what is wrong with it."""


def znode_entry(znode: Znode) -> Json:
    """The entry for a version of a znode, or for its deletion."""
    if znode.data is None:
        return {"kind": ZNODE_DELETED, "path": znode.path}
    entry: Json = {
        "kind": ZNODE,
        "path": znode.path,
        "version": znode.version,
        "czxid": znode.czxid,
        "mzxid": znode.mzxid,
    }
    try:
        return entry | {"data": znode.data.decode()}
    except UnicodeDecodeError:
        return entry | {"data_base64": base64.b64encode(znode.data).decode()}


def znode_of(entry: Mapping[str, Any]) -> Znode:
    """The znode version of an entry of kind `znode` or `znode_deleted`. Raises EntryError."""
    path = text_of(entry, "path")
    if entry["kind"] == ZNODE_DELETED:
        return Znode(path, None)
    if "data_base64" in entry:
        try:
            data = base64.b64decode(text_of(entry, "data_base64"), validate=True)
        except binascii.Error as error:
            raise EntryError(f"data_base64 of {path} is no base64: {error}") from None
    else:
        data = text_of(entry, "data").encode()
    return Znode(path, data, *(integer_of(entry, name) for name in ("czxid", "mzxid", "version")))


def history_entry(entry: ChronicleEntry) -> Json:
    """The entry for an event in the history of a cluster; `text` is its line in a report."""
    return entry.to_json() | {"text": str(entry)}


def text_of(entry: Mapping[str, Any], name: str) -> str:
    """A text field. Raises EntryError."""
    value = entry.get(name)
    if not isinstance(value, str):
        raise EntryError(f"{name} of an entry of kind {entry.get('kind')!r} is {type(value).__name__}, not text")
    return value


def integer_of(entry: Mapping[str, Any], name: str) -> int:
    """An integer field. Raises EntryError."""
    value = entry.get(name)
    if type(value) is not int:
        raise EntryError(f"{name} of an entry of kind {entry.get('kind')!r} is {type(value).__name__}, not a number")
    return value
