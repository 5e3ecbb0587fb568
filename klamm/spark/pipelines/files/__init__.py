"""Pipelines that are described by a file: `keys.py` says what a file may have, `parsing.py` makes a pipeline of one
(`pipeline.py`), and `program.py` writes the PySpark program that the pipeline stands for. `klamm pipeline run` runs it.
"""
