"""Faults on demand in a running cluster, for `klamm.testing.Cluster` and `klamm up --control-port`.

The production broker has no code for faults. A server under faults has its own target (`servers.py`), which composes
the same broker with an environment, an event loop and a dispatcher that can cause faults, and with an agent that takes
commands. `klamm broker`, and `klamm up` without a control port, never import this package.

| module        | what it holds                                                                                    |
|---------------|--------------------------------------------------------------------------------------------------|
| `commands/`   | the vocabulary: one frozen dataclass for each fault and each action, with its JSON form          |
| `wire.py`     | the lines between an agent and its control                                                       |
| `agent.py`    | in the server: installs and removes faults, performs actions, reports strikes                    |
| `tally.py`    | in the server: the calls and strikes of a fault, and its turns among all servers                 |
| `servers.py`  | in the server: the composition, with each kind of fault                                          |
| `environment.py`, `file_system.py`, `clock.py` | in the server: its disk and its wall clock                      |
| `broker_actions.py`, `elections.py`, `corruption.py` | in the server: the actions                                |
| `network.py`  | in the server: which network fault concerns which connection                                     |
| `tap.py`, `lanes.py` | in the server: one connection that can be disturbed, and one of its directions            |
| `witness.py`  | in the server: reports elections and truncations with their offsets                              |
| `control.py`  | in the owner's process: the active faults, one channel to each server, and the tallies           |
| `entries.py`  | the entries of the history: one frozen dataclass for each kind                                   |
| `history.py`  | the history, its report, and the Python that repeats its faults                                  |
| `local_cluster.py`, `control_port.py` | in the owner's process: the servers with a control, and its port over HTTP  |
| `chronicle.py`, `metadata_changes.py` | in the owner's process: changes in ZooKeeper, for the history              |

How to add a new fault:

1. `commands/NAME.py`: a frozen dataclass that derives from `Fault` (which stays until it is removed) or from `Action`
   (which is performed once and has a result), with the decorator `command("area.name")`. Its `__post_init__` calls
   `super().__post_init__()`, which checks the types, and raises ValueError with a sentence for values out of range.
   `commands/__init__.py` imports the class. `method` names the method of a Cluster that installs it, for reports.
2. `klamm/faults/AREA.py`: a class that carries it out in the server. For `agent.installs(TheFault, install)`,
   `install(fault, tally)` begins the fault and returns a function that ends it. For `agent.performs(TheAction,
   perform)`, `await perform(action)` returns a JSON value. The class calls `tally.asked()` and
   `tally.struck(topic=..., ...)`; the arguments of `struck` appear in the history.
3. `servers.py`: one line in the composition.
4. `klamm/testing/faults/AREA.py`: the methods for users. They call `faults.install(TheFault(...))`, which returns a
   handle, or `faults.perform(server, TheAction(...))`, which returns the result. `Cluster` and `AsyncCluster` have
   them as one property (`c.network`) or as methods.

`tests/faults/test_agent_and_control.py` has a small example, `Dog`.

What must stay true:
- A server under faults listens on no additional port: its agent connects to the owner, over a unix-domain socket that
  only the owner's user can open.
- A fault holds from a server's first connection on: a starting server gets the active faults before it does anything.
- Without an installed fault a request costs the same as in production, except for a look into an empty dict.
"""
