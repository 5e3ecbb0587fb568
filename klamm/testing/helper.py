"""The helper process of clusters under test: it has imported the servers under faults, too."""

from klamm.faults.servers import PRELOAD
from klamm.processes.helper import Helper as AnyHelper


class Helper(AnyHelper):
    """Starts the servers of any number of clusters. It ends with `close`, or with the process that created it."""

    def __init__(self) -> None:
        super().__init__(PRELOAD)
