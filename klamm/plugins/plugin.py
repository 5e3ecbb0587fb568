"""What all plugins have in common."""

from abc import ABC
from collections.abc import Mapping


class Plugin(ABC):  # noqa: B024  # its subclasses say what they must answer
    """Made once at the broker's start, without arguments."""

    def configure(self, properties: Mapping[str, str]) -> None:  # noqa: B027  # optional
        """Gets the broker's properties as they stand in its file, the plugin's own among them. May raise: the broker
        then does not start, and says why."""
