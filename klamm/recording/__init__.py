"""Recordings: what happened in a cluster, in one file, and the cluster's state at each moment of it.

| module          | what it holds                                                                                     |
|-----------------|---------------------------------------------------------------------------------------------------|
| `entries.py`    | what can stand in a recording, as JSON objects: znode versions, the controller's records, history |
| `state.py`      | the state of a cluster, and what each entry changes in it. Pure                                   |
| `difference.py` | what differs between two states, as data and in words. Pure                                       |
| `blocks.py`     | the file: compressed blocks of lines that a reader can pass over without decompressing            |
| `writer.py`     | writes a file: entries in the order of time, and keyframes                                        |
| `reader.py`     | reads a file: the state at a moment, entries, the story of a partition                            |
| `spool.py`      | keeps versions of znodes in memory, compressed, until a file is wanted                            |
| `history.py`    | makes a file of them, of a cluster's history and of the controllers' records                      |

The format is described in docs/recordings.md.
"""
