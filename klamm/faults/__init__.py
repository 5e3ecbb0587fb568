"""Faults on demand in a running cluster, for `klamm.testing.Cluster` and `klamm up --control-port`.

The production broker has no branch for faults. A server under faults has a target of its own (`servers.py`), which
composes the same broker with an environment, an event loop and a dispatcher that can do harm, and with an agent that
takes commands. `klamm broker`, and `klamm up` without a control port, never import this package.

| module        | what it holds                                                                                    |
|---------------|--------------------------------------------------------------------------------------------------|
| `commands/`   | the vocabulary: one frozen dataclass for each fault and each action, with its JSON form          |
| `wire.py`     | the lines between an agent and its control                                                       |
| `agent.py`    | in the server: installs and removes faults, performs actions, reports what the faults strike     |
| `tally.py`    | in the server: how often a fault was asked and struck, and its turns among all servers           |
| `servers.py`  | in the server: the composition; each kind of fault has its place here                            |
| `environment.py`, `file_system.py`, `clock.py` | in the server: its disk and its wall clock                      |
| `broker_actions.py`, `elections.py`, `corruption.py` | in the server: what it does once at a command             |
| `network.py`  | in the server: which fault of the network concerns which connection                              |
| `tap.py`, `lanes.py` | in the server: one connection that can be disturbed; one direction of it                  |
| `witness.py`  | in the server: reports elections and truncations with their offsets                              |
| `control.py`  | in the owner's process: the active faults, one channel to each server, and the tallies           |
| `entries.py`  | what can stand in the history: one frozen dataclass for each kind of entry                       |
| `history.py`  | the history, its report, and the Python that repeats its faults                                  |
| `local_cluster.py`, `control_port.py` | in the owner's process: the servers with a control, and its port over HTTP  |
| `chronicle.py`, `metadata_changes.py` | in the owner's process: what changes in ZooKeeper, for the history         |

How a new fault plugs in:

1. `commands/NAME.py`: a frozen dataclass that derives from `Fault` (which stays until it is removed) or from `Action`
   (which is performed once and has a result), with the decorator `command("area.name")`. Its `__post_init__` calls
   `super().__post_init__()`, which checks the types, and raises ValueError with a sentence for values out of range.
   `commands/__init__.py` imports it. `method` names the method of a Cluster that installs it, for reports.
2. `klamm/faults/AREA.py`: a class that does it in the server. `agent.installs(TheFault, install)`: `install(fault,
   tally)` begins and returns a function that ends it. `agent.performs(TheAction, perform)`: `await perform(action)`
   returns a JSON value. The class calls `tally.asked()` and `tally.struck(topic=..., ...)`; what it passes to `struck`
   stands in the history.
3. `servers.py`: one line in the composition.
4. `klamm/testing/faults/AREA.py`: the methods for users, made of `faults.install(TheFault(...))`, which returns a
   handle, and `faults.perform(server, TheAction(...))`, which returns the result. `Cluster` and `AsyncCluster` get
   them as one property (`c.network`) or as methods.

`tests/faults/test_agent_and_control.py` has a small example, `Dog`.

What must stay true:
- A server under faults listens on nothing more than the same server without them: its agent dials its owner, over a
  unix-domain socket that only the owner's user can open.
- A fault holds from a server's first connection: a server that starts gets the active faults before it does anything.
- Without an installed fault a request costs what it costs in production, but for a look into an empty dict.
"""
