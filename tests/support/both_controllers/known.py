"""What the comparison leaves out, and the differences that are known, each with its reason. Nothing else is forgiven."""

import re
from collections.abc import Callable
from typing import NamedTuple

# Znodes that are not looked at.
NOT_LOOKED_AT = {
    # The barrier's, whose changes show that a cluster is at rest.
    r"/brokers/topics/barrier(/.*)?": "the barrier's own",
    r"/config/topics/barrier": "the barrier's own",
    r"/brokers/ids/50": "the barrier's own broker",
    # The notifications of barriers; the controller removes all that it finds, at any time.
    r"/isr_change_notification/.*": "barriers come and go",
    # Written by the scenarios only, and removed by brokers a quarter of an hour later.
    r"/config/changes/.*": "removed after a quarter of an hour",
    r"/config/brokers/10[01]": "written by the scenarios to see that configurations have been applied",
    # Producer ids are no business of the controller in 2.8.
    r"/latest_producer_id_block": "each broker takes blocks when it starts",
}

_NOT_LOOKED_AT = re.compile("|".join(NOT_LOOKED_AT))


def is_looked_at(path: str) -> bool:
    return _NOT_LOOKED_AT.fullmatch(path) is None


def kind_of_path(path: str) -> str:
    """The path with `*` instead of the names in it."""
    return re.sub(r"(?<=topics/)[^/]+|(?<=/)[0-9]+", "*", path)


def epochs_begun(step: object, before: object) -> dict[str, list[str]]:
    return {}
