"""Pipelines that are described by a file: `keys.py` says what a file may have, `parsing.py` reads one, and `program.py`
writes the PySpark program that it stands for. `klamm pipeline run` runs that program.
"""
