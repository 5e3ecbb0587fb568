"""What the modules of `pages` share: what they are given, and how they answer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from starlette.responses import Response

from klamm.tools.cockpit.source import Source


@dataclass(frozen=True)
class Cockpit:
    """What the pages get: where they read from, and whether they may change anything.

    `brokers_options` and `zookeeper_options` are the words by which a command of klamm reaches the same cluster.
    `state_change_logs` is a directory with state-change logs of the brokers.
    """

    source: Source
    allow_changes: bool = False
    brokers_options: tuple[str, ...] = ()
    zookeeper_options: tuple[str, ...] = ()
    state_change_logs: Path | None = None


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON answer. `value` is what orjson takes."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def error_response(status: int, why: str) -> Response:
    """{"error": why}: what was wrong, and what is allowed."""
    return json_response({"error": why}, status)
