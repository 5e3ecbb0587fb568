"""The vocabulary of faults. All interfaces use these classes: Python, HTTP, the command line, the history, pytest's
marker and hypothesis's strategy.

`from_json` is the inverse of `Fault.to_json`.
"""

from klamm.faults.commands.actions import (
    CorruptBatch,
    Elect,
    ExpireSession,
    ExpireTransaction,
    ForceRebalance,
    MoveController,
)
from klamm.faults.commands.answers import DelayAnswers, DisconnectClients, DropAnswers, FailAnswers
from klamm.faults.commands.clock import ShiftClock
from klamm.faults.commands.codec import Action, Command, Fault, Json, command, from_json, kinds
from klamm.faults.commands.disk import FailDisk, FullDisk, SlowDisk
from klamm.faults.commands.network import CutLinks, DelayLinks, HalfOpenConnections, ResetConnections, SlowLinks
from klamm.processes.local_cluster import Server

__all__ = [
    "Action",
    "Command",
    "CorruptBatch",
    "CutLinks",
    "DelayAnswers",
    "DelayLinks",
    "DisconnectClients",
    "DropAnswers",
    "Elect",
    "ExpireSession",
    "ExpireTransaction",
    "FailAnswers",
    "FailDisk",
    "Fault",
    "ForceRebalance",
    "FullDisk",
    "HalfOpenConnections",
    "Json",
    "MoveController",
    "ResetConnections",
    "Server",
    "ShiftClock",
    "SlowDisk",
    "SlowLinks",
    "command",
    "from_json",
    "kinds",
]
