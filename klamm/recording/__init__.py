"""Recordings: the events of a cluster in one file, from which its state at each moment can be read.

| module          | what it holds                                                                                     |
|-----------------|---------------------------------------------------------------------------------------------------|
| `entries.py`    | the entries of a recording as JSON objects: znode versions, the controller's records, history     |
| `state.py`      | the state of a cluster, and what each entry changes in it. Pure                                   |
| `difference.py` | the difference between two states, as data and in words. Pure                                     |
| `blocks.py`     | the file: compressed blocks of lines that a reader can skip without decompressing                 |
| `writer.py`     | writes a file: entries in the order of time, and keyframes                                        |
| `reader.py`     | reads a file: the state at a moment, entries, the story of a partition                            |
| `spool.py`      | keeps znode versions compressed in memory until they are written to a file                        |
| `history.py`    | writes a file from the spool, a cluster's history and the controllers' records                    |

The format is described in docs/recordings.md.
"""
