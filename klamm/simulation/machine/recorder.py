"""Records a simulated run: every transaction of ZooKeeper, the controllers' records, and the faults.

What must stay true: recording does not change the run. The run calls the recorder, which only reads state and starts
nothing. It reads a controller's records after each transaction, before the controller can have dropped them.
"""

import re
from collections.abc import Callable
from typing import Any, BinaryIO

from klamm.broker.start.broker import Broker
from klamm.recording.entries import FAULT, Json, znode_entry
from klamm.recording.writer import RecordingWriter
from klamm.simulation.machine.znodes import all_znodes
from klamm.znodes.brokers import BROKER_IDS_PATH
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
from klamm.znodes.watch import Znode, is_cluster_state
from klamm.zookeeper.keeper_exceptions import NoNode
from klamm.zookeeper.server.access_control import Caller
from klamm.zookeeper.server.tree import ZnodeTree

_ANYBODY = Caller(0, ())
_PATH = re.compile(r"path='([^']+)'")
_END_OF_SESSION = "CloseSessionTxn"
# The trace's words for what happens to a machine, and the history's.
_SERVERS = {
    "crash": ("server_ended", "was killed"),
    "restart": ("server_started", "starts"),
    "stall": ("server_paused", "is paused"),
    "resume": ("server_resumed", "runs again"),
}
_FAULTS = frozenset(
    ("cut", "cut-one-way", "heal", "heal-all", "end-connections", "fault", "rot", "clock", "elects", "disk-failed")
)


class Recorder:
    """Writes into `file`. `now_ms` is the right wall clock of the simulated world."""

    def __init__(self, file: BinaryIO, about: str, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._writer = RecordingWriter(file, "simulation", about, now_ms())
        self._brokers: dict[int, tuple[Broker, int]] = {}
        # (czxid, mzxid) of each znode that was recorded last.
        self._known: dict[str, tuple[int, int]] = {}

    def close(self) -> None:
        """Writes the rest. The caller closes the file."""
        self._read_records()
        self._writer.flush()

    def failed(self, error: BaseException) -> None:
        """The run has failed."""
        self._add({"kind": FAULT, "text": f"The run failed: {error}"})

    # -- called by the run --------------------------------------------------------------------------------------------

    def starts(self, broker_id: int, broker: Broker) -> None:
        """A new instance of this broker starts."""
        self._read_records()
        self._brokers[broker_id] = (broker, -1)

    def recovered(self, tree: ZnodeTree) -> None:
        """A ZooKeeper server has started with this tree."""
        found = {path for path, _, _ in all_znodes(tree) if is_cluster_state(path)}
        for path in sorted(found | set(self._known)):
            self._look(tree, path)

    def changed(self, tree: ZnodeTree, transaction: str) -> None:
        """A transaction has been applied to the tree."""
        self._read_records()
        if transaction.startswith(_END_OF_SESSION):
            # The end of a session deletes ephemeral znodes that the transaction does not name.
            paths = [path for path in self._known if path == CONTROLLER_PATH or path.startswith(f"{BROKER_IDS_PATH}/")]
        else:
            paths = [path for path in dict.fromkeys(_PATH.findall(transaction)) if is_cluster_state(path)]
            # One transaction creates /controller and sets the epoch, which the entry about the controller contains.
            paths.sort(key=lambda path: path != CONTROLLER_EPOCH_PATH)
        for path in paths:
            self._look(tree, path)

    def event(self, where: str, what: str, details: tuple[object, ...]) -> None:
        """`Trace.on_event`."""
        if what in _SERVERS:
            kind, text = _SERVERS[what]
            server: Any = where.removeprefix("broker-")
            self._add({"kind": kind, "server": int(server) if server.isdigit() else server, "text": f"{where} {text}"})
        elif where == "faults" or what in _FAULTS:
            self._add({"kind": FAULT, "text": " ".join(map(str, (where, what, *details)))})

    # -- inside -------------------------------------------------------------------------------------------------------

    def _look(self, tree: ZnodeTree, path: str) -> None:
        try:
            data, stat = tree.get_data(path, _ANYBODY)
        except NoNode:
            if self._known.pop(path, None) is not None:
                self._add(znode_entry(Znode(path, None)))
            return
        if self._known.get(path) != (stat.czxid, stat.mzxid):
            self._known[path] = (stat.czxid, stat.mzxid)
            self._add(znode_entry(Znode(path, data or b"", stat.czxid, stat.mzxid, stat.version)))

    def _read_records(self) -> None:
        now_ms = self._now_ms()
        found: list[tuple[int, Json]] = []
        for broker_id, (broker, last) in self._brokers.items():
            if not hasattr(broker, "parts"):
                continue  # The broker is not that far in its start.
            records = broker.parts.controller.state_changes.records(last)
            # With a wrong clock the times still stay behind the run's; the writer ensures that they do not go back.
            found += [(min(each.record.time_ms, now_ms), each.described(broker_id)) for each in records]
            if records:
                self._brokers[broker_id] = (broker, records[-1].sequence)
        for at_ms, record_entry in sorted(found, key=lambda each: each[0]):
            self._writer.add(record_entry, at_ms)

    def _add(self, entry: Json) -> None:
        self._writer.add(entry, self._now_ms())
