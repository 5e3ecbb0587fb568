"""Reads configuration files and `key=value` options of commands."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from klamm.config.listeners import split_list
from klamm.config.properties import PropertiesError, parse_properties
from klamm.processes.tool_errors import ToolError


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of a .properties file. Raises ToolError or OSError."""
    try:
        return parse_properties(path.read_bytes())
    except PropertiesError as error:
        raise ToolError(f"{path}: {error}") from error


def parse_pairs(option: str, pairs: Iterable[str]) -> dict[str, str]:
    """The pairs of a repeated `option key=value`. Raises typer.BadParameter."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{pair!r} is not of the form key=value", param_hint=option)
        parsed[key.strip()] = value.strip()
    return parsed


def with_absolute_directories(properties: Mapping[str, str]) -> dict[str, str]:
    """The broker's properties, with log directories made absolute from the current directory."""
    absolute = {
        key: ",".join(os.path.abspath(directory) for directory in split_list(properties[key]))
        for key in ("log.dir", "log.dirs")
        if key in properties
    }
    return {**properties, **absolute}
