"""kafka-python's message classes without the rest of kafka-python.

Importing `kafka.protocol` first runs the package `kafka`, which imports a consumer, a producer and an admin client. No
broker, Spark worker or command has a use for them, and each would pay 0.2 s and 18 MB. So until somebody asks the
package for one of them, it stays empty.

What must stay true: a program that uses kafka-python, before or after, finds the whole of it.

Source: PEP 562.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_PACKAGE = "kafka"


def message_module(name: str) -> ModuleType:
    """The module of this name below `kafka.protocol`."""
    _prepare()
    return import_module(name)


@cache
def _prepare() -> None:
    """Puts the package in its place, but runs it when it is first asked for what it does not have."""
    if _PACKAGE in sys.modules:
        return
    spec = find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        raise ImportError("klamm needs kafka-python")
    package, run = module_from_spec(spec), spec.loader.exec_module

    def find(name: str) -> Any:
        vars(package).pop("__getattr__", None)
        run(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = find
    sys.modules[_PACKAGE] = package
