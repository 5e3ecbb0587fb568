"""How many elements the containers of a program hold, by the class and attribute that hold them.

A program that leaks grows in some dict, list, set or deque; its name says where. The walk follows attributes, elements,
closures, bound methods and the local variables of waiting coroutines.
"""

import asyncio
import types
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

CONTAINERS = (dict, list, tuple, set, frozenset, deque)
SIZED = (*CONTAINERS, bytes, bytearray)
# Where the program ends: the simulator's own objects, modules and classes.
STRANGE = (types.ModuleType, type)


def sizes(*roots: object, own: str = "klamm.", strange: str = "klamm.simulation") -> Counter[str]:
    """The elements (of bytes: the bytes) below these objects. A name is `Class.attribute`, with `[]` for each level of
    containers in it; `Class()` counts the objects of a class."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("root", root) for root in roots]
    while left:
        name, value = left.pop()
        if value is None or isinstance(value, STRANGE) or id(value) in seen:
            continue
        module = type(value).__module__
        if module.startswith(strange):
            continue
        seen.add(id(value))
        if isinstance(value, SIZED) and not hasattr(value, "_fields"):
            found[name] += len(value)
        if module.startswith(own):
            found[f"{type(value).__qualname__}()"] += 1
        left += _parts(name, value, own)
    return found


def _parts(name: str, value: object, own: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[]", each) for pair in list(value.items()) for each in pair)
    elif isinstance(value, CONTAINERS):
        yield from ((f"{name}[]", each) for each in list(value))
    elif isinstance(value, partial):
        yield from ((name, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield name, value.__self__
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue  # An empty cell.
    elif isinstance(value, asyncio.Task):
        yield name, value.get_coro()
    elif isinstance(value, types.CoroutineType | types.AsyncGeneratorType | types.GeneratorType):
        yield from _locals(value)
    elif type(value).__module__.startswith(own):
        yield from _attributes(value)


def _locals(waiting: Any) -> Iterator[tuple[str, Any]]:
    prefix = next(prefix for prefix in ("cr", "ag", "gi") if hasattr(waiting, f"{prefix}_frame"))
    frame = getattr(waiting, f"{prefix}_frame")
    if frame is not None:
        yield from ((f"{waiting.__qualname__}.{name}", each) for name, each in frame.f_locals.items())
    yield "await", getattr(waiting, f"{prefix}_await" if prefix != "gi" else "gi_yieldfrom")


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    kind = type(value).__qualname__
    for name, each in list(getattr(value, "__dict__", {}).items()):
        yield f"{kind}.{name}", each
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f"{kind}.{name}", getattr(value, name)
