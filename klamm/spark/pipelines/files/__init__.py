"""Pipelines that are described by a file. `keys.py` has the keys of a file, `parsing.py` makes a pipeline from a file
(`pipeline.py`), and `program.py` writes the PySpark program of the pipeline. `klamm pipeline run` runs the program.
"""
