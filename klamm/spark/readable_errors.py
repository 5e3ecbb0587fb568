"""Makes errors readable in a user's program: only the sentence, without a page of Python's traceback above it.

Spark's Python processes send an error to the JVM as text, with the traceback first, unless `SPARK_HIDE_TRACEBACK` is
set. PySpark reads this variable when a process fails, and the process then ends. So this module sets the variable for
klamm's own errors, whose messages are for users. All other errors keep their traceback.

What must stay true:
- Nothing is set in a user's own process, only in one that PySpark has started and that is about to end.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader

from klamm.spark.worker_python import NEEDED, REMEDY

Class = TypeVar("Class", bound=type)


class MissingPackage(ImportError):
    """The Python that Spark has started has klamm, but lacks a package that klamm needs."""


def sentences_first(cls: Class) -> Class:
    """Decorates a class whose methods PySpark calls. Their errors reach the user as one sentence."""
    for name, member in list(vars(cls).items()):
        if isfunction(member) and not name.startswith("_"):
            setattr(cls, name, _readable(member))
    return cls


class RefusedStreamReader(DataSourceStreamReader):
    """Raises an error as soon as Spark uses it.

    PySpark stops a stream's reader even if none was created, so an error in `streamReader` would reach the user as an
    UnboundLocalError in PySpark.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        with _shown():
            raise self._error

    # A restarted query first calls one of the first two methods, a new query one of the others.
    partitions: Any = _refuse
    commit: Any = _refuse
    initialOffset: Any = _refuse
    latestOffset: Any = _refuse
    read: Any = _refuse


def _readable(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        with _shown():
            result = method(*arguments, **options)
        return _each(result) if isinstance(result, Iterator) else result

    return call


def _each(rows: Iterator[Any]) -> Iterator[Any]:
    with _shown():
        yield from rows


@contextmanager
def _shown() -> Iterator[None]:
    try:
        try:
            yield
        except ModuleNotFoundError as error:
            if error.name not in NEEDED:
                raise
            raise MissingPackage(
                f"Spark has started {sys.executable}, which has klamm and no {error.name}: pip install 'klamm[spark]'"
                f" there; or choose another Python before the session begins: {REMEDY}"
            ) from None
    except Exception as error:
        is_for_users = type(error).__module__.startswith("klamm.")
        if is_for_users and "pyspark.worker_util" in sys.modules:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
