"""Compiles the loops that readers and writers run, before the first query needs them.

What must stay true:
- After `prewarm`, no reader or writer of data frames compiles anything: `prewarm` imports every module with compiled
  loops.
"""

from importlib import import_module

from klamm.base import compiling

KERNELS = (
    "klamm.spark.formats.json_kernels",
    "klamm.spark.read.decoding_kernels",
    "klamm.spark.write.encoding_kernels",
    "klamm.spark.write.partitioning_kernels",
)


def prewarm() -> compiling.Compilations:
    """Returns how many functions were compiled or loaded."""
    for name in KERNELS:
        import_module(name)
    return compiling.compilations()
