"""Lets PySpark's Python processes import the installed PySpark instead of its copy in `pyspark.zip`.

Spark puts its zip files first on the path of every Python process that it starts, also where PySpark is installed.
Python keeps no compiled modules of a zip file: each process compiles them again, for half a second, and a first query
starts five processes. Python runs `klamm-pyspark.pth` when it starts, and that file imports this module where
`pyspark.zip` is on the path.

What must stay true:
- An entry leaves the path only if it lies inside the first PySpark that the rest of the path has, with py4j: the same
  modules are imported, from files. The zip files of another Spark stay.
- Importing this module imports nothing heavy: every process of PySpark does it.
"""

import os
import sys


def without_zip_files(path: list[str]) -> list[str]:
    """The path without what lies inside the installed PySpark."""
    # Another PySpark may come before it on the path: without its zip files, that one would be imported.
    first = next((entry for entry in path if _has(entry, "pyspark")), None)
    if first is None or not _has(first, "py4j"):
        return path
    installed = os.path.realpath(os.path.join(first, "pyspark")) + os.sep
    return [entry for entry in path if not os.path.realpath(entry).startswith(installed)]


def _has(entry: str, package: str) -> bool:
    return os.path.isfile(os.path.join(entry, package, "__init__.py"))


sys.path[:] = without_zip_files(sys.path)
