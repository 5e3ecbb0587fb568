"""CRC-32C, the checksum of record batches, of producer snapshots and of the embedded ZooKeeper server's files.

The package `crc32c` computes it. Its `__init__` also imports a command-line parser and, for its version number,
`importlib.metadata` and `email`. Brokers need none of these, so only the package's extension module is loaded.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _load() -> Callable[..., int]:
    """The extension's function; imports the whole package if its version has no such extension module."""
    package = PathFinder.find_spec("crc32c")
    extension = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if extension is None or extension.loader is None:
        import crc32c as module
    else:
        module = module_from_spec(extension)
        extension.loader.exec_module(module)
    function: Callable[..., int] = module.crc32c
    return function


# crc32c(data, value=0) is the checksum of `data`. With the checksum of preceding data as `value`, it is that of both.
crc32c = _load()
