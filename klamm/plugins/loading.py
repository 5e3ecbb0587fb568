"""Finds the class that a configuration key names.

Where Kafka has the name of a Java class, klamm has `module:Class`. The broker imports the module, so it must be
installed, or stand in a directory of PYTHONPATH. Kafka's own replica selector also has its Java name.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from klamm.plugins.plugin import Plugin

P = TypeVar("P", bound=Plugin)


class PluginError(Exception):
    """The class that a key names cannot be used. The message names the key, the value and what is allowed."""


def load_plugin(
    key: str,
    name: str,
    base: type[P],
    properties: Mapping[str, str],
    built_in: Mapping[str, type[P]] = MappingProxyType({}),
) -> P:
    """The configured plugin that `name`, the value of `key`, stands for: a subclass of `base`. Raises PluginError.

    An exception of the plugin's own code becomes a PluginError, too.
    """
    try:
        plugin_class = built_in[name] if name in built_in else _find(name, base)
        plugin = plugin_class()
        plugin.configure(properties)
    except BaseException as error:  # also SystemExit: the broker says why it does not start
        what = error if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        raise PluginError(f"{key}={name}: {what}") from error
    return plugin


def _find(name: str, base: type[P]) -> type[P]:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise PluginError(f"not of the form module:Class, which names a Python subclass of {_full_name(base)}")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, type) or not issubclass(found, base):
        raise PluginError(f"not a subclass of {_full_name(base)}")
    return found


def _full_name(found: type) -> str:
    return f"{found.__module__}.{found.__qualname__}"
